package launcher

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/cpulist"
	"github.com/berth-gpu/berth/launcher/gang/ranks"
	"github.com/berth-gpu/berth/launcher/spec"
)

// sortByRank reorders the parts among ranks of one role that see the same devices and own equally
// many, so that lower ranks get GPUs with lower indexes: scripts use the GPU whose number is their
// local rank.
func sortByRank(all []*rank, parts [][]gpu.Device) {
	done := map[int]bool{}
	for _, r := range all {
		p := r.options.Part
		if p < 0 || p >= len(parts) || done[p] {
			continue
		}
		var same []int
		for _, q := range all {
			k := q.options.Part
			if k >= 0 && k < len(parts) && slices.Equal(q.options.Sees, r.options.Sees) && len(parts[k]) == len(parts[p]) && q.options.Role == r.options.Role {
				same, done[k] = append(same, k), true
			}
		}
		var sets [][]gpu.Device
		for _, k := range same {
			slices.SortStableFunc(parts[k], compareByIndex)
			sets = append(sets, parts[k])
		}
		slices.SortStableFunc(sets, func(a, b []gpu.Device) int {
			if len(a) == 0 || len(b) == 0 {
				return 0
			}
			return compareByIndex(a[0], b[0])
		})
		for i, k := range same {
			parts[k] = sets[i]
		}
	}
}

// compareByIndex orders devices as programs number those that they see: GPUs by index, MIG slices
// of a GPU by their own index, all other devices last.
func compareByIndex(a, b gpu.Device) int {
	x, y := deviceOrder(a), deviceOrder(b)
	return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]))
}

func deviceOrder(d gpu.Device) (n [2]int) {
	const last = 1 << 30
	if d.IsNIC() || d.IsCDI() {
		return [2]int{last, last}
	}
	whole, part, _ := strings.Cut(d.Index, ":")
	var err error
	if n[0], err = strconv.Atoi(whole); err != nil {
		n[0] = last
	}
	n[1], _ = strconv.Atoi(part) // a whole GPU has none
	return n
}

// ownGPUs returns the numbers of a rank's GPUs among those that the rank sees.
func ownGPUs(seen, mine []gpu.Device) (numbers []int) {
	seen = slices.DeleteFunc(slices.Clone(seen), func(d gpu.Device) bool { return d.IsNIC() || d.IsCDI() })
	slices.SortStableFunc(seen, compareByIndex)
	for i, d := range seen {
		if slices.Contains(mine, d) {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// cpuShare returns how many CPUs each rank has to itself: lists[at] in list format, divided by the
// number of ranks with the same list. An empty list means all CPUs of the machine.
func cpuShare(lists []string, at, all int) int {
	if cpus, err := cpulist.Parse(lists[at]); err == nil {
		all = len(cpus)
	}
	ranks := 0
	for _, l := range lists {
		if l == lists[at] {
			ranks++
		}
	}
	return max(1, all/ranks)
}

// addWorld sets the environment variables by which a rank finds the other ranks of its world. gpus
// are the rank's own GPUs, numbered among those that it sees; cpus is the number of its CPUs.
func (g *gang) addWorld(r *rank, gpus []int, cpus int) {
	if r.options.World < 0 || r.options.World >= len(g.o.Worlds) {
		return
	}
	w := g.o.Worlds[r.options.World]
	w.Gang = g.task.plan.name
	w.Ranks = slices.Clone(w.Ranks)
	w.Ranks[r.options.InWorld].GPUs, w.Ranks[r.options.InWorld].CPUs = gpus, cpus
	for _, kv := range ranks.Env(w, r.options.InWorld) {
		name, _, _ := strings.Cut(kv, "=")
		if !spec.HasVariable(r.options.Env, name) {
			r.spec.Process.Env = spec.SetVariable(r.spec.Process.Env, kv)
		}
	}
}
