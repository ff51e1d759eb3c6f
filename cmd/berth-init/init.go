//go:build amd64 || arm64

package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// What entry uses before all else, and what is there for g and its like.
//
//nolint:gochecknoglobals // by entry alone
var (
	begin  = run
	thread [128]byte
	_, _   = begin, &thread
)

func entry() //nolint:unused // by the linker alone

// raw is a system call: less than zero is an error.
func raw(number, a, b, c, d uintptr) int

// memory is all that there is.
//
//nolint:gochecknoglobals // there is no other before Go's runtime
var memory struct {
	all, before uint64 // sets of signals
	status      int32
	group       int32
	termios     unix.Termios
	path        [unix.PathMax]byte
}

const (
	word    = 8
	setSize = 8 // of a set of signals
)

// run is the program. The stack is as the kernel makes it: the number of words, the
// words, nil, the environment, nil.
//
//go:nosplit
func run(stack unsafe.Pointer) {
	m := &memory
	m.all = ^uint64(0)
	raw(unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, uintptr(unsafe.Pointer(&m.all)), uintptr(unsafe.Pointer(&m.before)), setSize)
	argc, argv := *(*int)(stack), unsafe.Add(stack, word)
	envp := unsafe.Add(argv, (argc+1)*word)
	if argc > 0 {
		argv = unsafe.Add(argv, word)
	}
	if first := *(*unsafe.Pointer)(argv); first != nil && is(first, "--hold") {
		at := *(*unsafe.Pointer)(unsafe.Add(argv, word))
		if at == nil {
			exit(codeOwn)
		}
		become(at)
		for { // until it is killed
			hold()
		}
	}
	if first := *(*unsafe.Pointer)(argv); first != nil && is(first, "--") {
		argv = unsafe.Add(argv, word)
	}
	name := *(*unsafe.Pointer)(argv)
	if name == nil {
		say("berth-init: no command\n")
		exit(codeOwn)
	}
	pid := raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0)
	if pid == 0 {
		exit(command(name, argv, envp))
	}
	if pid < 0 {
		say("berth-init: no process for the command\n")
		exit(codeOwn)
	}
	for {
		serve(uintptr(pid))
	}
}

// serve waits for one signal. A terminal's ^C reaches the command by the terminal, for
// it is in the foreground, and this process isn't.
//
//go:nosplit
func serve(pid uintptr) {
	switch sig := raw(unix.SYS_RT_SIGTIMEDWAIT, uintptr(unsafe.Pointer(&memory.all)), 0, 0, setSize); {
	case sig == int(unix.SIGCHLD):
		reap(int(pid))
	case sig <= 0, sig == int(unix.SIGURG), sig == int(unix.SIGTTIN), sig == int(unix.SIGTTOU):
	default:
		raw(unix.SYS_KILL, pid, uintptr(sig), 0, 0)
	}
}

// reap waits for what has ended. With the command's end this program ends.
//
//go:nosplit
func reap(command int) {
	for {
		pid := raw(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&memory.status)), unix.WNOHANG, 0)
		if pid <= 0 {
			return
		}
		if pid != command {
			continue
		}
		if sig := uintptr(memory.status) & 0x7f; sig != 0 {
			exit(codeSignalled + sig)
		}
		exit(uintptr(memory.status) >> 8 & 0xff)
	}
}

// command becomes the task's command, in a process group of its own, and in front of the
// terminal if there is one. It returns an exit code if it can't.
//
//go:nosplit
func command(name, argv, envp unsafe.Pointer) (code uintptr) {
	m := &memory
	raw(unix.SYS_SETPGID, 0, 0, 0, 0)
	m.group = int32(raw(unix.SYS_GETPID, 0, 0, 0, 0))
	if raw(unix.SYS_IOCTL, 0, unix.TCGETS, uintptr(unsafe.Pointer(&m.termios)), 0) == 0 {
		raw(unix.SYS_IOCTL, 0, unix.TIOCSPGRP, uintptr(unsafe.Pointer(&m.group)), 0)
	}
	raw(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&m.before)), 0, setSize)
	if slash(name) {
		code = codeOf(raw(unix.SYS_EXECVE, uintptr(name), uintptr(argv), uintptr(envp), 0))
	} else {
		code = search(name, argv, envp)
	}
	say("berth-init: ")
	write(name, length(name))
	say(": not found or not executable\n")
	return code
}

