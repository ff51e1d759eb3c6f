package engines

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// ruleBypass is an option by which an engine's user, root inside, may try to get around the device
// rules. missing names the options that an engine lacks.
type ruleBypass struct {
	name                       string
	docker, podman, containerd []string
}

func ruleBypasses() []ruleBypass {
	// docker and podman have the same option.
	both := func(name string, options ...string) ruleBypass { return ruleBypass{name, options, options, nil} }
	every := func(name string, options ...string) ruleBypass { return ruleBypass{name, options, options, options} }
	const dev = "type=bind,src=/dev,dst=/dev,options=rbind:rw"
	return []ruleBypass{
		every("nothing"),
		every("privileged", "--privileged"),
		{"the host's devices", []string{"--volume", "/dev:/dev"}, []string{"--volume", "/dev:/dev:dev"}, []string{"--mount", dev}},
		every("a node", "--device", "/dev/nvidia3"),
		both("a node by another name", "--device", "/dev/nvidia3:/dev/innocent"),
		{
			"a node's bind",
			[]string{"--volume", "/dev/nvidia3:/dev/innocent"},
			[]string{"--volume", "/dev/nvidia3:/dev/innocent:dev"},
			[]string{"--mount", "type=bind,src=/dev/nvidia3,dst=/dev/innocent,options=rbind:rw"},
		},
		both("every capability", "--cap-add", "ALL"),
		every("SYS_ADMIN and MKNOD", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_MKNOD"),
		both("no filter of system calls", "--security-opt", "seccomp=unconfined", "--cap-add", "SYS_ADMIN"),
		both("device rules", "--device-cgroup-rule", "c 195:* rwm", "--device-cgroup-rule", "c 195:3 rw"),
		both("every device's rules", "--device-cgroup-rule", "a *:* rwm"),
		both("the host's processes", "--pid", "host"),
		both("the host's cgroups", "--cgroupns", "host"),
		both("the host's users", "--userns", "host"),
		{"users of its own", nil, []string{"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"}, nil},
		{"users that podman chooses", nil, []string{"--userns", "auto"}, nil},
		{
			"all at once",
			[]string{"--privileged", "--pid", "host", "--cgroupns", "host", "--userns", "host", "--volume", "/dev:/dev"},
			[]string{"--privileged", "--pid", "host", "--cgroupns", "host", "--userns", "host", "--volume", "/dev:/dev:dev"},
			[]string{"--privileged", "--mount", dev},
		},
	}
}

func (c ruleBypass) options(engine string) (options []string, ok bool) {
	options = map[string][]string{"docker": c.docker, "podman": c.podman, "containerd": c.containerd}[engine]
	return options, options != nil || c.name == "nothing"
}

// With any options of the user, a container opens the GPU that it has leased and no other
// accelerator, and none without a request. berth becomes either runtime.
func TestDeviceRules(t *testing.T) {
	eachOf(t, everyEngine(), []string{"berth"}, func(t *testing.T, p place) {
		p.users(t)
		defer server{p.host}.setRuntime(t, "runc")
		switch {
		case p.name == "podman" && p.cgroup == "v1": // for v2 crun 1.8 needs CAP_SYS_RESOURCE
			server{p.host}.setRuntime(t, "crun")
		case p.name == "docker":
			server{p.host}.setRuntime(t, lesser)
		}
		for _, c := range ruleBypasses() {
			options, ok := c.options(p.name)
			if !ok {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				without := p.start(t, containerOptions{options: options})
				with := p.start(t, p.requestGPUs("1", containerOptions{options: options}))
				if got := with.openedAccelerators(); len(got) != 1 {
					t.Errorf("with one GPU leased it opens %v", got)
				}
				if got := with.ask("open /usr/local/nvidia/lib64/libcuda.so.1")[0]; got != "ok EROFS EROFS" && got != "ok EACCES EACCES" {
					t.Errorf("libcuda.so.1: %s", got)
				}
				if got := without.openedAccelerators(); len(got) != 0 {
					t.Errorf("without a lease it opens %v", got)
				}
				with.end()
				without.end()
			})
		}
		p.waitForLeases(t, nil, 0)
	})
}

func everyEngine() map[string][]engine {
	all := []engine{docker(), podman(), containerd()}
	return map[string][]engine{"forky": all, "bookworm": all}
}

// requestGPUs makes a container request GPUs in the way that its engine supports.
func (p place) requestGPUs(gpus string, w containerOptions) containerOptions {
	switch {
	case p.suite != "bookworm" || p.name == "podman":
		w.devices = append(slices.Clone(w.devices), "berth/gpus="+gpus)
	case p.name == "docker":
		w.options = append(slices.Clone(w.options), "--gpus", gpus)
	default:
		w.annotation = "berth.gpus=" + gpus
	}
	return w
}

// Control of the experiment: without berth, a runtime allows all of this.
func TestWithoutDeviceRules(t *testing.T) {
	eachOf(t, everyEngine(), []string{"runc"}, func(t *testing.T, p place) {
		if p.name == "docker" {
			p.runtime = "lesser"
		}
		c := p.start(t, containerOptions{options: []string{"--privileged"}})
		if open := c.reachable(); len(open["nodes"]) < 40 || len(open["dev"]) < 40 || len(open["mknod"]) < 40 {
			t.Errorf("plain runc opens only %d, %d, %d", len(open["nodes"]), len(open["dev"]), len(open["mknod"]))
		}
		c.end()
	})
}

