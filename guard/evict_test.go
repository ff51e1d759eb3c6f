package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// eviction is a node with real cgroups and a ledger of its own.
type eviction struct {
	*testing.T
	Guard
	group, dir string
}

func newEviction(t *testing.T) *eviction {
	t.Helper()
	testutil.NeedRoot(t)
	tree, err := cgroup.Detect("")
	if err != nil {
		testutil.SkipOrFail(t, err.Error())
	}
	dir := t.TempDir()
	g := Guard{Ledger: ledger.Open(ledger.Options{Dir: dir + "/run", Events: dir + "/log"}), Cgroups: tree}
	e := &eviction{t, g, fmt.Sprintf("/berth-evict-test-%d", os.Getpid()), dir}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(tree.Kill(ctx, e.group), tree.Remove(ctx, e.group)); err != nil {
			t.Error(err)
		}
	})
	return e
}

// process starts a process in a cgroup.
func (e *eviction) process(group string, flags uintptr) *exec.Cmd {
	e.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if err := cmd.Start(); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	if err := errors.Join(e.Cgroups.Create(group), e.Cgroups.Join(group, cmd.Process.Pid)); err != nil {
		e.Fatal(err)
	}
	return cmd
}

// isAlive is false for a killed process, even if it is a zombie.
func (e *eviction) isAlive(cmd *exec.Cmd) bool {
	e.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	if err != nil {
		e.Fatal(err)
	}
	return !strings.Contains(string(stat), ") Z ")
}

// lease takes a lease for a container whose runtime has ended, in a cgroup as it is.
func (e *eviction) lease(name, group string) {
	e.Helper()
	namespace, err := process.Namespace("/proc", os.Getpid())
	if err != nil {
		e.Fatal(err)
	}
	request, err := request.Parse("1")
	if err != nil {
		e.Fatal(err)
	}
	_, err = e.Ledger.Acquire(e.Context(), ledger.Ask{
		Request:   request,
		Inventory: gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b", Index: 1, Minor: 1}}},
		Owner: ledger.Owner{
			EntryPoint: "runtime", Container: name, Cgroup: group, PIDFile: e.pidFile(name),
			Process: ledger.Process{PID: 1 << 22, Start: 1, Namespace: namespace}, // pid_max
		},
	})
	if err != nil {
		e.Fatal(err)
	}
}

func (e *eviction) pidFile(name string) string { return filepath.Join(e.dir, name+".pid") }

func (e *eviction) init(name, group string, flags uintptr) *exec.Cmd {
	e.Helper()
	cmd := e.process(group, flags)
	if err := os.WriteFile(e.pidFile(name), []byte(fmt.Sprint(cmd.Process.Pid)), 0o600); err != nil {
		e.Fatal(err)
	}
	return cmd
}

// evict evicts the holder of the first lease, and returns how many leases are left.
func (e *eviction) evict() (left int, err error) {
	e.Helper()
	v, err := e.Ledger.View()
	if err != nil || len(v.Leases) == 0 || v.Leases[0].State != ledger.Bound {
		e.Fatalf("%+v, %v", v, err)
	}
	err = e.Evict(e.Context(), v.Leases[0].Lease)
	all, lerr := e.Ledger.ReadLeases()
	if lerr != nil {
		e.Fatal(lerr)
	}
	return len(all), err
}

// Processes that were in the cgroup before the container survive.
func TestEvictSparesOtherProcesses(t *testing.T) {
	t.Run("init ends all", func(t *testing.T) {
		e := newEviction(t)
		bystander := e.process(e.group, 0)
		e.lease("a", e.group)
		init := e.init("a", e.group, unix.CLONE_NEWPID)
		left, err := e.evict()
		if got := []bool{e.isAlive(bystander), e.isAlive(init)}; !slices.Equal(got, []bool{true, false}) || left != 0 || err != nil {
			t.Errorf("bystander and init live: %v; %d leases left, %v", got, left, err)
		}
	})
	t.Run("init may leave others", func(t *testing.T) {
		e := newEviction(t)
		bystander := e.process(e.group, 0)
		e.lease("a", e.group)
		init := e.init("a", e.group, 0)
		left, err := e.evict()
		if got := []bool{e.isAlive(bystander), e.isAlive(init)}; !slices.Equal(got, []bool{true, false}) || left != 1 || !errors.Is(err, ledger.ErrLive) {
			t.Errorf("bystander and init live: %v; %d leases left, %v", got, left, err)
		}
	})
	t.Run("another lease's", func(t *testing.T) {
		e := newEviction(t)
		e.lease("a", e.group)
		init := e.init("a", e.group, unix.CLONE_NEWPID)
		e.lease("b", e.group+"/b")
		bystander := e.init("b", e.group+"/b", unix.CLONE_NEWPID)
		left, err := e.evict()
		if got := []bool{e.isAlive(bystander), e.isAlive(init)}; !slices.Equal(got, []bool{true, false}) || left != 2 || !errors.Is(err, ledger.ErrLive) {
			t.Errorf("bystander and init live: %v; %d leases left, %v", got, left, err)
		}
	})
}

