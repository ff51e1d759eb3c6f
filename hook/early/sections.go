//go:build amd64 || arm64

package early

// member is where the value of a key stands.
//
//go:nosplit
func (s *spec) member(p place, key cut) place {
	switch p {
	case inSpec:
		return s.section(key)
	case inProcess:
		switch {
		case s.says(key, "env"):
			return inTexts
		case s.says(key, "capabilities"):
			s.capable = true
			return inCapabilities
		}
		return inAny
	case inCapabilities:
		return inTexts
	case inLinux:
		return s.inLinux(key)
	case inResources:
		switch {
		case s.says(key, "devices"):
			return inRules
		case s.says(key, "unified"):
			return inMap
		}
		return inAny
	case inRule:
		return s.inRule(key)
	case inMount:
		return s.inMount(key)
	case inMap:
		return inText
	case inAny, inFree:
		return p
	}
	return nowhere
}

//go:nosplit
func (s *spec) section(key cut) place {
	switch {
	case s.says(key, "ociVersion"):
		return inVersion
	case s.says(key, "process"):
		return inProcess
	case s.says(key, "mounts"):
		return inMounts
	case s.says(key, "annotations"):
		return inMap
	case s.says(key, "linux"):
		return inLinux
	case s.says(key, "root"), s.says(key, "hostname"), s.says(key, "domainname"):
		return inAny
	}
	return nowhere
}

//go:nosplit
func (s *spec) inLinux(key cut) place {
	switch {
	case s.says(key, "resources"):
		return inResources
	case s.says(key, "cgroupsPath"):
		return inText
	case s.says(key, "sysctl"):
		return inMap
	case s.says(key, "seccomp"):
		return inFree
	case s.says(key, "devices"):
		return nowhere
	}
	return inAny
}

//go:nosplit
func (s *spec) inRule(key cut) place {
	switch {
	case s.says(key, "allow"):
		return inAllow
	case s.says(key, "type"):
		return inKind
	case s.says(key, "major"):
		return inMajor
	case s.says(key, "minor"):
		return inMinor
	case s.says(key, "access"):
		return inAccess
	}
	return nowhere
}

//go:nosplit
func (s *spec) inMount(key cut) place {
	switch {
	case s.says(key, "destination"):
		return inText
	case s.says(key, "type"):
		return inMountType
	case s.says(key, "source"):
		return inSource
	case s.says(key, "options"):
		return inOptions
	}
	return inAny
}

// within is where the values of a list stand.
//
//go:nosplit
func within(p place) place {
	switch p {
	case inTexts:
		return inText
	case inOptions:
		return inOption
	case inRules:
		return inRule
	case inMounts:
		return inMount
	case inAny, inFree:
		return p
	}
	return nowhere
}

// told takes a text.
//
//go:nosplit
func (s *spec) told(p place, t cut) bool {
	switch p {
	case inVersion:
		s.version = true
		return t.to-t.from >= 3 && s.at(t.from) == '1' && s.at(t.from+1) == '.'
	case inKind:
		if t.to-t.from != 1 {
			return false
		}
		s.rule.kind = s.at(t.from)
		return true
	case inAccess:
		return s.accessible(t)
	case inMountType:
		s.mount.bind = s.mount.bind || s.says(t, "bind")
		return true
	case inOption:
		s.mount.bind = s.mount.bind || s.says(t, "bind") || s.says(t, "rbind")
		return true
	case inSource:
		s.mount.source = t
		return true
	}
	return p == inText || p == inAny || p == inFree
}

// accessible reads what a rule is about: r, w and m, as often as once.
//
//go:nosplit
func (s *spec) accessible(t cut) bool {
	for i := t.from; i < t.to; i++ {
		bit := 0
		switch s.at(i) {
		case 'r':
			bit = reading
		case 'w':
			bit = writing
		case 'm':
			bit = making
		}
		if bit == 0 || s.rule.access&bit != 0 {
			return false
		}
		s.rule.access |= bit
	}
	return s.rule.access != 0
}

// What a rule can be about.
const (
	reading = 1 << iota
	writing
	making
	everything = reading | writing | making
)

// rule is one of linux.resources.devices.
type rule struct {
	allow, hasAllow bool
	kind            byte // 0 if there is none
	major, minor    int
	hasMajor        bool
	hasMinor        bool
	access          int
}

// harmless says that a rule opens no accelerator on any host. The first one has to deny
// all: without, runtimes differ in what they leave open.
//
//go:nosplit
func (r *rule) harmless(first bool) bool {
	total := r.kind == 0 || r.kind == 'a'
	switch {
	case !r.hasAllow || r.access == 0 || r.major > 1<<12-1 || r.minor > 1<<20-1:
		return false
	case first || total:
		return !r.allow && total && !r.hasMajor && !r.hasMinor && r.access == everything
	case r.kind == 'b' || r.kind == 'c' && (!r.allow || r.access == making):
		return true
	}
	// Memory, consoles, and what is misc are the kernel's own numbers. Source: its
	// Documentation/admin-guide/devices.txt
	return r.kind == 'c' && r.hasMajor && (r.major == 1 || r.major == 5 || r.major == 10 || r.major == 136)
}
