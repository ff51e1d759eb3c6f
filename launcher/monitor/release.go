package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// deleteContainer removes the container from the runtime, and kills its processes.
func (m *monitor) deleteContainer() error {
	if !m.runtime.Knows(m.ID) {
		return nil
	}
	out, err := m.callRuntime("delete", "--force", m.ID)
	if err == nil {
		return nil
	}
	// A runtime that was removed, or is broken by an upgrade, must not keep the task from ending.
	if some, e := m.cgroups.Populated(m.rec.Cgroup + "/container"); e == nil && !some {
		return os.RemoveAll(filepath.Join(m.runtime.Root, m.ID))
	}
	return fmt.Errorf("delete container %s: %w: %s", m.ID, err, out)
}

// removeUnstarted removes a task that has never started.
func (m *monitor) removeUnstarted(cause error) error {
	err := errors.Join(m.deleteContainer(), m.removeCgroupAndLease())
	if err == nil {
		err = m.removeOrRecordUnstarted(cause)
	}
	if err != nil {
		cause = fmt.Errorf("%w; and then: %w", cause, err)
	}
	m.report(failureLine(cause))
	return err
}

// removeOrRecordUnstarted removes a task that has never started. If the task's id was reported while it
// waited for devices, the record stays, with cause as the task's end.
func (m *monitor) removeOrRecordUnstarted(cause error) error {
	if !m.rec.Queued || m.rec.Remove {
		return m.removeTask()
	}
	exit := supervise.NewFailedExit(cause)
	err := m.Store.WriteExit(m.ID, exit)
	m.server.shutDown(exit.Code)
	return err
}

// removeCgroupAndLease kills the task's processes, removes the cgroup and releases the lease. If
// processes can't be killed, cgroup and lease stay.
func (m *monitor) removeCgroupAndLease() error {
	err := m.killProcesses()
	if err == nil {
		err = m.cgroups.RemoveAll(m.rec.Cgroup)
	}
	if err != nil {
		if m.hasOwnLease() {
			err = fmt.Errorf("lease %s stays until the task's processes have ended: %w", m.rec.Lease, err)
		}
		return err
	}
	if !m.hasOwnLease() {
		return nil
	}
	if err := m.ledger.Release(context.Background(), m.rec.Lease); err != nil {
		return fmt.Errorf("release lease %s: %w", m.rec.Lease, err)
	}
	return nil
}

// killTimeout bounds the wait for processes that were killed.
const killTimeout = 5 * time.Second

// killProcesses kills what is left in the task's cgroup, such as a runtime that hasn't finished.
func (m *monitor) killProcesses() error {
	if some, err := m.cgroups.Populated(m.rec.Cgroup); err == nil && !some {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	return m.cgroups.Kill(ctx, m.rec.Cgroup)
}

// killDenied kills the task in place of a signal that asks it to end and that this process may not send. A monitor that
// has taken over a task without root is in another user namespace than the task.
func (m *monitor) killDenied(_ int, sig syscall.Signal) error {
	if sig != unix.SIGKILL && !supervise.AsksToEnd(sig) {
		return unix.EPERM
	}
	return m.killProcesses()
}

// hasOwnLease reports whether the task has a lease of its own.
func (m *monitor) hasOwnLease() bool { return m.rec.Lease != "" && !m.rec.Shared }

// finish releases everything of a task that has ended, and records its end or removes it.
func (m *monitor) finish(exit tasks.Exit) (int, error) {
	err := errors.Join(m.deleteContainer(), m.removeCgroupAndLease())
	if err != nil {
		exit.Error = joinTexts(exit.Error, err.Error())
	}
	if m.rec.Remove && err == nil {
		err = m.removeTask()
	} else {
		err = errors.Join(err, m.Store.WriteExit(m.ID, exit))
	}
	m.server.shutDown(exit.Code)
	return exit.Code, err
}

// removeTask removes the task. It first unmounts the root, which is mounted only in this process's
// mount namespace, so that the files of the root aren't removed.
func (m *monitor) removeTask() error {
	err := unix.Unmount(m.path("rootfs"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", m.path("rootfs"), err)
	}
	return m.Store.Remove(m.ID)
}

func joinTexts(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
