package tasks

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestHundredAlive: the monitors of a hundred tasks that live at once take little memory,
// and the tasks are stopped and removed by one verb each.
func TestHundredAlive(t *testing.T) {
	h := newHundred(t, "v1")
	before := h.listState()
	names := make([]string, 100)
	slots := make(chan struct{}, 8)
	var all sync.WaitGroup
	for i := range names {
		names[i] = fmt.Sprintf("alive-%d", i)
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			c := h.berth("run", "-d", "--name", names[i], "--runtime", []string{"crun", "runc"}[i%2], h.box, "sleep", "1000")
			if c.code != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
	all.Wait()
	n, sum := 0, 0
	for _, v := range h.victims() {
		if v.kind == monitorKilled {
			n, sum = n+1, sum+proportional(t, v.pid)
		}
	}
	if n != len(names) {
		t.Errorf("%d monitors", n)
	}
	t.Logf("%d monitors take %d KiB, %d each", n, sum, sum/max(n, 1))
	if most := 3 << 10; sum > n*most {
		t.Errorf("more than %d KiB each", most)
	}
	h.must(append([]string{"stop"}, names...)...)
	h.removeAllTasks(before)
}

// proportional is a process's share of the memory that it uses, in KiB.
func proportional(t *testing.T, pid int) (kib int) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	rig.Must(t, err)
	_, rest, _ := strings.Cut(string(data), "\nPss:")
	if n, err := fmt.Sscanf(rest, "%d kB", &kib); n != 1 || err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return kib
}
