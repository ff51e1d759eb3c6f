package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/nodes"
)

// wanted are the nodes that there should be. left says that the driver asks everybody to
// leave them alone (NVreg_ModifyDeviceFiles=0), berth too: somebody else makes them.
func (e *exam) wanted() (all []nodes.Node, left bool, err error) {
	files, err := driver.Params(e.host)
	if err != nil {
		return nil, false, err
	}
	if all, err = nodes.Plan(e.host); err != nil || files.Modify {
		return all, false, err
	}
	gpus, err := driver.GPUs(e.host)
	if err != nil {
		return nil, false, err
	}
	majors, err := driver.Majors(e.host)
	if err != nil {
		return nil, false, err
	}
	add := func(module, path string, minor int) {
		if i := slices.IndexFunc(majors, func(m gpu.Major) bool { return m.Name == module }); i >= 0 {
			all = append(all, nodes.Node{Path: path, Major: majors[i].Number, Minor: uint32(minor), Mode: files.Mode}) //nolint:gosec // a minor
		}
	}
	for _, g := range gpus {
		if g.Minor >= 0 {
			add("nvidia", fmt.Sprintf("nvidia%d", g.Minor), g.Minor)
		}
	}
	const control = 255
	add("nvidia", "nvidiactl", control)
	add("nvidia-uvm", "nvidia-uvm", 0)
	return all, true, nil
}

// nodesThere: a node is the character device of the module's numbers. That of uvm changes
// when the module is loaded anew: nvidia-smi works then, and CUDA doesn't.
func (e *exam) nodesThere(r *result) error {
	all, left, err := e.wanted()
	if err != nil || len(all) == 0 {
		return err
	}
	var missing, other, wrong, make []string
	for _, n := range all {
		path := e.host.DevPath(n.Path)
		var st unix.Stat_t
		switch err := unix.Lstat(path, &st); {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, path)
		case err != nil:
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		case st.Mode&unix.S_IFMT != unix.S_IFCHR:
			wrong = append(wrong, path)
		case st.Rdev != unix.Mkdev(n.Major, n.Minor):
			other = append(other, fmt.Sprintf("%s is %d:%d and not %d:%d", path, unix.Major(st.Rdev), unix.Minor(st.Rdev), n.Major, n.Minor))
		default:
			continue
		}
		make = append(make, fmt.Sprintf("rm -f %s && mknod -m %o %s c %d %d", path, n.Mode, path, n.Major, n.Minor))
	}
	before, mend, why := len(r.findings), e.berth("discover"), ""
	if left {
		mend, why = strings.Join(make, " && "), ", and berth is to leave them alone (NVreg_ModifyDeviceFiles=0)"
	}
	if len(wrong) > 0 {
		r.fail("rm -r "+strings.Join(wrong, " ")+" && "+e.berth("discover"), "no character device: %s", listed(wrong))
	}
	if len(missing) > 0 {
		r.fail(mend, "there is no %s%s", listed(missing), why)
	}
	if len(other) > 0 {
		r.fail(mend, "the numbers are those of an earlier life of the module: %s%s", listed(other), why)
	}
	r.fine(before, "%s", count(len(all), "device node"))
	return nil
}

// nodesOpen: who can open them. A GPU's own isn't opened, nor anything that root alone
// uses; the control node is on the same file system, and opening it does nothing.
func (e *exam) nodesOpen(r *result) error {
	all, _, err := e.wanted()
	if err != nil || len(all) == 0 {
		return err
	}
	before := len(r.findings)
	var closed, narrow []string
	for _, n := range all {
		path := e.host.DevPath(n.Path)
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue // which is said already
		}
		if st.Mode&0o777&n.Mode != n.Mode {
			closed = append(closed, fmt.Sprintf("chmod %04o %s", n.Mode, path))
			narrow = append(narrow, fmt.Sprintf("%s (%04o)", path, st.Mode&0o777))
		}
	}
	if len(closed) > 0 {
		r.warn(strings.Join(closed, " && "), "the driver wants its nodes to be for more users: %s", listed(narrow))
	}
	control := e.host.DevPath("nvidiactl")
	fd, err := unix.Open(control, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		_ = unix.Close(fd) // nothing was written
	case e.User != "": // the mode says what users may
	case errors.Is(err, unix.EACCES):
		r.fail("mount -o remount,dev "+e.mountOf(control), "no device can be opened where %s is: it is mounted with nodev", control)
	case errors.Is(err, unix.EPERM):
		r.warn("call berth outside of this container, or of this service", "the device rules of this process's cgroup keep %s closed", control)
	}
	r.fine(before, "%04o, as the driver wants them", all[0].Mode)
	return nil
}

// links: without /dev/char/MAJOR:MINOR, runc's systemd driver can't tell systemd of a
// device, and the next daemon-reload takes it from containers that run.
func (e *exam) links(r *result) error {
	all, left, err := e.wanted()
	if err != nil || len(all) == 0 {
		return err
	}
	var missing, make []string
	for _, n := range all {
		name := fmt.Sprintf("char/%d:%d", n.Major, n.Minor)
		var st unix.Stat_t
		if unix.Stat(e.host.DevPath(name), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(n.Major, n.Minor) {
			continue
		}
		missing = append(missing, e.host.DevPath(name))
		make = append(make, fmt.Sprintf("ln -sfn ../%s %s", n.Path, e.host.DevPath(name)))
	}
	if len(missing) == 0 {
		r.ok("%s in %s", count(len(all), "link"), e.host.DevPath("char"))
		return nil
	}
	mend := e.berth("discover")
	if left {
		mend = "mkdir -p " + e.host.DevPath("char") + " && " + strings.Join(make, " && ")
	}
	r.warn(mend, "no link to a device: %s; with systemd's cgroups, containers lose GPUs at systemctl daemon-reload", listed(missing))
	return nil
}
