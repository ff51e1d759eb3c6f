package engines

import (
	"slices"
	"testing"
)

// If podman is killed while it starts or ends a pod's containers, every lease can be ended by
// podman's own commands, and no GPU is in two containers.
func TestPodmanKubeKilled(t *testing.T) {
	podmen(t, []string{"forky/v1"}, []way{byWrapper}, func(t *testing.T, p *podmanHost) {
		file := p.dir + "/killed.yaml"
		p.write(t, file, kube(t, `berth.gpus: "3"`, "vendor.example/none: 1"))
		for leases := range 3 {
			p.killsAt(t, leases, "podman", p.words("kube", "play", "--network", "none", file)...)
			p.podman(t, "kube", "play", "--replace", "--network", "none", file)
			main, side := p.inspect(t, "train-main", "Id"), p.inspect(t, "train-side", "Id")
			p.waitForHeld(t, map[string]int{main: 3, side: 3})
			for _, id := range []string{main, side} {
				if own, _ := p.runProbe(t, p.words("exec", id)...); !slices.Equal(own, p.heldGPUs(t)[id]) {
					t.Errorf("container %s opens %v, its lease has %v", id, own, p.heldGPUs(t)[id])
				}
			}
			p.killsAt(t, 2-leases, "podman", p.words("kube", "down", file)...)
			p.podman(t, "kube", "down", file)
			p.waitForHeld(t, map[string]int{})
			p.takeGPUs(t, 8)() // podman may have forgotten a container that it created: then state and cgroup stay, with berth or without
		}
	})
}