// TestEvictNested: leases that a command has taken inside its own end with it, as a whole.
func TestEvictNested(t *testing.T) {
	e := newEviction(t)
	e.IsCommand = func(string) bool { return true }
	e.lease("a", e.group)
	init := e.init("a", e.group, 0)
	e.lease("b", e.group+"/b")
	inner := e.init("b", e.group+"/b", 0)
	left, err := e.evict()
	if got := []bool{e.isAlive(inner), e.isAlive(init)}; !slices.Equal(got, []bool{false, false}) || left != 0 || err != nil {
		t.Errorf("inner and outer command live: %v; %d leases left, %v", got, left, err)
	}
}

func TestEndsWith(t *testing.T) {
	g := Guard{IsCommand: func(cgroup string) bool { return strings.HasPrefix(filepath.Base(cgroup), "alloc-") }}
	outer := ledger.Owner{UID: 4711, Cgroup: "/berth/alloc-1", OwnCgroup: true}
	inner := ledger.Owner{UID: 4711, Cgroup: "/berth/alloc-1/alloc-2", OwnCgroup: true}
	for _, tt := range []struct {
		name   string
		guard  Guard
		change func(inner, outer *ledger.Owner)
		want   bool
	}{
		{"a command inside", g, func(_, _ *ledger.Owner) {}, true},
		{"another user's", g, func(inner, _ *ledger.Owner) { inner.UID = 4712 }, false},
		{"root's inside a user's", g, func(inner, _ *ledger.Owner) { inner.UID = 0 }, false},
		{"a user's inside root's", g, func(_, outer *ledger.Owner) { outer.UID = 0 }, false},
		{"a container inside", g, func(inner, _ *ledger.Owner) { inner.Cgroup = "/berth/alloc-1/container" }, false},
		{"its cgroup had others", g, func(inner, _ *ledger.Owner) { inner.OwnCgroup = false }, false},
		{"a container outside", g, func(_, outer *ledger.Owner) { outer.Cgroup = "/berth/container" }, false},
		{"no commands", Guard{}, func(_, _ *ledger.Owner) {}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inner, outer := inner, outer
			tt.change(&inner, &outer)
			if got := tt.guard.endsWith(inner, outer); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// A container with a cgroup of its own is ended as a whole.
func TestEvictOwnCgroup(t *testing.T) {
	e := newEviction(t)
	e.lease("a", e.group)
	init := e.init("a", e.group, 0)
	child := e.process(e.group+"/below", 0)
	left, err := e.evict()
	if got := []bool{e.isAlive(child), e.isAlive(init)}; !slices.Equal(got, []bool{false, false}) || left != 0 || err != nil {
		t.Errorf("child and init live: %v; %d leases left, %v", got, left, err)
	}
}

// TestHeldLockIsNoSurvivor: the error of a lock that was held for too long isn't reported as a
// process that can't be ended.
func TestHeldLockIsNoSurvivor(t *testing.T) {
	held := &ledger.LockError{HeldError: &lock.HeldError{Path: "ledger.lock", Err: context.DeadlineExceeded}}
	if isExitTimeout(fmt.Errorf("end holder: %w", held)) {
		t.Error("a lock's holder")
	}
	if !isExitTimeout(fmt.Errorf("end holder: %w", context.DeadlineExceeded)) {
		t.Error("a process that lives on")
	}
}
