package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/nodes"
)

// nodeFacts are the driver's device nodes as they should be and as they are.
type nodeFacts struct {
	nodes []nodeFact
	// unmanaged means that the driver's options forbid to create nodes
	// (NVreg_ModifyDeviceFiles=0). berth discover creates none then.
	unmanaged bool
	// control is the path of the control node.
	control string
	// linkDir is the directory of the links by number.
	linkDir string
}

// nodeFact is one device node.
type nodeFact struct {
	nodes.Node
	// path is absolute.
	path string
	// found is false if the path doesn't exist; then mode and rdev are undefined.
	found bool
	mode  uint32
	rdev  uint64
	// link is the path of the link by number. linked means that it leads to the node.
	link   string
	linked bool
}

func (n nodeFact) isCharacterDevice() bool { return n.found && n.mode&unix.S_IFMT == unix.S_IFCHR }

// readNodes reads all nodes without opening any.
func (e *examination) readNodes() (f nodeFacts, err error) {
	expected, unmanaged, err := e.expectedNodes()
	if err != nil {
		return f, err
	}
	f.unmanaged, f.linkDir, f.control = unmanaged, e.host.DevPath("char"), e.host.DevPath("nvidiactl")
	for _, n := range expected {
		fact := nodeFact{Node: n, path: e.host.DevPath(n.Path), link: e.host.DevPath(fmt.Sprintf("char/%d:%d", n.Major, n.Minor))}
		var st unix.Stat_t
		switch err := unix.Lstat(fact.path, &st); {
		case err == nil:
			fact.found, fact.mode, fact.rdev = true, st.Mode, st.Rdev
		case !errors.Is(err, fs.ErrNotExist):
			return f, &fs.PathError{Op: "stat", Path: fact.path, Err: err}
		}
		fact.linked = unix.Stat(fact.link, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(n.Major, n.Minor)
		f.nodes = append(f.nodes, fact)
	}
	return f, nil
}

// expectedNodes returns the nodes that berth discover creates. If it creates none
// (unmanaged), expectedNodes returns the nodes that every container with a GPU needs.
func (e *examination) expectedNodes() (all []nodes.Node, unmanaged bool, err error) {
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
	majors, err := gpu.ReadMajors(e.host)
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
	const controlMinor = 255
	add("nvidia", "nvidiactl", controlMinor)
	add("nvidia-uvm", "nvidia-uvm", 0)
	return all, true, nil
}

// decideNodes reports nodes that aren't character devices with the module's numbers. The
// major of uvm can change when its module is loaded again: then nvidia-smi works, and CUDA
// doesn't.
func decideNodes(r *report, f nodeFacts) {
	if len(f.nodes) == 0 {
		return
	}
	var missing, other, wrong, commands []string
	for _, n := range f.nodes {
		switch {
		case !n.found:
			missing = append(missing, n.path)
		case !n.isCharacterDevice():
			wrong = append(wrong, n.path)
		case n.rdev != unix.Mkdev(n.Major, n.Minor):
			other = append(other, fmt.Sprintf("%s is %d:%d and not %d:%d", n.path, unix.Major(n.rdev), unix.Minor(n.rdev), n.Major, n.Minor))
		default:
			continue
		}
		commands = append(commands, fmt.Sprintf("rm -f %s && mknod -m %o %s c %d %d", n.path, n.Mode, n.path, n.Major, n.Minor))
	}
	fix, why := r.command("discover"), ""
	if f.unmanaged {
		fix, why = strings.Join(commands, " && "), ", and berth must not change them (NVreg_ModifyDeviceFiles=0)"
	}
	if len(wrong) > 0 {
		r.fail("rm -r "+strings.Join(wrong, " ")+" && "+r.command("discover"), "no character device: %s", listFirst(wrong))
	}
	if len(missing) > 0 {
		r.fail(fix, "there is no %s%s", listFirst(missing), why)
	}
	if len(other) > 0 {
		r.fail(fix, "the numbers are those of an earlier load of the module: %s%s", listFirst(other), why)
	}
	r.okUnlessReported("%s", output.FormatCount(len(f.nodes), "device node"))
}

func (e *examination) checkNodeModes(r *report) error {
	f, err := e.readNodes()
	if err != nil || len(f.nodes) == 0 {
		return err
	}
	// The control node is on the same file system as those of the GPUs, and opening it
	// does nothing.
	fd, err := unix.Open(f.control, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd) // nothing was written
	}
	mount, _ := e.mountOf(f.control)
	decideNodeModes(r, f, err, mount)
	return nil
}

// decideNodeModes reports nodes with a narrower mode than the driver sets, and a /dev on
// which no device can be opened. openErr is the result of opening the control node, mount is
// the mount point of its file system.
func decideNodeModes(r *report, f nodeFacts, openErr error, mount string) {
	var commands, narrow []string
	for _, n := range f.nodes {
		if n.isCharacterDevice() && n.mode&0o777&n.Mode != n.Mode {
			commands = append(commands, fmt.Sprintf("chmod %04o %s", n.Mode, n.path))
			narrow = append(narrow, fmt.Sprintf("%s (%04o)", n.path, n.mode&0o777))
		}
	}
	if len(commands) > 0 {
		r.warn(strings.Join(commands, " && "), "fewer users can open these nodes than the driver allows: %s", listFirst(narrow))
	}
	switch {
	case r.user != "": // the mode decides whether other users can open the node
	case errors.Is(openErr, unix.EACCES):
		r.fail("mount -o remount,dev "+mount, "no device can be opened where %s is: it is mounted with nodev", f.control)
	case errors.Is(openErr, unix.EPERM):
		r.warn("call berth outside of this container, or of this service", "the device rules of this process's cgroup keep %s closed", f.control)
	}
	r.okUnlessReported("%04o, as the driver sets them", f.nodes[0].Mode)
}

// decideLinks reports nodes without /dev/char/MAJOR:MINOR. runc's systemd driver names a
// device to systemd by that link; without it the next daemon-reload removes the device
// from running containers.
func decideLinks(r *report, f nodeFacts) {
	var missing, commands []string
	for _, n := range f.nodes {
		if !n.linked {
			missing = append(missing, n.link)
			commands = append(commands, fmt.Sprintf("ln -sfn ../%s %s", n.Path, n.link))
		}
	}
	fix := r.command("discover")
	if f.unmanaged {
		fix = "mkdir -p " + f.linkDir + " && " + strings.Join(commands, " && ")
	}
	switch {
	case len(f.nodes) == 0:
	case len(missing) == 0:
		r.ok("%s in %s", output.FormatCount(len(f.nodes), "link"), f.linkDir)
	default:
		r.warn(fix, "no link to a device: %s; with systemd's cgroups, containers lose GPUs at systemctl daemon-reload", listFirst(missing))
	}
}
