package rig

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Process is a command in the foreground, which runs while the test goes on.
type Process struct {
	Cmd  *exec.Cmd
	done chan struct{}
}

// StartProcess starts a command. At the end of the test it is interrupted, and has to end.
func StartProcess(t testing.TB, cmd *exec.Cmd) Process {
	t.Helper()
	p := Process{Cmd: cmd, done: make(chan struct{})}
	Must(t, cmd.Start())
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the test looks at its state
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		p.Wait(t)
	})
	return p
}

// StartReading is StartProcess, and returns the command's standard output. Unlike that of [exec.Cmd.StdoutPipe] it can be
// read to its end after the command has ended.
func StartReading(t testing.TB, cmd *exec.Cmd) (Process, *bufio.Reader) {
	t.Helper()
	r, w, err := os.Pipe()
	Must(t, err)
	t.Cleanup(func() { _ = r.Close() }) // nothing was written
	cmd.Stdout = w
	p := StartProcess(t, cmd)
	Must(t, w.Close())
	return p, bufio.NewReader(r)
}

// HasEnded reports whether the process has ended.
func (p Process) HasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait waits for the process's end, for two minutes at most, and returns its exit code.
func (p Process) Wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(2 * time.Minute):
		t.Errorf("%q doesn't end", p.Cmd.Args)
		_ = p.Cmd.Process.Kill() // it may have ended meanwhile
		<-p.done
	}
	return p.Cmd.ProcessState.ExitCode()
}

// RunBerth runs a verb to its end.
func (n *Node) RunBerth(t testing.TB, words ...string) Said {
	t.Helper()
	return n.Run(t, n.Command(n.Berth, words...))
}

// WaitUntil waits until condition holds; the test fails after a minute, which only a busy machine
// needs.
func WaitUntil(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for last := time.Now().Add(time.Minute); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(last) {
			t.Fatalf("waited for a minute: %s", what)
		}
	}
}

// Decode reads the JSON that a command printed.
func Decode(t testing.TB, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}
