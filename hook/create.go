package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/hook/inject"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/netdev"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Create takes the lease for a container that is being created, and injects its devices.
// The container asks by its hooks, of which own is this one, or by its annotation.
// Create serves createRuntime and prestart; to be called at both is the same as once.
//
// A container that holds a lease already is prepared. One that asks for nothing is
// isolated if it could reach an accelerator. After an error, upon which the runtime
// gives up the container, no lease is left, and the changes to the container end with
// it.
func (h Hook) Create(ctx context.Context, state io.Reader, own entry.RequestSet) error {
	c, err := h.readContainer(state)
	if err != nil {
		return err
	}
	if err := entry.CheckPod(c.spec); err != nil {
		return err
	}
	held, err := h.holdsLease(c)
	if err != nil || held {
		return err
	}
	req, asked, err := entry.FindRequest(c.spec, own, h.Trust, nil)
	if err != nil {
		return err
	}
	if !asked {
		if concerned, err := h.Node.CanReachAccelerator(c.spec, c.Bundle); err != nil || !concerned {
			return err
		}
	}
	place, err := h.ownCgroup(c)
	if err != nil {
		return err
	}
	if !asked {
		return h.injectEdits(ctx, c, place, nil)
	}
	if err := h.releaseFormerLease(ctx, c, place); err != nil {
		return err
	}
	if err := h.checkAlone(c, place); err != nil {
		return err
	}
	lease, err := h.takeLease(ctx, c, place, req)
	if err != nil {
		return err
	}
	if err := h.injectEdits(ctx, c, place, &lease); err != nil {
		return errors.Join(err, h.Node.Release(context.WithoutCancel(ctx), lease.ID))
	}
	return nil
}

// Mount binds a directory or file of the host, read-only, at a path in a container that
// is being created. No spec has it any more, but those of older versions do, as long as their
// tasks restart.
func (h Hook) Mount(ctx context.Context, state io.Reader, source, destination string) error {
	if !filepath.IsAbs(source) || !filepath.IsAbs(destination) {
		return fmt.Errorf("mount %s at %s: both have to be absolute paths", source, destination)
	}
	c := container{spec: &specs.Spec{}} // a mount needs nothing of the spec
	var err error
	if c.State, err = readCreatingState(state); err != nil {
		return err
	}
	if c.root, err = readRoot(c.State); err != nil {
		return err
	}
	return inject.Apply(ctx, h.injectTarget(c, ""), edits.Edits{Mounts: []specs.Mount{{
		Destination: destination, Type: "bind", Source: source,
		Options: []string{"rbind", "ro", "nosuid", "nodev", "noexec", "rprivate"},
	}}})
}

// NetDevices moves network devices of the host into a container that is being created.
func (h Hook) NetDevices(state io.Reader, devices []netdev.Device) error {
	if err := netdev.CheckDevices(devices); err != nil {
		return err
	}
	s, err := readCreatingState(state)
	if err != nil {
		return err
	}
	return inject.Container{PID: s.Pid, Proc: h.Proc}.MoveNetDevices(devices)
}

// RDMA moves RDMA devices of the host, and the network interfaces of these devices, into
// a container that is being created.
func (h Hook) RDMA(state io.Reader, links, interfaces []string) error {
	s, err := readCreatingState(state)
	if err != nil {
		return err
	}
	return inject.Container{PID: s.Pid, Proc: h.Proc}.MoveRDMA(links, interfaces)
}

// ownCgroup returns the container's cgroup. It has to be the container's alone: its
// rules are changed, and its processes are the proof that the holder lives.
func (h Hook) ownCgroup(c container) (string, error) {
	proc := cmp.Or(h.Proc, "/proc")
	path, err := h.Cgroups.ProcessPath(proc, c.Pid)
	if err != nil {
		return "", fmt.Errorf("find the cgroup of container %s: %w", c.ID, err)
	}
	ours, err := h.Cgroups.ProcessPath(proc, os.Getpid())
	switch {
	case err != nil && !errors.Is(err, cgroup.ErrPath):
		return "", fmt.Errorf("find the cgroup of this hook: %w", err)
	case path == "/", err == nil && cgroup.IsWithin(ours, path):
		return "", fmt.Errorf("container %s is in cgroup %s, which is not its own and can have no device rules for it", c.ID, path)
	}
	return path, nil
}

// checkAlone refuses a cgroup in which others than the container's init live. They would get
// its device rules.
func (h Hook) checkAlone(c container, place string) error {
	pids, err := h.Cgroups.PIDs(place)
	if err != nil {
		return fmt.Errorf("list the processes of cgroup %s: %w", place, err)
	}
	if i := slices.IndexFunc(pids, func(pid int) bool { return pid != c.Pid }); i >= 0 {
		return fmt.Errorf("container %s is in cgroup %s, in which process %d of another lives: give it a cgroup of its own", c.ID, place, pids[i])
	}
	return nil
}

// logRemovals writes to the event log what was removed, if anything was.
func (h Hook) logRemovals(lease *ledger.Lease, owner ledger.Owner, removed []edits.Removal) {
	switch {
	case len(removed) == 0:
	case lease == nil:
		h.Node.LogRemovals("guarded", "", owner, removed)
	default:
		h.Node.LogRemovals("prepared", lease.ID, lease.Owner, removed)
	}
}

// injectEdits composes the edits and applies them.
func (h Hook) injectEdits(ctx context.Context, c container, place string, lease *ledger.Lease) error {
	root, err := inroot.OpenRoot(c.root)
	if err != nil {
		return err
	}
	defer root.Close() // an O_PATH descriptor
	e, removed, err := h.Node.Compose(ctx, c.spec, lease, root)
	if err != nil {
		return err
	}
	if err := inject.Apply(ctx, h.injectTarget(c, place), e); err != nil {
		return fmt.Errorf("inject devices into container %s: %w", c.ID, err)
	}
	h.logRemovals(lease, c.newOwner(place), removed)
	return nil
}

func (h Hook) injectTarget(c container, place string) inject.Container {
	return inject.Container{
		PID: c.Pid, Root: c.root, Spec: c.spec, Proc: h.Proc, Dev: h.Dev,
		SetRules: func(rules []edits.Rule) error { return h.SetRules(place, rules) },
	}
}
