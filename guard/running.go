package guard

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/runtimestate"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/devices"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// LeaseAnnotation is set on a container that holds a lease: its value is the id.
const LeaseAnnotation = "dev.berth.lease"

// WideContainer is a running container that could open accelerators that it has not leased.
type WideContainer struct {
	// ID is the container's, in the state directory Root of its runtime.
	ID, Root string
	// Why says why the container could open them.
	Why string
	// CanNarrow reports whether [Guard.NarrowContainers] can deny these accelerators.
	CanNarrow bool
}

// NarrowContainers examines the running containers of the engines and denies them the accelerators
// that they have not leased. It returns the ids of the containers that could certainly open one
// before; others are narrowed without being listed. An error of one container doesn't stop the others.
//
// Device rules that were right when a container was created can be too wide later: a driver was
// loaded, or systemd has reset the rules of a scope, as it does on cgroup version 1 at each
// daemon-reload. It is idempotent.
//
// It removes rules that allow all devices of an accelerator's major, such as those of a privileged
// container. Rules for single devices stay, because another tool may have added them on purpose.
//
// A container holds a lease only if its init is the holder that the ledger has recorded.
// Annotations, ids and names are ignored. Containers that the admin exempts, and those of a rootless
// engine, whose users open what the modes of nodes allow, are left alone.
func (g Guard) NarrowContainers() (narrowed []string, err error) {
	err = g.examineContainers(func(c runningContainer) error {
		found, err := g.findExcess(c)
		if err != nil || found == nil || found.narrow == nil {
			return err
		}
		// A hook may just have bound a lease to the init: the rules that it sets now stay.
		view, err := g.Ledger.View()
		if err != nil {
			return err
		}
		if lease, creating := holderOf(view.Leases, c); creating || lease != nil && c.lease == nil {
			return nil
		}
		if err := found.narrow(); err != nil {
			return err
		}
		if found.known {
			narrowed = append(narrowed, c.ID)
		}
		return nil
	})
	return narrowed, err
}

// ListWideContainers lists the containers that could certainly open an accelerator that they have
// not leased: those that [Guard.NarrowContainers] would narrow, and those that could undo that or have
// no device rules. It changes nothing.
func (g Guard) ListWideContainers() (wide []WideContainer, err error) {
	err = g.examineContainers(func(c runningContainer) error {
		found, err := g.findExcess(c)
		switch {
		case err != nil || found == nil:
			return err
		case found.why != "":
			wide = append(wide, WideContainer{ID: c.ID, Root: c.Root, Why: found.why})
		case found.known:
			wide = append(wide, WideContainer{ID: c.ID, Root: c.Root, Why: "its device rules allow it", CanNarrow: true})
		}
		return nil
	})
	return wide, err
}

// runningContainer is a container whose init lives.
type runningContainer struct {
	runtimestate.Container
	cgroup string
	spec   *specs.Spec // nil if its bundle cannot be read
	lease  *ledger.Lease
	host   isolation.Host
}

// examineContainers calls examine for each running container but those that are being
// created with a lease. An error of one container does not stop the others.
func (g Guard) examineContainers(examine func(runningContainer) error) error {
	if g.Disabled {
		return nil
	}
	majors, err := gpu.ReadMajors(g.Host)
	if err != nil {
		return err
	}
	displays, err := g.ListDisplays(majors)
	if err != nil {
		return err
	}
	// Containers come first: one that ends meanwhile is examined in vain, and one whose
	// lease is not read yet would be taken for one without.
	all, err := g.listRunning()
	if err != nil {
		return err
	}
	missing := g.Ledger.IsMissing()
	view, err := g.Ledger.View()
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range all {
		lease, creating := holderOf(view.Leases, c)
		if creating {
			continue
		}
		c.lease, c.spec = lease, readBundleSpec(c.Bundle)
		c.host = isolation.Host{Majors: majors, Ordinary: displays}
		if missing && (namesLease(c.spec) || g.hasNote(c)) {
			continue // its lease is lost, not released
		}
		// An error of a container that has ended meanwhile doesn't matter.
		if err := examine(c); err != nil && process.Lives(g.Host.ProcPath(), c.PID, c.Start) {
			errs = append(errs, fmt.Errorf("examine container %s: %w", c.ID, err))
		}
	}
	return errors.Join(errs...)
}

// listRunning lists the containers whose init lives, with their cgroups.
func (g Guard) listRunning() (all []runningContainer, err error) {
	roots := runtimestate.Roots(g.RuntimeRoots)
	leases, err := g.Ledger.ReadLeases()
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		// berth's own tasks are created with rules and an outer cgroup that last.
		if root := l.Owner.RuntimeRoot; root != "" && l.Owner.EntryPoint != "run" && !slices.Contains(roots, filepath.Clean(root)) {
			roots = append(roots, filepath.Clean(root))
		}
	}
	for _, state := range runtimestate.List(roots) {
		if !process.Lives(g.Host.ProcPath(), state.PID, state.Start) {
			continue
		}
		c := runningContainer{Container: state, cgroup: state.CgroupPath}
		if path, ok := g.Cgroups.PathOf(state.CgroupDirs[g.Cgroups.Controller]); ok {
			c.cgroup = path
		}
		if c.cgroup == "" {
			if c.cgroup, err = g.Cgroups.ProcessPath(g.Host.ProcPath(), state.PID); err != nil {
				continue // the container has just ended
			}
		}
		all = append(all, c)
	}
	return all, nil
}

