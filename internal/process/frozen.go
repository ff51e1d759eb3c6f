package process

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// FrozenCgroup returns the cgroup in which a process is frozen, on version 1 in the tree of the freezer
// controller. It is "" if the process isn't frozen, or if that can't be determined. mount is the mount point
// of the cgroup file systems, "" means /sys/fs/cgroup.
func FrozenCgroup(proc, mount string, pid int) string {
	mount = cmp.Or(mount, "/sys/fs/cgroup")
	membership, err := smallfile.Read(proc+"/"+strconv.Itoa(pid)+"/cgroup", maxStatus)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(membership)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3) // hierarchy, controllers, path
		if len(f) != 3 || slices.Contains(strings.Split(f[2], "/"), "..") {
			continue // a path with ".." is outside of this cgroup namespace
		}
		files := []string{mount + f[2] + "/cgroup.events", mount + "/unified" + f[2] + "/cgroup.events"}
		if slices.Contains(strings.Split(f[1], ","), "freezer") {
			files = []string{mount + "/" + f[1] + f[2] + "/freezer.state"}
		} else if f[0] != "0" {
			continue
		}
		for _, file := range files {
			state, err := smallfile.String(file)
			if err == nil && (strings.Contains(state, "frozen 1") || strings.HasPrefix(state, "FR")) { // FREEZING or FROZEN
				return f[2]
			}
		}
	}
	return ""
}
