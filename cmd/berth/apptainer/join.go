package apptainer

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/launcher/enter"
	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// join is a program that starts in a running container.
//
// A process with several threads can't enter a user namespace (setns(2)), and a Go program always has several. So nsenter(1) enters the namespaces:
//
//  1. This process, the launcher, starts berth join outside. place moves that process into the container's cgroup; then it executes nsenter.
//  2. nsenter forks a child for the PID namespace, which executes berth join inside: the program at initPath, which is berth in every instance.
//  3. The launcher kills nsenter and so adopts that child, as a subreaper. It passes on what is to run, and the child executes it.
//
// All of them talk through one socket. The environment of the first two has PATH alone: neither the image's nor the caller's can have nsenter load code.
type join struct {
	// first is a pidfd of the container's first process, and pid that process's pid.
	first *os.File
	pid   int
	// place is called with the pid of a process of this user namespace that becomes one of the container when place has returned.
	place   func(pid int) error
	request joinRequest
}

// joinRequest is what the launcher sends to berth join inside.
type joinRequest struct {
	// Argv has the program's path in the container first.
	Argv, Env []string
	// Dirs are working directories of which the first that can be entered is used.
	Dirs []string
	// AsRoot is that of [enter.DropPrivileges].
	AsRoot bool
	// Stderr is the program's stderr, and Inherited are all file descriptors that the program must not have. nsenter's stderr is the launcher's.
	Stderr    int
	Inherited []int
}

// joinReport is an answer to a joinRequest: the index of the working directory, or an errno. A second one is the errno of execve(2); the socket is closed
// instead when the program runs.
type joinReport struct {
	Dir   int
	Errno unix.Errno
}

// joinVerb is the hidden verb of [JoinCommand], with joinOutside FD PROGRAM ARG… or joinInside FD.
const (
	joinVerb    = "join"
	joinOutside = "outside"
	joinInside  = "inside"
)

// startProgram starts the program as a child of this process and returns it, and the index of its working directory. The program has all namespaces of the
// container, no rights that its user hasn't there, and the terminal, session, process group and open files of this process. The kernel kills it when this
// process ends. The goroutine is locked to its thread.
func (j join) startProgram() (command *os.Process, dir int, err error) {
	nsenter := ociruntime.LookUp("nsenter")
	if nsenter == "" {
		return nil, 0, fmt.Errorf("there is no nsenter in %s: install util-linux", ociruntime.Programs)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("make a socket: %w", err)
	}
	socket, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket") //nolint:gosec // not negative
	defer socket.Close()                                                                             // all was read
	err = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	words, passed, e := j.enterWords(theirs, nsenter)
	defer func() {
		for _, fd := range passed {
			_ = unix.Close(fd) // a copy
		}
	}()
	if err = errors.Join(err, e, theirs.Close()); err != nil {
		return nil, 0, fmt.Errorf("enter the container: %w", err)
	}
	if j.request.Stderr, err = rootless.Inherit(os.Stderr); err != nil {
		return nil, 0, err
	}
	passed = append(passed, j.request.Stderr)
	j.request.Inherited = passed
	said, stderr, err := os.Pipe()
	if err != nil {
		return nil, 0, fmt.Errorf("make a pipe: %w", err)
	}
	defer said.Close() // only read
	// Orphans of this PID namespace become this process's children. Source: find_new_reaper in kernel/exit.c, since Linux 4.11.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, 0, fmt.Errorf("become a subreaper: %w", err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }() // never fails
	entering := exec.Cmd{
		Path: "/proc/self/exe", Args: words, Env: []string{"PATH=" + ociruntime.Programs}, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: stderr,
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	}
	err = entering.Start()
	_ = stderr.Close() // a copy
	if err != nil {
		return nil, 0, fmt.Errorf("start a process for the command: %w", err)
	}
	for _, fd := range passed {
		_ = unix.Close(fd) // a copy
	}
	passed = nil
	err = j.place(entering.Process.Pid)
	var late atomic.Bool
	limit := time.AfterFunc(enterTime, func() {
		late.Store(true)
		shutDown(socket)
	})
	if err == nil {
		command, err = j.letEnter(socket)
	}
	_ = entering.Process.Kill() // it may have ended
	_ = entering.Wait()         // killed
	if err == nil {
		dir, err = j.letExecute(socket, len(j.request.Dirs))
	}
	limit.Stop()
	if err != nil {
		killChildren()
	}
	switch {
	case err == nil:
	case late.Load():
		err = fmt.Errorf("enter the container: the process doesn't answer after %s: another process of the container may have stopped it", enterTime)
	case hasClosed(err): // the processes have ended, and have written why
		_ = said.SetReadDeadline(time.Now().Add(time.Second)) // a pipe has deadlines
		const limit = 4 << 10
		text, _ := io.ReadAll(io.LimitReader(said, limit)) // it is only shown
		err = fmt.Errorf("enter the container: %s", strings.TrimSpace(string(text)))
	}
	return command, dir, err
}

