package wrapper

import (
	"cmp"
	"strings"
)

// call is what berth understands of a runtime's command line. The real runtime gets the
// original command line, never one that is built from a call.
type call struct {
	verb string
	// id is the container's id, "" if there is none.
	id string
	// words are all words after the verb that could be its arguments.
	words []string

	root, log, logFormat    string
	bundle, config, pidFile string
	// resources is the file with an update's values, "-" for standard input. resourcesAt
	// are the indices of the words that name it.
	resources   string
	resourcesAt []int
	// process is the file with the process of an exec, capabilities are those that its command
	// line adds.
	process      string
	capabilities []string
	systemd      bool
	// noCgroup: crun is to create the container without a cgroup.
	noCgroup bool
	// opaque is set if the runtime prints help or its version, if berth can't tell on which
	// containers it acts (crun delete --regex), or if the verb is unknown.
	opaque bool
}

// createsContainer reports whether the call creates a container.
func (c call) createsContainer() bool {
	return !c.opaque && c.id != "" && (c.verb == "create" || c.verb == "run" || c.verb == "restore")
}

// kind is the kind of a flag.
type kind int

const (
	unknown kind = iota
	single       // a flag without a value
	valued       // a flag with one
	opaque       // a flag that makes the call opaque
)

// flagKind returns the kind of a long flag of runc or crun: those before the verb and,
// of create, run, restore, update, delete and exec, those after it. One table serves both
// places: the runtime itself refuses a flag in the wrong place.
func flagKind(name string) kind {
	switch name {
	case "root", "log", "log-format", "log-level", "criu", "cgroup-manager", "rootless",
		"bundle", "config", "pid-file", "console-socket", "preserve-fds",
		"image-path", "work-path", "parent-path", "manage-cgroups-mode", "empty-ns",
		"lsm-profile", "lsm-mount-context", "status-fd", "page-server",
		"resources", "blkio-weight", "cpu-period", "cpu-quota", "cpu-burst", "cpu-share", "cpu-rt-period", "cpu-rt-runtime",
		"cpu-idle", "cpuset-cpus", "cpuset-mems", "kernel-memory", "kernel-memory-tcp", "memory", "memory-reservation",
		"memory-swap", "pids-limit", "l3-cache-schema", "mem-bw-schema",
		"process", "cap", "cwd", "env", "user", "additional-gids", "process-label", "apparmor", "cgroup":
		return valued
	case "debug", "systemd-cgroup", "no-pivot", "no-new-keyring", "no-subreaper", "detach", "keep", "force",
		"tcp-established", "ext-unix-sk", "shell-job", "file-locks", "auto-dedup", "lazy-pages",
		"tty", "no-new-privs", "ignore-paused":
		return single
	case "help", "version", "usage", "regex":
		return opaque
	}
	return unknown
}

// expandFlag returns the long flag that name abbreviates after the verb ("" before it), or
// name itself. crun accepts each prefix that only one of its flags has, as all programs with
// GNU's argp do; the lists hold crun's flags. runc refuses abbreviations.
func expandFlag(verb, name string) string {
	var flags []string
	switch verb {
	case "":
		flags = []string{"cgroup-manager", "debug", "help", "log", "log-format", "log-level", "root", "rootless", "systemd-cgroup", "usage", "version"}
	case "create", "run", "restore":
		flags = []string{
			"bundle", "config", "console-socket", "detach", "ext-unix-sk", "file-locks", "help", "image-path", "keep",
			"lsm-mount-context", "lsm-profile", "manage-cgroups-mode", "no-new-keyring", "no-pivot", "no-subreaper", "pid-file",
			"preserve-fds", "shell-job", "tcp-established", "usage", "work-path",
		}
	case "update":
		flags = []string{"resources"}
	case "delete":
		flags = []string{"force", "help", "regex", "usage"}
	case "exec":
		flags = []string{
			"apparmor", "cap", "cgroup", "console-socket", "cwd", "detach", "env", "help", "no-new-privs", "pid-file",
			"preserve-fds", "process", "process-label", "tty", "usage", "user",
		}
		for _, flag := range []string{"process", "cap"} { // crun's versions differ in their other flags
			if len(name) > 0 && strings.HasPrefix(flag, name) && name != "p" {
				return flag
			}
		}
	}
	expanded := ""
	for _, flag := range flags {
		switch {
		case flag == name:
			return name
		case name != "" && strings.HasPrefix(flag, name) && expanded == "":
			expanded = flag
		case name != "" && strings.HasPrefix(flag, name):
			return name // of several flags
		}
	}
	return cmp.Or(expanded, name)
}

// shortKind returns the long name and the kind of a one-letter flag. Both depend on the verb.
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
	case verb == "exec":
		return execShortKind(letter)
	case letter == 'b':
		return "bundle", valued
	case letter == 'f':
		return "config", valued
	case letter == 'd':
		return "detach", single
	}
	return "", unknown
}

// execShortKind is shortKind of exec.
func execShortKind(letter byte) (name string, k kind) {
	switch letter {
	case 'p':
		return "process", valued
	case 'c':
		return "cap", valued
	case 'e', 'u', 'g':
		return "", valued
	case 'd':
		return "", single
	}
	return "", unknown // of t, too: crun takes what is attached to it for its value
}

// isVerb reports whether a word is a verb of runc or crun.
func isVerb(word string) bool {
	switch word {
	case "checkpoint", "create", "delete", "events", "exec", "features", "help", "init", "kill", "list",
		"mounts", "pause", "ps", "restore", "resume", "run", "spec", "start", "state", "update", "version":
		return true
	}
	return false
}

// parser reads the words of a command line in order.
type parser struct {
	call
	all, args []string // the command line, and its words that are still to be read
	// doubtful: the last word was an unknown flag, and the next one may be its value.
	doubtful bool
	maybe    string // the first word behind an unknown flag: the id if there is no other
}

// parseArgs reads a command line; args[0] is the program. It never fails: a call that it
// cannot interpret is left to the runtime.
func parseArgs(args []string) call {
	p := parser{all: args, args: args[min(1, len(args)):]}
	for len(p.args) > 0 && !p.opaque && (p.verb != "exec" || p.id == "") { // the rest of an exec is the command's
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

// isLong reports whether a word is a long flag with one dash, which runc accepts too.
func (p *parser) isLong(word string) bool {
	name, ok := strings.CutPrefix(word, "-")
	name, _, _ = strings.Cut(name, "=")
	return ok && flagKind(name) != unknown
}

func (p *parser) parseLong(flag string) {
	name, value, given := strings.Cut(flag, "=")
	name = expandFlag(p.verb, name)
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

// parseShort reads the letters after one dash: "-b DIR", "-bDIR", "-b=DIR", "-df".
func (p *parser) parseShort(letters string) {
	p.doubtful = false
	for i := range len(letters) {
		name, k := shortKind(p.verb, letters[i])
		rest := strings.TrimPrefix(letters[i+1:], "=")
		switch {
		case k == unknown:
			p.doubtful = rest == "" && (p.verb != "exec" || letters[i] != 't')
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
	case "process":
		p.process = value
	case "cap":
		p.capabilities = append(p.capabilities, value)
	case "systemd-cgroup":
		p.systemd = value != "false" && value != "0"
	case "cgroup-manager":
		p.systemd, p.noCgroup = value == "systemd", value == "disabled"
	}
}

// setVerb reads a word before the verb: it is the verb, or the value of an unknown flag.
// Any other word makes the call opaque.
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
