package escape

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// deviceRuleAttacks are attacks on the device rules.
func deviceRuleAttacks() []attack {
	const (
		guard  = "an accelerator comes in by the engine's own options"
		admin  = "a container with CAP_SYS_ADMIN takes its own rules away"
		update = "rules changed in a living container"
	)
	return []attack{
		{name: "rules/mknod", class: "CVE-2021-1056: nodes made inside open other GPUs", gained: deviceWasOpened, build: func(s *scene) {
			s.setCommands()
			for path, d := range s.w.devices {
				if d.own {
					continue
				}
				made := fmt.Sprintf("/tmp/%s", strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "-"))
				s.addCommand(fmt.Sprintf("mknod %s %d %d", made, d.major, d.minor), "open "+made)
				s.foreign["open "+made] = true
			}
		}},
		{name: "rules/image's nodes", class: "CVE-2021-1056: nodes in the image open other GPUs", gained: deviceWasOpened, build: func(*scene) {}},
		{name: "rules/everything allowed", class: guard, gained: deviceWasOpened, build: func(s *scene) {
			s.spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		}},
		{name: "rules/everything allowed, nothing asked", class: guard, gained: deviceWasOpened, build: withoutRequest(func(s *scene) {
			s.spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		})},
		{name: "rules/whole majors", class: guard, gained: deviceWasOpened, build: func(s *scene) {
			for _, d := range s.w.devices {
				major := int64(d.major)
				s.spec.Linux.Resources.Devices = append(s.spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Access: "rw"})
			}
		}},
		{name: "rules/other name", class: guard, gained: deviceWasOpened, build: func(s *scene) {
			d := s.w.devices["/dev/nvidia3"]
			major, minor := int64(d.major), int64(d.minor)
			s.spec.Linux.Devices = append(s.spec.Linux.Devices, specs.LinuxDevice{Path: "/dev/innocent", Type: "u", Major: major, Minor: minor})
			s.spec.Linux.Resources.Devices = append(s.spec.Linux.Resources.Devices,
				specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
			s.addCommand("open /dev/innocent")
			s.foreign["open /dev/innocent"] = true
		}},
		{name: "rules/bind of dev", class: guard, gained: deviceWasOpened, build: func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{Destination: "/hostdev", Type: "bind", Source: "/dev", Options: []string{"rbind"}})
			s.spec.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
			for path, d := range s.w.devices {
				if !d.own {
					s.addCommand("open /hostdev/" + filepath.Base(path))
					s.foreign["open /hostdev/"+filepath.Base(path)] = true
				}
			}
		}},
		{
			name: "rules/odd number", class: "rules that berth and a runtime read differently", gained: gatedDeviceWasOpened,
			not: map[string]string{
				"runc":    "runc reads numbers as berth does",
				"crun v1": "the kernel refuses the number",
			},
			build: func(s *scene) {
				major := int64(s.w.devices["/dev/nvidia-caps/nvidia-cap1"].major) + 1<<32
				s.spec.Linux.Resources.Devices = append(s.spec.Linux.Resources.Devices,
					specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Access: "rwm"})
			},
		},
		{
			name: "rules/others in proc", class: "the driver's state shows other tenants' GPUs", gained: procFileWasRead,
			not:   map[string]string{"naive runc": "runc makes no mounts below /proc, and so the naive injector none"},
			build: func(s *scene) { s.addCommand("cat " + procOf(s, 3)) },
		},
		{name: "rules/detach", class: admin, gained: deviceWasOpened, not: map[string]string{
			"hook": "it works: the container's cgroup is there before the hook, and none of berth's around it (docs/security.md)",
		}, build: func(s *scene) {
			s.administrator("CAP_SYS_ADMIN")
			s.commands = append([]string{"breakout " + s.w.cgroup}, s.commands...)
		}},
		{name: "rules/leave", class: admin, gained: deviceWasOpened, not: map[string]string{
			"hook":          "it works: the container has its namespaces before the hook (docs/security.md)",
			"containerd v2": "its client has no word for the host's cgroup namespace, and gives another",
		}, build: func(s *scene) {
			s.administrator("CAP_SYS_ADMIN")
			s.spec.Linux.Namespaces = slices.DeleteFunc(s.spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace })
			s.commands = append([]string{"leave " + s.w.cgroup}, s.commands...)
		}},
		{
			name: "rules/update", class: update, gained: deviceWasOpened,
			not: map[string]string{
				"runc": "runc update doesn't take device rules",
				"hook": "the runtime itself is called, and berth isn't there to ask",
			},
			build: func(s *scene) { s.between = s.openByUpdate },
		},
		{
			name: "rules/exec", class: "an engine's exec brings CAP_SYS_ADMIN into a container that was made without", gained: deviceWasOpened,
			not: map[string]string{
				"hook":   "the runtime itself is called, and berth isn't there to ask",
				"engine": "its exec --privileged is the runtime's exec with a file, which hook/wrapper tests",
			},
			build: func(s *scene) { s.between = s.breakOutByExec },
		},
		{
			name: "rules/other name of CAP_SYS_ADMIN", class: "a capability that berth and a runtime read differently", gained: deviceWasOpened,
			not: map[string]string{
				"runc":   "runc knows capabilities by their exact names alone",
				"docker": "it checks the names of capabilities",
				"podman": "it checks the names of capabilities",
			},
			build: func(s *scene) {
				s.administrator("CAP_SYS_ADMIN x")
				s.commands = append([]string{"breakout " + s.w.cgroup}, s.commands...)
			},
		},
		{name: "rules/same cgroup", class: "another container joins the cgroup, and brings its device rules", gained: deviceWasOpened, not: map[string]string{
			"hook crun": "crun ends all of the cgroup with the container that a hook refuses",
			"engine":    "its options name no cgroup, only the one above",
		}, build: func(s *scene) {
			s.between = func() {
				v := newScene(s.t, s.w, s.entryPoint)
				v.request = "device=5"
				v.spec.Linux.CgroupsPath = s.spec.Linux.CgroupsPath
				v.between = func() {}
				v.putRequest()
				v.store()
				v.said = v.start("create")
				s.t.Cleanup(v.end)
				s.said.Err += fmt.Sprintf("the other: exit code %d: %s", v.said.Code, v.said.Err)
			}
		}},
		{
			name: "rules/update, nothing asked", class: update, gained: deviceWasOpened,
			not: map[string]string{
				"runc": "runc update doesn't take device rules",
				"hook": "the runtime itself is called, and berth isn't there to ask",
			},
			build: withoutRequest(func(s *scene) { s.between = s.openByUpdate }),
		},
	}
}