// enterWords returns the command line of berth join outside, and the numbers of the file descriptors that it inherits.
func (j join) enterWords(socket *os.File, nsenter string) (words []string, passed []int, err error) {
	fd, err := rootless.Inherit(socket)
	if err != nil {
		return nil, nil, err
	}
	number := strconv.Itoa(fd)
	words, passed = []string{"berth", joinVerb, joinOutside, number, nsenter, "--preserve-credentials"}, []int{fd}
	for _, space := range []struct{ kind, flag string }{{"user", "user"}, {"mnt", "mount"}, {"pid", "pid"}, {"ipc", "ipc"}, {"uts", "uts"}, {"net", "net"}} {
		own, err := process.NamespaceOf("/proc", os.Getpid(), space.kind)
		if err != nil {
			return nil, passed, err
		}
		theirs, err := process.OpenNamespace("/proc", j.pid, space.kind)
		if err != nil {
			return nil, passed, err
		}
		defer theirs.Close() // a copy is passed on
		var st unix.Stat_t
		if err := unix.Fstat(int(theirs.Fd()), &st); err != nil {
			return nil, passed, err
		}
		if st.Ino == own { // the user has no rights over those of the host
			continue
		}
		if fd, err = rootless.Inherit(theirs); err != nil {
			return nil, passed, err
		}
		words, passed = append(words, fmt.Sprintf("--%s=/proc/self/fd/%d", space.flag, fd)), append(passed, fd)
	}
	if err := unix.PidfdSendSignal(int(j.first.Fd()), 0, nil, 0); err != nil { // otherwise they are that process's, and not those of a later one of that pid
		return nil, passed, fmt.Errorf("its first process: %w", err)
	}
	return append(words, "--", initPath, joinVerb, joinInside, number), passed, nil
}

// enterTime is how long the process may take to enter the container and to execute the program. There the container's other processes can stop it.
const enterTime = 10 * time.Second

