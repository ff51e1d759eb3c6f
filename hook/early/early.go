//go:build amd64 || arm64

// Package early becomes the real runtime before Go's runtime is there.
//
// Engines call their runtime four times for each container, and three of these calls
// (start, delete, and a delete that finds nothing) have nothing to do with berth. To
// start Go's runtime for them takes two milliseconds; what they need takes a tenth of
// one: read which words the command line has, look for the program, execve. The fourth
// is a create, which has nothing to do with berth where the container's spec is plain:
// see plain.go. A delete
// that has something to give back is started here, and finished by package wrapper:
// while the real runtime works, Go's runtime starts. See [Begun].
//
// [Begin] is called by the program's entry point, on the kernel's stack, with no
// scheduler, no heap and no g. So everything in the files that it lives in (all but
// route.go) keeps to rules, and a test holds the built program to them, instruction by
// instruction: functions are //go:nosplit and call nothing outside of this package; no
// index can be out of range; nothing is allocated; no pointer is written to memory;
// system calls are made by raw alone.
//
// It decides nothing by itself. Whatever isn't plainly what it knows (an unusual flag,
// another user, a path with a dot, a container that has a lease, a file that can't be
// read) is left to package wrapper, which is called as if nothing had happened. Where
// Begin does go on, wrapper would have become the same program with the same words,
// environment, descriptors and signals. Tests compare the two.
//
// Of the configuration it knows the one key that it needs, which a file beside the
// ledger says: see [Note].
package early

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Begin looks at the stack as the kernel has made it for a new program (the number of
// words, the words, nil, the environment, nil). It becomes the real runtime, or it
// returns and has changed nothing but what [Begun] says.
//
//go:nosplit
func Begin(stack unsafe.Pointer) {
	argc, argv := *(*int)(stack), unsafe.Add(stack, word)
	if argc < 1 {
		return
	}
	envp := unsafe.Add(argv, (argc+1)*word)
	own := *(*uintptr)(argv)
	switch decide(argc, argv, envp) {
	case becomes:
		*(*uintptr)(argv) = uintptr(unsafe.Pointer(&work.program.text))
		raw(unix.SYS_EXECVE, uintptr(unsafe.Pointer(&work.program.text)), uintptr(argv), uintptr(envp), 0)
	case starts:
		*(*uintptr)(argv) = uintptr(unsafe.Pointer(&work.program.text))
		start(uintptr(argv), uintptr(envp))
	}
	*(*uintptr)(argv) = own
}

// word is how many bytes a pointer has.
const word = 8

// work is what a decision needs: there is no other memory.
//
//nolint:gochecknoglobals // it is used before there is a heap
var work struct {
	call call
	// named: a runtime is configured, and stands in route behind its prefix.
	named bool
	// wanted: nothing says what is configured, or it is said of another configuration.
	wanted bool

	programs [3]program
	count    uint
	program  program // that has been chosen
	path     buffer
	expected buffer
	stat     unix.Stat_t
	self     unix.Stat_t
	route    [1 << 10]byte
	data     [1 << 18]byte
	// size is how much of data is a container's state, ledger what the ledger said and
	// leases how much of it.
	size   int
	ledger [1 << 18]byte
	leases int
	child  int // that has been started, 0 if none
	failed int // why it isn't one, as the kernel says
	action [4]uintptr
	spec   spec
}

// verdict is what a call is for.
type verdict int

const (
	left    verdict = iota // to package wrapper
	becomes                // the real runtime alone
	starts                 // the real runtime, and then package wrapper
)

// program is a real runtime.
type program struct {
	text [pathMax]byte
	crun bool
}

// decide says whether this call is one for the real runtime, which is then in
// work.program.
//
//go:nosplit
func decide(argc int, argv, envp unsafe.Pointer) verdict {
	if !parse(argc, argv) || raw(unix.SYS_GETUID, 0, 0, 0, 0) != 0 || raw(unix.SYS_GETEUID, 0, 0, 0, 0) != 0 {
		return left
	}
	if at(variable(envp, "BERTH_CONFIG"), 0) != 0 || !readRoute() {
		return left
	}
	if !installed(envp) || !choose(argv, envp) || own() {
		return left
	}
	switch {
	case work.call.deletes:
		return holds(argv, envp)
	case work.call.bundle != 0 && !unconcerned(element(argv, work.call.bundle)):
		return left
	}
	return becomes
}

// unconcerned says that the bundle's container has nothing to do with berth: its spec is
// plain, and not one that berth has written.
//
//go:nosplit
func unconcerned(bundle unsafe.Pointer) bool {
	b := &work.path
	b.reset()
	b.addText(bundle)
	b.add("/config.json")
	if at(bundle, 0) != '/' || contains(bundle, '.', '.') {
		return false
	}
	n, answer := b.read(unsafe.Pointer(&work.data), len(work.data), &work.stat)
	if answer != 0 {
		return false
	}
	b.add(".berth")
	return absent(b.lookup(&work.stat, unix.AT_SYMLINK_NOFOLLOW)) && isPlain(n)
}

// own says that the chosen program is the running one, or may be.
//
//go:nosplit
func own() bool {
	work.path.reset()
	work.path.add("/proc/self/exe")
	if !work.path.stat(&work.self, 0) {
		return true
	}
	work.path.reset()
	work.path.addText(unsafe.Pointer(&work.program.text))
	return !work.path.stat(&work.stat, 0) || work.self.Dev == work.stat.Dev && work.self.Ino == work.stat.Ino
}
