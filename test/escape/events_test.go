package escape

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestEventLogIsNotFlushed: a container with a thousand nodes and mounts of other tenants'
// GPUs at long paths adds less than 96 KiB to the event log, with or without a lease. With
// what such containers could write, a dozen of them would rotate all older events away.
func TestEventLogIsNotFlushed(t *testing.T) {
	const most = 96 << 10
	n := start(t, "v2")
	w := &world{Node: n, runtime: "runc", cgroup: "v2", devices: accelerators(t, n)}
	log := n.Path("/var/lib/berth/events.log")
	for _, entry := range []string{"wrapper", "hook"} {
		for _, request := range []string{"device=0", ""} {
			t.Run(entry+" "+request, func(t *testing.T) {
				s := newScene(t, w, entry)
				s.request = request
				foreign := w.devices["/dev/nvidia3"]
				for i := range 1000 {
					s.spec.Linux.Devices = append(s.spec.Linux.Devices, specs.LinuxDevice{
						Path: fmt.Sprintf("/dev/%s/%d", strings.Repeat(strings.Repeat("x", 200)+"/", 10), i),
						Type: "c", Major: int64(foreign.major), Minor: int64(foreign.minor),
					})
				}
				before := logSize(t, log)
				s.play()
				if s.said.Code != 0 {
					t.Fatalf("the container doesn't start: %s", s)
				}
				grown := logSize(t, log) - before
				if grown <= 0 || grown > most {
					t.Errorf("the event log grew by %d bytes", grown)
				}
			})
		}
	}
}

func logSize(t *testing.T, path string) int64 {
	t.Helper()
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return fi.Size()
}
