//go:build amd64 || arm64

package early

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// usual is where programs are looked for without PATH.
const usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\x00"

// installed lists the configured runtime and, beside it, crun and runc.
//
//go:nosplit
func installed(envp unsafe.Pointer) bool {
	dirs := variable(envp, "PATH")
	if at(dirs, 0) == 0 {
		dirs = unsafe.Pointer(unsafe.StringData(usual))
	}
	if !tidy(dirs) {
		return false
	}
	work.count = 0
	if work.named {
		if found, known := find(unsafe.Add(unsafe.Pointer(&work.route), prefix), dirs); !found || !known {
			return false
		}
		add()
	}
	for i := range 2 {
		name := "crun\x00"
		if i == 1 {
			name = "runc\x00"
		}
		found, known := find(unsafe.Pointer(unsafe.StringData(name)), dirs)
		if !known {
			return false
		}
		if found && (work.count == 0 || !same(unsafe.Pointer(&work.programs[0].text), unsafe.Pointer(&work.path.text))) {
			add()
		}
	}
	return work.count > 0
}

// tidy says that every directory of a list is an absolute path without detours, which
// is used letter by letter.
//
//go:nosplit
func tidy(dirs unsafe.Pointer) bool {
	for i := 0; ; i++ {
		c, before := at(dirs, i), byte(':')
		if i > 0 {
			before = at(dirs, i-1)
		}
		switch {
		case before == ':' && c != '/', before == '/' && (c == '/' || c == '.' || c == ':' || c == 0):
			return false
		case c == 0:
			return true
		}
	}
}

// find leaves in work.path where a program is. known is false where the answer is
// somebody else's.
//
//go:nosplit
func find(name, dirs unsafe.Pointer) (found, known bool) {
	if at(name, 0) == '/' {
		work.path.reset()
		work.path.addText(name)
		return executable()
	}
	for i := 0; ; i++ {
		work.path.reset()
		for ; at(dirs, i) != ':' && at(dirs, i) != 0; i++ {
			work.path.addByte(at(dirs, i))
		}
		work.path.addByte('/')
		work.path.addText(name)
		if found, known = executable(); found || !known || at(dirs, i) == 0 {
			return found, known
		}
	}
}

// executable says whether work.path is a program.
//
//go:nosplit
func executable() (is, known bool) {
	answer := work.path.lookup(&work.stat, 0)
	if absent(answer) {
		return false, true
	}
	if answer != 0 || work.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return false, false
	}
	answer = raw(unix.SYS_FACCESSAT, here, uintptr(unsafe.Pointer(&work.path.text)), unix.X_OK, 0)
	return answer == 0, answer == 0
}

// add lists the program at work.path.
//
//go:nosplit
func add() {
	if work.count >= uint(len(work.programs)) {
		return
	}
	p := &work.programs[work.count]
	base := 0
	for i := range p.text {
		p.text[i] = work.path.text[i]
		if p.text[i] == 0 {
			break
		}
		if p.text[i] == '/' {
			base = i + 1
		}
	}
	p.crun = is(unsafe.Add(unsafe.Pointer(&p.text), base), "crun")
	work.count++
}

//go:nosplit
func same(a, b unsafe.Pointer) bool {
	for i := 0; ; i++ {
		if at(a, i) != at(b, i) {
			return false
		}
		if at(a, i) == 0 {
			return true
		}
	}
}

// choose takes the runtime that has made a container of one of the call's words, and
// otherwise the first.
//
//go:nosplit
func choose(argv, envp unsafe.Pointer) bool {
	chosen := uint(0)
	if work.count > 1 {
		if chosen = maker(argv, envp); chosen == unclear {
			return false
		}
	}
	if chosen >= uint(len(work.programs)) {
		return false
	}
	from, to := &work.programs[chosen], &work.program
	to.crun = from.crun
	for i := range to.text {
		to.text[i] = from.text[i]
		if to.text[i] == 0 {
			break
		}
	}
	return true
}

const unclear = 99

//go:nosplit
func maker(argv, envp unsafe.Pointer) uint {
	for r := uint(0); r < work.count && r < uint(len(work.programs)); r++ {
		for i := uint(0); i < work.call.count && i < uint(len(work.call.words)); i++ {
			id := element(argv, work.call.words[i])
			if !isID(id) {
				continue
			}
			if !state(work.programs[r].crun, argv, envp, id) {
				return unclear
			}
			if work.path.stat(&work.stat, unix.AT_SYMLINK_NOFOLLOW) {
				return r
			}
		}
	}
	return 0
}

// isID says that a word could be a directory's name.
//
//go:nosplit
func isID(id unsafe.Pointer) bool {
	for i := 0; at(id, i) != 0; i++ {
		if at(id, i) == '/' {
			return false
		}
	}
	return at(id, 0) != 0 && !is(id, ".") && !is(id, "..")
}

// state leaves in work.path where a runtime keeps what it knows of a container.
//
//go:nosplit
func state(crun bool, argv, envp, id unsafe.Pointer) bool {
	b := &work.path
	b.reset()
	if work.call.root != 0 {
		root := unsafe.Add(element(argv, work.call.root), work.call.rootAt)
		if at(root, 0) != '/' || contains(root, '.', '.') {
			return false
		}
		b.addText(root)
	} else if xdg := variable(envp, "XDG_RUNTIME_DIR"); crun && at(xdg, 0) != 0 {
		if at(xdg, 0) != '/' || contains(xdg, '.', '.') {
			return false
		}
		b.addText(xdg)
		b.add("/crun")
	} else if crun {
		b.add("/run/crun")
	} else {
		b.add("/run/runc")
	}
	b.addByte('/')
	b.addText(id)
	if crun {
		b.add("/status")
	} else {
		b.add("/state.json")
	}
	return !b.void
}
