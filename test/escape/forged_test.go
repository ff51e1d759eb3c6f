package escape

import (
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// withoutRequest makes a container without a request of the engine's user.
func withoutRequest(f func(s *scene)) func(s *scene) {
	return func(s *scene) {
		s.request = ""
		for _, d := range s.w.devices {
			if d.own { // nothing is
				s.foreign["open "+d.image()] = true
				s.addCommand("open " + d.image())
			}
		}
		f(s)
	}
}

// forgedRequests are requests in an image that look like a user's or an engine's.
func forgedRequests() []attack {
	const wish = "a wish of the image is taken for the user's"
	variable := func(name, value string) attack {
		return attack{name: "forged/" + name, class: wish, gained: deviceWasOpened, build: withoutRequest(func(s *scene) { s.env(name + "=" + value) })}
	}
	annotation := func(name, value string) attack {
		return attack{name: "forged/" + name, class: wish, gained: deviceWasOpened, build: withoutRequest(func(s *scene) { s.spec.Annotations[name] = value })}
	}
	return []attack{
		variable("NVIDIA_VISIBLE_DEVICES", "all"),
		{
			name: "forged/none", class: "control nodes for who asks for none", gained: deviceWasOpened,
			build: withoutRequest(func(s *scene) { s.env("NVIDIA_VISIBLE_DEVICES=none") }),
		},
		variable("BERTH_GPUS", "all"),
		variable("BERTH_LEASE", "aaaaaaaaaaaa"),
		annotation("dev.berth.lease", "aaaaaaaaaaaa"),
		annotation("io.kubernetes.cri-o.Labels", `{"berth.gpus":"all"}`),
		{
			name: "forged/mount", class: wish, gained: deviceWasOpened,
			build: withoutRequest(func(s *scene) { // how NVIDIA's device lists as volume mounts look
				s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
					Destination: "/var/run/nvidia-container-devices/all", Source: "/dev/null", Type: "bind", Options: []string{"bind"},
				})
			}),
		},
		{
			name: "forged/hook's output", class: "an annotation of the image has the runtime write to a file of the host", gained: fileWasChanged,
			not: map[string]string{
				"runc": "only crun reads such annotations",
				"hook": "it works: crun opens the file before it calls a hook, anybody's (docs/security.md)",
			},
			build: func(s *scene) { s.spec.Annotations["run.oci.hooks.stderr"] = filepath.Join(s.outside, "etc/new") },
		},
		{
			// podman copies the annotations of an image's manifest into the spec's.
			name: "forged/podman", class: wish, gained: deviceWasOpened,
			build: withoutRequest(func(s *scene) {
				for key, value := range map[string]string{
					"berth.gpus": "all", "io.container.manager": "libpod", "io.kubernetes.cri-o.TTY": "false",
					"io.podman.annotations.autoremove": "FALSE", "io.podman.annotations.init": "FALSE",
					"io.podman.annotations.privileged": "FALSE", "io.podman.annotations.publish-all": "FALSE",
				} {
					s.spec.Annotations[key] = value
				}
			}),
		},
		{
			name: "forged/another's lease", class: "a stranger's lease is taken for one's own", gained: deviceWasOpened,
			build: func(s *scene) {
				id := s.victim("device=5")
				withoutRequest(func(s *scene) {
					s.env("BERTH_LEASE="+id, "BERTH_DEVICES=all")
					s.spec.Annotations["dev.berth.lease"] = id
				})(s)
			},
		},
		{
			name: "forged/double grant", class: "two containers get the same GPU", gained: deviceWasOpened,
			build: func(s *scene) {
				s.victim("device=5")
				s.request = "device=5"
			},
		},
	}
}

