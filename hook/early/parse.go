//go:build amd64 || arm64

package early

import "unsafe"

// call is a command line. Words are told by their index in it.
type call struct {
	root    int // the word in which the state directory is, 0 if none says
	rootAt  int // and where in it
	deletes bool
	bundle  int    // the word that is the directory of a create, 0 for other verbs
	words   [8]int // after the verb, those that aren't flags
	count   uint
}

// parse reads the command lines that engines write. It takes no other: false.
//
//go:nosplit
func parse(argc int, argv unsafe.Pointer) bool {
	c := &work.call
	c.root, c.rootAt, c.deletes, c.bundle, c.count = 0, 0, false, 0, 0
	managed := false
	i := 1
	for ; i < argc && at(element(argv, i), 0) == '-'; i++ {
		managed = managed || begins(element(argv, i), "--cgroup-manager")
		n := c.global(element(argv, i), i)
		if n == 0 {
			return false
		}
		i += n - 1
	}
	if i >= argc {
		return false
	}
	verb := element(argv, i)
	c.deletes = is(verb, "delete")
	creates := is(verb, "create")
	if !c.deletes && !passes(verb) && (!creates || managed) {
		return false
	}
	for i++; i < argc; i++ {
		text := element(argv, i)
		switch {
		case at(text, 0) != '-':
			if c.count >= uint(len(c.words)) {
				return false
			}
			c.words[c.count] = i
			c.count++
		case valued(verb, text) && i+1 < argc:
			i++
			if is(text, "--bundle") {
				if c.bundle != 0 {
					return false
				}
				c.bundle = i
			}
		case !plain(verb, text):
			return false
		}
	}
	return c.count > 0 && (!c.deletes && !creates || c.count == 1) && creates == (c.bundle != 0)
}

// global says how many words a flag before the verb takes, 0 if it isn't known.
//
//go:nosplit
func (c *call) global(text unsafe.Pointer, i int) int {
	switch {
	case is(text, "--debug"), is(text, "--systemd-cgroup"), begins(text, "--log="), begins(text, "--log-format="),
		begins(text, "--log-level="), begins(text, "--cgroup-manager="):
		return 1
	case begins(text, "--root="):
		c.root, c.rootAt = i, len("--root=")
		return 1
	case is(text, "--root"):
		c.root, c.rootAt = i+1, 0
		return 2
	case is(text, "--log"), is(text, "--log-format"), is(text, "--log-level"), is(text, "--cgroup-manager"):
		return 2
	}
	return 0
}

// passes are verbs that berth has nothing to do with.
//
//go:nosplit
func passes(verb unsafe.Pointer) bool {
	return is(verb, "start") || is(verb, "state") || is(verb, "kill") || is(verb, "exec") ||
		is(verb, "pause") || is(verb, "resume") || is(verb, "ps")
}

// valued are the flags after a verb whose value is the next word, plain those that have
// none, or one that berth takes for an argument.
//
//go:nosplit
func valued(verb, text unsafe.Pointer) bool {
	if is(verb, "create") {
		return is(text, "--bundle") || is(text, "--pid-file") || is(text, "--console-socket")
	}
	return is(verb, "exec") && (is(text, "--pid-file") || is(text, "--console-socket") || is(text, "--preserve-fds"))
}

//go:nosplit
func plain(verb, text unsafe.Pointer) bool {
	switch {
	case is(verb, "delete"):
		return is(text, "--force") || is(text, "-f")
	case is(verb, "create"):
		return is(text, "--no-pivot") || is(text, "--no-new-keyring")
	case is(verb, "kill"):
		return is(text, "--all") || is(text, "-a")
	case is(verb, "exec"):
		return is(text, "--process") || is(text, "-p") || is(text, "--tty") || is(text, "-t") || is(text, "--detach") || is(text, "-d")
	}
	return false
}