// administrator gives the container CAP_SYS_ADMIN, by a name that its runtime takes for that.
func (s *scene) administrator(name string) {
	c := s.spec.Process.Capabilities
	for _, set := range []*[]string{&c.Bounding, &c.Permitted, &c.Effective} {
		*set = append(slices.Clone(*set), name)
	}
}

// procOf returns the path of the driver's file about the GPU with this minor.
func procOf(s *scene, minor int) string {
	const dir = "/proc/driver/nvidia/gpus"
	files, err := filepath.Glob(s.w.Path(dir) + "/*/information")
	s.runCommand(err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		s.runCommand(err)
		if strings.Contains(string(data), fmt.Sprintf("Device Minor: \t %d\n", minor)) {
			return filepath.Join(dir, filepath.Base(filepath.Dir(file)), "information")
		}
	}
	s.t.Fatalf("no GPU has minor %d: %v", minor, files)
	return ""
}

// procFileWasRead returns a gain if the driver's file about another GPU can be read.
func procFileWasRead(s *scene) string {
	for command, answer := range s.answers {
		if strings.HasPrefix(command, "cat /proc/driver/nvidia/gpus/") && strings.Contains(answer, "Model") {
			return command + " says something"
		}
	}
	return ""
}

// openByUpdate changes the container's device rules to "allow all" by update.
func (s *scene) openByUpdate() {
	file := filepath.Join(s.t.TempDir(), "resources")
	s.runCommand(os.WriteFile(file, []byte(`{"devices":[{"allow":true,"access":"rwm"}]}`), 0o600))
	said := s.act("update", "--resources", file)
	s.said.Err += fmt.Sprintf("update: exit code %d: %s", said.Code, said.Err)
}

// breakOutByExec runs a process with CAP_SYS_ADMIN in the container, which lifts the container's
// device rules.
func (s *scene) breakOutByExec() {
	s.t.Helper()
	words := append(s.program(), "exec", "--cap", "CAP_SYS_ADMIN", s.id, "/probe")
	cmd := s.w.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), "BERTH_CONFIG="+s.config())
	cmd.Stdin = strings.NewReader("breakout " + s.w.cgroup + "\nend\n")
	said := s.w.Run(s.t, cmd)
	s.said.Err += fmt.Sprintf("exec: exit code %d: %s%s", said.Code, said.Out, said.Err)
}

// victim starts another container, which runs during the attack and holds the devices. The attacker
// knows its lease's id.
func (s *scene) victim(request string) (lease string) { return s.victimOf(s.entryPoint, request) }

func (s *scene) victimOf(entryPoint, request string) (lease string) {
	s.t.Helper()
	v := newScene(s.t, s.w, entryPoint)
	s.lastVictim = v.id
	v.request = request
	v.setCommands("open /dev/nvidia5")
	v.foreign = map[string]bool{}
	if s.w.engine != nil {
		if _, why := v.options(); why != "" && entryPoint != "wrapper" { // the engine's client can't ask for devices there
			return s.victimOf("wrapper", request)
		}
		return v.holdDevices()
	}
	v.between = func() {}
	v.putRequest()
	v.store()
	if v.said = v.start("create"); v.said.Code != 0 {
		s.t.Fatalf("the victim doesn't start: %s", v)
	}
	s.t.Cleanup(v.end)
	for _, l := range s.w.Leases(s.t) {
		if l.Live && l.Owner.Container == v.id {
			return l.ID
		}
	}
	if entryPoint != "naive" {
		s.t.Fatal("the victim has no lease")
	}
	return "aaaaaaaaaaaa"
}
