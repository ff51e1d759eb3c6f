package process

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStart(t *testing.T) {
	own, err := Start("/proc", os.Getpid())
	if err != nil || own == 0 {
		t.Fatal(own, err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child, err := Start("/proc", cmd.Process.Pid)
	if err != nil || child < own {
		t.Errorf("a child started at %d, its parent at %d: %v", child, own, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := Start("/proc", cmd.Process.Pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a process that has ended: %v", err)
	}
}

func TestHasRun(t *testing.T) {
	if !HasRun("/proc", os.Getpid()) || !HasRun("/proc", 1<<30) {
		t.Error("this process has run, and nothing is known of one that doesn't exist")
	}
	for _, c := range []struct {
		name, status string
		want         bool
	}{
		{"just forked", "Name:\tsh\nvoluntary_ctxt_switches:\t0\nnonvoluntary_ctxt_switches:\t0\n", false},
		{"has waited", "Name:\tsh\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t0\n", true},
		{"was interrupted", "voluntary_ctxt_switches:\t0\nnonvoluntary_ctxt_switches:\t1\n", true},
		{"a name that looks like a field", "Name:\tvoluntary_ctxt_switches: 3\nvoluntary_ctxt_switches:\t0\nnonvoluntary_ctxt_switches:\t0\n", false},
		{"nothing", "", true},
	} {
		if got := hasRun(c.status); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestStartOfOddFiles(t *testing.T) {
	tests := []struct {
		name, stat string
		want       uint64
	}{
		{"odd name", "7 (a) b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20", 4242},
		{"too short", "7 (a) R 1 2 3", 0},
		{"no number", "7 (a) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x", 0},
		{"empty", "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, strconv.Itoa(7)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "7", "stat"), []byte(tt.stat), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := Start(dir, 7); got != tt.want || (err == nil) != (tt.want > 0) {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}

func TestHostRoot(t *testing.T) {
	if got, err := HostRoot("/proc"); err != nil || got && os.Geteuid() != 0 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := HostRoot(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestOwn: a process reads its pid of the procfs, also one of another PID namespace.
func TestOwn(t *testing.T) {
	if os.Getenv("BERTH_TEST_OWN") != "" {
		pid, err := Own("/proc")
		fmt.Println(pid, os.Getpid(), err)
		os.Exit(0)
	}
	if pid, err := Own("/proc"); pid != os.Getpid() || err != nil {
		t.Errorf("got %d, %v; want %d", pid, err, os.Getpid())
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestOwn$")
	cmd.Env = append(os.Environ(), "BERTH_TEST_OWN=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWUSER}
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintln(pid, 1, nil); out.String() != want {
		t.Errorf("in a PID namespace: %q, want %q", out.String(), want)
	}
}

func TestLives(t *testing.T) {
	own, err := Start("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := Start("/proc", cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	var corpse unix.Siginfo
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &corpse, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	check := func(name string, pid int, start uint64, want bool) {
		t.Helper()
		if got := Lives("/proc", pid, start); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	check("this process", os.Getpid(), own, true)
	check("another with this pid", os.Getpid(), own+1, false)
	check("a corpse", cmd.Process.Pid, start, false)
	_ = cmd.Wait()
	check("a buried one", cmd.Process.Pid, start, false)
}

func TestHandlesSignal(t *testing.T) {
	const status = "Name:\tsh\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000000004\nSigCgt:\t0000000000004000\n"
	for signal, want := range map[int]bool{1: true, 2: false, 3: true, 15: true} {
		if isHandled(status, signal) != want {
			t.Errorf("signal %d: %v, want %v", signal, !want, want)
		}
	}
}

// The handlers of a process that hasn't executed its program yet don't count.
func TestHandlesSignalOfTheCommand(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `(trap : TERM; echo ready; read go <"$0"; exec sh -c "trap : TERM; echo executed; read go" <>"$0") & echo $!; wait`, fifo)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid, lines := 0, bufio.NewScanner(out)
	for range 2 {
		if lines.Scan(); lines.Text() != "ready" {
			if pid, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatal(err)
			}
		}
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL) // its shell ends with it
		_ = cmd.Wait()
	}()
	if HandlesSignal("/proc", pid, int(unix.SIGTERM)) {
		t.Error("the handler that it had before is taken for the command's")
	}
	if err := os.WriteFile(fifo, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if lines.Scan(); lines.Text() != "executed" {
		t.Fatalf("it says %q", lines.Text())
	}
	if !HandlesSignal("/proc", pid, int(unix.SIGTERM)) {
		t.Error("the command's handler doesn't count")
	}
}

// A signal pends as long as the process that it was sent to can't take note of it.
func TestHasPending(t *testing.T) {
	cmd := exec.Command("sh", "-c", `trap 'echo heard' TERM; echo ready; while :; do read go; done`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // it ends never by itself
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	lines.Scan()
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// wait4 waits until the child is stopped.
	if _, err := unix.Wait4(cmd.Process.Pid, nil, unix.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !HasPending("/proc", cmd.Process.Pid, int(unix.SIGTERM)) || HasPending("/proc", cmd.Process.Pid, int(unix.SIGUSR1)) {
		t.Error("a stopped process has handled a signal, or has one pending that was not sent")
	}
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if lines.Scan(); lines.Text() != "heard" || HasPending("/proc", cmd.Process.Pid, int(unix.SIGTERM)) {
		t.Errorf("it says %q, and the signal pends", lines.Text())
	}
}

func TestChildren(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }() // its end isn't the test's
	if got := Children("/proc", os.Getpid()); !slices.Contains(got, cmd.Process.Pid) {
		t.Errorf("%v doesn't have %d", got, cmd.Process.Pid)
	}
	if got := Children("/proc", cmd.Process.Pid); got != nil {
		t.Errorf("%v", got)
	}
}
