package berth

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/isolation/cgroup"
)

// TestCommandCgroupDepth: a lease's cgroup is refused where the device guard's program wouldn't see it, and would open
// the devices of the lease around it instead.
func TestCommandCgroupDepth(t *testing.T) {
	root := t.TempDir()
	n := &Node{cgroups: cgroup.Hierarchy{Version: cgroup.V2, Root: root, Mount: root}}
	for _, tt := range []struct {
		outer   int // level
		refused bool
	}{{0, false}, {14, false}, {15, false}, {16, true}, {17, true}} {
		outer := strings.Repeat("/a", tt.outer)
		group, err := n.CreateCommandCgroup(outer, os.Getpid(), 0)
		if errors.Is(err, ErrTooDeep) != tt.refused || err != nil != tt.refused {
			t.Errorf("below level %d: %q, %v", tt.outer, group, err)
		}
	}
}

// TestExemptDepth: an exempt cgroup that the device guard's program wouldn't see is refused.
func TestExemptDepth(t *testing.T) {
	for level, valid := range map[int]bool{1: true, 16: true, 17: false} {
		if err := (GuardConfig{Exempt: []string{strings.Repeat("/a", level)}}).check(); (err == nil) != valid {
			t.Errorf("level %d: %v", level, err)
		}
	}
}
