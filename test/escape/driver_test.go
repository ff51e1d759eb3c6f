package escape

import (
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// withoutDrivers is /proc/devices of a machine that has loaded no accelerator's driver.
const withoutDrivers = "Character devices:\n  1 mem\n  5 /dev/tty\n 10 misc\n136 pts\n\nBlock devices:\n  8 sd\n"

// A container that was made before the driver was loaded opens nothing afterwards. The
// majors that are assigned for good are closed from the beginning.
func TestContainersOlderThanTheDriver(t *testing.T) {
	worlds(t, func(t *testing.T, _ int, w *world) {
		s := newScene(t, w, "wrapper")
		unasked(func(s *scene) {
			s.spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		})(s)
		s.between = s.withoutDrivers()
		s.play()
		if gained := opened(s); gained != "" || s.said.Code != 0 {
			t.Errorf("%s: %s", gained, s)
		}
	})
}

// withoutDrivers hides the drivers of accelerators from berth. loaded shows them again.
func (s *scene) withoutDrivers() (loaded func()) {
	s.t.Helper()
	list := filepath.Join(filepath.Dir(s.bundle), "devices")
	s.write(list, withoutDrivers)
	hidden := true
	s.w.Do(s.t, "mount", "--bind", list, "/proc/devices")
	loaded = func() {
		if hidden {
			hidden = false
			s.w.Do(s.t, "umount", "/proc/devices")
		}
	}
	s.t.Cleanup(loaded)
	return loaded
}
