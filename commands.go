package berth

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/deviceguard"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// This file is about commands of the host that hold a lease (berth alloc). The cgroup of such a command
// proves that the lease's holder lives. It is /berth/alloc-PID.START.NAMESPACE-RANDOM, named after the
// process that may still enter it. Its child "main" belongs to the user, who may make cgroups there, as berth run
// does; the command's processes begin in main/command.

const (
	commandParent = "/berth"
	commandPrefix = "alloc-"
	commandTasks  = "/main"
	commandLeaf   = commandTasks + "/command"
)

// ErrTooDeep: leases of commands are nested so deep that the device guard doesn't see the innermost.
var ErrTooDeep = errors.New("too many leases inside each other")

// CreateCommandCgroup creates a cgroup for a command that the process pid will enter. It lies below
// outer, the cgroup of a lease that the process belongs to, which thereby lasts as long as the new one;
// "" is no such lease. The command's processes belong into the child that CommandProcesses names. The child that
// [CommandTasks] names is delegated to the user uid unless that is root. The error Is [ErrTooDeep] if the device guard
// wouldn't see the cgroup, and would open the outer lease's devices to the command.
func (n *Node) CreateCommandCgroup(outer string, pid, uid int) (string, error) {
	if outer == "" {
		outer = commandParent
	}
	group, err := n.nameCommandCgroup(outer, pid)
	if err != nil {
		return "", err
	}
	if !deviceguard.IsSeen(group) {
		return "", ErrTooDeep
	}
	if err := n.createCommandCgroup(group, uid); err != nil {
		return "", err
	}
	if uid != 0 { // who can't do it
		n.cgroups.EnableControllers(group)
	}
	return group, nil
}

// nameCommandCgroup returns the path of a new cgroup below outer.
func (n *Node) nameCommandCgroup(outer string, pid int) (string, error) {
	proc := n.config.GPUHost().ProcPath()
	start, err := process.Start(proc, pid)
	if err != nil {
		return "", fmt.Errorf("name cgroup: %w", err)
	}
	namespace, err := process.Namespace(proc, pid)
	if err != nil {
		return "", fmt.Errorf("name cgroup: %w", err)
	}
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails, see crypto/rand
	return fmt.Sprintf("%s/%s%d.%d.%d-%s", strings.TrimSuffix(outer, "/"), commandPrefix, pid, start, namespace, hex.EncodeToString(random[:])), nil
}

// createCommandCgroup creates a cgroup with its children, and delegates one to a user other than root. After an error
// nothing is left.
func (n *Node) createCommandCgroup(group string, uid int) error {
	err := n.cgroups.Create(CommandProcesses(group))
	if err == nil && uid != 0 {
		err = n.cgroups.Delegate(CommandTasks(group), uid)
	}
	if err != nil {
		return errors.Join(err, n.RemoveCommandCgroup(context.Background(), group))
	}
	return nil
}

// CommandProcesses returns the cgroup below a command's that the command's processes begin in.
func CommandProcesses(group string) string { return group + commandLeaf }

// CommandTasks returns the cgroup below a command's in which a berth run of the command makes those of tasks.
func CommandTasks(group string) string { return group + commandTasks }

// IsCommandCgroup reports whether a path is that of a command's cgroup.
func IsCommandCgroup(group string) bool {
	_, _, _, ok := parseCommandCgroup(group)
	return ok && cgroup.IsWithin(group, commandParent)
}

// FindCommandCgroup returns the innermost cgroup of a command that a cgroup is in, "" if there is none.
func FindCommandCgroup(at string) string {
	for at = path.Clean("/" + at); at != "/"; at = path.Dir(at) {
		if _, _, _, ok := parseCommandCgroup(at); ok {
			return at
		}
	}
	return ""
}

func parseCommandCgroup(group string) (pid int, start, namespace uint64, ok bool) {
	n, _ := fmt.Sscanf(path.Base(group), commandPrefix+"%d.%d.%d-", &pid, &start, &namespace)
	return pid, start, namespace, n == 3
}

// removeTimeout bounds the removal of a cgroup. The kernel needs milliseconds after the end of the last process.
const removeTimeout = 2 * time.Second

// RemoveCommandCgroup removes the cgroup of a command, and those below it, from all trees of version 1:
// berth creates it in one tree, and the runtime of a berth run inside creates it in the others. It does nothing while processes are
// in it, and its user can't make further cgroups in it.
func (n *Node) RemoveCommandCgroup(ctx context.Context, group string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if populated, err := n.cgroups.Populated(group); err == nil && !populated {
		if err := n.cgroups.TakeBack(CommandTasks(group)); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", group, err)
		}
	}
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
	return n.removeEmptyCgroups(ctx, slices.Compact(found))
}

// removeEmptyCgroups removes those of the cgroups of commands that no process is in or may enter. One that can't be removed
// doesn't keep the others.
func (n *Node) removeEmptyCgroups(ctx context.Context, groups []string) (err error) {
	for _, group := range groups {
		if n.mayBeEntered(group) {
			continue
		}
		if populated, err := n.cgroups.Populated(group); populated || err != nil {
			continue
		}
		err = errors.Join(err, n.RemoveCommandCgroup(ctx, group))
	}
	return err
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
		found, err := listCommandChildren(tree, parents[0])
		if err != nil {
			return nil, err
		}
		all, parents = append(all, found...), append(parents, found...)
	}
	return all, nil
}

// listCommandChildren returns the cgroups of commands that are children of a cgroup, none if it doesn't exist, or if this process
// isn't root and can't read it.
func listCommandChildren(tree cgroup.Hierarchy, parent string) (groups []string, err error) {
	dir, err := tree.Dir(parent)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !cgroup.IsGone(err) && !errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), commandPrefix) {
			groups = append(groups, path.Join(parent, e.Name()))
		}
	}
	return groups, nil
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
