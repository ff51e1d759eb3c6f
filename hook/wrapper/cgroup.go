package wrapper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// assignCgroup sets the owner, and puts the container into an outer cgroup if it could
// lift the device rules of its own, or is to have a lease under the device guard. The filter of
// such a container, if it has one, then refuses the call that leads out of any cgroup. A container
// without a lease may have no cgroup of its own: then only its device rules hold.
func (n *creation) assignCgroup(spec *specs.Spec, leased bool) (err error) {
	if err := checkPlacement(spec.Annotations, n.systemd); err != nil {
		return err
	}
	n.owner, err = n.newOwner(n.call, n.rt, spec)
	if err != nil {
		if leased {
			return err
		}
		n.owner.Cgroup = ""
	}
	if n.owner.Cgroup == "" {
		return nil
	}
	outer, ok, err := n.node.OuterCgroupPath(spec, n.owner.Cgroup, n.systemd, leased)
	if err != nil || !ok {
		return err
	}
	n.outer = outer
	if spec.Linux == nil {
		spec.Linux = &specs.Linux{}
	}
	spec.Linux.Namespaces = withOwnCgroupNamespace(spec.Linux.Namespaces)
	edits.RefuseCall(spec, edits.FileSystemEvents)
	if spec.Linux.CgroupsPath, err = n.cgroupsPathIn(outer, spec.Linux.CgroupsPath); err != nil {
		return err
	}
	if n.owner.Cgroup, err = n.predictCgroup(n.call, n.rt, spec); err == nil && filepath.Dir(n.owner.Cgroup) != outer {
		err = fmt.Errorf("cgroup %s would not be in the outer cgroup %s", n.owner.Cgroup, outer)
	}
	return err
}

// checkPlacement refuses annotations by which a runtime that uses systemd puts the
// container elsewhere than linux.cgroupsPath says: its processes would be out of the outer
// cgroup, and not in the cgroup that proves that they live. Sources: systemd properties of
// runc's docs/systemd.md, and crun(1).
func checkPlacement(annotations map[string]string, systemd bool) error {
	const slice, subgroup = "org.systemd.property.Slice", "run.oci.systemd.subgroup"
	if !systemd {
		return nil
	}
	if _, ok := annotations[slice]; ok {
		return fmt.Errorf("config.json: annotation %s would put the container into another slice than linux.cgroupsPath: leave it out, and name the slice to the engine (docker: --cgroup-parent)", slice)
	}
	if value := annotations[subgroup]; value != filepath.Base(value) && value != "" || value == ".." {
		return fmt.Errorf("config.json: annotation %s: %q is not the name of a cgroup", subgroup, value)
	}
	return nil
}

// checkDelegation refuses an annotation by which crun puts the container's processes out of its
// cgroup. Source: crun(1).
func checkDelegation(annotations map[string]string) error {
	const name = "run.oci.delegate-cgroup"
	if value := annotations[name]; value != "" && !filepath.IsLocal(value) {
		return fmt.Errorf("config.json: annotation %s: %q leads out of the container's cgroup", name, value)
	}
	return nil
}

// checkCgroup refuses the cgroup of another container that holds a lease, and one within or
// around it. Device rules belong to a cgroup: whichever container came first would get those
// of the second. A container with a lease is refused every cgroup in which processes live.
// For others a ledger that cannot be read is no reason to refuse them.
func (n *creation) checkCgroup(path string) error {
	if path == "" || n.noCgroup {
		return nil
	}
	other, err := n.findCgroupHolder(path)
	switch {
	case other != nil:
		return fmt.Errorf("config.json: linux.cgroupsPath: cgroup %s belongs to container %s, which holds lease %s: give container %s a cgroup of its own",
			other.Owner.Cgroup, other.Owner.Container, other.ID, n.id)
	case n.lease == nil:
		return nil
	case err != nil:
		return err
	}
	h, err := cgroup.Detect(n.Cgroup)
	if err != nil {
		return err
	}
	pids, err := h.PIDs(path)
	if err == nil && len(pids) > 0 {
		err = fmt.Errorf("config.json: linux.cgroupsPath: process %d lives in cgroup %s: give container %s a cgroup of its own", pids[0], path, n.id)
	}
	return err
}

// checkPlainCgroup is checkCgroup for a container that isn't prepared. Whether its path makes sense
// is for the runtime to say.
func (n *creation) checkPlainCgroup(spec *specs.Spec) error {
	path, err := n.predictCgroup(n.call, n.rt, spec)
	if err != nil {
		return nil //nolint:nilerr // the runtime reports it
	}
	return n.checkCgroup(path)
}

