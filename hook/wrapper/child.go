package wrapper

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// child runs the real runtime beside this process and returns its exit code: 128
// and the signal if it was killed. Signals are passed on, and it ends if this
// process is killed, as the real runtime would. It finds signals, descriptors and
// limits as this process was given them, but for one: SIGCHLD isn't ignored, for
// then nobody could wait for it.
func child(path string, args, env []string, in Inherited) (int, error) {
	for sig := 1; sig <= 64; sig++ {
		if s := syscall.Signal(sig); in.ignores(sig) && s != unix.SIGCHLD {
			signal.Ignore(s)
		}
	}
	signals := make(chan os.Signal, 32)
	signal.Notify(signals, passed(in)...)
	defer signal.Stop(signals)
	unblock := in.block() // a child starts with the mask of the thread that forks it
	p, err := os.StartProcess(path, argv(path, args), &os.ProcAttr{
		Env:   env,
		Files: in.stdio(),
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	unblock()
	if err != nil {
		return 1, fmt.Errorf("start OCI runtime %s: %w", path, err)
	}
	done := make(chan struct{})
	defer close(done)
	go pass(p, signals, done)
	state, err := p.Wait()
	if err != nil {
		return 1, fmt.Errorf("wait for OCI runtime %s: %w", path, err)
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return state.ExitCode(), nil
}

func pass(p *os.Process, signals <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			_ = p.Signal(s) // an error means that it has ended meanwhile
		case <-done:
			return
		}
	}
}

// passed lists the signals that are handed on: all but those that Go or the
// kernel sends to this process itself.
func passed(in Inherited) []os.Signal {
	var all []os.Signal
	for sig := 1; sig <= 31; sig++ {
		switch s := syscall.Signal(sig); s {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGPROF:
		default:
			if !in.ignores(sig) {
				all = append(all, s)
			}
		}
	}
	return all
}

// stdio are the three standard descriptors, without those that weren't open.
func (in Inherited) stdio() []*os.File {
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	for fd := range files {
		if in.Closed&(1<<fd) != 0 {
			files[fd] = nil
		}
	}
	return files
}

func argv(path string, args []string) []string {
	return append([]string{path}, args[min(1, len(args)):]...)
}
