//go:build amd64 || arm64

package early

import "golang.org/x/sys/unix"

// value reads a value, or the beginning of an object or a list.
//
//go:nosplit
func (s *spec) value(p place) bool {
	c := s.peek()
	switch {
	case c == '{':
		return opens(p) && s.push(p, true)
	case c == '[':
		return lists(p) && s.push(p, false)
	case c == '"':
		t := s.quoted()
		return t.to < s.size && s.told(p, t)
	case c == '-' || '0' <= c && c <= '9':
		return s.number(p)
	}
	return s.literal(p)
}

//go:nosplit
func opens(p place) bool {
	return p == inSpec || p == inProcess || p == inCapabilities || p == inMap || p == inLinux || p == inResources || p == inRule || p == inMount || p == inAny || p == inFree
}

//go:nosplit
func lists(p place) bool {
	return p == inTexts || p == inRules || p == inMounts || p == inOptions || p == inAny || p == inFree
}

//go:nosplit
func (s *spec) push(p place, object bool) bool {
	next := s.depth
	if next >= uint(len(s.frames)) {
		return false
	}
	s.pos++
	s.frames[next] = frame{at: p, object: object, keys: s.count}
	s.depth = next + 1
	switch p {
	case inRule:
		s.rule = rule{}
	case inMount:
		s.mount.bind, s.mount.source = false, cut{}
	}
	return true
}

//go:nosplit
func (s *spec) close(f *frame) bool {
	s.count = f.keys
	s.depth--
	switch {
	case f.at == inRule:
		s.rules++
		return s.rule.harmless(s.rules == 1)
	case f.at == inMount && s.mount.bind:
		return s.isNoDevice(s.mount.source)
	}
	return true
}

// isNoDevice says that something is there, and that it is no character device.
//
//go:nosplit
func (s *spec) isNoDevice(source cut) bool {
	b := &work.path
	b.reset()
	for i := source.from; i < source.to; i++ {
		b.addByte(s.at(i))
	}
	return b.text[0] == '/' && b.stat(&work.stat, 0) && work.stat.Mode&unix.S_IFMT != unix.S_IFCHR
}

// number reads a whole number.
//
//go:nosplit
func (s *spec) number(p place) bool {
	from, n, negative := s.pos, 0, false
	if s.at(s.pos) == '-' {
		negative = true
		s.pos++
	}
	first := s.pos
	for ; s.pos < s.size; s.pos++ {
		c := s.at(s.pos)
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int(c-'0')
	}
	digits := s.pos - first
	if digits < 1 || digits > 18 || digits > 1 && s.at(first) == '0' || s.pos >= s.size || from == s.pos {
		return false
	}
	switch p {
	case inMajor:
		s.rule.major, s.rule.hasMajor = n, true
		return !negative
	case inMinor:
		s.rule.minor, s.rule.hasMinor = n, true
		return !negative
	}
	return p == inAny || p == inFree
}

// literal reads true, false or null.
//
//go:nosplit
func (s *spec) literal(p place) bool {
	from := s.pos
	for s.pos < s.size && 'a' <= s.at(s.pos) && s.at(s.pos) <= 'z' {
		s.pos++
	}
	word := cut{from, s.pos}
	yes, no := s.says(word, "true"), s.says(word, "false")
	if p == inAllow && (yes || no) {
		s.rule.allow, s.rule.hasAllow = yes, true
		return true
	}
	return (p == inAny || p == inFree) && (yes || no || s.says(word, "null"))
}
