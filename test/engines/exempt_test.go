package engines

import (
	"strings"
	"testing"
)

// The guard closes accelerators that a privileged container hasn't leased, unless the container has
// the admin's key: a guess doesn't help, nor do options of the runtime.
func TestExemptedFromTheGuard(t *testing.T) {
	const key = "a-key-that-only-the-admin-knows"
	newest := map[string][]engine{"forky": {docker(), podman(), containerd()}}
	eachOf(t, newest, []string{"berth"}, func(t *testing.T, p place) {
		p.keys(t, key)
		for _, tt := range []struct {
			name, annotation string
			open             int // of the host's 8 GPUs
		}{
			{"no key", "", 0},
			{"another key", "berth.exempt=a-key-that-somebody-made-up-now", 0},
			{"the key", "berth.exempt=" + key, 8},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := p.start(t, containerOptions{options: []string{"--privileged"}, annotation: tt.annotation})
				if got := wholeGPUs(c.reachable()["nodes"]); got != tt.open {
					t.Errorf("it opens %d GPUs", got)
				}
				c.end()
			})
		}
		p.waitForLeases(t, nil, 0)
	})
}

// keys sets a key in the host's configuration until the test ends.
func (h *host) keys(t *testing.T, key string) {
	t.Helper()
	const config = "/etc/berth/config.toml"
	before := h.do(t, "cat", config)
	t.Cleanup(func() { h.write(t, config, before) })
	h.write(t, "/etc/berth/key", key)
	h.do(t, "chmod", "600", "/etc/berth/key")
	h.write(t, config, before+"exempt_key = '/etc/berth/key'\n")
}

// wholeGPUs counts the nodes of GPUs.
func wholeGPUs(names []string) (count int) {
	for _, name := range names {
		if digit, ok := strings.CutPrefix(name, "nvidia"); ok && len(digit) == 1 {
			count++
		}
	}
	return count
}

// Containers of podman without a cgroup would have no device rules. podman makes them with runtimes
// that its configuration allows; berth creates none that could see a GPU.
func TestWithoutCgroup(t *testing.T) {
	newest := map[string][]engine{"forky": {podman()}}
	eachOf(t, newest, []string{"berth"}, func(t *testing.T, p place) {
		const allowed = "/etc/containers/containers.conf.d/nocgroups.conf"
		p.write(t, allowed, "[engine]\nruntime_supports_nocgroup = ['berth']\n[engine.runtimes]\nberth = ['"+program("berth")+"']\n")
		byName := []string{"--runtime", "berth"}
		t.Cleanup(func() { p.do(t, "rm", allowed) })
		for _, w := range []containerOptions{
			{global: byName, devices: []string{"berth/gpus=1"}, options: []string{"--cgroups=disabled"}},
			{global: byName, options: []string{"--cgroups=disabled", "--privileged"}},
		} {
			if text := p.wantRefused(t, w); !strings.Contains(text, "no cgroup, and so no device rules") {
				t.Errorf("%v: podman says %s", w.options, text)
			}
		}
		p.waitForLeases(t, nil, 0)
	})
}
