package lock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/testutil"
)

// TestMain also is the process that holds a lock.
func TestMain(m *testing.M) {
	if path := os.Getenv("BERTH_LOCK_TEST"); path != "" {
		fmt.Println("waits")
		l, err := Open(context.Background(), path, Exclusive)
		fmt.Println("locked", err)
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		if os.Getenv("BERTH_LOCK_TEST_TYPED") != "" {
			_ = unix.Kill(os.Getpid(), unix.SIGTSTP)
			fmt.Println("holds")
		}
		_ = l.Close()
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type holder struct {
	*exec.Cmd
	in  *os.File
	out *bufio.Reader
}

// startHolder starts a process that holds the lock until it reads a line.
func startHolder(t *testing.T, path string, env ...string) holder {
	t.Helper()
	h := startWaiter(t, path, &syscall.SysProcAttr{}, env...)
	h.expectLine(t, "locked <nil>\n")
	return h
}

// startWaiter starts a process that waits for the lock.
func startWaiter(t *testing.T, path string, attr *syscall.SysProcAttr, env ...string) holder {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "--name", "a\x1b[31m")
	cmd.SysProcAttr = attr
	cmd.Env = append(os.Environ(), append(env, "BERTH_LOCK_TEST="+path)...)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = read
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read.Close()
	t.Cleanup(func() {
		write.Close()
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	h := holder{cmd, write, bufio.NewReader(out)}
	h.expectLine(t, "waits\n")
	return h
}

func (h holder) expectLine(t *testing.T, want string) {
	t.Helper()
	if line, err := h.out.ReadString('\n'); line != want {
		t.Fatalf("the holder says %q, %v", line, err)
	}
}

// state waits until the process is in a state of proc_pid_stat(5).
func (h holder) state(t *testing.T, want string) {
	t.Helper()
	waitUntil(t, "state "+want, func() bool {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.Process.Pid))
		_, after, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(after, want)
	})
}

// catchesSignal reports whether the process has a handler for a signal.
func (h holder) catchesSignal(t *testing.T, signal syscall.Signal) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "\nSigCgt:\t")
	line, _, _ := strings.Cut(after, "\n")
	caught, err := strconv.ParseUint(line, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return caught>>(signal-1)&1 == 1
}

func waitUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("in vain waited for", what)
		}
	}
}

func TestHeldError(t *testing.T) {
	path := newLockFile(t)
	h := startHolder(t, path)
	if err := h.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h.state(t, "T")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := Open(ctx, path, Exclusive)
	var held *HeldError
	if !errors.As(err, &held) || !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) || len(held.Holders) != 1 {
		t.Fatal(err)
	}
	if got := held.Holders[0]; got.PID != h.Process.Pid || got.State != Stopped {
		t.Errorf("%+v", got)
	}
	before, _, _ := strings.Cut(err.Error(), ", which")
	if want := fmt.Sprintf("lock %s: held by process %d (/proc/self/exe --name a [31m)", path, h.Process.Pid); before != want {
		t.Errorf("%v", err)
	}
	if !strings.Contains(err.Error(), " and is stopped, waited ") {
		t.Errorf("%v", err)
	}
}

func newLockFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lock")
	f, err := Create(t.Context(), path, 0o600, Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return path
}

func TestBreak(t *testing.T) {
	own := func(string) bool { return true }
	t.Run("a stopped holder", func(t *testing.T) {
		path := newLockFile(t)
		h := startHolder(t, path)
		if err := h.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		h.state(t, "T")
		ended, err := Break(path, time.Hour, own)
		if err != nil || len(ended) != 1 || ended[0].PID != h.Process.Pid {
			t.Errorf("%v, %v", ended, err)
		}
		if err := h.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Error(err)
		}
		if ended, err := Break(path, 0, own); len(ended) > 0 || err != nil {
			t.Errorf("the lock is free: %v, %v", ended, err)
		}
	})
	t.Run("no program of berth's", func(t *testing.T) {
		path := newLockFile(t)
		h := startHolder(t, path)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		ended, err := Break(path, 0, func(program string) bool {
			if program != self {
				t.Errorf("its program is %s", program)
			}
			return false
		})
		if !errors.Is(err, ErrForeign) || len(ended) > 0 {
			t.Errorf("%v, %v", ended, err)
		}
		if err := h.Process.Signal(unix.Signal(0)); err != nil {
			t.Error(err)
		}
	})
	t.Run("a missing file", func(t *testing.T) {
		if ended, err := Break(filepath.Join(t.TempDir(), "x"), 0, own); len(ended) > 0 || err != nil {
			t.Errorf("%v, %v", ended, err)
		}
	})
}

