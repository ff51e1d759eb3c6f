package guard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Holder is a running container with a lease, which its spec or a note names.
type Holder struct {
	Owner ledger.Owner
	// Spec is the spec that berth has prepared for the lease, nil if the spec names no lease: a hook has given the
	// devices to the container.
	Spec *specs.Spec
	// Note is what that hook has noted at the container's cgroup, "" with Spec.
	Note string
}

// ListHolders lists the running containers with a lease that their specs or notes at their cgroups name: those of engines,
// and berth's own tasks, of which each has a directory below tasks. It doesn't read the ledger, which may be lost.
func (g Guard) ListHolders(tasks string) (all []Holder, err error) {
	containers, err := g.listRunning()
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		h := Holder{Owner: ledger.Owner{
			EntryPoint: "runtime", Container: c.ID, Name: c.ID[:min(len(c.ID), 12)], Bundle: c.Bundle, RuntimeRoot: c.Root,
			Cgroup: c.cgroup, OwnCgroup: true, Process: ledger.Process{PID: c.PID, Start: c.Start},
		}}
		if spec := readBundleSpec(c.Bundle); namesLease(spec) {
			h.Spec = spec
		} else if h.Note, err = g.Cgroups.Note(c.cgroup); err != nil {
			return nil, err
		}
		if h.Note != "" {
			h.Owner.EntryPoint = "hook"
		}
		if h.Spec != nil || h.Note != "" {
			all = append(all, h)
		}
	}
	bundles, _ := filepath.Glob(filepath.Join(tasks, "*", "bundle")) // the pattern is well-formed
	for _, bundle := range bundles {
		if _, err := os.Lstat(filepath.Join(filepath.Dir(bundle), "exit.json")); err == nil {
			continue // the task has ended; thousands of them are kept
		}
		spec := readBundleSpec(bundle)
		if !namesLease(spec) {
			continue
		}
		pids, err := g.Cgroups.PIDs(spec.Linux.CgroupsPath)
		if err != nil {
			return nil, err
		}
		var stuck error
		for _, pid := range pids {
			start, err := process.Start(g.Host.ProcPath(), pid)
			if errors.Is(err, process.ErrStuck) {
				stuck = fmt.Errorf("find the lease of process %d: %w", pid, err)
			}
			if err != nil {
				continue // it has just ended
			}
			stuck = nil
			id := filepath.Base(filepath.Dir(bundle))
			all = append(all, Holder{Spec: spec, Owner: ledger.Owner{
				EntryPoint: "run", Container: id, Name: id, Bundle: bundle, Cgroup: spec.Linux.CgroupsPath, OwnCgroup: true,
				Process: ledger.Process{PID: pid, Start: start},
			}})
			break
		}
		if stuck != nil {
			return nil, stuck
		}
	}
	return all, nil
}

// hasNote reports whether a hook has noted a lease at the container's cgroup, true after an error.
func (g Guard) hasNote(c runningContainer) bool {
	note, err := g.Cgroups.Note(c.cgroup)
	return note != "" || err != nil
}

func namesLease(spec *specs.Spec) bool {
	return spec != nil && spec.Linux != nil && spec.Annotations[LeaseAnnotation] != ""
}
