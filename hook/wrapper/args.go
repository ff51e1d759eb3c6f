package wrapper

import "strings"

// call is what berth understands of a runtime's command line. It is never used
// to build another one: the real runtime gets the words as they came.
type call struct {
	verb string
	// id is the container's, "" if there is none.
	id string
	// words are all those after the verb that could be an argument of it.
	words []string

	root, log, logFormat    string
	bundle, config, pidFile string
	// resources is where an update's values are, "-" for standard input, and
	// resourcesAt the places of the words that say so.
	resources   string
	resourcesAt []int
	systemd     bool
	// noCgroup: crun is told to leave the container without a cgroup.
	noCgroup bool
	// opaque: the runtime will print help or a version, or act on containers that
	// berth can't name (crun delete --regex), or the verb is unknown.
	opaque bool
}

// createsContainer says that the call makes a container, which has to be prepared.
func (c call) createsContainer() bool {
	return !c.opaque && c.id != "" && (c.verb == "create" || c.verb == "run" || c.verb == "restore")
}

// kind of a flag.
type kind int

const (
	unknown kind = iota
	single       // a flag without a value
	valued       // a flag with one
	opaque       // the runtime answers for itself
)

// flagKind knows the long flags of runc and crun: those before the verb and, of
// create, run, restore, update and delete, those after it. One table serves both places:
// the runtime complains about what stands in the wrong one.
func flagKind(name string) kind {
	switch name {
	case "root", "log", "log-format", "log-level", "criu", "cgroup-manager", "rootless",
		"bundle", "config", "pid-file", "console-socket", "preserve-fds",
		"image-path", "work-path", "parent-path", "manage-cgroups-mode", "empty-ns",
		"lsm-profile", "lsm-mount-context", "status-fd", "page-server",
		"resources", "blkio-weight", "cpu-period", "cpu-quota", "cpu-burst", "cpu-share", "cpu-rt-period", "cpu-rt-runtime",
		"cpu-idle", "cpuset-cpus", "cpuset-mems", "kernel-memory", "kernel-memory-tcp", "memory", "memory-reservation",
		"memory-swap", "pids-limit", "l3-cache-schema", "mem-bw-schema":
		return valued
	case "debug", "systemd-cgroup", "no-pivot", "no-new-keyring", "no-subreaper", "detach", "keep", "force",
		"tcp-established", "ext-unix-sk", "shell-job", "file-locks", "auto-dedup", "lazy-pages":
		return single
	case "help", "version", "usage", "regex":
		return opaque
	}
	return unknown
}

// shortKind knows the one-letter flags, which differ from verb to verb.
func shortKind(verb string, letter byte) (name string, k kind) {
	switch {
	case letter == 'h' || letter == '?' || letter == 'v' || letter == 'V':
		return "help", opaque
	case verb == "update" && letter == 'r':
		return "resources", valued
	case verb == "delete" && letter == 'f':
		return "force", single
	case verb == "delete" && letter == 'r':
		return "regex", opaque
	case verb == "delete" || verb == "":
		return "", unknown
	case letter == 'b':
		return "bundle", valued
	case letter == 'f':
		return "config", valued
	case letter == 'd':
		return "detach", single
	}
	return "", unknown
}

// verbs of runc and crun. A word that isn't one, and can't be the value of an
// unknown flag, is a verb that berth doesn't know.
func isVerb(word string) bool {
	switch word {
	case "checkpoint", "create", "delete", "events", "exec", "features", "help", "init", "kill", "list",
		"mounts", "pause", "ps", "restore", "resume", "run", "spec", "start", "state", "update", "version":
		return true
	}
	return false
}

// parser goes through the words once.
type parser struct {
	call
	all, args []string // of the command line; what is left of it
	// doubtful: the last word was a flag that nobody knows, so the next one may be
	// its value.
	doubtful bool
	maybe    string // a doubtful id
}

// parseArgs reads a command line, args[0] being the program. It never fails: what it
// can't make sense of is left to the runtime.
func parseArgs(args []string) call {
	p := parser{all: args, args: args[min(1, len(args)):]}
	for len(p.args) > 0 && !p.opaque {
		word := p.nextWord()
		switch {
		case word == "--" && p.verb != "":
			p.addPositionals(p.args...)
			p.args = nil
		case strings.HasPrefix(word, "--") || p.isLong(word):
			p.parseLong(strings.TrimLeft(word, "-"))
		case len(word) > 1 && word[0] == '-':
			p.parseShort(word[1:])
		case p.verb == "":
			p.setVerb(word)
		default:
			p.addPositionals(word)
		}
	}
	if p.id == "" {
		p.id = p.maybe
	}
	return p.call
}

func (p *parser) nextWord() string {
	word := p.args[0]
	p.args = p.args[1:]
	return word
}

// isLong knows the long flags with one dash that runc takes too.
func (p *parser) isLong(word string) bool {
	name, ok := strings.CutPrefix(word, "-")
	name, _, _ = strings.Cut(name, "=")
	return ok && flagKind(name) != unknown
}

func (p *parser) parseLong(flag string) {
	name, value, given := strings.Cut(flag, "=")
	if p.verb == "update" && name != "" && strings.HasPrefix("resources", name) {
		name = "resources" // crun takes any beginning of it
	}
	k := flagKind(name)
	p.doubtful = k == unknown && !given
	if k == valued && !given {
		if len(p.args) == 0 {
			p.opaque = true
			return
		}
		value = p.nextWord()
	}
	p.setFlag(name, k, value)
}

// parseShort reads one dash and letters: "-b DIR", "-bDIR", "-b=DIR", "-df".
func (p *parser) parseShort(letters string) {
	p.doubtful = false
	for i := range len(letters) {
		name, k := shortKind(p.verb, letters[i])
		rest := strings.TrimPrefix(letters[i+1:], "=")
		switch {
		case k == unknown:
			p.doubtful = rest == ""
			return
		case k == valued && rest == "" && len(p.args) > 0:
			p.setFlag(name, k, p.nextWord())
			return
		case k == valued:
			p.setFlag(name, k, rest)
			return
		}
		p.setFlag(name, k, "")
	}
}

func (p *parser) setFlag(name string, k kind, value string) {
	p.opaque = p.opaque || k == opaque
	switch name {
	case "root":
		p.root = value
	case "log":
		p.log = value
	case "log-format":
		p.logFormat = value
	case "bundle":
		p.bundle = value
	case "config":
		p.config = value
	case "pid-file":
		p.pidFile = value
	case "resources":
		p.resources = value
		p.resourcesAt = append(p.resourcesAt, len(p.all)-len(p.args)-1)
	case "systemd-cgroup":
		p.systemd = value != "false" && value != "0"
	case "cgroup-manager":
		p.systemd, p.noCgroup = value == "systemd", value == "disabled"
	}
}

// setVerb takes a word before any verb.
func (p *parser) setVerb(word string) {
	switch {
	case isVerb(word):
		p.verb = word
	case !p.doubtful:
		p.opaque = true
	}
	p.doubtful = false
}

func (p *parser) addPositionals(words ...string) {
	for _, word := range words {
		p.words = append(p.words, word)
		switch {
		case p.doubtful && p.maybe == "":
			p.maybe = word
		case !p.doubtful && p.id == "":
			p.id = word
		}
		p.doubtful = false
	}
}
