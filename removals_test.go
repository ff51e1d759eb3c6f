package berth

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation"
	"github.com/berth-gpu/berth/isolation/ledger"
)

const foreignDevice = "it belongs to an accelerator that the lease doesn't have"

// TestReadNotes: lines of text that older versions wrote become remarks.
func TestReadNotes(t *testing.T) {
	got := ReadNotes([]string{"node /dev/nvidia2 (195:2)", "the driver is elsewhere"})
	want := []Removal{{Kind: "note", Name: "node /dev/nvidia2 (195:2)"}, {Kind: "note", Name: "the driver is elsewhere"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestLoggedRemovals: the event log returns exactly the removals of Prepare. A path that contains "; " doesn't
// become removals of its own.
func TestLoggedRemovals(t *testing.T) {
	spec := &specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_MKNOD"}}},
		Mounts:  []specs.Mount{{Destination: "/dev/x; capability CAP_SYS_ADMIN", Source: "/dev/nvidia3 at /y", Type: "bind"}},
		Linux: &specs.Linux{
			Devices: []specs.LinuxDevice{{Path: "/dev/a (1:2); node /dev/b", Type: "c", Major: 195, Minor: 2}},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
				{Allow: false, Access: "rwm"}, {Allow: true, Type: "c", Major: new(int64(195)), Access: "rw"},
			}},
		},
	}
	stat := func(path string) (isolation.Number, bool) {
		return isolation.Number{Major: 195, Minor: 3}, path == "/dev/nvidia3 at /y"
	}
	removed, err := Prepare(spec, nil, Plan{Majors: []gpu.Major{{Number: 195, Name: "nvidia"}, {Number: 1, Name: "mem"}}, Stat: stat})
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{ledger: ledger.Open(ledger.Options{Dir: t.TempDir(), Events: t.TempDir()})}
	n.LogRemovals("prepared", "a", ledger.Owner{}, removed)
	got, err := n.LoggedRemovals("prepared", "a")
	if err != nil {
		t.Fatal(err)
	}
	want := []Removal{
		{Kind: "device", Name: "/dev/a (1:2); node /dev/b", Source: "c 195:2", Why: foreignDevice},
		{Kind: "mount", Name: "/dev/x; capability CAP_SYS_ADMIN", Source: "/dev/nvidia3 at /y", Why: foreignDevice},
		{Kind: "rule", Name: "allow c 195:* rw", Why: foreignDevice},
		{Kind: "capability", Name: "CAP_MKNOD", Why: "leased devices come with their nodes, so the container has to make none"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestLoggedByOlderVersions: an event without a list is read from its text.
func TestLoggedByOlderVersions(t *testing.T) {
	dir := t.TempDir()
	line := `{"event":"prepared","lease":"a","reason":"node /dev/nvidia2 (195:2); the driver is elsewhere"}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "events.log"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	n := &Node{ledger: ledger.Open(ledger.Options{Dir: t.TempDir(), Events: dir})}
	got, err := n.LoggedRemovals("prepared", "a")
	want := []Removal{{Kind: "note", Name: "node /dev/nvidia2 (195:2)"}, {Kind: "note", Name: "the driver is elsewhere"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
