package engines

import (
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// podman's own --gpus names a device of NVIDIA's: --gpus 2 is the GPU of index 2.
func TestPodmanGpus(t *testing.T) {
	podmen(t, []string{"forky/v2", "bookworm/v1"}, []way{byWrapper}, func(t *testing.T, p *podmanHost) {
		for _, tt := range []struct {
			gpus string
			want []string
		}{
			{"2", []string{"nvidia2"}},
			{"all", []string{"nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia4", "nvidia5", "nvidia6", "nvidia7"}},
		} {
			if p.suite == "bookworm" {
				tt.want = nil // podman 4.3 takes the flag and does nothing
			}
			id := p.startContainer(t, "", "--gpus", tt.gpus)
			if diff := cmp.Diff(tt.want, p.checkLease(t, id)); diff != "" {
				t.Errorf("--gpus %s (-want +got):\n%s", tt.gpus, diff)
			}
			p.podman(t, "rm", "--force", "--time", "1", id)
		}
	})
}

// Containers that podman's service makes for clients hold their leases like others.
func TestPodmanService(t *testing.T) {
	podmen(t, []string{"forky/v2"}, []way{byWrapper, byHooks}, func(t *testing.T, p *podmanHost) {
		const socket = "unix:///run/podman-test.sock"
		p.startDaemon(t, p.words("system", "service", "--time", "0", socket)...)
		client := &podmanHost{p.server, way{name: p.name, global: []string{"--url", socket}, request: p.request, lingers: p.lingers}}
		p.until(t, client.words("version")...)
		before := p.print(t)
		id := client.startContainer(t, "8")
		p.waitForHeld(t, map[string]int{id: 8})
		words := append(append([]string{"run", "--detach"}, p.request("1")...), "test", "/wait")
		if got := p.run(t, client.words(words...)...); got.code == 0 {
			t.Error("nothing was free, and a container has started")
		}
		p.waitForHeld(t, map[string]int{id: 8})
		client.podman(t, "rm", "--force", "--time", "1", id)
		p.killDaemon(t, "env")
		p.removeAll(t)
		p.waitUntilEnded(t, before)
	})
}

// Rootless podman can't lease devices, because ledger and device rules are root's. It says so, and
// its other containers run.
func TestPodmanRootless(t *testing.T) {
	podmen(t, []string{"forky/v2", "bookworm/v1"}, []way{byWrapper}, func(t *testing.T, p *podmanHost) {
		before := p.print(t)
		rootless := p.user(t)
		if got := p.askProbe(t, []string{"open /dev/null"}, rootless("berth", "")...); got[0] != "ok ok ok" {
			t.Errorf("a container that asks for nothing: /dev/null: %s", got)
		}
		if got := p.askProbe(t, []string{"open /dev/nvidia0"}, rootless("berth", "--device=/dev/nvidia0")...); got[0] != "ENOENT ENOENT ENOENT" {
			t.Errorf("a GPU that isn't leased: %s", got)
		}
		for _, runtime := range []string{"berth", "runc"} {
			got := p.run(t, rootless(runtime, "--device=berth/gpus=1")...)
			if got.code != 126 {
				t.Errorf("under %s: exit code %d", runtime, got.code)
			}
			p.checkReason(t, got, "this engine is a user's own (rootless): only root can lease devices: start the container by root's engine (sudo)")
		}
		p.waitUntilEnded(t, before)
	})
}

// user makes a user with podman, and returns the command that runs a container of the user's. The
// container shares the host's namespaces where a user can't mount the file systems of new ones:
// some files of a simulated server's are mounts themselves.
func (p *podmanHost) user(t *testing.T) (words func(runtime, option string) []string) {
	t.Helper()
	rig.Must(t, os.Chmod(shared.Dir, 0o711))
	p.do(t, "sh", "-c", `grep -q ^joe: /etc/passwd || {
		echo joe:x:1500:1500::/home/joe:/bin/sh >>/etc/passwd; echo joe:x:1500: >>/etc/group
		mkdir -p /home/joe /run/user/1500; chown 1500:1500 /home/joe /run/user/1500; touch /etc/subuid /etc/subgid
	}`)
	own := []string{
		"setpriv", "--reuid", "1500", "--regid", "1500", "--clear-groups",
		"env", "HOME=/home/joe", "XDG_RUNTIME_DIR=/run/user/1500", "CONTAINERS_CONF=" + p.dir + "/containers.conf", "podman", "--storage-driver", "vfs",
	}
	p.do(t, append(own, "import", "--quiet", "/tmp/image.tar", "localhost/test")...)
	return func(runtime, option string) []string {
		words := append(slices.Clone(own), "--runtime", runtime, "run", "--rm", "--interactive", "--network", "host", "--pid", "host")
		if option != "" {
			words = append(words, option)
		}
		return append(words, "test", "/probe")
	}
}
