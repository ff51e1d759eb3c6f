package berth

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/deviceguard"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// This file is about commands of the host that hold a lease (berth alloc). The cgroup of such a command
// proves that the lease's holder lives. It is /berth/alloc-PID.START.NAMESPACE-RANDOM, named after the
// process that may still enter it, and has a child "main" for the command's processes.

const (
	commandParent = "/berth"
	commandPrefix = "alloc-"
	commandLeaf   = "/main"
)

// ErrTooDeep: leases of commands are nested so deep that the device guard doesn't see the innermost.
var ErrTooDeep = errors.New("too many leases inside each other")

// CreateCommandCgroup creates a cgroup for a command that the process pid will enter. It lies below
// outer, the cgroup of a lease that the process belongs to, which thereby lasts as long as the new one;
// "" is no such lease. The command's processes belong into the child that CommandProcesses names. The error Is
// [ErrTooDeep] if the device guard wouldn't see the cgroup, and would open the outer lease's devices to the command.
func (n *Node) CreateCommandCgroup(outer string, pid int) (string, error) {
	proc := n.config.GPUHost().ProcPath()
	start, err := process.Start(proc, pid)
	if err != nil {
		return "", fmt.Errorf("name cgroup: %w", err)
	}
	namespace, err := process.Namespace(proc, pid)
	if err != nil {
		return "", fmt.Errorf("name cgroup: %w", err)
	}
	if outer == "" {
		outer = commandParent
	}
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails, see crypto/rand
	group := fmt.Sprintf("%s/%s%d.%d.%d-%s", outer, commandPrefix, pid, start, namespace, hex.EncodeToString(random[:]))
	if !deviceguard.IsSeen(group) {
		return "", ErrTooDeep
	}
	return group, n.cgroups.Create(CommandProcesses(group))
}

// CommandProcesses returns the child of a command's cgroup that the command's processes are in. The
// runtime of a berth run among them creates further children.
func CommandProcesses(group string) string { return group + commandLeaf }

// IsCommandCgroup reports whether a path is that of a command's cgroup.
func IsCommandCgroup(group string) bool {
	_, _, _, ok := parseCommandCgroup(group)
	return ok && cgroup.IsWithin(group, commandParent)
}

func parseCommandCgroup(group string) (pid int, start, namespace uint64, ok bool) {
	n, _ := fmt.Sscanf(path.Base(group), commandPrefix+"%d.%d.%d-", &pid, &start, &namespace)
	return pid, start, namespace, n == 3
}

// RemoveCommandCgroup removes the cgroup of a command, and those below it, from all trees of version 1:
// berth creates it in one tree, and the runtime of a berth run inside creates it in the others.
func (n *Node) RemoveCommandCgroup(ctx context.Context, group string) error {
	trees, err := n.cgroups.ListTrees()
	for _, t := range trees {
		err = errors.Join(err, t.Remove(ctx, group))
	}
	return err
}

// SweepCommandCgroups removes empty cgroups of commands whose berth was killed. No process enters a
// cgroup after the one that it is named after has ended. Those processes may use other ledgers.
func (n *Node) SweepCommandCgroups(ctx context.Context) error {
	trees, err := n.cgroups.ListTrees()
	if err != nil {
		return err
	}
	var found []string
	for _, t := range trees {
		groups, err := listCommandCgroups(t)
		if err != nil {
			return err
		}
		found = append(found, groups...)
	}
	slices.Sort(found)
	for _, group := range slices.Compact(found) {
		if n.mayBeEntered(group) {
			continue
		}
		if populated, err := n.cgroups.Populated(group); populated || err != nil {
			continue
		}
		if err := n.RemoveCommandCgroup(ctx, group); err != nil {
			return err
		}
	}
	return nil
}

// mayBeEntered reports whether the process that a cgroup is named after may still enter it. A process
// in another PID namespace can't be checked and counts as alive.
func (n *Node) mayBeEntered(group string) bool {
	pid, start, namespace, ok := parseCommandCgroup(group)
	if !ok {
		return false
	}
	proc := n.config.GPUHost().ProcPath()
	own, err := process.Namespace(proc, os.Getpid())
	return err != nil || namespace != own || process.Lives(proc, pid, start)
}

// listCommandCgroups returns the cgroups of commands in one tree, each before those below it.
func listCommandCgroups(tree cgroup.Hierarchy) (all []string, err error) {
	for parents := []string{commandParent}; len(parents) > 0; parents = parents[1:] {
		dir, err := tree.Dir(parents[0])
		if err != nil {
			return nil, err
		}
		found, err := filepath.Glob(filepath.Join(dir, commandPrefix+"*"))
		if err != nil {
			return nil, err
		}
		for _, below := range found {
			group := parents[0] + "/" + filepath.Base(below)
			all, parents = append(all, group), append(parents, group)
		}
	}
	return all, nil
}

// CommandEnvironment returns the environment variables by which a command of the host finds its leased
// devices, as "NAME=value".
func CommandEnvironment(lease ledger.Lease) []string {
	var gpus, all, nics []string
	for _, d := range lease.Devices {
		all = append(all, d.UUID)
		switch {
		case d.IsNIC():
			nics = append(nics, d.Index)
		case !d.IsCDI():
			gpus = append(gpus, d.UUID)
		}
	}
	env := []string{
		"CUDA_VISIBLE_DEVICES=" + strings.Join(gpus, ","), "CUDA_DEVICE_ORDER=PCI_BUS_ID",
		"BERTH_DEVICES=" + strings.Join(all, ","), "BERTH_LEASE=" + lease.ID,
	}
	if nics != nil {
		env = append(env, "NCCL_IB_HCA=="+strings.Join(nics, ",")) // the second = is NCCL's, for exactly these
	}
	return env
}