// search tries each directory of PATH, as a shell does; an empty one is the current one.
//
//go:nosplit
func search(name, argv, envp unsafe.Pointer) (code uintptr) {
	code = codeNotFound
	for dir := pathOf(envp); ; {
		var n uintptr
		for ; !ends(dir, n); n++ {
		}
		if join(dir, n, name) {
			switch err := raw(unix.SYS_EXECVE, uintptr(unsafe.Pointer(&memory.path)), uintptr(argv), uintptr(envp), 0); codeOf(err) {
			case codeNotFound:
			default:
				code = codeUnusable
				if err != -int(unix.EACCES) { // it is the one, and can't be run
					return code
				}
			}
		}
		if dir == nil || *(*byte)(unsafe.Add(dir, n)) == 0 {
			return code
		}
		dir = unsafe.Add(dir, n+1)
	}
}

// codeOf says what an execve that has failed stands for.
//
//go:nosplit
func codeOf(err int) uintptr {
	if err == -int(unix.ENOENT) || err == -int(unix.ENOTDIR) {
		return codeNotFound
	}
	return codeUnusable
}

// pathOf is the value of PATH, nil if there is none.
//
//go:nosplit
func pathOf(envp unsafe.Pointer) unsafe.Pointer {
	const key = "PATH="
	for ; ; envp = unsafe.Add(envp, word) {
		entry := *(*unsafe.Pointer)(envp)
		if entry == nil {
			return nil
		}
		if begins(entry, key) {
			return unsafe.Add(entry, len(key))
		}
	}
}

// ends says whether a directory of PATH is at its end.
//
//go:nosplit
func ends(dir unsafe.Pointer, n uintptr) bool {
	if dir == nil {
		return true
	}
	c := *(*byte)(unsafe.Add(dir, n))
	return c == 0 || c == ':'
}

// join puts together a path; false says that it is too long for one.
//
//go:nosplit
func join(dir unsafe.Pointer, n uintptr, name unsafe.Pointer) bool {
	path, l := unsafe.Pointer(&memory.path), length(name)
	if n+1+l+1 > uintptr(len(memory.path)) || l > uintptr(len(memory.path)) {
		return false
	}
	for i := uintptr(0); i < n; i++ {
		*(*byte)(unsafe.Add(path, i)) = *(*byte)(unsafe.Add(dir, i))
	}
	if n == 0 {
		*(*byte)(path) = '.'
		n = 1
	}
	*(*byte)(unsafe.Add(path, n)) = '/'
	for i := uintptr(0); i <= l; i++ { // with what ends it
		*(*byte)(unsafe.Add(path, n+1+i)) = *(*byte)(unsafe.Add(name, i))
	}
	return true
}

//go:nosplit
func length(text unsafe.Pointer) (n uintptr) {
	for *(*byte)(unsafe.Add(text, n)) != 0 {
		n++
	}
	return n
}

//go:nosplit
func slash(text unsafe.Pointer) bool {
	for n := uintptr(0); ; n++ {
		switch *(*byte)(unsafe.Add(text, n)) {
		case '/':
			return true
		case 0:
			return false
		}
	}
}

//go:nosplit
func begins(text unsafe.Pointer, with string) bool {
	for i := range len(with) {
		if *(*byte)(unsafe.Add(text, i)) != with[i] {
			return false
		}
	}
	return true
}

//go:nosplit
func is(text unsafe.Pointer, word string) bool {
	return begins(text, word) && *(*byte)(unsafe.Add(text, len(word))) == 0
}

//go:nosplit
func say(text string) { write(unsafe.Pointer(unsafe.StringData(text)), uintptr(len(text))) }

//go:nosplit
func write(text unsafe.Pointer, n uintptr) { raw(unix.SYS_WRITE, 2, uintptr(text), n, 0) }

//go:nosplit
func exit(code uintptr) {
	for {
		raw(unix.SYS_EXIT_GROUP, code, 0, 0, 0)
	}
}
