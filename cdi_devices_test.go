package berth

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/deviceguard"
)

// TestGuardedNodesHaveNoCDIDevices: a CDI device with a node that only a lease opens is refused.
func TestGuardedNodesHaveNoCDIDevices(t *testing.T) {
	guarded := []deviceguard.Number{{Major: 195, Minor: deviceguard.AnyMinor}, {Major: 508, Minor: deviceguard.AnyMinor}, {Major: 226, Minor: 129}}
	for _, tt := range []struct {
		name string
		node edits.Node
		err  string
	}{
		{"null", edits.Node{Path: "/dev/x", Type: "c", Major: 1, Minor: 3}, ""},
		{"a block device of the same number", edits.Node{Path: "/dev/b", Type: "b", Major: 195}, ""},
		{"GPU", edits.Node{Path: "/dev/nvidia0", Type: "c", Major: 195}, "node /dev/nvidia0 (c 195:0) belongs to a GPU"},
		{"GPU by another name", edits.Node{Path: "/dev/x", Type: "c", Major: 195}, "v/c=a: its node /dev/x (c 195:0) belongs"},
		{"slice", edits.Node{Path: "/dev/nvidia-caps/nvidia-cap21", Type: "c", Major: 508, Minor: 21}, "(c 508:21) belongs"},
		{"graphics node", edits.Node{Path: "/dev/dri/renderD129", Type: "c", Major: 226, Minor: 129}, "(c 226:129) belongs"},
		{"graphics node of another card", edits.Node{Path: "/dev/dri/renderD130", Type: "c", Major: 226, Minor: 130}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := checkNotGuarded("v/c=a", []edits.Node{tt.node}, guarded)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}
