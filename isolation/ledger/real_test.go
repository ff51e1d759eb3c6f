package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// These tests act as a runtime, with real processes in real cgroups.

func realCgroup(t *testing.T) (cgroup.Hierarchy, string) {
	t.Helper()
	testutil.NeedRoot(t)
	tree, err := cgroup.Detect("")
	if err != nil {
		testutil.SkipOrFail(t, err.Error())
	}
	path := fmt.Sprintf("/berth-ledger-test-%d", os.Getpid())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(tree.Kill(ctx, path), tree.Remove(ctx, path)); err != nil {
			t.Error(err)
		}
	})
	if err := tree.Create(path); err != nil {
		t.Fatal(err)
	}
	return tree, path
}

// runIn starts a process and moves it into the cgroup.
func runIn(t *testing.T, tree cgroup.Hierarchy, path string, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended already
		_ = cmd.Wait()
	})
	if err := tree.Join(path, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// end kills a child without reaping it.
func end(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var info unix.Siginfo
	err := errors.Join(cmd.Process.Kill(), unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil))
	if err != nil {
		t.Fatal(err)
	}
}

// gone returns a process that has ended.
func gone(t *testing.T, l *Ledger) Process {
	t.Helper()
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s, err := l.world.Process(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	self, err := l.world.Self()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stdin.Close(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	return Process{PID: cmd.Process.Pid, Start: s.Start, Namespace: self.Namespace}
}

func TestRealContainer(t *testing.T) {
	tree, group := realCgroup(t)
	l := fresh(t)
	dir := t.TempDir()
	a := ask(t, "6")
	a.Owner.Container, a.Owner.Cgroup = "c1", group
	a.Owner.PIDFile, a.Owner.RuntimeRoot = filepath.Join(dir, "init.pid"), filepath.Join(dir, "root")
	a.Owner.Process = gone(t, l) // the creating process ends when its work is done
	lease := mustAcquire(t, l, a)

	init := runIn(t, tree, group, "sleep", "1000")
	status := func() Status {
		t.Helper()
		v := mustView(t, l)
		if len(v.Leases) != 1 {
			t.Fatalf("leases: %+v", v.Leases)
		}
		return v.Leases[0]
	}
	if s := status(); !s.Live || s.State != Reserved {
		t.Errorf("only the cgroup speaks for it: %+v", s)
	}
	writeFile(t, a.Owner.PIDFile, fmt.Sprint(init.Process.Pid))
	if s := status(); !s.Live || s.State != Bound || s.Owner.Process.PID != init.Process.Pid {
		t.Errorf("found by its pid file: %+v", s)
	}
	second := runIn(t, tree, group, "sleep", "1000")
	end(t, init)
	if _, err := l.Acquire(t.Context(), ask(t, "1")); !errors.Is(err, ErrBusy) {
		t.Errorf("init has ended, another process hasn't: %v", err)
	}
	if s := status(); !s.Live || s.State != Reserved { // no acquire has seen init alive
		t.Errorf("got %+v", s)
	}
	end(t, second)
	if s := status(); s.Live || s.Note == "" {
		t.Errorf("all have ended: %+v", s)
	}
	next := mustAcquire(t, l, ask(t, "6"))
	if next.ID == lease.ID {
		t.Error("the same lease again")
	}
}

// The state files of runtimes are read in the form in which runtimes write them.
func TestBoundByRuntimeState(t *testing.T) {
	for _, tt := range []struct{ name, file, text string }{
		{"runc", "state.json", `{"init_process_pid":PID,"init_process_start":START,"cgroup_paths":{"":"DIR","devices":"DIR"}}`},
		{"crun", "status", `{"pid":PID,"process-start-time":START,"cgroup-path":"PATH"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree, group := realCgroup(t)
			l := fresh(t)
			root := t.TempDir()
			a := ask(t, "6")
			a.Owner.Container, a.Owner.RuntimeRoot, a.Owner.Process = "c1", root, gone(t, l)
			lease := mustAcquire(t, l, a)
			init := runIn(t, tree, group, "sleep", "1000")
			s, err := l.world.Process(init.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			dir, err := tree.Dir(group)
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(root, "c1", tt.file), strings.NewReplacer(
				"PID", fmt.Sprint(init.Process.Pid), "START", fmt.Sprint(s.Start), "DIR", dir, "PATH", group).Replace(tt.text))
			if _, err := l.Acquire(t.Context(), ask(t, "1")); !errors.Is(err, ErrBusy) {
				t.Fatal(err)
			}
			got, ok, err := l.Get(lease.ID)
			if !ok || err != nil || got.State != Bound || got.Owner.Process.PID != init.Process.Pid || got.Owner.Cgroup != group {
				t.Errorf("got %+v, %v, %v", got.Owner, ok, err)
			}
			end(t, init)
			mustAcquire(t, l, ask(t, "1"))
		})
	}
}

// For a holder in another pid namespace only the cgroup counts.
func TestAnotherNamespace(t *testing.T) {
	tree, group := realCgroup(t)
	l := fresh(t)
	lease := mustAcquire(t, l, ask(t, "6"))
	init := runIn(t, tree, group, "sleep", "1000")
	if err := l.Bind(t.Context(), lease.ID, Owner{Process: Process{PID: 1, Start: 1, Namespace: 12345}, Cgroup: group}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(t.Context(), ask(t, "1")); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	end(t, init)
	mustAcquire(t, l, ask(t, "1"))
}

// A container whose cgroup isn't known is dead after its init's end only if that ends all its
// processes.
func TestInitAlone(t *testing.T) {
	for _, tt := range []struct {
		name  string
		flags uintptr
		live  bool
	}{
		{"in a pid namespace of its own", unix.CLONE_NEWPID, false},
		{"in ours", 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			realCgroup(t) // which has the same requirements
			l := fresh(t)
			lease := mustAcquire(t, l, ask(t, "6"))
			init := exec.Command("sleep", "1000")
			init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: tt.flags}
			if err := init.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = init.Wait() }) // it was killed above
			err := l.Bind(t.Context(), lease.ID, Owner{Process: Process{PID: init.Process.Pid}})
			end(t, init)
			if err != nil {
				t.Fatal(err)
			}
			if s := mustView(t, l).Leases[0]; s.Live != tt.live {
				t.Errorf("live %v, because %q", s.Live, s.Note)
			}
		})
	}
}

func TestSelf(t *testing.T) {
	l := fresh(t)
	p, err := l.world.Self()
	if err != nil || p.PID != os.Getpid() || p.Start == 0 || p.Namespace == 0 {
		t.Errorf("got %+v, %v", p, err)
	}
	if alive, err := isAlive(l.world, p.Process); !alive || err != nil {
		t.Errorf("I am dead: %v", err)
	}
	if alive, err := isAlive(l.world, gone(t, l)); alive || err != nil {
		t.Errorf("a process that ended lives: %v", err)
	}
}