// An update of a running container's limits doesn't change its device rules.
func TestDeviceRulesAfterUpdate(t *testing.T) {
	both := map[string][]engine{"forky": {docker(), podman()}}
	eachOf(t, both, []string{"berth"}, func(t *testing.T, p place) {
		for _, options := range [][]string{nil, {"--privileged"}} {
			c := p.start(t, containerOptions{options: options, devices: []string{"berth/gpus=1"}})
			before := c.openedAccelerators()
			words := []string{"docker"}
			if p.name == "podman" {
				words = []string{"podman", "--cgroup-manager", "cgroupfs", "--runtime", program(p.runtime)}
			}
			id := strings.TrimSpace(p.do(t, append(slices.Clone(words), "ps", "--quiet")...))
			got := p.run(t, append(slices.Clone(words), "update", "--memory", "512m", "--memory-swap", "1g", id)...)
			if got.code != 0 && p.cgroup == "v1" { // version 2 has no controllers on some machines
				t.Errorf("update: %s%s", got.out, got.err)
			}
			if after := c.openedAccelerators(); len(after) != 1 || !slices.Equal(before, after) {
				t.Errorf("it opens %v, and after the update %v", before, after)
			}
			c.end()
		}
		p.waitForLeases(t, nil, 0)
	})
}

// own are the nodes that come with every GPU.
func own() []string {
	return []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}
}

// openedAccelerators returns the accelerators that the container opens, except those that come with every GPU:
// they are open if and only if the container has one.
func (c *container) openedAccelerators() (gpus []string) {
	c.t.Helper()
	open := c.reachable()
	all := slices.Concat(open["nodes"], open["dev"], open["mknod"])
	slices.Sort(all)
	all = slices.Compact(all)
	for _, name := range all {
		if !slices.Contains(own(), name) && !strings.HasPrefix(name, "dri/") {
			gpus = append(gpus, name)
		}
	}
	if len(gpus) == 0 && len(all) > 0 {
		c.t.Errorf("without a GPU it opens %v", all)
	}
	if len(gpus) > 0 && !slices.Contains(open["dev"], "nvidiactl") {
		c.t.Errorf("its own /dev has %v", open["dev"])
	}
	return gpus
}

// reachable lists the accelerators of the host that the container opens: by the host's
// nodes, by what is in its own /dev, and by nodes that it makes.
func (c *container) reachable() map[string][]string {
	c.t.Helper()
	byNumber, open := map[string]string{}, map[string][]string{}
	for path, number := range c.devices("/nodes") {
		name := strings.TrimPrefix(path, "/nodes/")
		for _, prefix := range []string{"nvidia", "dri/", "gdrdrv", "infiniband/uverbs", "infiniband/umad"} {
			if strings.HasPrefix(name, prefix) {
				byNumber[number] = name
			}
		}
	}
	if len(byNumber) < 40 {
		c.t.Fatalf("only %d accelerators: %v", len(byNumber), byNumber)
	}
	try := func(way, path, name string) {
		for _, answer := range strings.Fields(c.ask("open " + path)[0]) {
			if !slices.Contains([]string{"EPERM", "EACCES", "ENOENT"}, answer) {
				open[way] = append(open[way], name)
				return
			}
		}
	}
	for _, dir := range []string{"/nodes", "/dev"} {
		for path, number := range c.devices(dir) {
			if name := byNumber[number]; name != "" {
				try(strings.TrimPrefix(dir, "/"), path, name)
			}
		}
	}
	for _, number := range slices.Sorted(maps.Keys(byNumber)) {
		try("dev", "/dev/"+byNumber[number], byNumber[number])
		made := "/tmp/" + strings.ReplaceAll(number, ":", "-")
		if c.ask("mknod " + made + " " + strings.ReplaceAll(number, ":", " "))[0] == "unknown command" {
			c.t.Fatal("the probe makes no nodes")
		}
		try("mknod", made, byNumber[number])
	}
	return open
}

// devices returns the devices of a directory by path, with their numbers.
func (c *container) devices(dir string) map[string]string {
	c.t.Helper()
	all := map[string]string{}
	for _, line := range c.ask("tree " + dir) {
		if f := strings.Fields(line); len(f) == 4 && strings.HasPrefix(f[1], "20") { // a character device's mode
			all[f[0]] = f[3]
		}
	}
	return all
}

// users allows user namespaces to the host's containers. In a user namespace the kernel allows a
// mount of /proc or /sys only where a complete one is visible, and simulated devices hide a part of
// those at the usual places.
func (h *host) users(t *testing.T) {
	t.Helper()
	h.once("users", func() {
		const make = `echo containers:x:1500:1500::/:/bin/false >>/etc/passwd; echo containers:x:1500: >>/etc/group
for file in subuid subgid; do echo containers:200000:655360 >>/etc/$file; done
mkdir -p /run/all/proc /run/all/sys; busybox mount -t proc proc /run/all/proc; busybox mount -t sysfs sysfs /run/all/sys`
		h.do(t, "sh", "-ec", make)
	})
}
