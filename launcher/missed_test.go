package launcher

import (
	"bufio"
	"io"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// An interrupt that comes while a shell becomes its last command is that one's, which
// doesn't hear of it. One that the shell hears, or the command, isn't missed.
func TestMissed(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         bool
	}{
		{"becomes who doesn't heed it", "trap : INT; echo ready; read go; exec cat", true},
		{"becomes who does", "trap : INT; echo ready; read go; exec sh -c 'trap : INT; read done; echo $done; read go; :'", false},
		{"stays, and heeds it no more", "trap : INT; echo ready; read go; trap - INT; read done; echo $done; read go; :", false},
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
			i := &initProcess{pid: cmd.Process.Pid}
			before := i.program()
			if before == "" {
				t.Fatal("nothing is known of the program")
			}
			if _, err := io.WriteString(in, "go\ndone\n"); err != nil {
				t.Fatal(err)
			}
			says("done")
			if got := i.missed(unix.SIGINT, before); got != tt.want {
				t.Errorf("missed: %v, want %v", got, tt.want)
			}
		})
	}
}

// Who has ended has missed nothing: it may have ended by its handler.
func TestMissedByNobody(t *testing.T) {
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
	i := &initProcess{pid: cmd.Process.Pid}
	before := i.program()
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	ended := unix.Siginfo{}
	if err := unix.Waitid(unix.P_PID, i.pid, &ended, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if i.missed(unix.SIGINT, before) {
		t.Error("it has missed a signal")
	}
}
