package berth

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

// outerPrefix begins the name of an outer cgroup, with the process that made it:
// "berth-PID.START-RANDOM", or "PARENT-berthPID.START.RANDOM.slice", because the
// dashes of a slice are its place.
const outerPrefix = "berth"

// outerPath is beside the container's own cgroup; with systemd it is a slice.
func (n *Node) outerPath(own string, systemd bool) (string, error) {
	start, err := process.Start(n.config.GPUHost().ProcPath(), os.Getpid())
	if err != nil {
		return "", fmt.Errorf("name an outer cgroup: %w", err)
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

func isSlice(name string) bool { return strings.HasSuffix(name, ".slice") }

// makerOf reads the process from the name of an outer cgroup.
func makerOf(name string) (pid int, start uint64, ok bool) {
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

// sliced says that systemd would make the cgroup own where its name says, in a slice
// that berth may make before: systemd is that of this machine, and on version 2. On
// version 1 it opens the device rules of the slices that it comes to have.
func (n *Node) sliced(own string) (bool, error) {
	if n.cgroups.Version != cgroup.V2 || !strings.HasSuffix(own, ".scope") || escaped(own) {
		return false, nil
	}
	if _, unit := devices.Unit(own); !unit {
		return false, nil
	}
	proc := n.config.GPUHost().ProcPath()
	root, err := process.HostRoot("/proc")
	if err != nil || !root {
		return false, err
	}
	first, err := n.cgroups.ProcessPath(proc, 1)
	return err == nil && first == "/init.scope", nil
}

// escaped says that systemd's directory for a slice has another name than the slice:
// one that begins like a control file does. Source: cg_needs_escape of systemd.
func escaped(own string) bool {
	kinds := []string{"", "cgroup", "cpu", "cpuacct", "cpuset", "io", "blkio", "memory", "devices", "pids"}
	return slices.ContainsFunc(strings.Split(strings.TrimPrefix(own, "/"), "/"), func(name string) bool {
		kind, _, _ := strings.Cut(name, ".")
		return slices.Contains(kinds, kind) || strings.HasPrefix(name, "_")
	})
}
