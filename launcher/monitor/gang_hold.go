package monitor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/sealed"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/overlay"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// hold starts the process that holds the namespaces of a life.
// It has pid 1 among the ranks: when it dies, so do they. Its own root is an empty directory.
func (g *gang) hold() error {
	m := g.own
	if err := m.tree.CreateTask(m.rec.Cgroup); err != nil {
		return err
	}
	flags := unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNS
	if m.rec.Gang.Network != "host" {
		flags |= unix.CLONE_NEWNET
	}
	// Not what is on the host's disk: a rank that may trace can come to what it was started
	// from, and write to that when it has ended.
	program, err := sealed.Open(m.rec.Gang.Holder)
	if err != nil {
		return err
	}
	defer program.Close()
	cmd := &exec.Cmd{
		Path: sealed.Path(program), Args: []string{"berth-init", "--hold", m.in("rootfs")}, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: uintptr(flags), Setsid: true},
	}
	_, err = ociruntime.Program{}.Start(cmd, func(cmd *exec.Cmd) error { return m.tree.StartRuntime(cmd, m.rec.Cgroup) })
	if err != nil {
		return fmt.Errorf("start %s: %w", m.rec.Gang.Holder, err)
	}
	pid := cmd.Process.Pid
	_ = cmd.Process.Release() // it is collected with the others
	if m.init, err = supervise.OpenProcess(m.Store.Proc, pid); err != nil {
		return err
	}
	g.holder, m.initEnd = pid, m.reaper.await(pid)
	if err := os.WriteFile(m.in("bundle/pid"), []byte(strconv.Itoa(g.holder)), 0o600); err != nil {
		return fmt.Errorf("note the process that holds the namespaces: %w", err)
	}
	return g.show()
}

// show has the namespaces be where the ranks' containers look for them: ns, a link.
func (g *gang) show() error {
	const link, fresh = "ns", "ns.new"
	if err := os.Remove(g.own.in(fresh)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink("/proc/"+strconv.Itoa(g.holder)+"/ns", g.own.in(fresh)); err != nil {
		return err
	}
	return os.Rename(g.own.in(fresh), g.own.in(link))
}

// letGo ends the process that holds the namespaces, and with it all ranks, and removes the
// network.
func (g *gang) letGo() error {
	m := g.own
	if g.holder != 0 {
		if err := m.init.Send(unix.SIGKILL); err != nil {
			return err
		}
		g.awaitHolder()
	}
	return g.disconnect()
}

// awaitHolder waits for the end of all who share the namespaces: the kernel ends the others
// before their first process is gone.
func (g *gang) awaitHolder() {
	m := g.own
	select {
	case <-m.initEnd.Done:
	case <-time.After(patience):
		m.note(fmt.Errorf("process %d was killed, and isn't gone after %v", g.holder, patience))
	}
	m.init.Close()
	g.holder = 0
}

// mount makes a new /dev/shm for the gang's next life, and mounts again what went with the
// monitor before.
func (g *gang) mount() error {
	m := g.own
	if m.remount {
		if err := overlay.Private(); err != nil {
			return err
		}
		m.remount = false
		for _, r := range g.ranks {
			if err := r.mountRoot(); err != nil {
				return err
			}
		}
	}
	if err := g.unmount(); err != nil {
		return err
	}
	return overlay.Shm(m.in("shm"), m.rec.Gang.Shm)
}

// unmount lets go of the gang's /dev/shm, as far as this process sees it.
func (g *gang) unmount() error {
	at := g.own.in("shm")
	err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return &os.PathError{Op: "unmount", Path: at, Err: err}
	}
	return nil
}
