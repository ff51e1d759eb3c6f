package engines

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// podmanHost is a host with a podman, and the way in which its containers get GPUs.
type podmanHost struct {
	server
	way
}

// way is a way in which podman's containers get GPUs.
type way struct {
	name string
	// global are podman's arguments before its verb.
	global []string
	// request returns the arguments of a container's request.
	request    func(gpus string) []string
	entryPoint string
	// lingers is set if the lease of an ended container is listed as ended until the next request.
	lingers bool
}

func deviceOf(gpus string) []string { return []string{"--device", "berth/gpus=" + gpus} }

func annotationOf(gpus string) []string { return []string{"--annotation", "berth.gpus=" + gpus} }

// The ways of using podman with berth.
var (
	byWrapper = way{"wrapper", []string{"--runtime", "berth"}, deviceOf, "podman", false}
	byHook    = way{"hook", []string{"--runtime", "crun"}, deviceOf, "hook", true}
	byHooks   = way{"precreate", []string{"--runtime", "runc"}, annotationOf, "podman", false}
)

// conf is the admin's configuration of podman: berth's runtime by its name. The rest is for
// machines whose limits are below podman's defaults.
const conf = `[containers]
pids_limit = 0
default_ulimits = ["nofile=256:256", "nproc=256:256"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime_supports_json = ["crun", "runc", "berth"]
[engine.runtimes]
berth = [%q]
`

// hooked is the admin's configuration for hooks: a restart by podman's policy passes no flags.
const hooked = "[engine]\nhooks_dir = [%q]\n"

// podmen runs a test with the podman of places, "forky/v2", in ways of using it.
func podmen(t *testing.T, places []string, ways []way, f func(*testing.T, *podmanHost)) {
	t.Helper()
	skipUnlessWanted(t)
	for _, place := range places {
		suite, cgroup, _ := strings.Cut(place, "/")
		for _, w := range ways {
			t.Run(place+"/"+w.name, func(t *testing.T) {
				p := &podmanHost{server{startFor(t, "-podman", suite, cgroup)}, w}
				p.once("podman", func() { p.install(t) })
				t.Cleanup(func() { p.removeAll(t) })
				f(t, p)
			})
		}
	}
}

// install configures podman, and gives it the image.
func (p *podmanHost) install(t *testing.T) {
	t.Helper()
	text := fmt.Sprintf(conf, program("berth"))
	p.write(t, p.dir+"/containers.conf", text)
	p.write(t, p.dir+"/"+byHooks.name+".conf", strings.Replace(text, "[engine]\n", fmt.Sprintf(hooked, packagedHooks(t, p.host)), 1))
	p.do(t, "sh", "-c", `tar -C "$0" -cf /tmp/image.tar .`, image)
	p.podman(t, "import", "--quiet", "/tmp/image.tar", "localhost/test")
	for _, runtime := range []string{"runc", "crun"} { // they and podman make some directories at the first use
		p.podman(t, "--runtime", runtime, "run", "--rm", "test", "/probe")
	}
}

// words returns podman's arguments.
func (p *podmanHost) words(words ...string) []string {
	file := "containers.conf"
	if p.name == byHooks.name {
		file = p.name + ".conf"
	}
	all := []string{"env", "CONTAINERS_CONF=" + filepath.Join(p.dir, file), "PODMAN_IGNORE_CGROUPSV1_WARNING=1", "podman"}
	return append(append(all, p.global...), words...)
}

// print returns the host's footprint without podman's own: a cgroup of each pod on v1, its
// service's, and the mount of its storage, which comes and goes.
func (p *podmanHost) print(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(p.footprint(t), func(line string) bool {
		return strings.HasPrefix(line, "/sys/fs/cgroup/systemd/libpod_parent/") || line == "/sys/fs/cgroup/init" ||
			strings.HasSuffix(line, " /var/lib/containers/storage/overlay")
	})
}

// podman runs podman, and returns its output.
func (p *podmanHost) podman(t *testing.T, words ...string) string {
	t.Helper()
	return strings.TrimSpace(p.do(t, p.words(words...)...))
}

// startContainer runs a container in the background and returns its id.
func (p *podmanHost) startContainer(t *testing.T, gpus string, more ...string) string {
	t.Helper()
	words := append([]string{"run", "--detach", "--volume", "/dev:/nodes:dev"}, more...)
	if gpus != "" {
		words = append(words, p.request(gpus)...)
	}
	return p.podman(t, append(words, "test", "/wait")...)
}

func (p *podmanHost) inspect(t *testing.T, id, field string) string {
	t.Helper()
	return p.podman(t, "inspect", "--format", "{{."+field+"}}", id)
}

// checkLease checks that a later process in a container opens exactly the devices of its lease, and
// returns them.
func (p *podmanHost) checkLease(t *testing.T, id string) []string {
	t.Helper()
	own, all := p.runProbe(t, p.words("exec", id)...)
	held := p.heldGPUs(t)[id]
	if !slices.Equal(own, held) || !slices.Equal(all, held) {
		t.Errorf("container %s has %v in /dev and opens %v, its lease has %v; %s", id, own, all, held, p.deviceRules(t, id))
	}
	return held
}

