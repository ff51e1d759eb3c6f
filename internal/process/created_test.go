package process

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// WaitsForStart is true only for a forked process that has executed no program and has exec.fifo open.
func TestWaitsForStart(t *testing.T) {
	for _, tt := range []struct {
		name, fifo, line string
		later            uint64 // than the start of the process
		want             bool
	}{
		{"an init that waits", "exec.fifo", `echo ready`, 0, true},
		{"another process of this pid", "exec.fifo", `echo ready`, 1, false},
		{"another FIFO", "other.fifo", `echo ready`, 0, false},
		{"a started container whose init executes no program", "exec.fifo", `rm "$0"; echo ready`, 0, false},
		{"a program that holds the FIFO", "exec.fifo", `exec sh -c "echo ready; read go"`, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fifo := filepath.Join(t.TempDir(), tt.fifo)
			if err := unix.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("sh", "-c", `(read own rest </proc/self/stat; exec 9<>"$0"; echo $own; `+tt.line+`; read go) <>"$0"; true`, fifo)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			lines.Scan()
			pid, err := strconv.Atoi(lines.Text())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = unix.Kill(pid, unix.SIGKILL) // its shell ends with it
				_ = cmd.Wait()
			}()
			if lines.Scan(); lines.Text() != "ready" {
				t.Fatalf("it says %q", lines.Text())
			}
			start, err := Start("/proc", pid)
			if err != nil {
				t.Fatal(err)
			}
			if got := WaitsForStart("/proc", pid, start+tt.later); got != tt.want {
				t.Errorf("it waits for its start: %v", got)
			}
		})
	}
}
