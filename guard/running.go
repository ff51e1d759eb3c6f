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

// OpenContainer is a running container that could open accelerators beyond its lease.
type OpenContainer struct {
	// ID is the container's, in the state directory Root of its runtime.
	ID, Root string
	// Why the container could open them.
	Why string
	// Closable: [Guard.CloseContainers] can close them.
	Closable bool
}

// CloseContainers examines the running containers of the engines and closes accelerators
// beyond their leases. It returns the ids of those to which it has closed one. An error of
// one container doesn't stop the others.
//
// Device rules that were right when a container was created can be too wide later: a driver
// was loaded, or systemd has reset the rules of a scope, as it does on cgroup version 1 at
// each daemon-reload. Doing it twice is the same as once.
//
// Closed are rules that open all devices of an accelerator's major, as those of a privileged
// container do. Rules for single devices, which another tool has given the container on
// purpose, stay.
//
// A container holds a lease if its init is the process that the ledger has as the holder.
// Annotations, ids and names count for nothing. Containers that the admin exempts, and
// those of a rootless engine, whose users open what the modes of nodes allow, are left alone.
func (g Guard) CloseContainers() (closed []string, err error) {
	err = g.examineContainers(func(c running) error {
		found, err := g.findOpening(c)
		if err != nil || found == nil || found.close == nil {
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
		if err := found.close(); err != nil {
			return err
		}
		if found.known {
			closed = append(closed, c.ID)
		}
		return nil
	})
	return closed, err
}

// ListOpenContainers lists the containers to which [Guard.CloseContainers] would close
// accelerators, and those that can lift what it closes. It changes nothing.
func (g Guard) ListOpenContainers() (open []OpenContainer, err error) {
	err = g.examineContainers(func(c running) error {
		found, err := g.findOpening(c)
		switch {
		case err != nil || found == nil:
			return err
		case found.why != "":
			open = append(open, OpenContainer{ID: c.ID, Root: c.Root, Why: found.why})
		case found.known:
			open = append(open, OpenContainer{ID: c.ID, Root: c.Root, Why: "its device rules allow it", Closable: true})
		}
		return nil
	})
	return open, err
}

// running is a container whose init lives.
type running struct {
	runtimestate.Container
	cgroup string
	spec   *specs.Spec // nil if its bundle cannot be read
	lease  *ledger.Lease
	host   isolation.Host
}

// examineContainers calls examine for each running container but those that are being
// created with a lease. An error of one container does not stop the others.
func (g Guard) examineContainers(examine func(running) error) error {
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
		if missing && namesLease(c.spec) {
			continue // its lease is lost, not given back
		}
		// A container that has ended meanwhile has nothing to close.
		if err := examine(c); err != nil && process.Lives(g.Host.ProcPath(), c.PID, c.Start) {
			errs = append(errs, fmt.Errorf("examine container %s: %w", c.ID, err))
		}
	}
	return errors.Join(errs...)
}

// listRunning lists the containers whose init lives, with their cgroups.
func (g Guard) listRunning() (all []running, err error) {
	roots := runtimestate.Roots()
	leases, err := g.Ledger.Held()
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		// berth's own tasks are created with rules and an outer cgroup that last.
		if root := l.Owner.RuntimeRoot; root != "" && l.Owner.Door != "run" && !slices.Contains(roots, filepath.Clean(root)) {
			roots = append(roots, filepath.Clean(root))
		}
	}
	for _, state := range runtimestate.List(roots) {
		if !process.Lives(g.Host.ProcPath(), state.PID, state.Start) {
			continue
		}
		c := running{Container: state, cgroup: state.CgroupPath}
		if path, ok := g.Cgroups.PathOf(state.CgroupDirs[g.Cgroups.Controller]); ok {
			c.cgroup = path
		}
		if c.cgroup == "" {
			if c.cgroup, err = g.Cgroups.ProcessPath(g.Host.ProcPath(), state.PID); err != nil {
				continue // it has just ended
			}
		}
		all = append(all, c)
	}
	return all, nil
}

