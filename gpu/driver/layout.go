package driver

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// MIG is the layout of one GPU: its instances.
type MIG struct {
	Minor     int // of the GPU
	Instances []Instance
}

// Instance is one GPU instance and the ids of its compute instances, ascending.
type Instance struct {
	GI  int
	CIs []int
}

// Layout reads how GPUs are cut, ordered by minor and GPU instance, from the names below
// /proc/driver/nvidia/capabilities. GPUs without instances are left out. It reads names only, so it
// can't detect an instance that was replaced by one of another size with the same ids.
func Layout(h gpu.Host) ([]MIG, error) {
	root := h.ProcPath("driver/nvidia/capabilities")
	gpus, err := listNumbered(root, "gpu")
	if err != nil {
		return nil, err
	}
	var layout []MIG
	for _, minor := range gpus {
		m := MIG{Minor: minor}
		dir := root + "/gpu" + strconv.Itoa(minor) + "/mig"
		if hasNoDirectories(dir) {
			continue
		}
		gis, err := listNumbered(dir, "gi")
		if err != nil {
			return nil, err
		}
		for _, gi := range gis {
			cis, err := listNumbered(dir+"/gi"+strconv.Itoa(gi), "ci")
			if err != nil {
				return nil, err
			}
			m.Instances = append(m.Instances, Instance{GI: gi, CIs: cis})
		}
		if m.Instances != nil {
			layout = append(layout, m)
		}
	}
	return layout, nil
}

// hasNoDirectories reports whether a directory has no directories in it, as the mig of a GPU without
// instances. It takes one system call; listing takes four, for each GPU at each container start. procfs counts
// the directories in its st_nlink, as "." and ".." do elsewhere.
func hasNoDirectories(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Nlink == 2
}

// listNumbered lists the N of the entries prefixN in a directory, ascending. A directory that is
// removed meanwhile counts as empty.
func listNumbered(dir, prefix string) ([]int, error) {
	names, err := smallfile.Names(dir)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(digits, 10, 20); err == nil {
			numbers = append(numbers, int(n))
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// String is the layout in one line: "gpu0: 1.0 2.0; gpu3: 7.0 7.1", each a GPU instance and a
// compute instance in it. An instance without compute instances is written alone.
func (m MIG) String() string {
	var b strings.Builder
	b.WriteString("gpu" + strconv.Itoa(m.Minor) + ":")
	for _, i := range m.Instances {
		if len(i.CIs) == 0 {
			b.WriteString(" " + strconv.Itoa(i.GI))
		}
		for _, ci := range i.CIs {
			b.WriteString(" " + strconv.Itoa(i.GI) + "." + strconv.Itoa(ci))
		}
	}
	return b.String()
}
