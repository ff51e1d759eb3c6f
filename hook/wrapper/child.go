package wrapper

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// child runs the real runtime beside this process and returns its exit code: 128
// and the signal if it was killed. Signals that ask for an end are passed on, and it ends
// if this process is killed, as the real runtime would. It finds signals, descriptors and
// limits as this process was given them, but for one: SIGCHLD isn't ignored, for
// then nobody could wait for it.
func child(path string, args, env []string, in Inherited) (int, error) {
	signals := listen(in)
	unblock := in.block() // a child starts with the mask of the thread that forks it
	pid, err := syscall.ForkExec(path, argv(path, args), &syscall.ProcAttr{
		Env:   env,
		Files: in.stdio(),
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	unblock()
	if err != nil {
		return 1, fmt.Errorf("start OCI runtime %s: %w", path, err)
	}
	return attend(pid, signals)
}

// listen begins to take the signals that are to be passed on, for good: when all is done
// this process ends.
func listen(in Inherited) chan os.Signal {
	for sig := 1; sig <= 64; sig++ {
		if s := syscall.Signal(sig); in.ignores(sig) && s != unix.SIGCHLD {
			signal.Ignore(s)
		}
	}
	signals := make(chan os.Signal, 32)
	if all := passed(in); len(all) > 0 { // none would be all
		signal.Notify(signals, all...)
	}
	return signals
}

// attend passes signals on to a child until it has ended, and returns its exit code.
func attend(pid int, signals <-chan os.Signal) (int, error) {
	p := &process{pid: pid}
	done := make(chan struct{})
	defer close(done)
	go p.pass(signals, done)
	status, err := p.wait()
	if err != nil {
		return 1, fmt.Errorf("wait for the OCI runtime: %w", err)
	}
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// process is a child. (Package os would make another one first, once, to find out what
// the kernel can do.)
type process struct {
	pid  int
	mu   sync.Mutex
	gone bool // its pid may be somebody else's
}

func (p *process) pass(signals <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			p.signal(s)
		case <-done:
			return
		}
	}
}

func (p *process) signal(s os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sig, ok := s.(syscall.Signal); ok && !p.gone {
		_ = syscall.Kill(p.pid, sig) // an error means that it has ended meanwhile
	}
}

// wait returns when the child has ended. Until nobody sends signals any more, it keeps
// its pid.
func (p *process) wait() (status syscall.WaitStatus, err error) {
	again := func(f func() error) {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = f()
		}
	}
	again(func() error { return unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) })
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
	again(func() error { _, err := syscall.Wait4(p.pid, &status, 0, nil); return err })
	return status, err
}

// passed lists the signals that are handed on: those by which people and engines end a
// runtime, which may have something to do before. All others that end a process end this
// one, and the runtime with it. (To listen to each takes some twenty microseconds.)
func passed(in Inherited) []os.Signal {
	var all []os.Signal
	for _, s := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
		if !in.ignores(int(s)) {
			all = append(all, s)
		}
	}
	return all
}

// stdio are the three standard descriptors, without those that weren't open.
func (in Inherited) stdio() []uintptr {
	files := []uintptr{0, 1, 2}
	for fd := range files {
		if in.Closed&(1<<fd) != 0 {
			files[fd] = ^uintptr(0)
		}
	}
	return files
}

func argv(path string, args []string) []string {
	return append([]string{path}, args[min(1, len(args)):]...)
}
