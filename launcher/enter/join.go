package enter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
)

// Join is a program that starts in a running container.
type Join struct {
	// First is a pidfd of the container's first process, and its PID that process's pid.
	First *os.File
	PID   int
	// Place is called with the pid of a process of this user namespace that becomes one of the container when Place has returned: it moves that
	// process into the container's cgroup.
	Place func(pid int) error
	// Argv has the program's path in the container first.
	Argv, Env []string
	// Dirs are working directories of which the first that can be entered is used.
	Dirs []string
	// AsRoot is that of [DropPrivileges].
	AsRoot bool
}

// Start starts the program as a child of this process and returns it, and the index of its working directory. The program has all namespaces of the
// container, no rights that its user hasn't there, and the terminal, session and open files of this process. The kernel kills it when this
// process's thread ends, so the goroutine is locked to its thread.
//
// A process with several threads can't enter a user namespace (setns(2)), and a Go program always has several. nsenter(1) could enter it, but loses its
// capabilities there with its next program unless it is root inside, and doesn't pass signals on. So a copy of this process enters the namespaces by
// system calls alone: see joinNamespaces. Needs Linux 5.8 (setns with a pidfd).
func (j Join) Start() (child *os.Process, dir int, err error) {
	call, err := j.prepare()
	if err != nil {
		return nil, 0, err
	}
	var proceed, status [2]int
	if err := errors.Join(unix.Pipe2(proceed[:], unix.O_CLOEXEC), unix.Pipe2(status[:], unix.O_CLOEXEC)); err != nil {
		return nil, 0, fmt.Errorf("make pipes: %w", err)
	}
	said, next := os.NewFile(uintptr(status[0]), "status"), os.NewFile(uintptr(proceed[1]), "proceed") //nolint:gosec // not negative
	defer said.Close()                                                                                 // only read
	defer next.Close()                                                                                 // the processes wait for it no more
	call.proceed, call.status = uintptr(proceed[0]), uintptr(status[1])                                //nolint:gosec // not negative
	call.others = [2]uintptr{uintptr(proceed[1]), uintptr(status[0])}                                  //nolint:gosec // not negative
	entering, errno := forkCopy(call)
	_, _ = unix.Close(proceed[0]), unix.Close(status[1])
	if errno != 0 {
		return nil, 0, fmt.Errorf("fork: %w", errno)
	}
	defer func() {
		_ = next.Close() // if there was an error, it ends now
		_, _ = unix.Wait4(entering, nil, 0, nil)
	}()
	if err := j.Place(entering); err != nil {
		return nil, 0, err
	}
	if _, err := next.Write([]byte{0}); err != nil {
		return nil, 0, fmt.Errorf("enter the container: %w", err)
	}
	pid, err := readStep(said, stepForked)
	if err != nil {
		return nil, 0, fmt.Errorf("enter the container: %w", err)
	}
	if child, err = os.FindProcess(pid); err != nil {
		return nil, 0, err
	}
	if dir, err = j.finish(said, next); err != nil {
		_ = child.Kill() // it may have ended
		_, _ = child.Wait()
	}
	return child, dir, err
}

// finish lets the forked process execute the program, and returns the index of its working directory.
func (j Join) finish(said io.Reader, next io.Writer) (dir int, err error) {
	if _, err := next.Write([]byte{0}); err != nil {
		return 0, fmt.Errorf("enter the container: %w", err)
	}
	if dir, err = readStep(said, stepDirectory); err != nil {
		return 0, fmt.Errorf("set the working directory: %w", err)
	}
	if _, err = readStep(said, 0); errors.Is(err, io.EOF) { // closed by the program's start
		return dir, nil
	}
	return 0, &os.PathError{Op: "execute", Path: j.Argv[0], Err: err}
}

// The steps that the new process reports, each with a number: its pid, the index of a directory, an errno.
const (
	stepForked = iota + 1
	stepDirectory
	stepFailed
)

// stepReport is one report of a step.
type stepReport struct{ Step, Value int64 }

// readStep reads the report of a step. The error is the errno of a failed one, and io.EOF without a report.
func readStep(from io.Reader, step int64) (value int, err error) {
	var r stepReport
	if err := binary.Read(from, binary.NativeEndian, &r); err != nil {
		return 0, err
	}
	if r.Step != step {
		return 0, unix.Errno(r.Value) //nolint:gosec // not negative
	}
	return int(r.Value), nil
}

// maxDirs is the number of directories that [Join.Start] tries.
const maxDirs = 3

// joinCall is what joinNamespaces needs, in the form of arguments of system calls.
type joinCall struct {
	first, flags     uintptr
	proceed, status  uintptr
	others           [2]uintptr // the ends of the pipes that are the parent's
	asRoot           bool
	keep             uint64 // capabilities
	dirs             [maxDirs]uintptr
	path, argv, envv uintptr
	strings          []*byte // keeps the memory of dirs
	argvs, envs      []*byte // argv and envv point to them
}

