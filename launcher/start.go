package launcher

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/overlay"
	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/spec/seccomp"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// launch prepares the task and starts the runtime, or executes the monitor. Errors in user and
// command are found before devices are waited for.
//
// It runs on one thread with a mount namespace of its own, which the runtime inherits. The thread
// ends when launch returns, and the mounts end with the last process of the task.
func (t *task) launch(ctx context.Context, img *image.Image, layers []string, s *supervise.Signals) error {
	if err := t.writeCIDFile(); err != nil {
		return err
	}
	if t.o.Place == nil {
		t.waitPrepared = inBackground(t.prepareRuntime)
	}
	return onThread(func() error {
		root, err := t.mountInNamespace(layers)
		if err != nil {
			return err
		}
		defer root.Close()
		b, err := t.describeContainer(img, root)
		if err != nil {
			return err
		}
		config := spec.New(b)
		if err := t.writeRecord(img, layers, config); err != nil {
			return err
		}
		<-s.Ready // from here on a signal must not end this process by default: it holds a lease
		cpus, err := t.acquireLease(ctx, config, root)
		if err != nil {
			return err
		}
		if err := t.enterParent(ctx, config); err != nil {
			return err
		}
		if err := t.rewriteRecordWithLease(); err != nil {
			return err
		}
		if err := t.setCPUs(cmp.Or(t.o.CPUs, cpus), config); err != nil {
			return err
		}
		if err := t.createOuterCgroup(ctx, config); err != nil {
			return err
		}
		if err := t.writeBundle(config); err != nil {
			return err
		}
		if t.o.Detach != nil {
			if err := t.makePipes(); err != nil {
				return err
			}
			return t.becomeMonitor(ctx, s)
		}
		return t.startForeground(ctx, s)
	})
}

// onThread runs f on a thread of its own, which ends afterwards, and waits for it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this goroutine
		done <- f()
	}()
	return <-done
}

func (t *task) mountInNamespace(layers []string) (*os.File, error) {
	if err := overlay.UnshareMounts(); err != nil {
		return nil, err
	}
	return t.mountRoot(layers)
}

func (t *task) mountRoot(layers []string) (*os.File, error) {
	target := t.paths.In("rootfs")
	var err error
	if t.o.ReadWrite {
		err = overlay.BindMount(target, layers[0])
	} else {
		err = overlay.Mount(target, overlay.Layers{Lower: layers, Upper: t.paths.In("upper"), Work: t.paths.In("work")})
	}
	if err != nil {
		return nil, err
	}
	return rootfs.Open(target)
}

// acquireLease takes a lease if devices are requested, and adds the devices to the spec. cpus are
// the CPUs near the devices in list format.
func (t *task) acquireLease(ctx context.Context, spec *specs.Spec, root *os.File) (cpus string, err error) {
	if t.o.Devices == nil {
		return "", nil
	}
	if t.o.Place == nil { // the device guard opens the devices for a cgroup that exists
		if err := t.waitPrepared(); err != nil {
			return "", err
		}
	}
	lease, err := t.o.Devices.Acquire(ctx, t.leaseOwner(spec), t.o.Request, t.announceQueued)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", err
	}
	t.lease = &lease
	prepared, err := t.o.Devices.Prepare(ctx, lease, spec, root)
	t.rec.SetRemoved(prepared.Removed)
	return prepared.CPUs, err
}

// leaseOwner describes the task as the owner of a lease.
func (t *task) leaseOwner(spec *specs.Spec) ledger.Owner {
	return ledger.Owner{
		EntryPoint: "run", Container: t.paths.ID, Name: t.plan.name, Bundle: t.paths.Bundle(),
		UID: os.Getuid(), Command: strings.Join(spec.Process.Args, " "),
		Cgroup: t.paths.Cgroup(), PIDFile: t.paths.PIDFile(),
		RuntimeRoot: t.paths.RuntimeRoot(t.h.runtime), Runtime: filepath.Base(t.h.runtime),
	}
}

// writeBundle writes config.json and waits for prepareRuntime. The file isn't flushed: after a power
// failure there is no container.
func (t *task) writeBundle(config *specs.Spec) error {
	if t.h.UserNamespace {
		spec.RestrictToUserNamespace(config, userns.HasGroup)
	}
	if filepath.Base(t.h.runtime) == "crun" {
		spec.RemoveCrunDefaults(config)
		seccomp.RemoveNames(config)
	}
	data, err := spec.Encode(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(t.paths.In("bundle/config.json"), data, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := checkFreeSpace(t.paths.Bundle()); err != nil {
		return err
	}
	return t.waitPrepared()
}

// prepareRuntime creates the runtime's state directory and the task's cgroups. It depends on neither
// image nor lease, and runs concurrently with mounting, which takes as long.
func (t *task) prepareRuntime() error {
	if err := os.MkdirAll(t.paths.RuntimeRoot(t.h.runtime), 0o700); err != nil {
		return fmt.Errorf("make runtime's state directory: %w", err)
	}
	if t.o.Detach == nil {
		t.program = ociruntime.Seal(t.h.runtime)
	}
	switch {
	case !t.h.privileges.NeedsOuterCgroup:
		return t.h.Cgroups.CreateTask(t.paths.Cgroup())
	case t.plan.member != nil:
		// The gang's createOuterCgroup comes first. With a cgroup below, it would replace the gang's cgroup, for which the
		// device guard opens the devices.
		return nil
	}
	return t.h.Cgroups.Create(t.paths.Cgroup()) // createOuterCgroup sets device rules before it makes cgroups below
}

// inBackground runs f in a goroutine, and returns a function that waits for its result.
func inBackground(f func() error) (wait func() error) {
	once := sync.OnceValue(f)
	go func() { _ = once() }()
	return once
}

// warmUp makes package os check whether pidfds work, for which it starts a process once. It runs
// while the image is looked up, so that the check delays no later step.
func warmUp() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release() // only a handle
	}
}

// minFreeSpace is the number of bytes that a runtime needs in a task's directory. Errors of runtimes
// don't mention a full disk.
const minFreeSpace = 64 << 10

// checkFreeSpace returns an error if a disk is full. Another process may fill it a moment later.
func checkFreeSpace(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Blocks > 0 && st.Bfree*uint64(st.Bsize) < minFreeSpace { // Blocks is 0 without a limit
		return &fs.PathError{Op: "write to", Path: dir, Err: unix.ENOSPC}
	}
	return nil
}
