package ledger

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/lock"
)

// TestMain lets the test binary be a process that waits for the lock of a ledger.
func TestMain(m *testing.M) {
	if dir := os.Getenv("BERTH_LEDGER_TEST"); dir != "" {
		fmt.Println("waits")
		fmt.Println(store{dir: dir}.withLock(context.Background(), time.Minute, func() error { return nil }))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestTypedStopWhileWaiting: ^Z stops a process that waits for the lock, before it has it.
func TestTypedStopWhileWaiting(t *testing.T) {
	dir := t.TempDir()
	held, err := lock.Create(t.Context(), filepath.Join(dir, "ledger.lock"), 0o600, lock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "BERTH_LEDGER_TEST="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // it may have ended already
		_ = cmd.Wait()
	}()
	if _, err := out.Read(make([]byte, len("waits\n"))); err != nil {
		t.Fatal(err)
	}
	const stopSignal = uint64(1) << (syscall.SIGTSTP - 1)
	for end := time.Now().Add(time.Minute); ; { // until it delays stops
		caught, err := strconv.ParseUint(readStatus(t, cmd.Process.Pid, "SigCgt"), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if caught&stopSignal != 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it doesn't delay stops")
		}
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); readStatus(t, cmd.Process.Pid, "State")[:1] != "T"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it waits on")
		}
	}
}

// readStatus returns the value of a key of proc_pid_status(5).
func readStatus(t *testing.T, pid int, key string) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "\n"+key+":\t")
	value, _, _ := strings.Cut(after, "\n")
	return value
}