// deviceRules describes a container's device rules as the host has them, and what its processes can open now.
func (p *podmanHost) deviceRules(t *testing.T, id string) string {
	t.Helper()
	_, all := p.runProbe(t, p.words("exec", id)...)
	pid := p.podman(t, "inspect", "--format", "{{.State.Pid}}", id)
	return fmt.Sprintf("looking again it opens %v; its init is in\n%s", all, p.do(t, "sh", "-c",
		`cat "/proc/$0/cgroup"; at=$(sed -n 's/^[0-9]*:devices://p' "/proc/$0/cgroup"); cat "/sys/fs/cgroup/devices$at/devices.list" 2>&1; find /sys/fs/cgroup -path '*libpod_parent*' -name cgroup.procs -exec grep -H . {} +`, pid))
}

// removeAll removes all containers and pods.
func (p *podmanHost) removeAll(t *testing.T) {
	t.Helper()
	p.podman(t, "rm", "--all", "--force", "--time", "1")
	p.podman(t, "pod", "rm", "--all", "--force", "--time", "1")
}

// waitUntilEnded waits until the host is as before, with every GPU free.
func (p *podmanHost) waitUntilEnded(t *testing.T, before []string) {
	t.Helper()
	p.waitForHeld(t, map[string]int{})
	eventually(t, func() string {
		if left := p.leases(t); len(left) > 0 && !p.lingers {
			return fmt.Sprintf("leases are left: %+v", left)
		}
		return diffOf("left on the host (-before +after):\n", before, p.print(t))
	})
}

// A lease has the lifetime of its container, whatever podman does with it.
func TestPodmanLife(t *testing.T) {
	life := func(t *testing.T, p *podmanHost) {
		before := p.print(t)
		id := p.podman(t, append(append([]string{"create", "--volume", "/dev:/nodes:dev"}, p.request("2")...), "test", "/wait")...)
		p.waitForHeld(t, map[string]int{}) // a container that was never started holds nothing
		p.podman(t, "start", id)
		p.waitForHeld(t, map[string]int{id: 2})
		if got := p.live(t)[0].Owner.EntryPoint; got != p.entryPoint {
			t.Errorf("the lease came by the entry point %s, not %s", got, p.entryPoint)
		}
		p.checkLease(t, id)
		p.podman(t, "pause", id)
		p.waitForHeld(t, map[string]int{id: 2})
		p.podman(t, "unpause", id)

		other := p.startContainer(t, "6")
		p.podman(t, "restart", "--time", "1", id)
		p.waitForHeld(t, map[string]int{id: 2, other: 6})
		p.checkLease(t, id)
		p.podman(t, "stop", "--time", "1", id)
		p.waitForHeld(t, map[string]int{other: 6})
		p.podman(t, "start", id)
		p.podman(t, "kill", other)
		p.waitForHeld(t, map[string]int{id: 2})
		p.podman(t, "start", other)
		p.waitForHeld(t, map[string]int{id: 2, other: 6})
		p.checkLease(t, other)
		p.podman(t, "rm", "--force", "--time", "1", id, other)
		p.waitUntilEnded(t, before)
	}
	podmen(t, []string{"forky/v2"}, []way{byWrapper, byHook, byHooks}, life)
	podmen(t, []string{"bookworm/v1"}, []way{byWrapper, byHooks}, life)
}

// If conmon and podman are killed, or a container crashes, only the container's processes decide
// about the lease.
func TestPodmanDeaths(t *testing.T) {
	podmen(t, []string{"forky/v2", "bookworm/v1"}, []way{byWrapper, byHooks}, func(t *testing.T, p *podmanHost) {
		before := p.print(t)
		id := p.startContainer(t, "3")
		init := p.inspect(t, id, "State.Pid")
		p.kill(t, p.inspect(t, id, "State.ConmonPid"))
		p.waitForHeld(t, map[string]int{id: 3}) // it runs without conmon
		p.kill(t, init)
		p.waitForHeld(t, map[string]int{})
		p.podman(t, "rm", "--force", "--time", "1", id)
		id = p.startContainer(t, "8", "--restart", "always")
		first := p.live(t)[0].ID
		p.kill(t, p.inspect(t, id, "State.Pid"))
		eventually(t, func() string { // podman has started it again, with a lease of its own
			if live := p.live(t); len(live) != 1 || live[0].ID == first {
				return fmt.Sprintf("leases after a crash: %+v", live)
			}
			return ""
		})
		p.checkLease(t, id)
		p.podman(t, "rm", "--force", "--time", "1", id)
		p.waitForHeld(t, map[string]int{})
		if p.suite != "bookworm" { // with berth or without, podman 4.3 doesn't delete a container without conmon
			p.waitUntilEnded(t, before)
		}
	})
}

// checkReason checks that one line of a command's output has the reason.
func (p *podmanHost) checkReason(t *testing.T, got said, reason string) {
	t.Helper()
	if n := strings.Count(got.out+got.err, reason); n != 1 {
		t.Errorf("%q is there %d times in:\n%s%s", reason, n, got.out, got.err)
	}
}
