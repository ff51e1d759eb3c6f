package guard

import (
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Holder is a running container whose spec berth has prepared for a lease.
type Holder struct {
	Owner ledger.Owner
	Spec  *specs.Spec
}

// ListHolders lists the running containers whose specs name a lease: those of engines, and berth's own tasks, of
// which each has a directory below tasks. It doesn't read the ledger, which may be lost.
func (g Guard) ListHolders(tasks string) (all []Holder, err error) {
	containers, err := g.listRunning()
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		spec := readBundleSpec(c.Bundle)
		if namesLease(spec) {
			owner := ledger.Owner{
				EntryPoint: "runtime", Container: c.ID, Name: c.ID[:min(len(c.ID), 12)], Bundle: c.Bundle, RuntimeRoot: c.Root,
				Cgroup: c.cgroup, OwnCgroup: true, Process: ledger.Process{PID: c.PID, Start: c.Start},
			}
			all = append(all, Holder{owner, spec})
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
		for _, pid := range pids {
			start, err := process.Start(g.Host.ProcPath(), pid)
			if err != nil {
				continue // it has just ended
			}
			id := filepath.Base(filepath.Dir(bundle))
			all = append(all, Holder{ledger.Owner{
				EntryPoint: "run", Container: id, Name: id, Bundle: bundle, Cgroup: spec.Linux.CgroupsPath, OwnCgroup: true,
				Process: ledger.Process{PID: pid, Start: start},
			}, spec})
			break
		}
	}
	return all, nil
}

func namesLease(spec *specs.Spec) bool {
	return spec != nil && spec.Linux != nil && spec.Annotations[LeaseAnnotation] != ""
}
