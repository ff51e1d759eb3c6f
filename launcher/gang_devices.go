package launcher

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/launcher/gang/ranks"
	"github.com/berth-gpu/berth/launcher/spec"
)

// sortByRank has the ranks that see the same devices, and as many of their own, get them
// in the order of the node: scripts take the GPU with the number of their local rank.
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

// compareByIndex is the order in which programs count the devices that they see: GPUs by their
// index, slices behind each other, all else at the end.
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

// ownGPUs are the numbers of a rank's GPUs among those that it sees.
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

// cpuShare is how many CPUs of a list in list format one of so many has to itself.
func cpuShare(list string, among, all int) int {
	n := 0
	for word := range strings.SplitSeq(list, ",") {
		first, last, ranged := strings.Cut(word, "-")
		a, err := strconv.Atoi(first)
		b := a
		if ranged && err == nil {
			b, err = strconv.Atoi(last)
		}
		if err == nil && b >= a {
			n += b - a + 1
		}
	}
	if n == 0 {
		n = all
	}
	return max(1, n/max(1, among))
}

// addWorld gives a rank the variables by which it finds the others of its world. gpus are the
// rank's own, as numbers among the GPUs that it sees, and cpus how many CPUs it has to itself.
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
