package berth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/deviceguard"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// GuardConfig says for whom the device guard closes the nodes of GPUs.
type GuardConfig struct {
	// Root is "allow" (or ""): the host's root opens every device without a lease; or "deny".
	Root string `toml:"root"`
	// Exempt are cgroups, as paths below the root of the tree, in which every device can be opened
	// without a lease: "/system.slice/nvidia-dcgm.service", "/kubepods.slice".
	Exempt []string `toml:"exempt"`
}

func (c GuardConfig) check() error {
	for _, path := range c.Exempt {
		if path == "" || path[0] != '/' || path == "/" {
			return fmt.Errorf("guard.exempt: %q is not the path of a cgroup, such as /system.slice/nvidia-dcgm.service", path)
		}
	}
	switch c.Root {
	case "", "allow", "deny":
		return nil
	}
	return fmt.Errorf(`guard.root: %q is neither "allow" nor "deny"`, c.Root)
}

// InstallDeviceGuard closes the devices of this machine to processes without a lease, and brings
// the rules in line with the ledger and the configuration if it is on already.
func (n *Node) InstallDeviceGuard(ctx context.Context) error {
	if n.cgroups.Version != cgroup.V2 {
		return errors.New("the device guard needs a machine with cgroup version 2 alone: boot with systemd.unified_cgroup_hierarchy=1")
	}
	return n.ledger.WithLeases(ctx, func(leases []ledger.Lease) error {
		rules, err := n.deviceRules(leases)
		if err != nil {
			return err
		}
		return deviceguard.Install(n.cgroups.Root, rules)
	})
}

// RemoveDeviceGuard opens the devices again. It is no error if the guard is off.
func (n *Node) RemoveDeviceGuard(ctx context.Context) error {
	if n.cgroups.Version != cgroup.V2 {
		return nil
	}
	return n.ledger.WithLeases(ctx, func([]ledger.Lease) error { return deviceguard.Remove(n.cgroups.Root) })
}

// DeviceGuard is the device guard's state; the error Is [deviceguard.ErrOff] if it is off.
func (n *Node) DeviceGuard() (rules deviceguard.Rules, err error) {
	if n.cgroups.Version != cgroup.V2 {
		return rules, deviceguard.ErrOff
	}
	g, err := deviceguard.Open(n.cgroups.Root)
	if err != nil {
		return rules, err
	}
	rules, err = g.Read()
	return rules, errors.Join(err, g.Close())
}

// SyncDeviceGuard brings the device guard's rules in line with the ledger. It is for after a
// lease's cgroup was made.
func (n *Node) SyncDeviceGuard(ctx context.Context) error {
	if _, err := n.DeviceGuard(); errors.Is(err, deviceguard.ErrOff) || errors.Is(err, deviceguard.ErrUnavailable) {
		return nil
	}
	return n.ledger.WithLeases(ctx, n.grantDevices)
}

// grantDevices lets the leases' cgroups open their devices, and no others. The caller holds the
// ledger's lock.
func (n *Node) grantDevices(leases []ledger.Lease) error {
	if n.cgroups.Version != cgroup.V2 {
		return nil
	}
	g, err := deviceguard.Open(n.cgroups.Root)
	// Without BPF a container gets no device rules either, and its runtime says why. A guard that is on
	// keeps the devices closed.
	if errors.Is(err, deviceguard.ErrOff) || errors.Is(err, deviceguard.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	rules, err := n.deviceRules(leases)
	if err == nil {
		err = g.Sync(rules)
	}
	return errors.Join(err, g.Close())
}

// deviceRules are the device guard's rules for these leases.
func (n *Node) deviceRules(leases []ledger.Lease) (deviceguard.Rules, error) {
	list, err := gpu.ReadMajors(n.config.GPUHost())
	if err != nil {
		return deviceguard.Rules{}, err
	}
	majors := map[string]uint32{}
	for _, m := range list {
		majors[m.Name] = m.Number
	}
	// A snapshot that doesn't fit the machine any more is better than none: what is leased was in it.
	// Without one, as at boot, every GPU's own node is guarded all the same.
	s, err := snapshot.LoadAny(n.config.SnapshotPath())
	if err != nil && !errors.Is(err, snapshot.ErrStale) {
		return deviceguard.Rules{}, err
	}
	s.Inventory.ExclusiveNICs = n.config.Policy.NICs == "exclusive"
	rules, err := n.guard.HostRules(s.Inventory, majors, leases, n.config.Guard.Exempt)
	rules.RootAllowed = n.config.Guard.Root != "deny"
	rules.PIDNamespace = n.config.GPUHost().ProcPath("1/ns/pid")
	if _, err := os.Stat(rules.PIDNamespace); errors.Is(err, fs.ErrPermission) {
		// Process 1 has capabilities that root here lacks. Only root of the host gets here.
		rules.PIDNamespace = n.config.GPUHost().ProcPath("self/ns/pid")
	}
	return rules, err
}