func (j Join) prepare() (*joinCall, error) {
	c := &joinCall{first: j.First.Fd(), asRoot: j.AsRoot}
	for kind, flag := range map[string]uintptr{
		"user": unix.CLONE_NEWUSER, "mnt": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID, "ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "net": unix.CLONE_NEWNET,
	} {
		own, err := process.NamespaceOf("/proc", os.Getpid(), kind)
		if err != nil {
			return nil, err
		}
		theirs, err := process.NamespaceOf("/proc", j.PID, kind)
		if err != nil {
			return nil, err
		}
		if own != theirs { // the user has no rights over those of the host
			c.flags |= flag
		}
	}
	for _, capability := range keptCapabilities() {
		c.keep |= 1 << capability
	}
	var err error
	if c.argvs, err = syscall.SlicePtrFromStrings(j.Argv); err != nil {
		return nil, err
	}
	if c.envs, err = syscall.SlicePtrFromStrings(j.Env); err != nil {
		return nil, err
	}
	c.path, c.argv, c.envv = uintptr(unsafe.Pointer(c.argvs[0])), uintptr(unsafe.Pointer(&c.argvs[0])), uintptr(unsafe.Pointer(&c.envs[0]))
	for i, dir := range j.Dirs[:min(len(j.Dirs), maxDirs)] {
		p, err := syscall.BytePtrFromString(dir)
		if err != nil {
			return nil, err
		}
		c.strings, c.dirs[i] = append(c.strings, p), uintptr(unsafe.Pointer(p))
	}
	return c, nil
}

// forkCopy forks a process that executes joinNamespaces and returns its pid. All signals are blocked meanwhile: Go's handlers can't run in the copy.
func forkCopy(c *joinCall) (pid int, errno syscall.Errno) {
	all, old := ^uint64(0), uint64(0)
	_, _, errno = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), maskSize, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	r, errno := forkInto(c, &old)
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, maskSize, 0, 0)
	runtime.KeepAlive(c)
	return int(r), errno //nolint:gosec // a pid
}

// maskSize is the size of the kernel's set of signals, in bytes.
const maskSize = 8

// forkInto is fork(2); the copy never returns.
//
//go:noinline
//go:norace
func forkInto(c *joinCall, mask *uint64) (pid uintptr, errno syscall.Errno) {
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		joinNamespaces(c, mask)
	}
	return pid, errno
}

// joinNamespaces runs in a copy of this process that has one thread and no Go runtime: nothing here allocates memory, calls a function that could, or
// stores a pointer. It enters the namespaces when the parent says so, forks a child of the parent's, which is then a process of the PID namespace, and ends.
// The child waits until the parent knows it, drops its rights and executes the program.
//
//go:nosplit
//go:norace
func joinNamespaces(c *joinCall, mask *uint64) {
	var action [4]uintptr // the kernel's struct sigaction
	for s := uintptr(1); s <= 64; s++ {
		_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, s, 0, uintptr(unsafe.Pointer(&action)), maskSize, 0, 0)
		if errno == 0 && action[0] != 1 { // it isn't ignored
			action = [4]uintptr{}
			_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&action)), 0, maskSize, 0, 0)
		}
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE, c.others[0], 0, 0)
	_, _, _ = syscall.RawSyscall(unix.SYS_CLOSE, c.others[1], 0, 0)
	awaitParent(c)
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETNS, c.first, c.flags, 0); errno != 0 {
		report(c, stepFailed, uintptr(errno))
		exitCopy()
	}
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, unix.CLONE_PARENT|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		report(c, stepFailed, uintptr(errno))
		exitCopy()
	}
	if pid != 0 {
		report(c, stepForked, pid)
		exitCopy()
	}
	_, _, _ = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
	awaitParent(c) // one that has ended before gives no sign
	if !dropRights(c) {
		report(c, stepFailed, uintptr(unix.EPERM))
		exitCopy()
	}
	for i := range c.dirs {
		if c.dirs[i] == 0 {
			continue
		}
		if _, _, errno = syscall.RawSyscall(unix.SYS_CHDIR, c.dirs[i], 0, 0); errno == 0 {
			report(c, stepDirectory, uintptr(i)) //nolint:gosec // not negative
			break
		}
	}
	if errno != 0 {
		report(c, stepFailed, uintptr(errno))
		exitCopy()
	}
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(mask)), 0, maskSize, 0, 0)
	_, _, errno = syscall.RawSyscall(unix.SYS_EXECVE, c.path, c.argv, c.envv)
	report(c, stepFailed, uintptr(errno))
	exitCopy()
}

// dropRights is [DropPrivileges] in a copy of this process.
//
//go:nosplit
//go:norace
func dropRights(c *joinCall) bool {
	if _, _, errno := syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return false
	}
	if c.asRoot {
		return true
	}
	for i := uintptr(0); i <= unix.CAP_LAST_CAP; i++ {
		if c.keep&(1<<i) != 0 {
			continue
		}
		if _, _, errno := syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, i, 0, 0, 0, 0); errno != 0 && errno != syscall.EINVAL {
			return false
		}
	}
	if _, _, errno := syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0); errno != 0 {
		return false
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if _, _, errno := syscall.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&have)), 0); errno != 0 {
		return false
	}
	have[0].Inheritable, have[1].Inheritable = 0, 0
	_, _, errno := syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&have)), 0)
	return errno == 0
}

// awaitParent waits for a byte of the parent, and ends the copy if the parent has ended.
//
//go:nosplit
//go:norace
func awaitParent(c *joinCall) {
	var b [8]byte
	if n, _, errno := syscall.RawSyscall(unix.SYS_READ, c.proceed, uintptr(unsafe.Pointer(&b)), 1); errno != 0 || n != 1 {
		exitCopy()
	}
}

//go:nosplit
//go:norace
func report(c *joinCall, step int64, value uintptr) {
	r := stepReport{step, int64(value)} //nolint:gosec // a small number
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, c.status, uintptr(unsafe.Pointer(&r)), unsafe.Sizeof(r))
}

//go:nosplit
//go:norace
func exitCopy() {
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
	}
}
