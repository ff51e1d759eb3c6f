package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Instance is one GPU instance with its compute instances.
type Instance struct {
	Slicing string `json:"slicing"`
	ID      int    `json:"id"`
	Start   int    `json:"start"`
	// Compute holds the slices of each compute instance; its place is its id.
	Compute []int `json:"compute"`
}

// Slice is one MIG device.
type Slice struct {
	Profile string // "1g.10gb", "1c.3g.40gb"
	GI, CI  int
	Memory  uint64 // bytes
}

// Minors returns the capability minors of a slice on the GPU with the minor.
func (s Slice) Minors(gpuMinor int) (gi, ci int) {
	return instanceMinor(gpuMinor, s.GI), instanceMinor(gpuMinor, s.GI) + 1 + s.CI
}

// The driver numbers all capabilities that could ever be: two of the node's,
// and for each GPU 15 instances with up to 8 compute instances each.
const (
	firstMinor   = 3
	maxInstances = 15
	maxComputes  = 8
	maxGPUs      = 32
)

func instanceMinor(gpu, gi int) int {
	return firstMinor + (gpu*maxInstances+gi)*(1+maxComputes)
}

// migMinors is the content of /proc/driver/nvidia-caps/mig-minors.
func migMinors() string {
	var b strings.Builder
	b.WriteString("config 1\nmonitor 2\n")
	for g := range maxGPUs {
		for gi := range maxInstances {
			minor := instanceMinor(g, gi)
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", g, gi, minor)
			for ci := range maxComputes {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", g, gi, ci, minor+1+ci)
			}
		}
	}
	return b.String()
}

// layOut places the instances of a layout: "3g.40gb:1c:2c,1g.10gb" is one instance of three slices
// with two compute instances, and one with one. "off" and "" turn MIG mode off, "on" turns it on
// without instances.
func (m *Model) layOut(text string) (mig bool, placed []Instance, err error) {
	switch {
	case text == "" || text == "off":
		return false, nil, nil
	case len(m.Slicings) == 0:
		return false, nil, fmt.Errorf("%s has no MIG", m.Name)
	case text == "on":
		return true, nil, nil
	}
	var used [8]bool
	for word := range strings.SplitSeq(text, ",") {
		in, err := m.place(word, &used)
		if err != nil {
			return false, nil, err
		}
		placed = append(placed, in)
	}
	if !m.withinLimits(placed) {
		return false, nil, fmt.Errorf("layout %q doesn't fit into seven slices", text)
	}
	return true, placed, nil
}

func (m *Model) withinLimits(placed []Instance) bool {
	total, media := 0, 0
	for _, in := range placed {
		total += m.slicing(in.Slicing).Slices
		if strings.HasSuffix(in.Slicing, "+me") {
			media++
		}
	}
	return total <= 7 && media <= 1
}

func (m *Model) slicing(name string) *Slicing {
	i := slices.IndexFunc(m.Slicings, func(s Slicing) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &m.Slicings[i]
}

func (m *Model) place(word string, used *[8]bool) (Instance, error) {
	name, cut, _ := strings.Cut(word, ":")
	s := m.slicing(name)
	if s == nil {
		return Instance{}, fmt.Errorf("%s has no MIG profile %q", m.Name, name)
	}
	for _, start := range s.Starts {
		if slices.Contains(used[start:start+s.Size], true) {
			continue
		}
		for i := range s.Size {
			used[start+i] = true
		}
		compute, err := s.cut(cut)
		return Instance{Slicing: name, ID: instanceID(s, start), Start: start, Compute: compute}, err
	}
	return Instance{}, fmt.Errorf("no room for MIG profile %q", name)
}

// cut reads "1c:2c", the slices of compute instances.
func (s Slicing) cut(text string) (compute []int, err error) {
	if text == "" {
		return []int{s.Slices}, nil
	}
	total := 0
	for word := range strings.SplitSeq(text, ":") {
		n, err := strconv.Atoi(strings.TrimSuffix(word, "c"))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q isn't a compute instance, which is 1c, 2c …", word)
		}
		compute, total = append(compute, n), total+n
	}
	if total > s.Slices {
		return nil, fmt.Errorf("compute instances %s don't fit into %s", text, s.Name)
	}
	return compute, nil
}

// instanceID is the driver's numbering: each size has ids of its own.
func instanceID(s *Slicing, start int) int {
	switch s.Size {
	case 1:
		return 7 + start
	case 2:
		return 3 + start/2
	case 4:
		if s.Slices == 3 && start == 0 {
			return 2
		}
		return 1
	}
	return 0
}

// Slices lists the MIG devices of the GPU with the index, in NVML's order.
func (n Node) Slices(index int) []Slice {
	m := n.Blueprint().GPUs[index].Model
	var all []Slice
	for _, in := range n.GPUs[index].Instances {
		s := m.slicing(in.Slicing)
		for ci, size := range in.Compute {
			name := in.Slicing
			if size != s.Slices {
				name = fmt.Sprintf("%dc.%s", size, name)
			}
			all = append(all, Slice{Profile: name, GI: in.ID, CI: ci, Memory: s.MemoryMiB << 20})
		}
	}
	return all
}

// nvml is the line of a GPU instance profile in NVML's state.
func (s Slicing) nvml() string {
	e := s.Engines
	starts := strings.Trim(fmt.Sprint(s.Starts), "[]")
	return fmt.Sprintf("%d %d %d %d %d %d %d %d %d %d %d %d %s %d %s", s.Kind, s.ID, s.Slices, s.Max, s.Multiproc,
		e[0], e[1], e[2], e[3], e[4], s.MemoryMiB, s.Size, s.Name, len(s.Starts), starts)
}

// migState writes the instances (i0 …) and MIG devices (s0 …) of a GPU.
func (n Node) migState(p Profile, i int, set func(key string, value any)) {
	m := p.GPUs[i].Model
	for k, in := range n.GPUs[i].Instances {
		s := m.slicing(in.Slicing)
		compute := strings.Trim(fmt.Sprint(in.Compute), "[]")
		set(fmt.Sprintf("i%d", k), fmt.Sprintf("%d %d %d %d %d %s", in.ID, s.ID, in.Start, s.Size, len(in.Compute), compute))
	}
	set("instances", len(n.GPUs[i].Instances))
	all := n.Slices(i)
	set("slices", len(all))
	k := 0
	for gi, in := range n.GPUs[i].Instances {
		s := m.slicing(in.Slicing)
		for ci, size := range in.Compute {
			e := s.Engines
			set(fmt.Sprintf("s%d", k), fmt.Sprintf("%s %d %d %d %d %d %d %d %d %d %d %d %d %d %s",
				p.SliceUUID(i, all[k]), in.ID, ci, all[k].Memory, s.Multiproc*size/s.Slices, s.Slices, size,
				e[0], e[1], e[2], e[3], e[4], s.ID, gi, all[k].Profile))
			k++
		}
	}
}
