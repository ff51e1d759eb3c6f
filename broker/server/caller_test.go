package server

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	"github.com/berth-gpu/berth/isolation/ledger"
)

// connectPair returns both ends of a connection of this process to itself.
func connectPair(t *testing.T) (server, client *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	testutil.Must(t, err)
	defer l.Close()
	client, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	testutil.Must(t, err)
	server, err = l.AcceptUnix()
	testutil.Must(t, err)
	t.Cleanup(func() { _ = server.Close(); _ = client.Close() })
	return server, client
}

func startSleep(t *testing.T, attributes *syscall.SysProcAttr) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = attributes
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// open returns a caller as if the process had connected as a user.
func open(t *testing.T, pid, uid int) *caller {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	testutil.Must(t, err)
	c := &caller{Process: ledger.Process{PID: pid}, uid: uid, fd: fd}
	t.Cleanup(c.close)
	return c
}

func detect(t *testing.T) cgroup.Hierarchy {
	t.Helper()
	testutil.NeedRoot(t)
	mount := "/sys/fs/cgroup"
	if _, err := os.Stat(mount + "/unified/cgroup.procs"); err == nil {
		mount += "/unified"
	}
	tree, err := cgroup.Detect(mount)
	testutil.Must(t, err)
	return tree
}

func TestIdentifyCaller(t *testing.T) {
	server, _ := connectPair(t)
	c, err := identifyCaller(server)
	testutil.Must(t, err)
	defer c.close()
	if c.PID != os.Getpid() || c.uid != os.Getuid() || !c.isAlive() {
		t.Errorf("%+v", c)
	}
}

// TestOpenPID: on kernels without SO_PEERPIDFD a connection whose other end is closed names no process, for its
// pid may be another's by now.
func TestOpenPID(t *testing.T) {
	server, client := connectPair(t)
	raw, err := server.SyscallConn()
	testutil.Must(t, err)
	try := func() (fd int, err error) {
		testutil.Must(t, raw.Control(func(socket uintptr) { fd, err = openPID(os.Getpid(), int(socket)) }))
		return fd, err
	}
	fd, err := try()
	testutil.Must(t, err)
	_ = unix.Close(fd)
	_ = client.Close()
	if _, err := try(); !errors.Is(err, unix.ESRCH) {
		t.Error(err)
	}
}

// TestLookUp: the broker refuses a process that isn't its caller's, as after a reuse of the pid, and one that
// it must not move.
func TestLookUp(t *testing.T) {
	tree := detect(t)
	own := startSleep(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: 4711}})
	foreign := startSleep(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4712, Gid: 4712}})
	contained := startSleep(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: 4711}, Cloneflags: unix.CLONE_NEWPID})
	cgrouped := startSleep(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: 4711}, Cloneflags: unix.CLONE_NEWCGROUP})
	ended := startSleep(t, nil)
	gone := open(t, ended.Process.Pid, 0)
	_ = ended.Process.Kill()
	_ = ended.Wait()
	reused := open(t, foreign.Process.Pid, 4712)
	reused.fd = gone.fd
	for _, c := range []struct {
		name string
		*caller
		want string
	}{
		{"own", open(t, own.Process.Pid, 4711), ""},
		{"another user's", open(t, foreign.Process.Pid, 4711), "runs as users [4712 4712 4712 4712], and has connected as user 4711"},
		{"in a PID namespace", open(t, contained.Process.Pid, 4711), "leases are for processes of the host"},
		{"in a cgroup namespace", open(t, cgrouped.Process.Pid, 4711), "leases are for processes of the host"},
		{"ended", gone, "has ended or is hidden"},
		{"its pid reused", reused, "has ended or is hidden: no such process"},
		{"hidden", &caller{fd: gone.fd}, "a PID namespace that the host doesn't see"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.lookUp("/proc", tree)
			if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// TestMoveInto: if the caller ended while it was moved, a process that has got its pid goes back to where
// its parent is.
func TestMoveInto(t *testing.T) {
	tree := detect(t)
	group := fmt.Sprintf("/berth-broker-test-%d", os.Getpid())
	testutil.Must(t, tree.Create(group))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		testutil.Must(t, errors.Join(tree.Kill(ctx, group), tree.Remove(ctx, group)))
	})
	where := func(pid int) string {
		path, err := tree.ProcessPath("/proc", pid)
		testutil.Must(t, err)
		return path
	}
	before := where(os.Getpid())
	moved := startSleep(t, nil)
	testutil.Must(t, open(t, moved.Process.Pid, 0).moveInto("/proc", tree, group))
	if got := where(moved.Process.Pid); got != group {
		t.Errorf("moved into %s", got)
	}
	_ = moved.Process.Kill()
	_ = moved.Wait()

	stray, child := startSleep(t, nil), startSleep(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: 4711}})
	testutil.Must(t, errors.Join(tree.Join(group, stray.Process.Pid), tree.Join(group, child.Process.Pid)))
	if err := (&caller{uid: 4711}).returnStrays("/proc", tree, group); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Error(err)
	}
	if got := where(stray.Process.Pid); got != before {
		t.Errorf("another user's process is in %s, want %s", got, before)
	}
	if got := where(child.Process.Pid); got != group {
		t.Errorf("the caller's child is in %s, want %s", got, group)
	}
}
