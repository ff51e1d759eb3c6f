package sim

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Majors that are the same on every machine.
const (
	majorMisc       = 10
	majorNVIDIA     = 195
	majorDRM        = 226
	majorInfiniBand = 231
)

// device is a character device below /dev.
type device struct {
	path         string
	major, minor int
	mode         uint32
}

// freeMajors assigns to each dynamic major of the drivers a number that the kernel doesn't use, so
// that the nodes have no driver.
func freeMajors() (map[string]int, error) {
	used, err := usedMajors()
	if err != nil {
		return nil, err
	}
	majors, next := map[string]int{}, 510
	for _, name := range []string{"nvidia-uvm", "nvidia-caps", "nvidia-nvswitch", "nvidia-nvlink", "nvidia-caps-imex-channels", "nvidia-fs", "gdrdrv"} {
		for used[next] {
			next--
		}
		majors[name] = next
		next--
	}
	return majors, nil
}

func usedMajors() (map[int]bool, error) {
	f, err := os.Open("/proc/devices")
	if err != nil {
		return nil, fmt.Errorf("open list of devices: %w", err)
	}
	defer f.Close()
	used := map[int]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "Block") {
		word, _, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if major, err := strconv.Atoi(word); err == nil {
			used[major] = true
		}
	}
	return used, lines.Err()
}

// devices lists the accelerators' nodes by the present state.
func (n Node) devices(p Profile) []device {
	if n.Bare {
		return n.dri(p)
	}
	var all []device
	add := func(path string, major, minor int, mode uint32) {
		all = append(all, device{path, major, minor, mode})
	}
	for _, g := range p.GPUs {
		add(fmt.Sprintf("nvidia%d", g.Minor), majorNVIDIA, g.Minor, 0o666)
	}
	add("nvidiactl", majorNVIDIA, 255, 0o666)
	add("nvidia-modeset", majorNVIDIA, 254, 0o666)
	if n.UVM {
		add("nvidia-uvm", n.Majors["nvidia-uvm"], 0, 0o666)
		add("nvidia-uvm-tools", n.Majors["nvidia-uvm"], 1, 0o666)
	}
	for i := range p.Switches {
		add(fmt.Sprintf("nvidia-nvswitch%d", i), n.Majors["nvidia-nvswitch"], i, 0o666)
	}
	if len(p.Switches) > 0 {
		add("nvidia-nvswitchctl", n.Majors["nvidia-nvswitch"], 255, 0o666)
		add("nvidia-nvlink", n.Majors["nvidia-nvlink"], 0, 0o666)
	}
	for i := range p.Channels {
		add(fmt.Sprintf("nvidia-caps-imex-channels/channel%d", i), n.Majors["nvidia-caps-imex-channels"], i, 0o666)
	}
	if p.GDRCopy {
		add("gdrdrv", n.Majors["gdrdrv"], 0, 0o666)
	}
	all = append(all, n.caps(p)...)
	return append(all, n.dri(p)...)
}

// caps lists the capability nodes: the node's two, and those of MIG instances.
func (n Node) caps(p Profile) []device {
	major := n.Majors["nvidia-caps"]
	minors := map[int]uint32{1: 0o400, 2: 0o444}
	for i, g := range p.GPUs {
		for _, s := range n.Slices(i) {
			gi, ci := s.Minors(g.Minor)
			minors[gi], minors[ci] = 0o444, 0o444
		}
	}
	var all []device
	for minor, mode := range minors {
		all = append(all, device{fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), major, minor, mode})
	}
	slices.SortFunc(all, func(a, b device) int { return a.minor - b.minor })
	return all
}

// dri lists the graphics nodes, which the kernel makes by itself.
func (n Node) dri(p Profile) []device {
	var all []device
	for i := range p.Files {
		all = append(all, device{fmt.Sprintf("nvidia-fs%d", i), n.Majors["nvidia-fs"], i, 0o666})
	}
	for i := range p.GPUs {
		all = append(all, device{fmt.Sprintf("dri/card%d", i), majorDRM, i, 0o660},
			device{fmt.Sprintf("dri/renderD%d", 128+i), majorDRM, 128 + i, 0o666})
	}
	for _, h := range p.HCAs {
		all = append(all, device{fmt.Sprintf("infiniband/uverbs%d", h.Uverbs), majorInfiniBand, 192 + h.Uverbs, 0o666},
			device{fmt.Sprintf("infiniband/umad%d", h.Uverbs), majorInfiniBand, h.Uverbs, 0o600},
			device{fmt.Sprintf("infiniband/issm%d", h.Uverbs), majorInfiniBand, 64 + h.Uverbs, 0o600})
	}
	if len(p.HCAs) > 0 {
		all = append(all, device{"infiniband/rdma_cm", majorMisc, rdmaMinor, 0o666})
	}
	return all
}

