package guard

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/devices"
)

// outerPrefix begins the name of an outer cgroup, which has the process that created it:
// "berth-PID.START-RANDOM". A slice is "PARENT-berthPID.START.RANDOM.slice": the dashes
// of its name are its place in the hierarchy.
const outerPrefix = "berth"

// newOuterPath returns a path beside the container's own cgroup; with systemd it is a slice.
func (g Guard) newOuterPath(own string, systemd bool) (string, error) {
	start, err := process.Start(g.Host.ProcPath(), os.Getpid())
	if err != nil {
		return "", fmt.Errorf("name outer cgroup: %w", err)
	}
	parent, random := path.Dir(own), rand.Uint32()
	if !systemd {
		return path.Join(parent, fmt.Sprintf("%s-%d.%d-%08x", outerPrefix, os.Getpid(), start, random)), nil
	}
	name := fmt.Sprintf("%s%d.%d.%08x.slice", outerPrefix, os.Getpid(), start, random)
	if above, ok := strings.CutSuffix(path.Base(parent), ".slice"); ok {
		name = above + "-" + name
	}
	return path.Join(parent, name), nil
}

// enclosingOuter returns the outer cgroup around a container's own, "" if there is none.
func enclosingOuter(own string) string {
	if outer := path.Dir(own); isOuterName(path.Base(outer)) {
		return outer
	}
	return ""
}

func isOuterName(name string) bool {
	_, _, ok := creatorOf(name)
	return ok
}

func isSlice(name string) bool { return strings.HasSuffix(name, ".slice") }

// creatorOf reads the process from the name of an outer cgroup.
func creatorOf(name string) (pid int, start uint64, ok bool) {
	prefix, sep := outerPrefix+"-", "-"
	if stem, slice := strings.CutSuffix(name, ".slice"); slice {
		name, prefix, sep = stem[strings.LastIndexByte(stem, '-')+1:], outerPrefix, "."
	}
	rest, ours := strings.CutPrefix(name, prefix)
	p, rest, dot := strings.Cut(rest, ".")
	s, random, cut := strings.Cut(rest, sep)
	pid, err := strconv.Atoi(p)
	start, err2 := strconv.ParseUint(s, 10, 64)
	return pid, start, ours && cut && dot && random != "" && err == nil && err2 == nil
}

// canBeSlice reports whether systemd would create the cgroup own at the place of its name, in a
// slice that berth may create before. It requires the machine's own systemd (not a user's) and
// cgroup version 2: on version 1 systemd resets the device rules of a slice that it adopts to
// "allow all".
func (g Guard) canBeSlice(own string) (bool, error) {
	if g.Cgroups.Version != cgroup.V2 || !strings.HasSuffix(own, ".scope") || hasEscapedName(own) {
		return false, nil
	}
	if _, unit := devices.UnitOf(own); !unit {
		return false, nil
	}
	proc := g.Host.ProcPath()
	root, err := process.HostRoot("/proc")
	if err != nil || !root {
		return false, err
	}
	first, err := g.Cgroups.ProcessPath(proc, 1)
	return err == nil && first == "/init.scope", nil
}

// hasEscapedName reports whether systemd gives a directory of the path another name, because
// the name begins like that of a control file. Source: cg_needs_escape of systemd.
func hasEscapedName(own string) bool {
	kinds := []string{"", "cgroup", "cpu", "cpuacct", "cpuset", "io", "blkio", "memory", "devices", "pids"}
	return slices.ContainsFunc(strings.Split(strings.TrimPrefix(own, "/"), "/"), func(name string) bool {
		kind, _, _ := strings.Cut(name, ".")
		return slices.Contains(kinds, kind) || strings.HasPrefix(name, "_")
	})
}
