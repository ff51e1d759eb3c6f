package apptainer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/helper"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/enter"
)

// firstVariable is the environment variable of the process that [startFirstProcess] starts: the number of a file descriptor, to which that process
// or its init program writes when it loses no more signals. A first process ignores the signals that it has no handler for.
const firstVariable = "BERTH_FIRST_PROCESS"

// isFirstProcess reports whether startFirstProcess has started this process.
func isFirstProcess() bool { return os.Getpid() == 1 && os.Getenv(firstVariable) != "" }

// needsFirstProcess reports whether another process is to make the container: see startFirstProcess.
func (p *plan) needsFirstProcess() bool { return p.spaces.pid && !isFirstProcess() }

// startFirstProcess runs this process's command line in a child that is the first process of a new PID namespace, and returns an error with its
// exit code. Only such a process can mount the namespace's procfs. The broker grants it no lease, so this process takes it, and the child gets
// the devices as in a berth alloc. session is that of a user without root. isChild means that this process's parent is berth, too.
func startFirstProcess(c *cli.Context, o *launcher.Options, p *plan, session *helper.Session, isChild bool) error {
	runtime.LockOSThread() // the parent's death belongs to the thread
	if isChild {
		if err := endWithParent(); err != nil {
			return err
		}
	}
	ready, started, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close() // only read
	passed, err := rootless.Inherit(started)
	if err != nil {
		return err
	}
	env := append(os.Environ(), firstVariable+"="+strconv.Itoa(passed))
	if session != nil {
		passed, err := shareSession(session)
		if err != nil {
			return err
		}
		env = append(env, verb.HelperVariable+"="+strconv.Itoa(passed))
	}
	if o.Devices != nil && os.Getenv("BERTH_LEASE") == "" {
		lease, err := acquireLease(c, o, p)
		if err != nil {
			return err
		}
		env = append(env, "BERTH_LEASE="+lease.ID)
	}
	wait := func(*os.Process) { _, _ = ready.Read(make([]byte, 1)) } // this process has its other end, too: there are no errors
	if p.instance != "" {
		files, err := findInstanceFiles()
		if err != nil {
			return err
		}
		files.closeOnExec()
		wait = func(first *os.Process) {
			if err := files.announceInstance(ready, first.Pid); err != nil {
				verb.PrintError(err.Error())
				_ = first.Kill() // it may have ended
			}
		}
	}
	return verb.RunSelfWhenReady(c.Context, exec.Cmd{
		Args: os.Args, Env: env,
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS},
	}, unix.SIGKILL, wait)
}

// shareSession returns the number of a copy of the session's socket that programs inherit.
func shareSession(session *helper.Session) (fd int, err error) {
	socket, _, err := session.Share(0)
	if err != nil {
		return 0, err
	}
	defer socket.Close() // a copy
	return rootless.Inherit(socket)
}

// endWithParent has the kernel kill this process when its parent ends.
func endWithParent() error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the parent: %w", err)
	}
	return nil
}

// initPath is where this program is mounted in a container with an init process. No file of the image is there.
const initPath = "/dev/.berth-init"

// openReady returns the file of firstVariable, which no program inherits that this process starts.
func openReady(number string) (*os.File, error) {
	fd, err := strconv.Atoi(number)
	if err != nil {
		return nil, fmt.Errorf("environment variable %s: %w", firstVariable, err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "ready"), nil //nolint:gosec // not negative
}

// reportReady writes to the file of firstVariable and closes it.
func reportReady(f *os.File) error {
	_, err := f.Write([]byte{0})
	return errors.Join(err, f.Close())
}

// initVerb is the hidden verb of [InitCommand]. Its second argument says whether the first process ends with the program.
const (
	initVerb  = "init"
	initEnds  = "ends"
	initStays = "stays"
)

// InitCommand is the hidden verb of the first process in a PID namespace. Its arguments are the number in firstVariable, initEnds or initStays, a program
// and that program's arguments.
func InitCommand() *cli.Command {
	return &cli.Command{
		Name: initVerb, Hidden: true, HideHelp: true, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			words := c.Args().Slice()
			if len(words) < 3 || os.Getpid() != 1 {
				return verb.UsageError{Err: errors.New("only berth apptainer starts berth init")}
			}
			signals := make(chan os.Signal, 64) // more at once are dropped
			signal.Notify(signals, verb.ForwardedSignals()...)
			verb.SettleInterrupts(c.Context)
			if err := c.Err(); err != nil { // a signal came before
				return err
			}
			f, err := openReady(words[0])
			if err != nil {
				return err
			}
			ready, argv, code := func() error { return reportReady(f) }, words[2:], 0
			if words[1] == initStays {
				code, err = enter.RunInstance(argv[0], argv, os.Environ(), signals, ready)
			} else if err = ready(); err == nil {
				code, err = enter.RunAsInit(argv[0], argv, os.Environ(), signals)
			}
			if err != nil {
				return verb.WithCode(codeFailed, err)
			}
			return verb.WithCode(code, nil)
		},
	}
}