// TestFrozenHolder: on version 1 a frozen process is ended only where it isn't frozen.
func TestFrozenHolder(t *testing.T) {
	testutil.NeedRoot(t)
	for name, tree := range map[string]struct{ mount, file, freeze, thaw string }{
		"v1": {freezer, "freezer.state", "FROZEN", "THAWED"},
		"v2": {"/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "v2" {
				if _, err := os.Stat(tree.mount); err != nil {
					tree.mount = "/sys/fs/cgroup"
				}
			}
			if _, err := os.Stat(tree.mount + "/cgroup.procs"); err != nil {
				t.Logf("this machine has no %s", tree.mount)
				return
			}
			dir := fmt.Sprintf("%s/berth-lock-test-%d", tree.mount, os.Getpid())
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = os.WriteFile(filepath.Join(dir, tree.file), []byte(tree.thaw), 0) // then it ends
				waitUntil(t, "removal of "+dir, func() bool { return unix.Rmdir(dir) == nil })
			})
			path := newLockFile(t)
			h := startHolder(t, path)
			if err := os.WriteFile(dir+"/cgroup.procs", []byte(fmt.Sprint(h.Process.Pid)), 0); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, tree.file), []byte(tree.freeze), 0); err != nil {
				t.Fatal(err)
			}
			waitUntil(t, "frozen", func() bool { return process.FrozenCgroup("/proc", "", h.Process.Pid) != "" })
			ended, err := Break(path, time.Hour, func(string) bool { return true })
			if err != nil || len(ended) != 1 || ended[0].State != Frozen {
				t.Errorf("%v, %v", ended, err)
			}
		})
	}
}

// TestTypedStop: a process that holds a lock is stopped once it has given it up.
func TestTypedStop(t *testing.T) {
	if signal.Ignored(unix.SIGTSTP) {
		t.Fatal("SIGTSTP is ignored here")
	}
	path := newLockFile(t)
	h := startWaiter(t, path, &syscall.SysProcAttr{Setpgid: true}, "BERTH_LOCK_TEST_TYPED=1")
	h.expectLine(t, "locked <nil>\n")
	if !h.catchesSignal(t, unix.SIGTSTP) {
		t.Fatal("it doesn't catch SIGTSTP")
	}
	if _, err := h.in.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	h.expectLine(t, "holds\n")
	h.state(t, "T")
	f, err := TryOpen(path, Exclusive)
	if err != nil {
		t.Fatal("it was stopped while it held the lock:", err)
	}
	f.Close()
	if err := h.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := h.in.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	if err := h.Wait(); err != nil {
		t.Error(err)
	}
}

// TestHolderAge: a lock that moves on makes none of its holders look stuck.
func TestHolderAge(t *testing.T) {
	a, b := Holder{PID: 7, Start: 1}, Holder{PID: 7, Start: 2}
	at := time.Now()
	found := updateFirstSeen(nil, []Holder{a}, at)
	found = updateFirstSeen(found, []Holder{a}, at.Add(time.Second))
	if !found[a.id()].Equal(at) {
		t.Error("it holds the lock for a second")
	}
	found = updateFirstSeen(found, []Holder{b}, at.Add(2*time.Second))
	if _, old := found[a.id()]; old || !found[b.id()].Equal(at.Add(2*time.Second)) {
		t.Errorf("another has the lock now: %v", found)
	}
}

// TestOrphansGoOn: ^Z does not stop a process of an orphaned process group, as in a session of its own. The kernel
// sees to that: without a terminal the process doesn't catch the signal.
func TestOrphansGoOn(t *testing.T) {
	h := startWaiter(t, newLockFile(t), &syscall.SysProcAttr{Setsid: true}, "BERTH_LOCK_TEST_TYPED=1")
	h.expectLine(t, "locked <nil>\n")
	if h.catchesSignal(t, unix.SIGTSTP) {
		t.Error("it catches SIGTSTP")
	}
	if _, err := h.in.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	h.expectLine(t, "holds\n")
	time.Sleep(100 * time.Millisecond) // it would be stopped by now
	if _, err := h.in.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(time.Minute, func() { _ = h.Process.Kill() })
	defer stuck.Stop()
	if err := h.Wait(); err != nil {
		t.Error(err)
	}
}

// TestTypedStopWhileWaiting: ^Z stops at once a process that waits for a lock.
func TestTypedStopWhileWaiting(t *testing.T) {
	path := newLockFile(t)
	f, err := TryOpen(path, Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := startWaiter(t, path, &syscall.SysProcAttr{Setpgid: true})
	time.Sleep(100 * time.Millisecond) // it has begun to catch signals by now
	if err := h.Process.Signal(unix.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	h.state(t, "T")
}
