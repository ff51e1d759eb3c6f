package hostprocess

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

func startSleep(t *testing.T, attributes *syscall.SysProcAttr) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = attributes
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func asUser(uid uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}

func open(t *testing.T, pid, uid int) *Process {
	t.Helper()
	p, err := Open(pid, uid)
	testutil.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

// newHost returns this host, and a cgroup for the test.
func newHost(t *testing.T) (h Host, group string) {
	t.Helper()
	testutil.NeedRoot(t)
	mount := "/sys/fs/cgroup"
	if _, err := os.Stat(mount + "/unified/cgroup.procs"); err == nil {
		mount += "/unified"
	}
	tree, err := cgroup.Detect(mount)
	testutil.Must(t, err)
	h, group = Host{"/proc", tree}, fmt.Sprintf("/berth-hostprocess-test-%d", os.Getpid())
	testutil.Must(t, tree.Create(group))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		testutil.Must(t, errors.Join(tree.Kill(ctx, group), tree.Remove(ctx, group)))
	})
	return h, group
}

func (h Host) where(t *testing.T, pid int) string {
	t.Helper()
	path, err := h.Tree.ProcessPath(h.Proc, pid)
	testutil.Must(t, err)
	return path
}

func TestOpen(t *testing.T) {
	for _, c := range []struct {
		name string
		pid  int
		want string
	}{
		{"none", 1 << 30, "there is no process 1073741824"},
		{"init", 1, "process 1 is the init of this host: everything descends from it"},
		{"zero", 0, "there is no process 0"},
		{"negative", -1, "there is no process -1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Open(c.pid, AnyUser); !errors.Is(err, ErrRefused) || err.Error() != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// TestExamine: a process that isn't the user's is refused, as after a reuse of its pid, and one that must not
// be moved.
func TestExamine(t *testing.T) {
	h, _ := newHost(t)
	user := func(flags uintptr) *syscall.SysProcAttr {
		a := asUser(4711)
		a.Cloneflags = flags
		return a
	}
	own, foreign := startSleep(t, user(0)), startSleep(t, asUser(4712))
	effective := exec.Command("setpriv", "--euid", "4711", "sleep", "1000")
	testutil.Must(t, effective.Start())
	t.Cleanup(func() { _ = effective.Process.Kill(); _ = effective.Wait() })
	for name := ""; name != "sleep\n"; { // setpriv becomes it
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", effective.Process.Pid))
		testutil.Must(t, err)
		name = string(text)
	}
	contained, cgrouped := startSleep(t, user(unix.CLONE_NEWPID)), startSleep(t, user(unix.CLONE_NEWCGROUP))
	ended, zombie := startSleep(t, nil), startSleep(t, nil)
	gone := open(t, ended.Process.Pid, 0)
	_ = ended.Process.Kill()
	_ = ended.Wait()
	reused := &Process{Process: open(t, foreign.Process.Pid, 4712).Process, UID: 4712, FD: gone.FD}
	dead := open(t, zombie.Process.Pid, 0)
	_ = zombie.Process.Kill()
	testutil.Must(t, unix.Waitid(unix.P_PID, zombie.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	for _, c := range []struct {
		name string
		*Process
		want string
	}{
		{"own", open(t, own.Process.Pid, 4711), ""},
		{"any user's", open(t, own.Process.Pid, AnyUser), ""},
		{"another user's", open(t, foreign.Process.Pid, 4711), " of user 4711"},
		{"a setuid program's", open(t, effective.Process.Pid, 4711), "runs as users [0 4711]: leases of user 4711 are for processes of that user alone"},
		{"in a PID namespace", open(t, contained.Process.Pid, 4711), "leases are for processes of the host"},
		{"in a cgroup namespace", open(t, cgrouped.Process.Pid, 4711), "leases are for processes of the host"},
		{"ended", gone, "has ended or is hidden"},
		{"zombie", dead, "has ended or is hidden"},
		{"its pid reused", reused, "has ended or is hidden: no such process"},
		{"hidden", &Process{FD: gone.FD}, "a PID namespace that the host doesn't see"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := h.Examine(c.Process)
			if (c.want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrRefused)) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

func TestCheckUserNamespace(t *testing.T) {
	h, _ := newHost(t)
	mapped := startSleep(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER})
	testutil.Must(t, h.CheckUserNamespace(open(t, os.Getpid(), 0)))
	if err := h.CheckUserNamespace(open(t, mapped.Process.Pid, 0)); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}

// TestMove: if the process ended while it was moved, a process that has got its pid goes back to where
// its parent is.
func TestMove(t *testing.T) {
	h, group := newHost(t)
	before := h.where(t, os.Getpid())
	moved := startSleep(t, nil)
	testutil.Must(t, h.Move(open(t, moved.Process.Pid, 0), group))
	if got := h.where(t, moved.Process.Pid); got != group {
		t.Errorf("moved into %s", got)
	}
	_ = moved.Process.Kill()
	_ = moved.Wait()

	stray, child, reused := startSleep(t, nil), startSleep(t, asUser(4711)), startSleep(t, asUser(4711))
	for _, cmd := range []*exec.Cmd{stray, child, reused} {
		testutil.Must(t, h.Tree.Join(group, cmd.Process.Pid))
	}
	testutil.Must(t, h.returnStrays(open(t, reused.Process.Pid, 4711), group))
	for name, c := range map[string]struct {
		cmd  *exec.Cmd
		want string
	}{"another user's": {stray, before}, "the user's": {child, group}, "with the same pid": {reused, before}} {
		if got := h.where(t, c.cmd.Process.Pid); got != c.want {
			t.Errorf("the process %s is in %s, want %s", name, got, c.want)
		}
	}
}

// startTree starts a shell that runs a script, and returns it and the pids that the script prints on one line.
func startTree(t *testing.T, script string) (root int, pids []int) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	testutil.Must(t, err)
	for _, word := range strings.Fields(line) {
		pid, err := strconv.Atoi(word)
		testutil.Must(t, err)
		pids = append(pids, pid)
	}
	return cmd.Process.Pid, pids
}

// mover returns a function that moves the processes that may be moved.
func (h Host) mover(group string) func(p *Process) (bool, error) {
	return func(p *Process) (bool, error) {
		own, err := h.Examine(p)
		if err != nil || own == group {
			return false, err
		}
		return true, h.Move(p, group)
	}
}

// TestMoveTree: descendants of all depths are moved, except for those that must stay.
func TestMoveTree(t *testing.T) {
	h, group := newHost(t)
	before := h.where(t, os.Getpid())
	root, pids := startTree(t, `sh -c 'sleep 1000 & echo $!; echo $$; wait' >/tmp/hostprocess.$$ &
		c=$!; sleep 1000 & skip=$!
		setpriv --reuid 4711 --regid 4711 --clear-groups sleep 1000 & foreign=$!
		unshare -pf sleep 1000 & maker=$!
		until [ "$(wc -l </tmp/hostprocess.$$)" = 2 ] && pgrep -P $maker >/dev/null && [ "$(ps -o comm= -p $foreign)" = sleep ]; do sleep .01; done
		echo $(cat /tmp/hostprocess.$$) $skip $foreign $maker $(pgrep -P $maker); rm /tmp/hostprocess.$$
		wait`)
	if len(pids) != 6 {
		t.Fatal(pids)
	}
	moved, err := h.MoveTree(t.Context(), open(t, root, 0), group, pids[2], h.mover(group))
	testutil.Must(t, err)
	for i, want := range []string{group, group, before, before, group, before} {
		if got := h.where(t, pids[i]); got != want {
			t.Errorf("process %d is in %s, want %s", i, got, want)
		}
		if slices.Contains(moved.PIDs, pids[i]) != (want == group) {
			t.Errorf("process %d: moved are %v", pids[i], moved.PIDs)
		}
	}
	slices.Sort(moved.Remarks)
	want := []string{
		fmt.Sprintf("a child process stays outside of the lease: there is no process %d of user 0", pids[3]),
		fmt.Sprintf("a child process stays outside of the lease: process %d is in a PID or cgroup namespace of its own, as in a container: leases are for processes of the host", pids[5]),
	}
	slices.Sort(want)
	if !slices.Equal(moved.Remarks, want) {
		t.Errorf("%q", moved.Remarks)
	}
	again, err := h.MoveTree(t.Context(), open(t, root, AnyUser), group, 0, h.mover(group)) // as after a kill
	if err != nil || len(again.PIDs) != len(moved.PIDs)+2 {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestMoveTreeRefusesMany: the remarks name the first of many.
func TestMoveTreeRefusesMany(t *testing.T) {
	h, group := newHost(t)
	root, _ := startTree(t, `for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; echo; wait`)
	move := h.mover(group)
	moved, err := h.MoveTree(t.Context(), open(t, root, AnyUser), group, 0, func(p *Process) (bool, error) {
		if p.PID != root {
			return false, Refuse("process %d stays", p.PID)
		}
		return move(p)
	})
	if err != nil || len(moved.Remarks) != maxRemarks+1 || moved.Remarks[maxRemarks] != "8 child processes stay outside of the lease" {
		t.Errorf("%+v, %v", moved, err)
	}
}

// TestMoveTreeInterrupted: after the end of the context no descendant is moved.
func TestMoveTreeInterrupted(t *testing.T) {
	h, group := newHost(t)
	root, _ := startTree(t, `sleep 1000 & echo; wait`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	moved, err := h.MoveTree(ctx, open(t, root, AnyUser), group, 0, h.mover(group))
	if want := []string{"interrupted: child processes may be outside of the lease"}; err != nil || !slices.Equal(moved.Remarks, want) || len(moved.PIDs) != 1 {
		t.Errorf("%+v, %v", moved, err)
	}
}

// TestMoveTreeThatForks: a tree that starts processes all the time is moved as a whole.
func TestMoveTreeThatForks(t *testing.T) {
	h, group := newHost(t)
	root, _ := startTree(t, `for i in 1 2 3; do sh -c 'while :; do (sleep .01; sleep .01) & sleep .001; done' & done; echo; wait`)
	moved, err := h.MoveTree(t.Context(), open(t, root, 0), group, 0, h.mover(group))
	testutil.Must(t, err)
	if len(moved.PIDs) < 4 || len(moved.Remarks) != 0 {
		t.Errorf("%+v", moved)
	}
	for _, d := range listDescendants("/proc", root) {
		p, err := Open(d.pid, AnyUser)
		if err != nil {
			continue // it has ended
		}
		if got, err := h.Examine(p); err == nil && got != group {
			t.Errorf("process %d is in %s", d.pid, got)
		}
		p.Close()
	}
}

func TestMoveTreeRefused(t *testing.T) {
	h, group := newHost(t)
	root, _ := startTree(t, `echo; sleep 1000`)
	if _, err := h.MoveTree(t.Context(), open(t, root, 4711), group, 0, h.mover(group)); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
	if inside, err := h.Tree.PIDs(group); err != nil || len(inside) > 0 {
		t.Error(inside, err)
	}
}

func TestIsDescendant(t *testing.T) {
	own := os.Getpid()
	for _, c := range []struct {
		pid, ancestor int
		want          bool
	}{{own, own, true}, {own, os.Getppid(), true}, {os.Getppid(), own, false}, {1 << 30, own, false}, {1, own, false}} {
		if got := IsDescendant("/proc", c.pid, c.ancestor); got != c.want {
			t.Errorf("%d of %d: %v", c.pid, c.ancestor, got)
		}
	}
}

// TestCheckNamespaceOwner: a process in a user namespace is refused unless its user has made that.
func TestCheckNamespaceOwner(t *testing.T) {
	h, _ := newHost(t)
	const user = 4711
	check := func(attr *syscall.SysProcAttr, uid int) error {
		t.Helper()
		return h.CheckNamespaceOwner(open(t, startSleep(t, attr).Process.Pid, uid))
	}
	id := func(inside, outside int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: inside, HostID: outside, Size: 1}}
	}
	testutil.Must(t, check(&syscall.SysProcAttr{}, 0))
	testutil.Must(t, check(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: id(0, 0)}, 0))
	other := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: id(1, user), GidMappings: id(1, user), Credential: &syscall.Credential{Uid: 1, Gid: 1, NoSetGroups: true},
	}
	if err := check(other, user); !errors.Is(err, ErrRefused) {
		t.Errorf("a subordinate uid: %v", err)
	}
}