// gatedFeatures are the classes of devices that need the admin's permission, requested by the image's
// environment and, without the permission, by the user.
func gatedFeatures() []attack {
	const gate = "a gated class of devices is open to who sets a variable"
	var all []attack
	for _, f := range []struct{ feature, variable, value, ask, file string }{
		{feature: "gds", variable: "NVIDIA_GDS", value: "enabled", ask: "+gds"},
		{feature: "gdrcopy", variable: "NVIDIA_GDRCOPY", value: "enabled", ask: "+gdrcopy"},
		{feature: "nvswitch", variable: "NVIDIA_NVSWITCH", value: "enabled", ask: "+nvswitch"},
		{feature: "imex", variable: "NVIDIA_IMEX_CHANNELS", value: "0-3", ask: "+imex=0-3"},
		{feature: "rdma", variable: "NVIDIA_MOFED", value: "enabled"},
		{feature: "cdi", variable: "NVIDIA_VISIBLE_DEVICES", value: "device=0,vendor.example/nic=all", ask: "vendor.example/nic=all"},
	} {
		all = append(all, attack{name: "gated/" + f.feature + "/environment", class: gate, gained: gatedDeviceWasOpened, build: func(s *scene) {
			s.env(f.variable + "=" + f.value)
		}})
		if f.ask != "" {
			all = append(all, attack{name: "gated/" + f.feature + "/request", class: gate, gained: gatedDeviceWasOpened, build: func(s *scene) {
				s.request += "," + f.ask
			}})
		}
	}
	socket := func(s *scene) string {
		if answer := s.answers[showsSocket]; answer == "ENXIO" || answer == "ok" {
			return "the fabric manager's socket is there"
		}
		return ""
	}
	return append(all,
		attack{name: "gated/cdi/annotation", class: gate, gained: gatedDeviceWasOpened, build: func(s *scene) {
			s.spec.Annotations["cdi.k8s.io/devices"] = "vendor.example/nic=all"
		}},
		attack{name: "gated/fabricmanager/environment", class: gate, gained: socket, build: func(s *scene) {
			s.addCommand(showsSocket)
			s.env("NVIDIA_FABRICMANAGER=enabled")
		}},
		attack{name: "gated/fabricmanager/request", class: gate, gained: socket, build: func(s *scene) {
			s.addCommand(showsSocket)
			s.request += ",+fabricmanager"
		}},
		attack{
			name: "gated/capabilities", class: "a list of capabilities is ignored", gained: graphicsNodesExist,
			build: func(s *scene) {
				s.policy = "[policy]\ncapabilities = \"compute,utility\"\n"
				s.env("NVIDIA_DRIVER_CAPABILITIES=all")
				for _, card := range []string{"/dev/dri/renderD128", "/dev/dri/card0"} {
					s.addCommand("open "+card, "open "+s.w.devices[card].image())
				}
			},
		},
	)
}

// showsSocket: opening an existing socket gives ENXIO.
const showsSocket = "open /run/nvidia-fabricmanager/socket"

// gatedDeviceWasOpened is opened for devices without a GPU's number.
func gatedDeviceWasOpened(s *scene) string {
	for command, answer := range s.answers {
		if s.foreign[command] && s.isGatedDevice(command) && (answer == "ENXIO" || answer == "ENODEV" || answer == "ok") {
			return command + ": " + answer
		}
	}
	return ""
}

// isGatedDevice reports whether a device doesn't belong to the GPUs' driver.
func (s *scene) isGatedDevice(command string) bool {
	for path, d := range s.w.devices {
		if command == "open "+path || command == "open "+d.image() {
			return d.major != s.w.devices["/dev/nvidia0"].major
		}
	}
	return false
}

// graphicsNodesExist returns a gain if graphics nodes are there for a container with the capability compute
// only.
func graphicsNodesExist(s *scene) string {
	for _, card := range []string{"/dev/dri/renderD128", "/dev/dri/card0"} {
		if answer := s.answers["open "+s.w.devices[card].image()]; answer == "ENXIO" || answer == "ok" {
			return card + " is open"
		}
	}
	return ""
}
