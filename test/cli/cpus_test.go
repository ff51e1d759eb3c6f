package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/simnode/sim"
)

// TestCPUsNearTheGPU: a task runs on the CPUs of its GPU's NUMA node, with a cpuset
// where there is one and by affinity where there isn't.
func TestCPUsNearTheGPU(t *testing.T) {
	t.Parallel()
	for _, o := range []options{{}, {v1: true}} {
		t.Run(fmt.Sprintf("v1 %v", o.v1), func(t *testing.T) {
			n := newNode(t, "dgx-h100", o)
			state := n.state()
			last := len(state.GPUs) - 1
			near, far := n.cpusNear(state, 0), n.cpusNear(state, last)
			if len(mayUse(t)) > 1 && near == far {
				t.Fatalf("GPU 0 and %d are both near the CPUs %s: this proves nothing", last, near)
			}
			for _, c := range []struct{ gpus, want string }{
				{"device=0", near},
				{fmt.Sprintf("device=%d", last), far},
				{fmt.Sprintf("0,%d", last), list(mayUse(t))},
				{"none", list(mayUse(t))},
			} {
				t.Run(c.gpus, func(t *testing.T) {
					n := n.as(t)
					n.berth("run", "--gpus", c.gpus, image(), "grep", "Cpus_allowed_list", "/proc/self/status").
						is(0, "Cpus_allowed_list:\t"+c.want+"\n", "")
				})
			}
			n.checkClean(t)
		})
	}
}

// state returns the state of the simulated node.
func (n *node) state() sim.Node {
	n.t.Helper()
	var s sim.Node
	check(n.t, json.Unmarshal([]byte(n.read(sim.Dir+"/node.json")), &s))
	return s
}

// cpusNear lists the CPUs on which a task with the GPU must run: those of the GPU's NUMA node that the
// test itself may use, or else all of these.
func (n *node) cpusNear(s sim.Node, gpu int) string {
	n.t.Helper()
	of := numbers(n.t, s.CPUs[s.Blueprint().NUMA(gpu)])
	own := mayUse(n.t)
	both := slices.DeleteFunc(slices.Clone(own), func(cpu int) bool { return !slices.Contains(of, cpu) })
	if len(both) == 0 {
		return list(own)
	}
	return list(both)
}

func mayUse(t *testing.T) (cpus []int) {
	t.Helper()
	var set unix.CPUSet
	check(t, unix.SchedGetaffinity(0, &set))
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// numbers reads the kernel's list format, list writes it.
func numbers(t *testing.T, text string) (cpus []int) {
	t.Helper()
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err := strconv.Atoi(first)
		check(t, err)
		b, err := strconv.Atoi(last)
		check(t, err)
		for ; a <= b; a++ {
			cpus = append(cpus, a)
		}
	}
	return cpus
}

func list(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		part := strconv.Itoa(cpus[i])
		if j > i {
			part += "-" + strconv.Itoa(cpus[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ",")
}
