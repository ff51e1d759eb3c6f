package berth

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/guard"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/deviceguard"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// This file finds processes that have a device open after the lease has ended by which it was opened: a holder can
// pass an open descriptor to a process outside of its lease (SCM_RIGHTS). NVML can't see such a process, because it
// lists a device's users by the process that opened it. It counts as an unleased process of the device; see in_use.go.

func (c Config) inspectionPath() string { return filepath.Join(c.State, "inspection.lock") }

// inspectEnded is [ledger.Options.Inspect]. One search for several leases that end at the same time is enough: it sees
// all devices, and it is skipped if another one has begun since the call.
func (n *Node) inspectEnded(ctx context.Context, ended []ledger.Lease) error {
	if len(ended) > 0 && !slices.ContainsFunc(ended, holdsGPU) {
		return nil // the search is for GPUs and slices
	}
	asked, err := n.readUptime()
	if err != nil {
		return err
	}
	return n.withInspectionLock(ctx, func(f *os.File) error {
		last := readTime(f)
		began, err := n.readUptime()
		if err != nil || asked <= last && last <= began { // a later time is that of an earlier boot
			return err
		}
		found, err := n.findLeftover(ended)
		if err != nil {
			return fmt.Errorf("search for processes that have devices open: %w", err)
		}
		kept := n.loadProcesses()
		for uuid, all := range kept {
			if f != nil { // without the lock, another search may have found more
				kept[uuid] = slices.DeleteFunc(all, isLeftover)
			}
		}
		if err := n.storeProcesses(joinProcesses(n.removeHolders(kept), found)); err != nil || f == nil {
			return err
		}
		_, err = f.WriteAt(fmt.Appendf(nil, "%020d", began), 0)
		return err
	})
}

// holdsGPU reports whether a lease has a GPU or a slice.
func holdsGPU(l ledger.Lease) bool {
	return slices.ContainsFunc(l.Devices, func(d gpu.Device) bool { return !d.IsNIC() && !d.IsCDI() })
}

// InspectDevices is [ledger.Options.Inspect] for ledgers that are opened without a [Node], as those of tasks are. It does
// what [Node.InspectDevices] does, whichever leases end.
func (c Config) InspectDevices(ctx context.Context, _ []ledger.Lease) error {
	n, err := Open(c)
	if err != nil {
		return err
	}
	return n.InspectDevices(ctx)
}

// readTime returns the time since boot at which the last inspection began, 0 if there was none.
func readTime(f *os.File) time.Duration {
	var text [20]byte
	if f == nil {
		return 0
	}
	if _, err := f.ReadAt(text[:], 0); err != nil {
		return 0
	}
	at, _ := strconv.ParseInt(string(text[:]), 10, 64) // 0 after an error
	return time.Duration(at)
}

// InspectDevices searches for processes that have a device open without a lease, as the end of a lease does, and stores them
// for [Node.UnleasedProcesses]. With policy.in_use "ignore" it does nothing. A second call finds descriptors that were
// still in a socket at the first one. It takes milliseconds, and seconds if processes have very many files open.
func (n *Node) InspectDevices(ctx context.Context) error {
	if !n.ChecksInUse() {
		return nil
	}
	return n.inspectEnded(ctx, nil)
}

// withInspectionLock calls f while no other process changes the list of processes, with the file of the lock. If the lock
// stays held for longer than an inspection can take, f is called without it.
func (n *Node) withInspectionLock(ctx context.Context, f func(*os.File) error) error {
	if err := os.MkdirAll(n.config.State, 0o755); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, inspectionTimeout)
	defer cancel()
	l, err := lock.Create(limited, n.config.inspectionPath(), 0o600, lock.Exclusive)
	if errors.Is(err, lock.ErrBusy) && ctx.Err() == nil {
		return f(nil)
	}
	if err != nil {
		return err
	}
	return errors.Join(f(l.File()), l.Close())
}

// inspectionTimeout is far more than the search through all descriptors of a host takes.
const inspectionTimeout = 10 * time.Second

func (n *Node) readUptime() (time.Duration, error) {
	offset, err := process.ReadBootOffset(n.config.GPUHost().ProcPath())
	if err != nil {
		return 0, err
	}
	return offset.HostUptime()
}

// searchAgainAfter is how old a search must be before a request repeats it because processes were left out of it.
const searchAgainAfter = 5 * time.Second

// isInspectionOld reports whether the last inspection began longer ago than searchAgainAfter, or isn't known.
func (n *Node) isInspectionOld() bool {
	f, err := os.Open(n.config.inspectionPath())
	if err != nil {
		return true
	}
	defer f.Close()
	now, err := n.readUptime()
	last := readTime(f)
	return err != nil || now < last || now-last > searchAgainAfter // a later time is that of an earlier boot
}

// isLeftover reports whether a process was found by its open device.
func isLeftover(p gpu.Process) bool { return p.Device != 0 }

