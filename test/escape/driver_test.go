package escape

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// withoutDrivers is /proc/devices of a machine that has loaded no accelerator's driver.
const withoutDrivers = "Character devices:\n  1 mem\n  5 /dev/tty\n 10 misc\n136 pts\n\nBlock devices:\n  8 sd\n"

// A container that was created before the driver was loaded opens no accelerator afterwards. The
// reserved majors are closed from the beginning.
func TestContainersOlderThanTheDriver(t *testing.T) {
	eachWorld(t, func(t *testing.T, _ int, w *world) {
		s := newScene(t, w, "wrapper")
		withoutRequest(func(s *scene) {
			s.spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		})(s)
		s.between = s.withoutDrivers()
		s.play()
		if gained := deviceWasOpened(s); gained != "" || s.said.Code != 0 {
			t.Errorf("%s: %s", gained, s)
		}
	})
}

// Containers that were started without berth, or whose rules contain the majors of a driver that is
// loaded later, are closed when the driver is discovered.
func TestRunningContainersAreClosed(t *testing.T) {
	all := func(s *scene) {
		s.spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	}
	majors := func(s *scene) {
		for _, d := range s.w.devices {
			major := int64(d.major)
			s.spec.Linux.Resources.Devices = append(s.spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Access: "rw"})
		}
	}
	nested := func(s *scene) {
		all(s)
		s.administrator("CAP_SYS_ADMIN")
	}
	for _, tt := range []struct {
		name, entryPoint string
		build            func(*scene)
	}{
		{"all devices, without berth", "plain", all},
		{"majors, without berth", "plain", majors},
		{"majors", "wrapper", majors},
		{"CAP_SYS_ADMIN, without berth", "plain", nested},
		{"another's lease in an annotation", "plain", func(s *scene) {
			all(s)
			s.spec.Annotations["dev.berth.lease"] = s.victimOf("wrapper", "device=5")
		}},
		{"the id of a container with a lease", "plain", func(s *scene) {
			all(s)
			s.victimOf("wrapper", "device=5")
			s.id = s.lastVictim
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachWorld(t, func(t *testing.T, _ int, w *world) {
				s := newScene(t, w, tt.entryPoint)
				s.usualRoot = true
				withoutRequest(tt.build)(s)
				loaded := s.withoutDrivers()
				s.between = func() {
					loaded()
					s.discover()
					// It names the containers that can open the devices again.
					said := s.w.Run(t, s.w.Command(s.w.Berth, "--config", s.config(), "doctor", "--json"))
					lifts := slices.Contains(s.spec.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
					if strings.Contains(said.Out, s.id) != lifts || said.Out == "" {
						t.Errorf("doctor: %+v", said)
					}
				}
				s.play()
				if gained := deviceWasOpened(s); gained != "" || s.said.Code != 0 {
					t.Errorf("%s: %s", gained, s)
				}
			})
		})
	}
}

// On cgroup version 1 systemd resets the device rules of scopes at each daemon-reload to those that
// the runtime requested. The next discovery, which the timer starts, closes accelerators again, and
// keeps a container's leased devices open.
func TestResetRulesAreClosedAgain(t *testing.T) {
	for _, tt := range []struct {
		name, entryPoint string
		request          string
	}{
		{"with a lease", "wrapper", "device=0"},
		{"without a lease", "wrapper", ""},
		{"without berth", "plain", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachWorld(t, func(t *testing.T, _ int, w *world) {
				if w.cgroup != "v1" {
					return // systemd keeps denials on version 2
				}
				s := newScene(t, w, tt.entryPoint)
				s.usualRoot, s.request = true, tt.request
				s.spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
				s.addCommand("open /dev/nvidia0")
				s.between = func() {
					// Rules that berth has set need no change.
					if said := s.discover(); tt.entryPoint == "wrapper" && strings.Contains(said, s.id) {
						t.Errorf("before the reset: %s", said)
					}
					s.write(w.Path("/sys/fs/cgroup/devices/"+s.id+"/devices.allow"), "a")
					s.discover()
				}
				s.play()
				want := map[bool]string{true: "ENXIO", false: "ENOENT"}[tt.request != ""]
				if gained := deviceWasOpened(s); gained != "" || s.answers["open /dev/nvidia0"] != want {
					t.Errorf("%s: %s", gained, s)
				}
			})
		})
	}
}

// A single device that another tool has allowed stays open, beside a major that is closed.
func TestSingleDevicesStay(t *testing.T) {
	eachWorld(t, func(t *testing.T, _ int, w *world) {
		s := newScene(t, w, "plain")
		s.usualRoot, s.request = true, ""
		gpu, zero, drm := int64(195), int64(0), int64(226)
		s.spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{
			{Allow: false, Access: "rwm"},
			{Allow: true, Type: "c", Major: &gpu, Minor: &zero, Access: "rw"},
			{Allow: true, Type: "c", Major: &drm, Access: "rw"},
		}
		s.spec.Linux.Devices = append(s.spec.Linux.Devices,
			specs.LinuxDevice{Path: "/dev/nvidia0", Type: "c", Major: gpu, Minor: zero},
			specs.LinuxDevice{Path: "/dev/dri/card300", Type: "c", Major: drm, Minor: 300})
		s.addCommand("open /dev/nvidia0", "open /dev/dri/card300")
		s.between = func() { s.discover() }
		s.play()
		if s.answers["open /dev/nvidia0"] != "ENXIO" || s.answers["open /dev/dri/card300"] != "EPERM" {
			t.Errorf("%v: %s", s.answers, s)
		}
	})
}

// discover makes berth examine the running containers, as the timer does.
func (s *scene) discover() string {
	s.t.Helper()
	said := s.w.Run(s.t, s.w.Command(s.w.Berth, "--config", s.config(), "discover", "--if-stale", "--quiet"))
	if said.Code != 0 {
		s.t.Errorf("discover: %+v", said)
	}
	s.said.Err += said.Err
	return said.Err
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
