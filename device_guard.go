package berth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/deviceguard"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// GuardConfig has the exceptions of the device guard.
type GuardConfig struct {
	// Root is "allow" (or ""), which lets root of the host open every device without a
	// lease, or "deny".
	Root string `toml:"root"`
	// Exempt are cgroups whose processes can open every device without a lease. Paths are
	// relative to the root of the cgroup tree: "/system.slice/nvidia-dcgm.service",
	// "/kubepods.slice".
	Exempt []string `toml:"exempt"`
}

func (c GuardConfig) check() error {
	for _, path := range c.Exempt {
		if path == "" || path[0] != '/' || path == "/" {
			return fmt.Errorf("guard.exempt: %q is not the path of a cgroup, such as /system.slice/nvidia-dcgm.service", path)
		}
		if !deviceguard.IsSeen(path) {
			return fmt.Errorf("guard.exempt: %q is too deep in the cgroup tree: the guard sees %d levels", path, deviceguard.MaxLevel)
		}
	}
	switch c.Root {
	case "", "allow", "deny":
		return nil
	}
	return fmt.Errorf(`guard.root: %q is neither "allow" nor "deny"`, c.Root)
}

// nvmlCgroup is the cgroup of root's processes that call NVML for berth. The guard opens every device to it: NVML
// shows only the GPUs whose nodes its process can open, and all others would count as lost, also when
// root asks from inside a lease.
const nvmlCgroup = "/berth-nvml"

// createNVMLCgroup creates the cgroup unless it exists. Only the device guard needs it.
func (n *Node) createNVMLCgroup() error {
	err := n.cgroups.Create(nvmlCgroup)
	if err != nil {
		err = fmt.Errorf("create the cgroup in which NVML sees every GPU under the device guard: %w (berth guard off turns the guard off)", err)
	}
	return err
}

// NVMLCgroup returns the directory of the cgroup in which a process that calls NVML sees every GPU, or "" if this
// process's own will do: the device guard is off, or this process isn't root of the host, and can't enter that cgroup.
func (n *Node) NVMLCgroup() string {
	if root, err := process.HostRoot(n.config.GPUHost().ProcPath()); err != nil || !root || n.cgroups.Version != cgroup.V2 {
		return ""
	}
	dir, err := n.cgroups.Dir(nvmlCgroup)
	if err != nil {
		return ""
	}
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return dir
}

// IsNVMLCgroup reports whether a cgroup is the one for calls of NVML, which is exempt from the guard.
func (n *Node) IsNVMLCgroup(id uint64) bool {
	own, err := n.cgroups.ID(nvmlCgroup)
	return err == nil && own == id
}