// joinProcesses returns the processes of both lists by device, each process once.
func joinProcesses(a, b map[string][]gpu.Process) map[string][]gpu.Process {
	both := map[string][]gpu.Process{}
	for _, list := range []map[string][]gpu.Process{a, b} {
		for uuid, all := range list {
			for _, p := range all {
				if !slices.ContainsFunc(both[uuid], func(q gpu.Process) bool { return q.PID == p.PID }) {
					both[uuid] = append(both[uuid], p)
				}
			}
		}
	}
	return both
}

// maxLeftover bounds the processes that are stored for one device. When these have ended, the others are searched for again.
const maxLeftover = 16

// searchRounds bounds how often a search looks for processes that have started since it began.
const searchRounds = 3

// findLeftover returns the processes that have a device open without a lease, and couldn't have opened it themselves, by
// the device's UUID. If policy says so, they are ended, and those that have ended aren't returned. The leases that are
// about to end don't count.
func (n *Node) findLeftover(ended []ledger.Lease) (found map[string][]gpu.Process, err error) {
	found = map[string][]gpu.Process{}
	numbers, err := n.deviceNumbers()
	if err != nil || len(numbers) == 0 {
		return found, err
	}
	t, err := n.newTenants(ended)
	if err != nil {
		return nil, err
	}
	s := process.NewDeviceSearch(t.proc, slices.Collect(maps.Keys(numbers)))
	open, searched := map[int][]uint64{}, map[int]bool{}
	for range searchRounds {
		pids := t.listCandidates(searched)
		maps.Copy(open, s.Search(pids))
		if len(pids) == 0 {
			break
		}
	}
	users, seen := map[int]gpu.Process{}, map[int]bool{} // seen: what a process has open is known
	for pid := range open {
		p, ok := n.describeProcess(probe.Process{PID: pid})
		if !ok {
			continue
		}
		if s.Searched(pid) { // once more, as the pid may have been reused meanwhile
			again := process.NewDeviceSearch(t.proc, slices.Collect(maps.Keys(numbers)))
			open[pid] = again.Search([]int{pid})[pid]
			seen[pid] = again.Searched(pid)
		}
		p.Unsearched = !seen[pid]
		users[pid] = p
	}
	// What was open by a lease before now is known by the leases as they are now.
	if err := t.readLeases(ended); err != nil {
		return nil, err
	}
	for _, pid := range slices.Sorted(maps.Keys(users)) { // the same processes give the same list
		p := users[pid]
		lacking := slices.DeleteFunc(open[pid], func(number uint64) bool { return !t.lacksLease(pid, numbers[number]) })
		if len(lacking) > 0 && !p.Unsearched && n.config.Policy.Leftover == "end" && n.endLeftover(p, lacking) {
			continue
		}
		for _, number := range lacking {
			p.Device = number
			if uuid := numbers[number]; len(found[uuid]) < maxLeftover {
				found[uuid] = append(found[uuid], p)
			}
		}
	}
	return found, nil
}

// deviceNumbers returns the UUIDs of the devices by the number of the node that only a holder can open: the GPU's node,
// or the capability of a MIG slice's compute instance.
func (n *Node) deviceNumbers() (map[uint64]string, error) {
	s, err := snapshot.LoadAny(n.config.SnapshotPath())
	if errors.Is(err, snapshot.ErrStale) {
		return nil, nil // nothing was discovered since boot, so nothing can be leased
	}
	if err != nil {
		return nil, err
	}
	majors, err := gpu.ReadMajors(n.config.GPUHost())
	if err != nil {
		return nil, err
	}
	capabilities := slices.IndexFunc(majors, func(m gpu.Major) bool { return m.Name == "nvidia-caps" })
	numbers := map[uint64]string{}
	for _, g := range s.Inventory.GPUs {
		var st unix.Stat_t
		if node := g.Device().Node; !g.MIG && node != "" && unix.Stat(n.config.GPUHost().DevPath(node), &st) == nil {
			numbers[st.Rdev] = g.UUID
		}
		for _, slice := range g.Slices {
			if capabilities >= 0 {
				numbers[unix.Mkdev(majors[capabilities].Number, uint32(slice.CIMinor))] = slice.UUID
			}
		}
	}
	return numbers, nil
}

// tenants tells processes that use a device by a lease, or on behalf of the host, from others.
type tenants struct {
	node       *Node
	proc       string
	own        process.Surroundings
	leases     []ledger.Lease
	exempt     []string // cgroups
	guarded    bool     // the device guard is on: a process without a lease can't have opened a device
	containers func() (guard.Containers, error)
}

// newTenants reads what tells processes apart. The leases that are about to end don't count.
func (n *Node) newTenants(ended []ledger.Lease) (t *tenants, err error) {
	t = &tenants{
		node: n, proc: n.config.GPUHost().ProcPath(), exempt: append(slices.Clone(n.config.Guard.Exempt), nvmlCgroup),
		containers: sync.OnceValues(n.guard.ListContainers),
	}
	if t.own, err = process.ReadSurroundings(t.proc, "self"); err != nil {
		return nil, err
	}
	if err := t.readLeases(ended); err != nil || n.cgroups.Version != cgroup.V2 {
		return t, err
	}
	g, err := deviceguard.Open(n.cgroups.Root)
	if errors.Is(err, deviceguard.ErrOff) || errors.Is(err, deviceguard.ErrUnavailable) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	t.guarded = true
	return t, g.Close()
}

