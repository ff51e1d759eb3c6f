package berth

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// Devices that processes without a lease compute on. NVML knows these processes, and is never
// asked when a container starts: berth discover writes down what it finds, and an acquire
// checks whether those processes still live.

// AsksForProcesses says whether the policy wants to know of such processes.
func (p Policy) AsksForProcesses() bool { return p.InUse != "ignore" }

// AsksForProcesses is that of the node's policy.
func (n *Node) AsksForProcesses() bool { return n.config.Policy.AsksForProcesses() }

func (c Config) processesPath() string { return filepath.Join(c.State, "processes.json") }

// Computable lists the UUIDs of the devices that a process can compute on: GPUs, or the slices of
// those in MIG mode.
func Computable(inv gpu.Inventory) (uuids []string) {
	for _, d := range inv.Devices() {
		if g, s, _ := inv.Lookup(d.UUID); s != nil || !g.MIG {
			uuids = append(uuids, d.UUID)
		}
	}
	return uuids
}

// ListOpen lists the UUIDs of the [Computable] devices of GPUs whose device node is open in a process that is part
// of no lease's holder: IdentifyProcesses can find processes on these alone. Measuring another GPU finds nothing,
// and wakes a GPU up that has no persistence mode. A GPU without a device node counts as open.
func (n *Node) ListOpen(inv gpu.Inventory) (uuids []string) {
	h := n.config.GPUHost()
	numbers := map[string]uint64{} // of device nodes
	for _, d := range inv.Devices() {
		var st unix.Stat_t
		if d.Node != "" && unix.Stat(h.DevPath(d.Node), &st) == nil {
			numbers[d.Node] = st.Rdev
		}
	}
	users := process.FindDeviceUsers(h.ProcPath(), slices.Collect(maps.Values(numbers)))
	open := map[string]bool{}
	for node, number := range numbers {
		open[node] = slices.ContainsFunc(users[number], func(pid int) bool { return !n.holdsLease(pid) })
	}
	for _, uuid := range Computable(inv) {
		g, _, _ := inv.Lookup(uuid)
		if isOpen, known := open[g.Device().Node]; isOpen || !known {
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

// IdentifyProcesses says which processes without a lease compute on devices, by UUID. Processes
// that can't be seen from here, and those that have ended since, are left out. For a device that
// NVML didn't tell about the result has what was found earlier, and the error says why.
func (n *Node) IdentifyProcesses(uses []probe.Use) (found map[string][]gpu.Process, err error) {
	found = map[string][]gpu.Process{}
	var earlier map[string][]gpu.Process
	for _, u := range uses {
		if u.Error != "" && err == nil {
			err, earlier = fmt.Errorf("%s: %s", u.UUID, u.Error), n.Processes()
		}
		if u.Error != "" && len(earlier[u.UUID]) > 0 {
			found[u.UUID] = earlier[u.UUID]
		}
		for _, p := range u.Processes {
			if known, ok := n.identify(p); ok {
				found[u.UUID] = append(found[u.UUID], known)
			}
		}
	}
	return n.withoutHolders(found), err
}

func (n *Node) identify(p probe.Process) (gpu.Process, bool) {
	h := n.config.GPUHost()
	known := gpu.Process{PID: p.PID, Memory: p.Memory}
	var err error
	if known.Start, err = process.Start(h.ProcPath(), p.PID); err != nil {
		return known, false
	}
	dir := h.ProcPath(strconv.Itoa(p.PID))
	if known.Name, err = smallfile.String(dir + "/comm"); err != nil {
		return known, false
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return known, false
	}
	known.User = strconv.Itoa(int(st.Uid))
	if u, err := user.LookupId(known.User); err == nil {
		known.User = u.Username
	}
	return known, process.Lives(h.ProcPath(), p.PID, known.Start)
}

// withoutHolders leaves out processes that live no more, and those that are part of what holds a
// lease.
func (n *Node) withoutHolders(found map[string][]gpu.Process) map[string][]gpu.Process {
	proc := n.config.GPUHost().ProcPath()
	for uuid, all := range found {
		all = slices.DeleteFunc(slices.Clone(all), func(p gpu.Process) bool {
			return !process.Lives(proc, p.PID, p.Start) || n.holdsLease(p.PID)
		})
		if found[uuid] = all; len(all) == 0 {
			delete(found, uuid)
		}
	}
	return found
}

// holdsLease says whether a process is in the cgroup of a lease's holder.
func (n *Node) holdsLease(pid int) bool {
	leases, err := n.Leases()
	if err != nil {
		return true // nothing can be leased either
	}
	own, err := n.cgroups.ProcessPath(n.config.GPUHost().ProcPath(), pid)
	if err != nil {
		return false
	}
	for _, l := range leases {
		if l.Owner.Cgroup != "" && cgroup.IsWithin(own, l.Owner.Cgroup) {
			return true
		}
	}
	return false
}

// SaveProcesses keeps what IdentifyProcesses has found for the acquires to come.
func (n *Node) SaveProcesses(found map[string][]gpu.Process) error {
	if len(found) == 0 {
		if err := os.Remove(n.config.processesPath()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	boot, err := n.bootID()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(n.config.State, 0o755); err != nil {
		return err
	}
	return snapshot.SaveProcesses(n.config.processesPath(), boot, found)
}

func (n *Node) bootID() (string, error) {
	return smallfile.String(n.config.GPUHost().ProcPath("sys/kernel/random/boot_id"))
}

// Processes returns the processes without a lease that were found on devices when NVML was last
// asked, by UUID, and that still live.
func (n *Node) Processes() map[string][]gpu.Process {
	boot, found := snapshot.LoadProcesses(n.config.processesPath())
	if len(found) == 0 { // in most cases, and then the boot doesn't matter
		return nil
	}
	if now, err := n.bootID(); err != nil || now != boot {
		return nil
	}
	return n.withoutHolders(found)
}

// listOccupied lists the devices of the inventory that processes without a lease compute on.
func (n *Node) listOccupied(inv gpu.Inventory) (all []gpu.Occupied) {
	found := n.Processes()
	if len(found) == 0 {
		return nil
	}
	for _, d := range inv.Devices() {
		if by := found[d.UUID]; len(by) > 0 {
			all = append(all, gpu.Occupied{Device: d, By: by})
		}
	}
	return all
}

// RemarkOccupied returns a remark for each leased device that a process without a lease computes
// on, where policy.in_use is "warn".
func (n *Node) RemarkOccupied(leased []gpu.Device) (remarks []Removal) {
	if n.config.Policy.InUse != "warn" {
		return nil
	}
	found := n.Processes()
	for _, d := range leased {
		if by := found[d.UUID]; len(by) > 0 {
			r := edits.Remark("%s", gpu.Occupied{Device: d, By: by})
			r.Urgent = true
			remarks = append(remarks, r)
		}
	}
	return remarks
}