// byPath lists the links by which udev names graphics nodes.
func (p Profile) byPath(dev string) map[string]string {
	links := map[string]string{}
	for i, g := range p.GPUs {
		name := filepath.Join(dev, "dri/by-path/pci-"+PCI(g.Path))
		links[name+"-card"] = fmt.Sprintf("../card%d", i)
		links[name+"-render"] = fmt.Sprintf("../renderD%d", 128+i)
	}
	return links
}

// rdmaMinor is a minor of misc that no driver of Linux uses.
const rdmaMinor = 122

// mountDev builds a /dev with the machine's own nodes and the profile's.
func (n Node) mountDev(p Profile) error {
	dev := filepath.Join(Dir, "dev")
	if err := makeDirs(dev); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dev, err)
	}
	if err := copyNodes("/dev", dev); err != nil {
		return err
	}
	if err := makeNodes(dev, n.devices(p)); err != nil {
		return err
	}
	if err := linkAll(p.byPath(dev)); err != nil {
		return err
	}
	for _, name := range []string{"pts", "mqueue", "hugepages"} {
		source, target := filepath.Join("/dev", name), filepath.Join(dev, name)
		if _, err := os.Stat(source); err != nil {
			continue
		}
		if err := errors.Join(makeDirs(target), bind(source, target)); err != nil {
			return err
		}
	}
	shm := filepath.Join(dev, "shm")
	if err := makeDirs(shm); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", shm, err)
	}
	return move(dev, "/dev")
}

func makeNodes(dev string, all []device) error {
	for _, d := range all {
		path := filepath.Join(dev, d.path)
		if err := makeDirs(filepath.Dir(path)); err != nil {
			return err
		}
		if err := makeNode(path, unix.S_IFCHR|d.mode, unix.Mkdev(uint32(d.major), uint32(d.minor))); err != nil {
			return err
		}
	}
	return nil
}

// makeNode makes a node, unless another process, such as berth discover, has just made the same.
func makeNode(path string, mode uint32, number uint64) error {
	err := unix.Mknod(path, mode, int(number))
	var is unix.Stat_t
	if errors.Is(err, unix.EEXIST) && unix.Lstat(path, &is) == nil && is.Rdev == number && is.Mode&unix.S_IFMT == mode&unix.S_IFMT {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("make node %s: %w", path, err)
	}
	if err := unix.Chmod(path, mode&0o7777); err != nil { // whatever the umask
		return fmt.Errorf("set mode of %s: %w", path, err)
	}
	return nil
}

// copyNodes makes the machine's nodes and links again below to. Accelerators and
// what is mounted below /dev are left out.
func copyNodes(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("list %s: %w", from, err)
	}
	for _, e := range entries {
		source, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if isForeign(e.Name()) {
			continue
		}
		if err := copyNode(e, source, target); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func copyNode(e fs.DirEntry, source, target string) error {
	switch {
	case e.IsDir():
		return errors.Join(makeDirs(target), copyNodes(source, target))
	case e.Type()&fs.ModeSymlink != 0:
		link, err := os.Readlink(source)
		if err != nil {
			return fmt.Errorf("read link: %w", err)
		}
		return os.Symlink(link, target)
	case e.Type()&fs.ModeDevice != 0:
		var st unix.Stat_t
		if err := unix.Lstat(source, &st); err != nil {
			return fmt.Errorf("stat %s: %w", source, err)
		}
		return makeNode(target, st.Mode, st.Rdev)
	}
	return nil
}

// isForeign reports whether a name in /dev is a real accelerator's, or a mount point.
func isForeign(name string) bool {
	known := []string{"dri", "infiniband", "kfd", "gdrdrv", "pts", "shm", "mqueue", "hugepages"}
	return strings.HasPrefix(name, "nvidia") || slices.Contains(known, name)
}