// GuardHides reports whether the device guard hides one of these GPUs from NVML in this process. It opens the GPUs' nodes:
// call it only after NVML has answered, because an open can hang in the driver too.
func (n *Node) GuardHides(gpus []gpu.GPU) bool {
	return n.NVMLCgroup() == "" && slices.ContainsFunc(gpus, func(g gpu.GPU) bool {
		fd, err := unix.Open(n.config.GPUHost().DevPath(g.Device().Node), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return errors.Is(err, unix.EPERM)
	})
}

// InstallDeviceGuard closes the devices of this machine to processes without a lease. If
// the guard is already on, InstallDeviceGuard updates its rules from the ledger and the
// configuration. The error Is [ErrLedgerLost] if the leases of running holders aren't known.
func (n *Node) InstallDeviceGuard(ctx context.Context) error {
	if n.cgroups.Version != cgroup.V2 {
		return errors.New("the device guard needs a machine with cgroup version 2 alone: boot with systemd.unified_cgroup_hierarchy=1")
	}
	if err := n.CheckLedger(); err != nil {
		return err
	}
	return n.ledger.WithLeases(ctx, func(leases []ledger.Lease) error {
		if err := n.createNVMLCgroup(); err != nil {
			return err
		}
		rules, err := n.deviceRules(leases)
		if err != nil {
			return err
		}
		return deviceguard.Install(n.cgroups.Root, rules)
	})
}

// RemoveDeviceGuard removes the device guard. That the guard is off is not an error.
func (n *Node) RemoveDeviceGuard(ctx context.Context) error {
	if n.cgroups.Version != cgroup.V2 {
		return nil
	}
	return n.ledger.WithLeases(ctx, func([]ledger.Lease) error {
		if err := deviceguard.Remove(n.cgroups.Root); err != nil {
			return err
		}
		if err := n.cgroups.Remove(ctx, nvmlCgroup); !errors.Is(err, unix.EBUSY) { // a berth-nvml process still runs there
			return err
		}
		return nil
	})
}

// DeviceGuard returns the device guard's rules. The error Is [deviceguard.ErrOff] if the
// guard is off.
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

// WantedDeviceGuard returns the rules that the device guard has after [Node.InstallDeviceGuard]. They have no entry for
// a lease that has ended, whose entry stays in the guard until the next change of the ledger. The error Is
// [ErrLedgerLost] if the leases of running holders aren't known.
func (n *Node) WantedDeviceGuard() (rules deviceguard.Rules, err error) {
	if err := n.CheckLedger(); err != nil {
		return rules, err
	}
	leases, err := n.Leases()
	if err != nil {
		return rules, err
	}
	return n.deviceRules(leases)
}

// SyncDeviceGuard updates the device guard's rules from the ledger. The caller has created
// a lease's cgroup since the ledger was last written. If the ledger is lost, the rules stay: they
// open the devices of leases that [Node.Repair] will rebuild.
func (n *Node) SyncDeviceGuard(ctx context.Context) error {
	if _, err := n.DeviceGuard(); errors.Is(err, deviceguard.ErrOff) || errors.Is(err, deviceguard.ErrUnavailable) {
		return nil
	}
	if err := n.CheckLedger(); errors.Is(err, ErrLedgerLost) {
		return nil
	}
	return n.ledger.WithLeases(ctx, n.grantDevices)
}

// grantDevices replaces the device guard's grants: the cgroup of each lease can open that
// lease's devices. The caller holds the ledger's lock.
func (n *Node) grantDevices(leases []ledger.Lease) error {
	if n.cgroups.Version != cgroup.V2 {
		return nil
	}
	g, err := deviceguard.Open(n.cgroups.Root)
	// Without BPF the runtime can't set device rules either and reports that itself. A guard
	// that is on keeps the devices closed.
	if errors.Is(err, deviceguard.ErrOff) || errors.Is(err, deviceguard.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	err = n.createNVMLCgroup()
	if err == nil {
		var rules deviceguard.Rules
		if rules, err = n.deviceRules(leases); err == nil {
			err = g.Sync(rules)
		}
	}
	return errors.Join(err, g.Close())
}

// readGuarded returns what the guarded nodes depend on: the devices, and the majors by the drivers' names. A stale
// snapshot will do: the leased devices were in it. Without a snapshot, as at boot, the guard closes the node of every GPU.
func (n *Node) readGuarded() (gpu.Inventory, map[string]uint32, error) {
	list, err := gpu.ReadMajors(n.config.GPUHost())
	if err != nil {
		return gpu.Inventory{}, nil, err
	}
	majors := map[string]uint32{}
	for _, m := range list {
		majors[m.Name] = m.Number
	}
	s, err := snapshot.LoadAny(n.config.SnapshotPath())
	if err != nil && !errors.Is(err, snapshot.ErrStale) {
		return gpu.Inventory{}, nil, err
	}
	s.Inventory.ExclusiveNICs = n.config.Policy.NICs == "exclusive"
	return s.Inventory, majors, nil
}

// deviceRules returns the device guard's rules for these leases.
func (n *Node) deviceRules(leases []ledger.Lease) (deviceguard.Rules, error) {
	inv, majors, err := n.readGuarded()
	if err != nil {
		return deviceguard.Rules{}, err
	}
	rules, err := n.guard.HostRules(inv, majors, leases, append(slices.Clone(n.config.Guard.Exempt), nvmlCgroup))
	rules.RootAllowed = n.config.Guard.Root != "deny"
	rules.PIDNamespace = n.config.GPUHost().ProcPath("1/ns/pid")
	if _, err := os.Stat(rules.PIDNamespace); errors.Is(err, fs.ErrPermission) {
		// Process 1 has capabilities that root here lacks. Only root of the host gets here.
		rules.PIDNamespace = n.config.GPUHost().ProcPath("self/ns/pid")
	}
	return rules, err
}