// shutDown ends the reads of a socket.
func shutDown(socket *os.File) {
	raw, err := socket.SyscallConn()
	if err != nil { // it is closed
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // it may be closed
}

// killChildren kills and reaps the processes that this process has started or adopted.
func killChildren() {
	for _, pid := range process.Children("/proc", os.Getpid()) {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
}

// letEnter has the process enter the container, and returns the child of nsenter that is in there.
func (j join) letEnter(socket *os.File) (*os.Process, error) {
	if _, err := socket.Write([]byte{0}); err != nil {
		return nil, fmt.Errorf("enter the container: %w", err)
	}
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	n, size, err := 0, 0, error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		n, size, _, _, err = unix.Recvmsg(int(socket.Fd()), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return nil, fmt.Errorf("enter the container: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:size])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("enter the container: no credentials of the process"), err)
	}
	sender, err := unix.ParseUnixCredentials(&messages[0])
	if err != nil {
		return nil, fmt.Errorf("enter the container: %w", err)
	}
	return os.FindProcess(int(sender.Pid)) // it is waiting for the request, so it is still that process
}

// letExecute has the process execute the program, and returns the index of its working directory, below dirs.
func (j join) letExecute(socket *os.File, dirs int) (dir int, err error) {
	if err := gob.NewEncoder(socket).Encode(j.request); err != nil {
		return 0, fmt.Errorf("enter the container: %w", err)
	}
	var chosen, executed joinReport
	reports := gob.NewDecoder(socket)
	if err := reports.Decode(&chosen); err != nil {
		return 0, fmt.Errorf("enter the container: %w", err)
	}
	if chosen.Errno != 0 {
		return 0, fmt.Errorf("set the working directory: %w", chosen.Errno)
	}
	if chosen.Dir < 0 || chosen.Dir >= dirs { // a process of the container has traced it
		return 0, errors.New("enter the container: the process reports an unknown working directory")
	}
	if reports.Decode(&executed) == nil {
		return 0, &os.PathError{Op: "execute", Path: j.request.Argv[0], Err: executed.Errno}
	}
	return chosen.Dir, nil // the socket was closed by the program's start
}

// hasClosed reports whether an error says that the other end of a socket is closed.
func hasClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}

// JoinCommand is the hidden verb of the processes of a join.
func JoinCommand() *cli.Command {
	return &cli.Command{
		Name: joinVerb, Hidden: true, HideHelp: true, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			words := c.Args().Slice()
			wrong := verb.UsageError{Err: errors.New("only berth apptainer starts berth join")}
			if len(words) < 2 {
				return wrong
			}
			fd, err := strconv.Atoi(words[1])
			if err != nil {
				return wrong
			}
			runtime.LockOSThread() // rights and the parent's death belong to the thread
			verb.SettleInterrupts(c.Context)
			if err := c.Err(); err != nil {
				return err
			}
			switch {
			case words[0] == joinOutside && len(words) > 2:
				return becomeNsenter(fd, words[2:])
			case words[0] == joinInside && len(words) == 2:
				unix.CloseOnExec(fd)
				return becomeJoined(os.NewFile(uintptr(fd), "socket")) //nolint:gosec // not negative
			}
			return wrong
		},
	}
}

// becomeNsenter waits for the launcher and executes nsenter. It returns only an error.
func becomeNsenter(socket int, argv []string) error {
	if err := endWithParent(); err != nil {
		return err
	}
	if n, err := unix.Read(socket, make([]byte, 1)); n != 1 {
		return fmt.Errorf("wait for the launcher: %w", errors.Join(err, io.EOF))
	}
	// No process of the container can have the next one gain rights while it isn't the program yet.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	return &os.PathError{Op: "execute", Path: argv[0], Err: unix.Exec(argv[0], append([]string{"nsenter"}, argv[1:]...), os.Environ())}
}

// becomeJoined executes the program that the launcher names. It returns only an error.
func becomeJoined(socket *os.File) error {
	if _, err := socket.Write([]byte{0}); err != nil { // the kernel adds the pid that this process has for the launcher
		return err
	}
	var r joinRequest
	if err := gob.NewDecoder(socket).Decode(&r); err != nil {
		return fmt.Errorf("read what to run: %w", err)
	}
	for _, fd := range r.Inherited {
		unix.CloseOnExec(fd)
	}
	if err := endWithParent(); err != nil { // the launcher, which has killed nsenter before
		return err
	}
	if hasHungUp(socket) { // the launcher ended before
		return io.ErrUnexpectedEOF
	}
	if err := enter.DropPrivileges(r.AsRoot); err != nil {
		return err
	}
	reports, chosen := gob.NewEncoder(socket), joinReport{Errno: unix.ENOENT}
	for i, dir := range r.Dirs {
		err := unix.Chdir(dir)
		if err == nil {
			chosen = joinReport{Dir: i}
			break
		}
		errors.As(err, &chosen.Errno)
	}
	if err := reports.Encode(chosen); err != nil || chosen.Errno != 0 {
		return verb.WithCode(codeFailed, err)
	}
	if err := unix.Dup3(r.Stderr, unix.Stderr, 0); err != nil {
		return fmt.Errorf("set stderr: %w", err)
	}
	failed := joinReport{}
	errors.As(unix.Exec(r.Argv[0], r.Argv, r.Env), &failed.Errno)
	return verb.WithCode(codeFailed, reports.Encode(failed))
}

// hasHungUp reports whether the other end of a socket is closed.
func hasHungUp(socket *os.File) bool {
	polled := []unix.PollFd{{Fd: int32(socket.Fd()), Events: unix.POLLRDHUP}} //nolint:gosec // a descriptor
	n, err := unix.Poll(polled, 0)
	return err == nil && n > 0 && polled[0].Revents&(unix.POLLHUP|unix.POLLRDHUP) != 0
}