// findCgroupHolder returns the lease of another live container to which the cgroup belongs,
// nil if there is none. Holders are examined only if one of them has such a cgroup.
func (n *creation) findCgroupHolder(path string) (*ledger.Lease, error) {
	belongs := func(l ledger.Lease) bool {
		other := l.Owner.Cgroup
		// A lease without a container is a process's, which may start containers below its cgroup.
		return other != "" && l.Owner.Container != "" && (cgroup.IsWithin(path, other) || cgroup.IsWithin(other, path)) && !n.isOwnLease(l)
	}
	held, err := n.node.ReadLeases()
	if err != nil || !slices.ContainsFunc(held, belongs) {
		return nil, err
	}
	leases, err := n.node.Leases()
	for _, l := range leases {
		if l.Live && belongs(l.Lease) {
			return &l.Lease, nil
		}
	}
	return nil, err
}

// isOwnLease reports whether the lease is this container's, of an earlier life too. An id
// alone names no container: it is unique only within a runtime's state directory.
func (n *creation) isOwnLease(l ledger.Lease) bool {
	if n.lease != nil && l.ID == n.lease.ID {
		return true
	}
	return l.Owner.Container == n.id && (l.Owner.RuntimeRoot == absolutePath(n.rt.stateDir(n.call)) || l.Owner.Bundle == absolutePath(cmp.Or(n.call.bundle, ".")))
}

// withOwnCgroupNamespace gives the container a cgroup namespace of its own, whatever the
// engine chose. In the host's, or another container's, CAP_SYS_ADMIN could mount the cgroup
// file system and move itself out of the outer cgroup.
func withOwnCgroupNamespace(all []specs.LinuxNamespace) []specs.LinuxNamespace {
	others := slices.DeleteFunc(slices.Clone(all), func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace })
	return append(others, specs.LinuxNamespace{Type: specs.CgroupNamespace})
}

// cgroupsPathIn returns linux.cgroupsPath of a container inside an outer cgroup.
func (n *creation) cgroupsPathIn(outer, path string) (string, error) {
	if !n.systemd {
		return filepath.Join(outer, filepath.Base(n.owner.Cgroup)), nil
	}
	p := cgroup.Placement{CgroupsPath: path, Container: n.id, Systemd: true, Runtime: n.rt.Name}
	p, err := p.Under(filepath.Base(outer))
	return p.CgroupsPath, err
}

// makeCgroup makes the outer cgroup without its rules: with the lease, the device guard opens the
// devices for a cgroup that exists.
func (n *creation) makeCgroup() error {
	if n.outer == "" {
		return nil
	}
	h, err := cgroup.Detect(n.Cgroup)
	if err != nil {
		return err
	}
	return h.Create(n.outer)
}

// createOuterCgroup creates the outer cgroup, if there is to be one, and records it in
// an annotation, by which the delete finds it.
func (n *creation) createOuterCgroup(ctx context.Context, spec *specs.Spec) error {
	if n.outer == "" {
		return nil
	}
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	spec.Annotations[outerAnnotation] = n.outer
	return n.node.CreateOuterCgroup(ctx, n.outer, spec)
}

// predictCgroup returns the cgroup in which the runtime will create the container. The
// root cgroup is refused: its device rules and processes are not the container's alone.
func (o Options) predictCgroup(c call, rt Runtime, spec *specs.Spec) (string, error) {
	h, err := cgroup.Detect(o.Cgroup)
	if err != nil {
		return "", fmt.Errorf("find the cgroup of container %s: %w", c.id, err)
	}
	p := cgroup.Placement{Container: c.id, Systemd: c.systemd, Runtime: rt.Name}
	if spec.Linux != nil {
		p.CgroupsPath = spec.Linux.CgroupsPath
	}
	own, unknown := h.ProcessPath("/proc", os.Getpid())
	if p.Own = own; unknown != nil {
		p.Own = ".." // Place refuses every path that is relative to it
	}
	path, err := h.PredictPath(p)
	switch {
	case err != nil:
		return "", fmt.Errorf("config.json: linux.cgroupsPath: %w", errors.Join(err, unknown))
	case path == "/":
		return "", fmt.Errorf("config.json: linux.cgroupsPath: %q is the root cgroup, which no container can have to itself", p.CgroupsPath)
	}
	return path, nil
}
