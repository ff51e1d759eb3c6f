package berth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
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
	"github.com/berth-gpu/berth/isolation/ledger"
)

// This file finds processes that use a device without a lease ("unleased processes"). NVML
// lists the processes of a device, but is never called when a container starts: berth
// discover stores what NVML reports, and Acquire checks whether those processes still live.

// ChecksInUse reports whether the policy depends on unleased processes.
func (p Policy) ChecksInUse() bool { return p.InUse != "ignore" }

// ChecksInUse is [Policy.ChecksInUse] of the node's policy.
func (n *Node) ChecksInUse() bool { return n.config.Policy.ChecksInUse() }

func (c Config) processesPath() string { return filepath.Join(c.State, "processes.json") }

// ListComputable returns the UUIDs of the devices on which a process can compute: GPUs, and
// the slices of GPUs in MIG mode.
func ListComputable(inv gpu.Inventory) (uuids []string) {
	for _, d := range inv.Devices() {
		if g, s, _ := inv.Lookup(d.UUID); s != nil || !g.MIG {
			uuids = append(uuids, d.UUID)
		}
	}
	return uuids
}

// ListOpenDevices returns the UUIDs of the [ListComputable] devices whose GPU's node is open
// in an unleased process. Only on these can NVML report unleased processes, and a
// query of another GPU would power up a GPU that has no persistence mode. A GPU without a
// device node counts as open, and so does each GPU if processes have too many files open.
func (n *Node) ListOpenDevices(inv gpu.Inventory) (uuids []string) {
	h := n.config.GPUHost()
	open, ok := findDevices(process.OpenFiles(h.ProcPath(), n.readHolders()), maxOpenFiles)
	for _, uuid := range ListComputable(inv) {
		g, _, _ := inv.Lookup(uuid)
		var st unix.Stat_t
		if node := g.Device().Node; !ok || node == "" || unix.Stat(h.DevPath(node), &st) != nil || open[st.Rdev] {
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

// maxOpenFiles bounds the open files that ListOpenDevices looks at, which takes 2 s of CPU time. Users decide how many there
// are.
const maxOpenFiles = 1 << 19

// findDevices returns the device numbers of files. ok means that there were no more files than limit.
func findDevices(files iter.Seq[process.OpenFile], limit int) (numbers map[uint64]bool, ok bool) {
	numbers = map[uint64]bool{}
	for f := range files {
		if limit--; limit < 0 {
			return nil, false
		}
		if f.Device != 0 {
			numbers[f.Device] = true
		}
	}
	return numbers, true
}

// IdentifyProcesses returns the unleased processes among NVML's results, by the device's
// UUID. Processes of other PID namespaces, and processes that have ended since, are left
// out. For a device with an NVML error the result has the stored processes, and the error
// is returned beside it.
func (n *Node) IdentifyProcesses(uses []probe.Use) (found map[string][]gpu.Process, err error) {
	found = map[string][]gpu.Process{}
	var earlier map[string][]gpu.Process
	for _, u := range uses {
		if u.Error != "" && err == nil {
			err, earlier = fmt.Errorf("%s: %s", u.UUID, u.Error), n.UnleasedProcesses()
		}
		if u.Error != "" && len(earlier[u.UUID]) > 0 {
			found[u.UUID] = earlier[u.UUID]
		}
		for _, p := range u.Processes {
			if known, ok := n.identifyProcess(p); ok {
				found[u.UUID] = append(found[u.UUID], known)
			}
		}
	}
	return n.removeHolders(found), err
}

// FindUnleased is [Node.IdentifyProcesses], with the stored processes beside them that [Node.InspectDevices] has found.
func (n *Node) FindUnleased(uses []probe.Use) (found map[string][]gpu.Process, err error) {
	found, err = n.IdentifyProcesses(uses)
	return joinProcesses(found, keepLeftover(n.UnleasedProcesses())), err
}

// keepLeftover removes the processes that NVML has reported.
func keepLeftover(all map[string][]gpu.Process) map[string][]gpu.Process {
	for uuid, list := range all {
		all[uuid] = slices.DeleteFunc(list, func(p gpu.Process) bool { return !isLeftover(p) })
	}
	return all
}

func (n *Node) identifyProcess(p probe.Process) (gpu.Process, bool) {
	known, ok := n.describeProcess(p)
	return known, ok && process.Lives(n.config.GPUHost().ProcPath(), p.PID, known.Start)
}

// describeProcess is identifyProcess for a process of which threads may live when its first has ended.
func (n *Node) describeProcess(p probe.Process) (gpu.Process, bool) {
	h := n.config.GPUHost()
	known := gpu.Process{PID: p.PID, Memory: p.Memory}
	var err error
	// Of a stuck process the start isn't known. Once it can be read, the process counts as another one, and is searched.
	if known.Start, err = process.Start(h.ProcPath(), p.PID); err != nil && !errors.Is(err, process.ErrStuck) {
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
	return known, n.isSame(known)
}

// isSame reports whether a process's pid still belongs to it. Threads of it may live when its first has ended. It is true for a stuck
// process, of which that can't be told.
func (n *Node) isSame(p gpu.Process) bool {
	start, err := process.Start(n.config.GPUHost().ProcPath(), p.PID)
	return errors.Is(err, process.ErrStuck) || err == nil && start == p.Start
}

// removeHolders removes processes that have ended, processes of a lease's holder, and those that were found by an open device
// and don't have it open any more.
func (n *Node) removeHolders(found map[string][]gpu.Process) map[string][]gpu.Process {
	if len(found) == 0 {
		return found
	}
	proc, holdsLease := n.config.GPUHost().ProcPath(), n.readHolders()
	var left map[string][]gpu.Process
	var err error
	if countLeftover(found) > 0 {
		left, err = n.findStillLeftover(found)
	}
	for uuid, all := range found {
		all = slices.DeleteFunc(slices.Clone(all), func(p gpu.Process) bool {
			if isLeftover(p) {
				return err == nil && !slices.Contains(left[uuid], p)
			}
			return !process.Lives(proc, p.PID, p.Start) || holdsLease(p.PID)
		})
		if found[uuid] = all; len(all) == 0 {
			delete(found, uuid)
		}
	}
	return found
}

// readHolders returns a function that reports whether a process is in the cgroup of a lease's holder. The leases are those
// of the time of this call.
func (n *Node) readHolders() (holdsLease func(pid int) bool) {
	leases, err := n.Leases()
	if err != nil {
		return func(int) bool { return true } // without a ledger no device can be leased either
	}
	return func(pid int) bool {
		own, err := n.cgroups.ProcessPath(n.config.GPUHost().ProcPath(), pid)
		return err == nil && slices.ContainsFunc(leases, func(l ledger.Lease) bool {
			return l.Owner.Cgroup != "" && cgroup.IsWithin(own, l.Owner.Cgroup)
		})
	}
}

// SaveProcesses stores the result of IdentifyProcesses for [Node.UnleasedProcesses], beside what
// [Node.InspectDevices] has found.
func (n *Node) SaveProcesses(ctx context.Context, found map[string][]gpu.Process) error {
	return n.withInspectionLock(ctx, func(*os.File) error {
		return n.storeProcesses(joinProcesses(found, keepLeftover(n.UnleasedProcesses())))
	})
}

// storeProcesses writes the list of [Node.UnleasedProcesses]. The caller has the lock of inspections. It writes a list that is
// the same, too: a request that has read it looks again (ledger.Ask.Stale), because a process of the list may have closed the
// device meanwhile, and got it once more.
func (n *Node) storeProcesses(found map[string][]gpu.Process) error {
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
	return snapshot.SaveProcesses(n.config.processesPath(), boot, found)
}

func (n *Node) bootID() (string, error) {
	return smallfile.String(n.config.GPUHost().ProcPath("sys/kernel/random/boot_id"))
}

// UnleasedProcesses returns the stored unleased processes that still live, by the device's UUID.
func (n *Node) UnleasedProcesses() map[string][]gpu.Process {
	return n.removeHolders(n.loadProcesses())
}

// loadProcesses returns the stored unleased processes of this boot, also those that have ended since.
func (n *Node) loadProcesses() map[string][]gpu.Process {
	boot, found := snapshot.LoadProcesses(n.config.processesPath())
	if len(found) == 0 { // the usual case: skip reading the boot id
		return nil
	}
	if now, err := n.bootID(); err != nil || now != boot {
		return nil
	}
	return found
}

// listOccupied returns the devices of the inventory that unleased processes use, and the version of the list of processes that
// was read. It searches all processes again if a process that was found by its open device has closed it, because that process may have
// passed the descriptor to another. If the stored search was incomplete, it also searches again after searchAgainAfter. The result of
// the new search is used without another check: a process in it may have ended, and its user may have started others that aren't in it.
func (n *Node) listOccupied(ctx context.Context, inv gpu.Inventory) (all []gpu.Occupied, version fileVersion, err error) {
	version = versionOf(n.config.processesPath())
	stored := n.loadProcesses()
	if len(stored) == 0 {
		return nil, version, nil
	}
	found := n.removeHolders(maps.Clone(stored))
	unsearched := slices.ContainsFunc(slices.Concat(slices.Collect(maps.Values(found))...), func(p gpu.Process) bool { return p.Unsearched })
	if countLeftover(found) < countLeftover(stored) || unsearched && n.isInspectionOld() {
		if err := n.inspectEnded(ctx, nil); err != nil {
			return nil, version, err
		}
		version = versionOf(n.config.processesPath())
		found = n.loadProcesses()
	}
	for _, d := range inv.Devices() {
		if by := found[d.UUID]; len(by) > 0 {
			all = append(all, gpu.Occupied{Device: d, By: by})
		}
	}
	return all, version, nil
}

// removeAdopted removes processes from the lists of devices in use. A process that wasn't searched stays in the list:
// of such processes only some are stored.
func removeAdopted(occupied []gpu.Occupied, adopts func(pid int) bool) (rest []gpu.Occupied) {
	for _, o := range occupied {
		o.By = slices.DeleteFunc(slices.Clone(o.By), func(p gpu.Process) bool { return !p.Unsearched && adopts(p.PID) })
		if len(o.By) > 0 {
			rest = append(rest, o)
		}
	}
	return rest
}

func countLeftover(found map[string][]gpu.Process) (count int) {
	for _, all := range found {
		for _, p := range all {
			if isLeftover(p) {
				count++
			}
		}
	}
	return count
}

// RemarkOccupied returns a remark for each device that [Node.FindOccupied] returns.
func (n *Node) RemarkOccupied(leased []gpu.Device) (remarks []Removal) {
	for _, o := range n.FindOccupied(leased) {
		r := edits.Remark("%s", o)
		r.Urgent = true
		remarks = append(remarks, r)
	}
	return remarks
}

// FindOccupied returns the leased devices that unleased processes use, if policy.in_use is "warn".
func (n *Node) FindOccupied(leased []gpu.Device) (all []gpu.Occupied) {
	if n.config.Policy.InUse != "warn" {
		return nil
	}
	found := n.UnleasedProcesses()
	for _, d := range leased {
		if by := found[d.UUID]; len(by) > 0 {
			all = append(all, gpu.Occupied{Device: d, By: by})
		}
	}
	return all
}

// fileVersion identifies the content of a file that is replaced by each change. It is zero for a missing file.
type fileVersion struct {
	inode    uint64
	modified unix.Timespec
}

func versionOf(path string) fileVersion {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return fileVersion{}
	}
	return fileVersion{st.Ino, st.Mtim}
}