// holderOf returns the lease of which the container's init is the proven holder, nil if there
// is none. creating is set while the process that took a lease for just this container, by id
// and state directory, still creates it.
func holderOf(leases []ledger.Status, c running) (lease *ledger.Lease, creating bool) {
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

// maxSpec is the most bytes of a config.json that are read.
const maxSpec = 16 << 20

// readBundleSpec returns the spec of a container that runs, nil if it cannot be read.
func readBundleSpec(bundle string) *specs.Spec {
	if bundle == "" {
		return nil
	}
	data, err := smallfile.Read(filepath.Join(bundle, "config.json"), maxSpec)
	if err != nil {
		return nil
	}
	var spec specs.Spec
	if json.Unmarshal(data, &spec) != nil {
		return nil
	}
	return &spec
}

// opening is what lets a container open accelerators beyond its lease.
type opening struct {
	// close closes them; nil if nothing can. known is set if they are certain to be open:
	// what cgroup version 1 denies behind "allow all" cannot be read.
	close func() error
	known bool
	// why they can be opened all the same, "" if they cannot.
	why string
}

// findOpening returns nil for a container that can open nothing beyond its lease.
func (g Guard) findOpening(c running) (*opening, error) {
	if c.lease != nil {
		return g.findResetRules(c)
	}
	reaches, lifts, err := g.judgeSpec(c)
	if err != nil {
		return nil, err
	}
	var o opening
	outer := enclosingOuter(c.cgroup)
	place := cmp.Or(outer, c.cgroup)
	if !reaches && g.Cgroups.Version == cgroup.V2 && place != "/" {
		// It may have been exempted, or another driver may have the major, since it was closed.
		o.close = func() error { return devices.Undeny(g.Cgroups, place) }
	}
	switch {
	case !reaches && !lifts, outer != "":
	case c.cgroup == "/":
		return &opening{why: "it is in the root cgroup, which has no device rules"}, nil
	case lifts:
		o.why = "it has CAP_SYS_ADMIN, and can lift its device rules"
	}
	switch {
	case !reaches:
	case g.Cgroups.Version == cgroup.V1:
		err = g.findOpenList(&o, place, c.host)
	default:
		err = g.findOpenProgram(&o, place, c)
	}
	if err != nil || o.close == nil && o.why == "" {
		return nil, err
	}
	return &o, nil
}

// judgeSpec says whether the spec opens all of an accelerator's major to the container, and
// whether the container can lift its device rules. A spec that cannot be read counts as
// both. Neither is true of a container that the admin exempts.
func (g Guard) judgeSpec(c running) (reaches, lifts bool, err error) {
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

// findOpenProgram is about cgroup version 2, whose programs cannot be read: one that denies
// accelerators is added.
func (g Guard) findOpenProgram(o *opening, place string, c running) error {
	denied := isolation.DenyAccelerators(c.host, rulesOf(c.spec))
	there, err := devices.IsDenied(g.Cgroups, place, denied)
	if err == nil && !there {
		o.close, o.known = func() error { return devices.Deny(g.Cgroups, place, denied) }, true
	}
	return err
}

func (g Guard) findOpenList(o *opening, place string, host isolation.Host) error {
	have, err := devices.List(g.Cgroups, place)
	if err != nil {
		return err
	}
	if devices.AllowsAll(have) {
		highest, err := sysfs.MaxMinor(g.Host)
		o.close = func() error { return devices.Deny(g.Cgroups, place, isolation.DenyEachAccelerator(host, highest)) }
		return err
	}
	if !isolation.OpensAllOfMajor(have, host) {
		return nil
	}
	rules, err := isolation.WithoutWholeMajors(have, host)
	o.close, o.known = func() error { return devices.Replace(g.Cgroups, place, rules) }, true
	return err
}

// findResetRules is about a container with a lease, whose rules systemd may have reset on
// cgroup version 1. Which rules it had is in the spec that berth has rewritten for the
// lease; what a hook has set, systemd knows.
func (g Guard) findResetRules(c running) (*opening, error) {
	if g.Cgroups.Version != cgroup.V1 || c.spec == nil || c.spec.Annotations[LeaseAnnotation] != c.lease.ID {
		return nil, nil
	}
	rules := rulesOf(c.spec)
	have, err := devices.List(g.Cgroups, c.cgroup)
	if err != nil {
		return nil, err
	}
	within, err := devices.IsWithin(have, rules)
	if err != nil || within {
		return nil, err
	}
	return &opening{close: func() error { return devices.Apply(g.Cgroups, c.cgroup, rules) }, known: true}, nil
}