func (t *tenants) readLeases(ended []ledger.Lease) (err error) {
	t.leases, err = t.node.Leases()
	t.leases = slices.DeleteFunc(t.leases, func(l ledger.Lease) bool {
		return slices.ContainsFunc(ended, func(e ledger.Lease) bool { return e.ID == l.ID })
	})
	return err
}

// listCandidates returns the processes to examine that aren't known yet, and adds all to known. Stuck ones ([process.ErrStuck]) are among them. It leaves out those of root and
// of system accounts on the host, which the admin has started, and without the device guard all processes outside of
// containers, which can open devices themselves.
func (t *tenants) listCandidates(known map[int]bool) (pids []int) {
	for _, pid := range process.List(t.proc) {
		if known[pid] {
			continue
		}
		known[pid] = true
		where, err := process.ReadSurroundings(t.proc, strconv.Itoa(pid))
		if err != nil && !errors.Is(err, process.ErrStuck) { // it has ended
			continue
		}
		if err == nil && where == t.own && (!t.guarded || process.IsKernelThread(t.proc, pid) || process.RunsAsSystemUser(t.proc, pid)) {
			continue
		}
		pids = append(pids, pid)
	}
	return pids
}

// lacksLease reports whether a process of the list uses a device without a lease and without being exempt.
func (t *tenants) lacksLease(pid int, uuid string) bool {
	ran := process.HasRun(t.proc, pid)
	own, err := t.node.cgroups.ProcessPath(t.proc, pid)
	if err == nil && own == "/" && !ran { // it may be in the middle of its fork, and its cgroup another one
		return false
	}
	if err != nil || holdsDevice(t.leases, own, uuid) { // it has ended, or is outside of what this cgroup namespace shows
		return false
	}
	if slices.ContainsFunc(t.exempt, func(path string) bool { return cgroup.IsWithin(own, path) }) {
		return false
	}
	containers, err := t.containers()
	if err == nil {
		if found, exempt := containers.Find(own); found {
			return !exempt
		}
	}
	if t.guarded {
		return true
	}
	// Of the containers of others than root's engines only those count that run as root of the host: users can open the
	// device themselves. Another root directory alone makes no container.
	where, err := process.ReadSurroundings(t.proc, strconv.Itoa(pid))
	return err == nil && !where.SharesPIDs(t.own) && process.SharesUserNamespace(t.proc, pid)
}

// holdsDevice reports whether a cgroup belongs to the holder of a device. It is true if that can't be told: the cgroup of
// a container that is being created may be unknown.
func holdsDevice(leases []ledger.Lease, path, uuid string) bool {
	return slices.ContainsFunc(leases, func(l ledger.Lease) bool {
		return slices.ContainsFunc(l.Devices, func(d gpu.Device) bool { return d.UUID == uuid }) &&
			(l.Owner.Cgroup == "" || cgroup.IsWithin(path, l.Owner.Cgroup))
	})
}

// endLeftover kills a process that has devices open, and reports whether it has them open no more.
func (n *Node) endLeftover(p gpu.Process, devices []uint64) bool {
	proc := n.config.GPUHost().ProcPath()
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	if !n.isSame(p) {
		return true
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false
	}
	if n.config.Log != nil {
		n.config.Log.Warn("killed a process that had a device open without a lease", "process", p.String())
	}
	for range 20 { // a process that waits for the driver takes longer: the device stays in use
		if !n.isSame(p) || len(process.NewDeviceSearch(proc, devices).Search([]int{p.PID})) == 0 {
			return true
		}
		time.Sleep(10 * time.Millisecond) // for its exit; its parent may not wait for it
	}
	return false
}

// findStillLeftover returns those of the stored processes that were found by an open device and still have it open without
// a lease. A process that wasn't searched counts until it ends or until the next search of all processes: only some such processes are
// stored, and another one may have the device open.
func (n *Node) findStillLeftover(stored map[string][]gpu.Process) (left map[string][]gpu.Process, err error) {
	left = map[string][]gpu.Process{}
	t, err := n.newTenants(nil)
	if err != nil {
		return nil, err
	}
	var pids []int
	var devices []uint64
	for _, all := range stored {
		for _, p := range all {
			if isLeftover(p) && !p.Unsearched && n.isSame(p) && !slices.Contains(pids, p.PID) {
				pids = append(pids, p.PID)
			}
			devices = append(devices, p.Device)
		}
	}
	open := process.NewDeviceSearch(t.proc, devices).Search(pids)
	for uuid, all := range stored {
		for _, p := range all {
			isOpen := slices.Contains(open[p.PID], p.Device) || p.Unsearched && n.isSame(p)
			if isLeftover(p) && isOpen && t.lacksLease(p.PID, uuid) {
				left[uuid] = append(left[uuid], p)
			}
		}
	}
	return left, nil
}
