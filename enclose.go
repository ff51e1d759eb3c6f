package berth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation"
	"github.com/berth-gpu/berth/isolation/devices"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// outerPrefix begins the name of an outer cgroup: "berth-PID.START-RANDOM", with the
// process that made it.
const outerPrefix = "berth-"

const (
	// burial is how long the kernel gets to let go of a cgroup whose last process ended.
	burial = time.Second
	// patience is how long a new outer cgroup may take, whoever holds its lock: any
	// user of the machine can.
	patience = 10 * time.Second
)

// Outer is the path of an outer cgroup for a container that would be in the cgroup
// own, both as the host sees them: beside it, and of this one life. The container's
// own cgroup then goes below it. ok is false for a container that can't
// take off its own rules, which needs CAP_SYS_ADMIN.
func Outer(spec *specs.Spec, own string) (outer string, ok bool, err error) {
	if !isolation.CanLiftRules(spec) {
		return "", false, nil
	}
	name, err := outerName()
	if err != nil {
		return "", false, fmt.Errorf("name an outer cgroup: %w", err)
	}
	return path.Join(path.Dir(own), name), true, nil
}

func outerName() (string, error) {
	start, err := process.Start("/proc", os.Getpid())
	return fmt.Sprintf("%s%d.%d-%08x", outerPrefix, os.Getpid(), start, rand.Uint32()), err
}

// Enclose makes the outer cgroup, with the device rules of the prepared spec: whatever
// the container does to the rules of its own cgroup, it can't open more. Those that
// others left beside it, and that nobody uses any more, go.
func (n *Node) Enclose(ctx context.Context, outer string, spec *specs.Spec) error {
	n.sweepOuter(path.Dir(outer))
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return fmt.Errorf("make outer cgroup %s: the spec has no device rules", outer)
	}
	var rules []edits.Rule
	for _, r := range spec.Linux.Resources.Devices {
		rules = append(rules, edits.FromSpec(r))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return devices.MakeOuter(ctx, n.cgroups, outer, rules)
}

// Unclose removes the outer cgroup of a container that is gone. A path that isn't
// one's is left alone, and so is one whose maker is another process that lives: its
// container may be about to come. Processes that live in it keep it.
func (n *Node) Unclose(ctx context.Context, outer string) error {
	pid, start, ok := makerOf(path.Base(outer))
	if !ok || pid != os.Getpid() && n.lives(pid, start) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, burial)
	defer cancel()
	return devices.RemoveOuter(ctx, n.cgroups, outer)
}

// outerOf is the outer cgroup that holds a container's own, "" if none does.
func outerOf(own string) string {
	if outer := path.Dir(own); isOuter(path.Base(outer)) {
		return outer
	}
	return ""
}

func isOuter(name string) bool {
	_, _, ok := makerOf(name)
	return ok
}

// makerOf reads the process from the name of an outer cgroup.
func makerOf(name string) (pid int, start uint64, ok bool) {
	rest, ours := strings.CutPrefix(name, outerPrefix)
	maker, random, cut := strings.Cut(rest, "-")
	p, s, dot := strings.Cut(maker, ".")
	pid, err := strconv.Atoi(p)
	start, err2 := strconv.ParseUint(s, 10, 64)
	return pid, start, ours && cut && dot && random != "" && err == nil && err2 == nil
}

// sweepOuter removes outer cgroups in the parent whose maker is gone, and in which
// nobody lives: it was killed before its container came to be, or nobody has called
// delete for it. A maker that lives may be about to become the runtime. What can't go
// at once stays for the next sweep, and stands in the way of no container.
func (n *Node) sweepOuter(parent string) {
	dir, err := n.cgroups.Dir(parent)
	if err != nil {
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	once, cancel := context.WithCancel(context.Background())
	cancel() // nothing is waited for
	for _, e := range entries {
		if outer := path.Join(parent, e.Name()); isOuter(e.Name()) && !n.making(outer) {
			_ = n.Unclose(once, outer)
		}
	}
}

// making says that the container of an outer cgroup may be about to come: who made
// the cgroup lives, or there is a lease for it.
func (n *Node) making(outer string) bool {
	if pid, start, _ := makerOf(path.Base(outer)); n.lives(pid, start) {
		return true
	}
	leases, err := n.Leases()
	return err != nil || slices.ContainsFunc(leases, func(l ledger.Lease) bool { return outerOf(l.Owner.Cgroup) == outer })
}

// lives says that a process that started then is still there.
func (n *Node) lives(pid int, start uint64) bool {
	now, err := process.Start(n.config.GPUHost().ProcPath(), pid)
	return err == nil && now == start || err != nil && !errors.Is(err, fs.ErrNotExist)
}
