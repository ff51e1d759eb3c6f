package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/devices"
)

func (e *examination) checkCgroups(r *report) error {
	h, err := cgroup.Detect(e.Config.Host.Cgroup)
	if err != nil {
		r.fail("mount -t cgroup2 cgroup2 /sys/fs/cgroup, or set host.cgroup", "%v", err)
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(h.Root, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: h.Root, Err: err}
	}
	decideCgroups(r, h, st.Flags&unix.ST_RDONLY != 0)
	return nil
}

func decideCgroups(r *report, h cgroup.Hierarchy, readOnly bool) {
	switch {
	case readOnly:
		r.fail("mount -o remount,rw "+h.Root, "%s is mounted read-only: no container gets a cgroup", h.Root)
	case h.Hybrid:
		r.ok("version 1 at %s, beside version 2", h.Root)
	default:
		r.ok("version %d at %s", h.Version, h.Root)
	}
}

// limitControllers returns the controllers of limits, each with its flag of berth run.
func limitControllers() [][2]string {
	return [][2]string{{"cpu", "--cpus"}, {"cpuset", "--cpuset-cpus"}, {"memory", "--memory"}, {"pids", "--pids-limit"}}
}

func (e *examination) checkControllers(r *report) error {
	h, err := cgroup.Detect(e.Config.Host.Cgroup)
	if err != nil {
		return nil //nolint:nilerr // reported by cgroups.version
	}
	const most = 1 << 16
	table, err := smallfile.Read(e.host.ProcPath("cgroups"), most)
	if err != nil {
		return err
	}
	present := map[string]bool{}
	for _, limit := range limitControllers() {
		present[limit[0]] = h.HasController(limit[0])
	}
	decideControllers(r, h, present, string(table))
	return nil
}

// decideControllers reports limits that can't be set because their controller is missing.
// table is /proc/cgroups. Controllers with the same fix are one finding.
func decideControllers(r *report, h cgroup.Hierarchy, present map[string]bool, table string) {
	var all, fixes []string
	missing := map[string][]string{} // by fix
	for _, limit := range limitControllers() {
		name, flag := limit[0], limit[1]
		if present[name] {
			all = append(all, name)
			continue
		}
		fix := controllerFix(h, name, table)
		if missing[fix] == nil {
			fixes = append(fixes, fix)
		}
		missing[fix] = append(missing[fix], name+" ("+flag+")")
	}
	for _, fix := range fixes {
		r.warn(fix, "berth run sets no limits without the controllers that are missing: %s", strings.Join(missing[fix], ", "))
	}
	r.okUnlessReported("%s", strings.Join(all, ", "))
}

// controllerFix returns the fix that makes a missing controller available.
func controllerFix(h cgroup.Hierarchy, name, table string) string {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) != 4 || f[0] != name {
			continue
		}
		switch {
		case f[3] == "0":
			return "boot with cgroup_enable=" + name
		case h.Version == cgroup.V2 && f[1] != "0":
			return "boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all, because a version 1 hierarchy has it"
		case h.Version == cgroup.V1:
			at := filepath.Join(h.Mount, name)
			return fmt.Sprintf("mkdir -p %s && mount -t cgroup -o %s cgroup %s", at, name, at)
		}
	}
	return "a kernel with the controller " + name
}

// checkDeviceRules loads a device program and closes it again: on version 2 device rules
// are BPF programs, and not every process may load those.
func (e *examination) checkDeviceRules(r *report) error {
	h, err := cgroup.Detect(e.Config.Host.Cgroup)
	switch {
	case err != nil:
		return nil //nolint:nilerr // reported by cgroups.version
	case e.User != "":
		return errRootOnly
	case h.Version == cgroup.V1:
		r.ok("%s has the device controller", h.Root)
		return nil
	}
	return decideDeviceRules(r, h.Root, devices.TryLoad())
}

// decideDeviceRules reports why a device program can't be loaded. Unknown errors are
// returned.
func decideDeviceRules(r *report, root string, err error) error {
	switch {
	case err == nil:
		r.ok("device programs can be loaded, and outer cgroups be made in %s", root)
	case errors.Is(err, unix.EPERM):
		r.fail("give it CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN; or call berth outside of this container", "this process may not load device programs, so no device can be isolated: %v", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		r.fail("a kernel with CONFIG_CGROUP_BPF and CONFIG_BPF_SYSCALL", "this kernel has no device programs, so no device can be isolated: %v", err)
	default:
		return err
	}
	return nil
}
