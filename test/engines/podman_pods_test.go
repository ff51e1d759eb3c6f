package engines

import (
	"os"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// Pods' containers have GPUs of their own, and the pod's infra container has none.
func TestPodmanPods(t *testing.T) {
	held := func(t *testing.T, p *podmanHost) {
		before := p.print(t)
		create := []string{"pod", "create"}
		if p.cgroup == "v2" { // the host's own root cgroup has processes, and so no controllers for others
			create = append(create, "--share-parent=false")
		}
		pod := p.podman(t, create...)
		p.podman(t, "pod", "start", pod)
		p.waitForHeld(t, map[string]int{})
		a, b, none := p.startContainer(t, "2", "--pod", pod), p.startContainer(t, "1", "--pod", pod), p.startContainer(t, "", "--pod", pod)
		for range 2 {
			p.waitForHeld(t, map[string]int{a: 2, b: 1})
			for _, id := range []string{a, b, none} {
				p.checkLease(t, id)
			}
			p.podman(t, "pod", "restart", pod)
		}
		p.podman(t, "pod", "stop", "--time", "1", pod)
		p.waitForHeld(t, map[string]int{})
		p.podman(t, "pod", "rm", "--force", pod)
		p.waitUntilEnded(t, before)

		if p.name != byHooks.name {
			p.ofPod(t, append(create, p.request("1")...))
			if p.cgroup == "v1" { // the pod's cgroup identifies containers of another program
				p.ofPod(t, append(create, append(p.request("1"), "--infra-image", "localhost/test", "--infra-command", "/wait")...))
			}
			p.waitUntilEnded(t, before)
		}
	}
	podmen(t, []string{"forky/v1"}, []way{byWrapper, byHook, byHooks}, held)
	podmen(t, []string{"forky/v2", "bookworm/v1"}, []way{byWrapper}, held)
}

// ofPod makes the request for a pod, which gives its containers nothing.
func (p *podmanHost) ofPod(t *testing.T, create []string) {
	t.Helper()
	pod := p.podman(t, create...)
	got := p.run(t, p.words("run", "--pod", pod, "test", "/wait")...)
	if got.code == 0 {
		t.Error("a container of a pod that asks for a GPU has started")
	}
	if p.name == byWrapper.name { // crun discards the output of hooks
		p.checkReason(t, got, `\"`+ // podman's own message for it isn't repeated
			"berth: request 1: the device is the pod's, and podman hands it on to none of the pod's containers: give --device to them, and not to the pod")
	}
	p.podman(t, "pod", "rm", "--force", pod)
}

// kube returns the guide's pod for podman kube play, with another annotation and another resource.
func kube(t *testing.T, annotation, limit string) string {
	t.Helper()
	guide, err := os.ReadFile("../../docs/podman.md")
	rig.Must(t, err)
	_, text, ok := strings.Cut(string(guide), "```yaml podman\n")
	text, _, end := strings.Cut(text, "```")
	const name, device = "  name: train\n", "podman.io/device=berth/gpus=2: 1\n"
	if !ok || !end || strings.Count(text, name) != 1 || strings.Count(text, device) != 1 {
		t.Fatal("the guide has no pod")
	}
	return strings.NewReplacer(name, name+"  annotations: {"+annotation+"}\n", device, limit+"\n").Replace(text)
}

// The GPUs of a pod of podman kube play: with an annotation each container gets that many, with
// podman's own resource only the container that has it. podman 4.3 doesn't know this resource, and
// podman doesn't support that of Kubernetes.
func TestPodmanKube(t *testing.T) {
	played := func(t *testing.T, p *podmanHost) {
		before := p.print(t)
		annotated, limited := map[string]int{"train-main": 2, "train-side": 2}, map[string]int{"train-main": 2}
		if p.name == byHook.name {
			annotated = map[string]int{} // berth isn't called
		}
		if p.suite == "bookworm" {
			limited = map[string]int{}
		}
		for _, tt := range []struct {
			name, annotation, limit string
			want                    map[string]int
		}{
			{"annotation", `berth.gpus: "2"`, "vendor.example/none: 1", annotated},
			{"podman's device", "", "podman.io/device=berth/gpus=2: 1", limited},
			{"Kubernetes' resource", "", "nvidia.com/gpu: 1", map[string]int{}},
		} {
			if p.name == byHooks.name && tt.annotation == "" {
				continue // podman's pods have no such hook
			}
			t.Run(tt.name, func(t *testing.T) {
				file := p.dir + "/pod.yaml"
				p.write(t, file, kube(t, tt.annotation, tt.limit))
				p.podman(t, "kube", "play", "--network", "none", file)
				want := map[string]int{}
				for name, gpus := range tt.want {
					want[p.inspect(t, name, "Id")] = gpus
				}
				p.waitForHeld(t, want)
				for id, gpus := range want {
					if own, _ := p.runProbe(t, p.words("exec", id)...); len(own) != gpus {
						t.Errorf("container %s opens %v", id, own)
					}
				}
				p.podman(t, "kube", "down", file)
				p.waitUntilEnded(t, before)
			})
		}
	}
	podmen(t, []string{"forky/v1"}, []way{byWrapper, byHook, byHooks}, played)
	podmen(t, []string{"bookworm/v1"}, []way{byWrapper}, played)
	podmen(t, []string{"forky/v1", "bookworm/v1"}, []way{byWrapper}, func(t *testing.T, p *podmanHost) {
		before := p.print(t)
		file := p.dir + "/pod.yaml"
		p.write(t, file, kube(t, `berth.gpus/main: "2"`, "vendor.example/none: 1"))
		got := p.run(t, p.words("kube", "play", "--network", "none", file)...)
		if text := got.out + got.err; got.code == 0 || !strings.Contains(text, "annotation berth.gpus/main: whether it is for this container can't be told") {
			t.Errorf("exit code %d: %s", got.code, text)
		}
		p.podman(t, "kube", "down", file)
		p.waitUntilEnded(t, before)
	})
}
