package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

func (e *exam) cgroupVersion(r *result) error {
	h, err := cgroup.Detect(e.Config.Host.Cgroup)
	if err != nil {
		r.fail("mount -t cgroup2 cgroup2 /sys/fs/cgroup, or set host.cgroup", "%v", err)
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(h.Root, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: h.Root, Err: err}
	}
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		r.fail("mount -o remount,rw "+h.Root, "%s is mounted read-only: no container gets a cgroup", h.Root)
	case h.Hybrid:
		r.ok("version 1 at %s, beside version 2", h.Root)
	default:
		r.ok("version %d at %s", h.Version, h.Root)
	}
	return nil
}

// limits are what users give limits to, and the flags by which they do.
func limits() [][2]string {
	return [][2]string{{"cpu", "--cpus"}, {"cpuset", "--cpuset-cpus"}, {"memory", "--memory"}, {"pids", "--pids-limit"}}
}

// controllers: what is missing can't be limited.
func (e *exam) controllers(r *result) error {
	h, err := cgroup.Detect(e.Config.Host.Cgroup)
	if err != nil {
		return nil // which is said already
	}
	before := len(r.findings)
	const most = 1 << 16
	table, err := smallfile.Read(e.host.ProcPath("cgroups"), most)
	if err != nil {
		return err
	}
	var all, mends []string
	refused := map[string][]string{} // by what mends it
	for _, limit := range limits() {
		name, flag := limit[0], limit[1]
		if h.HasController(name) {
			all = append(all, name)
			continue
		}
		mend := mendController(h, name, string(table))
		if refused[mend] == nil {
			mends = append(mends, mend)
		}
		refused[mend] = append(refused[mend], name+" ("+flag+")")
	}
	for _, mend := range mends {
		r.warn(mend, "berth run sets no limits without the controllers that are missing: %s", strings.Join(refused[mend], ", "))
	}
	r.fine(before, "%s", strings.Join(all, ", "))
	return nil
}

// mendController says how a controller comes to where it is missed; table is
// /proc/cgroups.
func mendController(h cgroup.Hierarchy, name, table string) string {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) != 4 || f[0] != name {
			continue
		}
		switch {
		case f[3] == "0":
			return "boot with cgroup_enable=" + name
		case h.Version == cgroup.V2 && f[1] != "0":
			return "boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all, for version 1 has it"
		case h.Version == cgroup.V1:
			at := filepath.Join(h.Mount, name)
			return fmt.Sprintf("mkdir -p %s && mount -t cgroup -o %s cgroup %s", at, name, at)
		}
	}
	return "a kernel with the controller " + name
}

// deviceRules: the walls. On version 2 they are a program of BPF, which not everybody may
// load; one is loaded and thrown away.
func (e *exam) deviceRules(r *result) error {
	h, err := cgroup.Detect(e.Config.Host.Cgroup)
	switch {
	case err != nil:
		return nil // which is said already
	case e.User != "":
		r.hide()
		return nil
	case h.Version == cgroup.V1:
		r.ok("%s has the device controller", h.Root)
		return nil
	}
	switch err := loadProgram(); {
	case err == nil:
		r.ok("device programs can be loaded, and outer cgroups be made in %s", h.Root)
	case errors.Is(err, unix.EPERM):
		r.fail("give it CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN; or call berth outside of this container", "this process may not load device programs, which are the walls: %v", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		r.fail("a kernel with CONFIG_CGROUP_BPF and CONFIG_BPF_SYSCALL", "this kernel has no device programs, which are the walls: %v", err)
	default:
		return err
	}
	return nil
}

// loadProgram gives the kernel the shortest device program, which allows nothing and is
// attached to nothing.
func loadProgram() error {
	program := slices.Concat(
		[]byte{0xb7, 0, 0, 0, 0, 0, 0, 0}, // r0 = 0
		[]byte{0x95, 0, 0, 0, 0, 0, 0, 0}, // exit
	)
	licence := []byte("GPL\x00")
	attr := struct {
		kind, count  uint32
		instructions unsafe.Pointer
		licence      unsafe.Pointer
		_            [4]uint64 // no log, any kernel, no flags
	}{unix.BPF_PROG_TYPE_CGROUP_DEVICE, 2, unsafe.Pointer(unsafe.SliceData(program)), unsafe.Pointer(unsafe.SliceData(licence)), [4]uint64{}}
	for {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		switch errno {
		case 0:
			return unix.Close(int(fd))
		case unix.EAGAIN, unix.EINTR: // by a signal, of which Go sends many
		default:
			return errno
		}
	}
}