// holderOf returns the lease of which the container's init is the proven holder, nil if there
// is none. creating is set while the process that took a lease for just this container, by id
// and state directory, still creates it.
func holderOf(leases []ledger.Status, c runningContainer) (lease *ledger.Lease, creating bool) {
	for _, l := range leases {
		switch {
		case l.Owner.Process.PID == c.PID && l.Owner.Process.Start == c.Start:
			return &l.Lease, false
		case l.Making && l.Owner.Container == c.ID && filepath.Clean(l.Owner.RuntimeRoot) == c.Root:
			return nil, true
		}
	}
	return nil, false
}

// readBundleSpec returns the spec of a container that runs, nil if it cannot be read.
func readBundleSpec(bundle string) *specs.Spec {
	if bundle == "" {
		return nil
	}
	data, err := smallfile.Read(filepath.Join(bundle, "config.json"), runtimestate.MaxSpec)
	if err != nil {
		return nil
	}
	var spec specs.Spec
	if json.Unmarshal(data, &spec) != nil {
		return nil
	}
	return &spec
}

// excess describes how a container can open accelerators beyond its lease.
type excess struct {
	// narrow gives the container the device rules that it should have, which denies these
	// accelerators; nil if there is nothing to change. known is set if they can certainly be opened.
	// On cgroup version 1 this may be unknown, because denials after "allow all" can't be read back.
	narrow func() error
	known  bool
	// why explains why the container can open them even after narrow; "" if it can't.
	why string
}

// findExcess returns nil for a container that can open nothing beyond its lease.
func (g Guard) findExcess(c runningContainer) (*excess, error) {
	if c.lease != nil {
		return g.findResetRules(c)
	}
	reaches, lifts, err := g.checkSpec(c)
	if err != nil {
		return nil, err
	}
	var o excess
	outer := enclosingOuter(c.cgroup)
	place := cmp.Or(outer, c.cgroup)
	if !reaches && g.Cgroups.Version == cgroup.V2 && place != "/" {
		// Since it was narrowed it may have been exempted, or another driver may have got the major.
		o.narrow = func() error { return devices.Undeny(g.Cgroups, place) }
	}
	switch {
	case !reaches && !lifts, outer != "":
	case c.cgroup == "/":
		return &excess{why: "it is in the root cgroup, which has no device rules"}, nil
	case lifts:
		o.why = "it has CAP_SYS_ADMIN, and can lift its device rules"
	}
	switch {
	case !reaches:
	case g.Cgroups.Version == cgroup.V1:
		err = g.findWideList(&o, place, c.host)
	default:
		err = g.findWideProgram(&o, place, c)
	}
	if err != nil || o.narrow == nil && o.why == "" {
		return nil, err
	}
	return &o, nil
}

// checkSpec reports whether the spec opens all of an accelerator's major to the container, and
// whether the container can lift its device rules. If the spec cannot be read, both are true. Both
// are false for a container that the admin exempts.
func (g Guard) checkSpec(c runningContainer) (reaches, lifts bool, err error) {
	if c.spec == nil {
		return true, true, nil
	}
	exempt, err := g.IsExempt(c.spec, c.Bundle)
	if err != nil || exempt {
		return false, false, err
	}
	// On version 1 the rules can be read, and systemd may have reset them.
	reaches = g.Cgroups.Version == cgroup.V1 || isolation.OpensAllOfMajor(rulesOf(c.spec), c.host)
	return reaches, isolation.CanLiftDeviceRules(c.spec), nil
}

func rulesOf(spec *specs.Spec) (rules []edits.Rule) {
	if spec == nil || spec.Linux == nil || spec.Linux.Resources == nil {
		return nil
	}
	for _, r := range spec.Linux.Resources.Devices {
		rules = append(rules, edits.FromSpec(r))
	}
	return rules
}

// findWideProgram handles cgroup version 2. The rules in BPF programs can't be read, so narrow adds a
// program that denies accelerators, unless that program is attached already.
func (g Guard) findWideProgram(o *excess, place string, c runningContainer) error {
	denied := isolation.DenyAccelerators(c.host, rulesOf(c.spec))
	there, err := devices.IsDenied(g.Cgroups, place, denied)
	if err == nil && !there {
		o.narrow, o.known = func() error { return devices.Deny(g.Cgroups, place, denied) }, true
	}
	return err
}

func (g Guard) findWideList(o *excess, place string, host isolation.Host) error {
	have, err := devices.ReadRules(g.Cgroups, place)
	if err != nil {
		return err
	}
	if devices.AllowsAll(have) {
		highest, err := sysfs.MaxMinor(g.Host)
		o.narrow = func() error { return devices.Deny(g.Cgroups, place, isolation.DenyEachAccelerator(host, highest)) }
		return err
	}
	if !isolation.OpensAllOfMajor(have, host) {
		return nil
	}
	rules, err := isolation.WithoutWholeMajors(have, host)
	o.narrow, o.known = func() error { return devices.Replace(g.Cgroups, place, rules) }, true
	return err
}

// findResetRules handles a container with a lease on cgroup version 1, where systemd may have reset
// the device rules. The rules to restore are in the spec that berth has rewritten for the lease.
// Rules that a hook has set are in a systemd drop-in, so systemd restores those itself.
func (g Guard) findResetRules(c runningContainer) (*excess, error) {
	if g.Cgroups.Version != cgroup.V1 || c.spec == nil || c.spec.Annotations[LeaseAnnotation] != c.lease.ID {
		return nil, nil
	}
	rules := rulesOf(c.spec)
	have, err := devices.ReadRules(g.Cgroups, c.cgroup)
	if err != nil {
		return nil, err
	}
	within, err := devices.IsWithin(have, rules)
	if err != nil || within {
		return nil, err
	}
	return &excess{narrow: func() error { return devices.Apply(g.Cgroups, c.cgroup, rules) }, known: true}, nil
}
