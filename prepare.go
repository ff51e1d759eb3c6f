package berth

import (
	"context"
	"os"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/guard"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/isolation/binds"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// LeaseAnnotation is the annotation with the id of the lease that a container holds.
const LeaseAnnotation = guard.LeaseAnnotation

// Prepare changes the spec of a container that is about to be created, and writes
// the loader's cache into its root. With a lease it also restricts the spec's own bind
// mounts of the host's kernel file systems and driver files. root is the root file system's
// directory; it may be nil if lease is. Prepare returns what it has removed from the spec,
// and remarks.
//
// Network devices are moved by a hook (berth-hook netdev) that Prepare adds to the spec.
func (n *Node) Prepare(ctx context.Context, spec *specs.Spec, lease *ledger.Lease, root *os.File) (removed []edits.Removal, err error) {
	var restricted []edits.Removal
	if lease != nil {
		if gpus, _, _ := splitDevices(lease.Devices); len(gpus) > 0 {
			if err := n.MountFiles(ctx); err != nil { // restrictBinds replaces binds of the files by binds of the mount
				return nil, err
			}
		}
		if restricted, err = n.restrictBinds(ctx, spec, lease.Owner.Bundle); err != nil {
			return nil, err
		}
	}
	all, removed, err := n.Compose(ctx, spec, lease, root)
	if err != nil {
		return nil, err
	}
	removed = append(restricted, removed...)
	return removed, all.DeferNet(n.config.hookCall()...).Apply(spec)
}

// restrictBinds changes the bind mounts of a container with a lease so that the container
// gets neither writable cgroups, sysfs or procfs of the host, nor driver files that it owns.
// It returns what it has changed.
func (n *Node) restrictBinds(ctx context.Context, spec *specs.Spec, bundle string) (changed []edits.Removal, err error) {
	if !slices.ContainsFunc(spec.Mounts, binds.Concerns) {
		return nil, nil // the mount table can be long
	}
	table, err := binds.ReadTable()
	if err != nil {
		return nil, err
	}
	h := binds.Host{Table: table, KeepCgroups: true, Bundle: bundle}
	files := n.config.SharedFiles()
	if binds.Reaches(spec.Mounts, bundle, files.Source) { // also for a lease without a GPU
		if _, err := files.MountIfSupported(ctx); err != nil {
			return nil, err
		}
	}
	if files.IsMounted() {
		h.Files, h.FilesMount = files.Source, files.Mount
	}
	mounts, notes, err := h.Restrict(spec.Mounts)
	if err != nil {
		return nil, err
	}
	spec.Mounts = mounts
	return edits.Remarks(notes), nil
}

// hookCall returns the command line of berth-hook for a spec: its path, and the words that
// come before the stage.
func (c Config) hookCall() []string {
	if c.path == "" {
		return []string{c.HookCommand()}
	}
	return []string{c.HookCommand(), "--config", c.path}
}

// OpenRoot opens the directory of a container's root file system for
// [Node.Prepare]. The path is trusted: links in it are followed.
func OpenRoot(path string) (*os.File, error) { return inroot.OpenRoot(path) }
