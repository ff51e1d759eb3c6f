package monitor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/sealed"
	"github.com/berth-gpu/berth/launcher/catatonit"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/overlay"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// startHolder starts the holder, the process that holds the namespaces of a life. It is pid 1 of the
// ranks' PID namespace, so the kernel kills the ranks when it ends.
//
// The holder is catatonit -P, which reaps orphans. It exposes nothing of the host: its root contains
// only its program, on a read-only mount. It keeps this process's capabilities, more than any rank can
// have, so the kernel lets no rank trace it. A rank's root can end it with SIGTERM, and the gang with
// it.
func (g *gang) startHolder() error {
	m := g.own
	if err := m.cgroups.CreateTask(m.rec.Cgroup); err != nil {
		return err
	}
	program, err := holderProgram(m.rec.Gang.Holder)
	if err != nil {
		return err
	}
	flags := unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if m.rec.Gang.Network != "host" {
		flags |= unix.CLONE_NEWNET
	}
	// systemd's shutdown sends no SIGTERM to processes whose first argument begins with "@"
	// (https://systemd.io/ROOT_STORAGE_DAEMONS). catatonit would exit at once; the ranks need the time
	// to write a checkpoint.
	cmd := &exec.Cmd{
		Path: "/catatonit", Args: []string{"@catatonit", "-P"}, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: uintptr(flags), Setsid: true},
	}
	if err := g.startAlone(cmd, program); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	_ = cmd.Process.Release() // the reaper collects it
	if m.init, err = supervise.OpenProcess(m.Store.Proc, pid); err != nil {
		return err
	}
	g.holder, m.initEnd = pid, m.reaper.await(pid)
	if err := os.WriteFile(m.path("bundle/pid"), []byte(strconv.Itoa(g.holder)), 0o600); err != nil {
		return fmt.Errorf("record the process that holds the namespaces: %w", err)
	}
	return g.linkNamespaces()
}

// startAlone starts cmd, a static program that is at cmd.Path in a root without other files, in the gang's cgroup.
func (g *gang) startAlone(cmd *exec.Cmd, program string) error {
	m := g.own
	err := startInEmptyRoot(cmd, m.path("rootfs"), program, func() error {
		_, err := ociruntime.Program{}.Start(cmd, func(cmd *exec.Cmd) error { return m.cgroups.StartRuntime(cmd, m.rec.Cgroup) })
		return err
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	return nil
}

// holderProgram returns the holder's program. Records of older versions name a program that no longer
// exists.
func holderProgram(recorded string) (string, error) {
	if filepath.Base(recorded) == "catatonit" {
		return recorded, nil
	}
	return catatonit.Find()
}

// startInEmptyRoot calls start, which starts cmd, in a mount namespace that contains nothing but the
// static program at cmd.Path. dir is a directory to mount on. start itself sees the host's files.
func startInEmptyRoot(cmd *exec.Cmd, dir, program string, start func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its mount namespace
		done <- func() error {
			if err := mountEmptyRoot(dir, program, dir+cmd.Path); err != nil {
				return err
			}
			cmd.SysProcAttr.Chroot = dir
			if err := start(); err != nil {
				return err
			}
			if err := leaveHostMounts(dir); err != nil {
				return errors.Join(err, cmd.Process.Kill())
			}
			return nil
		}()
	}()
	return <-done
}

// mountEmptyRoot mounts a read-only file system at dir that contains only the program, at the path at,
// in a new mount namespace of the calling thread.
func mountEmptyRoot(dir, program, at string) error {
	if err := overlay.UnshareMounts(); err != nil {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=755,size=64k"); err != nil {
		return &os.PathError{Op: "mount tmpfs at", Path: dir, Err: err}
	}
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		return err
	}
	if err := sealed.Mount(program, at); err != nil {
		return err
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY|flags, "mode=755,size=64k"); err != nil {
		return &os.PathError{Op: "remount read-only", Path: dir, Err: err}
	}
	return nil
}

// leaveHostMounts makes the mount at dir the root of the calling thread's mount namespace, and
// detaches all others, so that the namespace keeps no file system of the host busy.
func leaveHostMounts(dir string) error {
	if err := unix.Chdir(dir); err != nil {
		return &os.PathError{Op: "chdir", Path: dir, Err: err}
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return &os.PathError{Op: "pivot_root", Path: dir, Err: err}
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the host's file systems: %w", err)
	}
	return nil
}

// linkNamespaces points the link ns to the holder's namespaces, where the ranks' specs have them.
func (g *gang) linkNamespaces() error {
	const link, fresh = "ns", "ns.new"
	if err := os.Remove(g.own.path(fresh)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink("/proc/"+strconv.Itoa(g.holder)+"/ns", g.own.path(fresh)); err != nil {
		return err
	}
	return os.Rename(g.own.path(fresh), g.own.path(link))
}

// endHolder kills the holder, and with it all ranks, and removes the network.
func (g *gang) endHolder() error {
	m := g.own
	if g.holder != 0 {
		if err := m.init.Send(unix.SIGKILL); err != nil {
			return err
		}
		g.awaitHolder()
	}
	return g.disconnectNetwork()
}

// awaitHolder waits until the holder is gone, which was killed. The kernel kills all other processes of its PID
// namespace before. A rank may have frozen the holder or any of these processes, see [cgroup.Hierarchy.Thaw].
func (g *gang) awaitHolder() {
	m := g.own
	last := time.Now().Add(killTimeout)
	for !m.initEnd.HasEnded() {
		if time.Now().After(last) {
			m.logError(fmt.Errorf("process %d was killed and hasn't ended after %v", g.holder, killTimeout))
			break
		}
		m.thaw()
		select {
		case <-m.initEnd.Done:
		case <-time.After(supervise.ThawInterval):
		}
	}
	m.init.Close()
	g.holder = 0
}

// mountShared mounts a new /dev/shm for the gang's next life. After an adoption it also mounts the
// roots, which were mounted only in the mount namespace of the previous monitor.
func (g *gang) mountShared() error {
	m := g.own
	if m.remount {
		if err := overlay.UnshareMounts(); err != nil {
			return err
		}
		m.remount = false
		for _, r := range g.ranks {
			if err := r.mountRoot(); err != nil {
				return err
			}
		}
	}
	if err := g.unmountShared(); err != nil {
		return err
	}
	return overlay.MountShm(m.path("shm"), m.rec.Gang.Shm)
}

// unmountShared unmounts the gang's /dev/shm in this mount namespace.
func (g *gang) unmountShared() error {
	at := g.own.path("shm")
	err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return &os.PathError{Op: "unmount", Path: at, Err: err}
	}
	return nil
}
