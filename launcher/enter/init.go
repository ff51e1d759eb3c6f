package enter

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// RunAsInit starts a program and waits for its end, as the first process of a PID namespace. Meanwhile it reaps the processes that others have
// left, and passes on the signals that it receives from the channel. The code is the program's exit code, or 128 plus the signal that ended
// it. All other processes of the namespace end with this one.
//
// The program stays in this process's process group, and this process leaves it: signals of a terminal reach the program once, and
// a shell can stop and continue it as a job. catatonit gives the program a process group of its own, of which the shell knows nothing.
func RunAsInit(program string, argv, env []string, signals <-chan os.Signal) (code int, err error) {
	pid, err := syscall.ForkExec(program, argv, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, &os.PathError{Op: "execute", Path: program, Err: err}
	}
	if err := unix.Setpgid(0, 0); err != nil {
		return 0, fmt.Errorf("leave the process group of the command: %w", err)
	}
	go func() {
		for s := range signals {
			if s, ok := s.(syscall.Signal); ok {
				_ = unix.Kill(pid, s) // it may have ended
			}
		}
	}()
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR), err == nil && ended != pid:
		case err != nil:
			return 0, fmt.Errorf("wait for the command: %w", err)
		case status.Signaled():
			return 128 + int(status.Signal()), nil
		default:
			return status.ExitStatus(), nil
		}
	}
}

// RunInstance starts a program as the first process of a PID namespace, and lives on when the program has ended, for processes that join the namespace. It sends the signals
// that it receives from the channel to all processes of the namespace, and ends with 128 plus the signal when none is left after one. It reaps
// the processes that others have left. started is called when the program runs.
func RunInstance(program string, argv, env []string, signals <-chan os.Signal, started func() error) (code int, err error) {
	reap := make(chan os.Signal, 1)
	signal.Notify(reap, unix.SIGCHLD)
	if _, err := syscall.ForkExec(program, argv, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}}); err != nil {
		return 0, &os.PathError{Op: "execute", Path: program, Err: err}
	}
	if err := started(); err != nil {
		return 0, err
	}
	var ending <-chan time.Time
	for {
		select {
		case s := <-signals:
			if s, ok := s.(syscall.Signal); ok {
				_ = unix.Kill(-1, s) // to all but this one; there may be none
				code, ending = 128+int(s), time.Tick(endPause)
			}
		case <-reap:
			for pid := 1; pid > 0; {
				pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
		case <-ending:
		}
		if ending != nil && errors.Is(unix.Kill(-1, 0), unix.ESRCH) {
			return code, nil
		}
	}
}

// endPause is the interval at which an ending instance checks for processes that aren't its children: it isn't notified of their ends.
const endPause = 20 * time.Millisecond
