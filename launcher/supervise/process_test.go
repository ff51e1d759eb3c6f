package supervise

import (
	"bufio"
	"io"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A SIGINT that is sent while a shell executes its last command reaches that command, which
// has no handler for it. A SIGINT that the shell or the command handles isn't missed.
func TestMissed(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         bool
	}{
		{"executes a program without a handler", "trap : INT; echo ready; read go; exec cat", true},
		{"executes a program with one", "trap : INT; echo ready; read go; exec sh -c 'trap : INT; read done; echo $done; read go; :'", false},
		{"stays, and removes its handler", "trap : INT; echo ready; read go; trap - INT; read done; echo $done; read go; :", false},
		{"stays", "trap : INT; echo ready; read go; read done; echo $done; read go; :", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", tt.script)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = in.Close(); _ = cmd.Wait() }() // it reads no more, and ends
			lines := bufio.NewScanner(out)
			says := func(want string) {
				t.Helper()
				if !lines.Scan() || lines.Text() != want {
					t.Fatalf("it says %q, want %q", lines.Text(), want)
				}
			}
			says("ready")
			p := openProcess(t, cmd.Process.Pid)
			before := p.programID()
			if before == "" {
				t.Fatal("nothing is known of the program")
			}
			if _, err := io.WriteString(in, "go\ndone\n"); err != nil {
				t.Fatal(err)
			}
			says("done")
			if got := p.hasMissed(unix.SIGINT, before); got != tt.want {
				t.Errorf("missed: %v, want %v", got, tt.want)
			}
		})
	}
}

// A process that has ended has missed nothing: its handler may have ended it.
func TestMissedByEndedProcess(t *testing.T) {
	cmd := exec.Command("sh", "-c", "trap 'exit 8' INT; echo ready; read go")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }() // it has ended by a signal of ours
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatal(line, err)
	}
	p := openProcess(t, cmd.Process.Pid)
	before := p.programID()
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	ended := unix.Siginfo{}
	if err := unix.Waitid(unix.P_PID, p.PID, &ended, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if p.hasMissed(unix.SIGINT, before) {
		t.Error("it has missed a signal")
	}
}

func openProcess(t *testing.T, pid int) *Process {
	t.Helper()
	p, err := OpenProcess("", pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestEndsByDefault(t *testing.T) {
	for sig, want := range map[unix.Signal]bool{
		unix.SIGTERM: true, unix.SIGUSR1: true, unix.SIGHUP: true, unix.Signal(40): true,
		unix.SIGKILL: false, unix.SIGCHLD: false, unix.SIGWINCH: false, unix.SIGSTOP: false, unix.SIGCONT: false,
	} {
		if got := endsByDefault(sig); got != want {
			t.Errorf("%v: %v", sig, got)
		}
	}
}

// Only a signal that follows another one within repeatLimit asks a command again: it may have handled an older one.
func TestAsksAgain(t *testing.T) {
	for _, tt := range []struct {
		name  string
		since time.Duration // the previous signal; 0 means none
		sig   syscall.Signal
		want  bool
	}{
		{"first", 0, unix.SIGINT, false},
		{"soon", time.Second, unix.SIGINT, true},
		{"later", repeatLimit + time.Second, unix.SIGINT, false},
		{"a signal that doesn't ask", time.Second, unix.SIGUSR1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &Process{}
			if tt.since > 0 {
				p.askedAt = time.Now().Add(-tt.since)
			}
			if got := p.asksAgain(tt.sig); got != tt.want {
				t.Errorf("%v", got)
			}
		})
	}
}
