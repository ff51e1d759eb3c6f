//go:build amd64 || arm64

package early

import "unsafe"

// A spec is plain if nothing in it can concern berth, whatever the configuration says
// and whichever accelerators the host has. Only what engines write for a container
// without devices is: text without escapes and without the words below, known keys in
// their own letters, none twice; no hooks and no device nodes; device rules that begin
// by denying all and allow numbers that are the kernel's own; capabilities that are named,
// and no administrator's; binds of what is there and is no character device. All else is for package wrapper to judge, and most of that
// turns out to be of no concern either.

// The names that keys have, those first that are there most often. What is in none of
// these letters is unknown, and so a spec with it isn't plain.
const names = " allow type major minor access destination source options path devices" +
	" additionalGids ambient annotations apparmorProfile args blockIO bounding burst capabilities cgroupsPath" +
	" checkBeforeUpdate class classID closID commandLine consoleSize containerID cpu cpus cwd deadline" +
	" disableOOMKiller domain domainname effective enableMonitoring env execCPUAffinity fileMode final flags gid gidMappings" +
	" hard hcaHandles hcaObjects height hostID hostname hugepageLimits idle inheritable initial intelRdt ioPriority kernel" +
	" kernelTCP l3CacheSchema leafWeight limit linux maskedPaths memBwSchema memory memoryPolicy mems mode" +
	" mountLabel mounts name namespaces nanosecs network nice noNewPrivileges nodes ociVersion oomScoreAdj pageSize" +
	" period permitted personality pids policy priorities priority process quota rate rdma readonly readonlyPaths" +
	" realtimePeriod realtimeRuntime reservation resources rlimits root rootfsPropagation runtime scheduler schemata seccomp" +
	" secs selinuxLabel shares size soft swap swappiness sysctl terminal throttleReadBpsDevice throttleReadIOPSDevice" +
	" throttleWriteBpsDevice throttleWriteIOPSDevice timeOffsets uid uidMappings umask unified useHierarchy user" +
	" username weight weightDevice width "

// place is where in a spec a value stands.
type place int

const (
	nowhere place = iota // where no value may be
	inSpec
	inVersion
	inProcess
	inCapabilities
	inTexts // a list of texts
	inText
	inMap // of texts, whose keys are anybody's
	inLinux
	inResources
	inRules
	inRule
	inAllow
	inKind
	inMajor
	inMinor
	inAccess
	inMounts
	inMount
	inMountType
	inSource
	inOptions
	inOption
	inAny  // what berth doesn't read, with known keys
	inFree // what berth doesn't read, with keys of others
)

// cut is a part of the text.
type cut struct{ from, to int }

// frame is an object or a list that is being read.
type frame struct {
	at     place
	object bool
	filled bool // there was a value
	keys   uint // how many there were before
}

// spec is a config.json on its way through.
type spec struct {
	pos     int
	size    int
	depth   uint
	frames  [24]frame
	count   uint
	keys    [256]cut
	rules   int
	version bool
	// capable: it is said which capabilities the process has.
	capable bool
	rule    rule
	mount   struct {
		bind   bool
		source cut
	}
}

// isPlain says so of the text of that size in work.data.
//
//go:nosplit
func isPlain(size int) bool {
	s := &work.spec
	s.pos, s.size, s.depth, s.count, s.rules, s.version, s.capable = 0, size, 0, 0, 0, false, false
	if !s.clean() || !s.value(inSpec) {
		return false
	}
	for s.depth > 0 {
		if !s.step() {
			return false
		}
	}
	s.space()
	return s.pos == s.size && s.version && s.capable && s.rules > 0
}

// at is a letter of the text.
//
//go:nosplit
func (s *spec) at(i int) byte { return at(unsafe.Pointer(&work.data), i) }

// clean says that the text has no letters but ASCII's, no escapes, and none of the words
// by which anybody asks for a device, or for the capability to take off device rules.
//
//go:nosplit
func (s *spec) clean() bool {
	for i := 0; i < s.size; i++ {
		c := s.at(i)
		if c > '~' || c == '\\' || c < ' ' && c != '\n' && c != '\t' {
			return false
		}
		word := ""
		switch c | 0x20 {
		case 'a':
			word = "admin"
		case 'b':
			word = "berth"
		case 'n':
			word = "nvidia"
		case 'g':
			word = "gpu"
		default:
			continue
		}
		k := 0
		for k < len(word) && i+k < s.size && s.at(i+k)|0x20 == at(unsafe.Pointer(unsafe.StringData(word)), k) {
			k++
		}
		if k == len(word) {
			return false
		}
	}
	return true
}

//go:nosplit
func (s *spec) space() {
	for s.pos < s.size && s.at(s.pos) <= ' ' {
		s.pos++
	}
}

// peek is the next character that is no space, 0 at the end.
//
//go:nosplit
func (s *spec) peek() byte {
	s.space()
	if s.pos >= s.size {
		return 0
	}
	return s.at(s.pos)
}

// step reads the next value of what is open, or its end.
//
//go:nosplit
func (s *spec) step() bool {
	last := s.depth - 1
	if last >= uint(len(s.frames)) {
		return false
	}
	f := &s.frames[last]
	end := byte(']')
	if f.object {
		end = '}'
	}
	c := s.peek()
	if c == end {
		s.pos++
		return s.close(f)
	}
	if f.filled {
		if c != ',' {
			return false
		}
		s.pos++
	}
	f.filled = true
	if !f.object {
		return s.value(within(f.at))
	}
	if s.peek() != '"' {
		return false
	}
	key := s.quoted()
	if s.peek() != ':' || !s.fresh(f, key) {
		return false
	}
	s.pos++
	return s.value(s.member(f.at, key))
}

// quoted reads a text: one without escapes ends at the next quote.
//
//go:nosplit
func (s *spec) quoted() cut {
	from := s.pos + 1
	for s.pos = from; s.pos < s.size && s.at(s.pos) != '"'; s.pos++ {
		if s.at(s.pos) < ' ' {
			s.pos = s.size
		}
	}
	to := s.pos
	s.pos++
	return cut{from, to}
}

// fresh says that a key isn't there yet, in whatever letters, and that it is a known one
// where keys have to be.
//
//go:nosplit
func (s *spec) fresh(f *frame, key cut) bool {
	for i := f.keys; i < s.count && i < uint(len(s.keys)); i++ {
		k, n := s.keys[i], 0
		for n < key.to-key.from && k.to-k.from == key.to-key.from && s.at(k.from+n)|0x20 == s.at(key.from+n)|0x20 {
			n++
		}
		if n == key.to-key.from && k.to-k.from == n {
			return false
		}
	}
	n := s.count
	if n >= uint(len(s.keys)) {
		return false
	}
	s.keys[n] = key
	s.count = n + 1
	return f.at == inMap || f.at == inFree || s.known(key)
}

//go:nosplit
func (s *spec) known(key cut) bool {
	table, length := unsafe.Pointer(unsafe.StringData(names)), key.to-key.from
	for i := 0; i+1 < len(names); {
		k := 0
		for k < length && at(table, i+1+k) == s.at(key.from+k) && at(table, i+1+k) != ' ' {
			k++
		}
		if k == length && at(table, i+1+k) == ' ' {
			return k > 0
		}
		for i++; at(table, i) != ' '; i++ {
		}
	}
	return false
}

// says compares a part of the text.
//
//go:nosplit
func (s *spec) says(c cut, word string) bool {
	if c.to-c.from != len(word) {
		return false
	}
	for i := 0; i < len(word); i++ {
		if s.at(c.from+i) != word[i] {
			return false
		}
	}
	return true
}
