package engines

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var criCases = []struct {
	name    string
	devices bool // needs CDI
	run     func(*testing.T, *kubelet)
}{
	{"pod's annotation", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", map[string]string{"berth.gpus": "2"})
		if got := k.leases(t); len(got) > 0 {
			t.Errorf("the sandbox has %+v", got)
		}
		// Each container of the pod requests the same.
		a, b := k.startContainer(t, p, nil), k.startContainer(t, p, nil)
		k.waitForHeld(t, map[string]int{a: 2, b: 2})
		k.checkLease(t, a)
		k.checkLease(t, b)
		k.call(t, "StopContainer", object{"container_id": a, "timeout": 5})
		k.waitForHeld(t, map[string]int{b: 2})
		k.checkLease(t, b)
		k.call(t, "StopPodSandbox", object{"pod_sandbox_id": p.id})
		k.waitForHeld(t, map[string]int{})
	}},
	{"pod's annotation for one container", false, func(t *testing.T, k *kubelet) {
		named := func(name string) object { return object{"metadata": object{"name": name}} }
		p := k.pod(t, "berth", "default", map[string]string{"berth.gpus/train": "2"})
		train, side := k.startContainer(t, p, named("train")), k.startContainer(t, p, named("side"))
		k.waitForHeld(t, map[string]int{train: 2})
		k.checkLease(t, train)
		k.checkLease(t, side)
		k.removePods(t)
		// The container's own request has precedence over the pod's.
		p = k.pod(t, "berth", "default", map[string]string{"berth.gpus/train": "3", "berth.gpus/none": "0", "berth.gpus": "1"})
		train, side, none := k.startContainer(t, p, named("train")), k.startContainer(t, p, named("side")), k.startContainer(t, p, named("none"))
		k.waitForHeld(t, map[string]int{train: 3, side: 1})
		for _, id := range []string{train, side, none} {
			k.checkLease(t, id)
		}
		k.call(t, "StopPodSandbox", object{"pod_sandbox_id": p.id})
		k.waitForHeld(t, map[string]int{})
	}},
	{"the guide", false, func(t *testing.T, k *kubelet) {
		p, gpus, container := k.podOfGuide(t)
		id := k.startContainer(t, p, object{"metadata": object{"name": container}})
		k.startContainer(t, p, nil)
		if got := k.checkLease(t, id); fmt.Sprint(len(got)) != gpus {
			t.Errorf("the pod of the guide has %v", got)
		}
		if held := k.heldGPUs(t); len(held) != 1 {
			t.Errorf("the guide's pod holds %v", held)
		}
		k.removePods(t)
		k.do(t, "ctr", "images", "import", filepath.Join(k.dir, "image.tar"))
		k.do(t, "ctr", "images", "tag", "--force", sandboxImage, "localhost/train:1")
		k.runBlock(t, "console containerd")
		if k.suite == "forky" {
			k.runBlock(t, "console containerd 2")
			k.takeGPUs(t, 1)()
		}
	}},
	{"a network of its own", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", map[string]string{"berth.gpus": "2"}, object{"namespace_options": object{"network": "POD"}})
		status := k.call(t, "PodSandboxStatus", object{"pod_sandbox_id": p.id})["status"].(object)
		if ip := fmt.Sprint(status["network"].(object)["ip"]); !strings.HasPrefix(ip, "10.99.") {
			t.Errorf("the pod's address is %s", ip)
		}
		id := k.startContainer(t, p, nil)
		k.waitForHeld(t, map[string]int{id: 2})
		k.checkLease(t, id)
		k.call(t, "StopPodSandbox", object{"pod_sandbox_id": p.id})
		k.waitForHeld(t, map[string]int{})
	}},
	{"container's annotation", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", nil)
		a, b := k.startContainer(t, p, object{"annotations": object{"berth.gpus": "h100:3"}}), k.startContainer(t, p, nil)
		k.waitForHeld(t, map[string]int{a: 3})
		k.checkLease(t, a)
		k.checkLease(t, b)
		k.call(t, "RemoveContainer", object{"container_id": a})
		k.waitForHeld(t, map[string]int{})
	}},
	{"CDI", true, func(t *testing.T, k *kubelet) {
		for _, class := range []string{"berth", "runc"} {
			p := k.pod(t, class, "default", nil)
			id := k.startContainer(t, p, object{"CDI_devices": []object{{"name": "berth/gpus=2"}}})
			k.waitForHeld(t, map[string]int{id: 2})
			k.checkLease(t, id)
			other := k.startContainer(t, p, object{"annotations": object{"cdi.k8s.io/berth": "berth/gpus=1"}})
			k.waitForHeld(t, map[string]int{id: 2, other: 1})
			k.checkLease(t, other)
			k.call(t, "StopPodSandbox", object{"pod_sandbox_id": p.id})
			k.waitForHeld(t, map[string]int{})
		}
		k.takeGPUs(t, 1)() // without the wrapper, the next acquire gives back what has ended
	}},
	{"dies, and the next attempt", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", map[string]string{"berth.gpus": "8"})
		for attempt := range 3 {
			id := k.startContainer(t, p, object{"metadata": object{"name": "task", "attempt": attempt}})
			k.waitForHeld(t, map[string]int{id: 8})
			k.checkLease(t, id)
			k.kill(t, k.pid(t, id))
			k.waitForHeld(t, map[string]int{})
		}
	}},
	{"update", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", nil)
		id := k.startContainer(t, p, object{"annotations": object{"berth.gpus": "2"}})
		had := k.checkLease(t, id)
		k.call(t, "UpdateContainerResources", object{"container_id": id, "linux": object{"cpu_shares": 512, "memory_limit_in_bytes": 512 << 20}})
		if diff := cmp.Diff(had, k.checkLease(t, id)); diff != "" {
			t.Errorf("GPUs (-before +after):\n%s", diff)
		}
		path := strings.Split(k.do(t, "grep", ":memory:", "/proc/"+k.pid(t, id)+"/cgroup"), ":")[2]
		if got := k.do(t, "cat", "/sys/fs/cgroup/memory"+strings.TrimSpace(path)+"/memory.limit_in_bytes"); strings.TrimSpace(got) != fmt.Sprint(512<<20) {
			t.Errorf("the limit is %s", got)
		}
	}},
	{"a full host", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", nil)
		all := k.startContainer(t, p, object{"annotations": object{"berth.gpus": "6"}})
		for range 2 {
			held := k.footprint(t)
			id := k.createContainer(t, p, object{"annotations": object{"berth.gpus": "3"}})
			got := k.try(t, "StartContainer", object{"container_id": id})
			if text := strings.TrimSpace(got.err); got.code == 0 || strings.Contains(text, "\n") || !strings.Contains(text, "request 3: 3 asked, 2 of 8 free") {
				t.Errorf("exit code %d: %s", got.code, text)
			}
			k.call(t, "RemoveContainer", object{"container_id": id})
			eventually(t, func() string { return diffOf("left on the host (-before +after):\n", held, k.footprint(t)) })
		}
		k.waitForHeld(t, map[string]int{all: 6})
	}},
	{"containerd killed", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", map[string]string{"berth.gpus": "2"})
		id, dies := k.startContainer(t, p, nil), k.startContainer(t, p, nil)
		had, pid := k.checkLease(t, id), k.pid(t, dies)
		k.killDaemon(t, "containerd")
		k.kill(t, pid)
		k.waitForHeld(t, map[string]int{id: 2})
		release := k.takeGPUs(t, 6)
		k.up(t)
		k.waitForHeld(t, map[string]int{id: 2, "": 6})
		if diff := cmp.Diff(had, k.checkLease(t, id)); diff != "" {
			t.Errorf("GPUs (-before +after):\n%s", diff)
		}
		release()
	}},
	{"who must see all", false, func(t *testing.T, k *kubelet) {
		privileged := object{"privileged": true}
		for namespace, want := range map[string]int{"default": 0, "monitoring": 8} {
			p := k.pod(t, "berth", namespace, nil, privileged)
			id := k.startContainer(t, p, object{"linux": object{"security_context": privileged}})
			if _, all := k.openedDevices(t, id); len(all) != want {
				t.Errorf("in %s a privileged container opens %v", namespace, all)
			}
			k.waitForHeld(t, map[string]int{})
			// The request is leased there as well.
			asks := k.startContainer(t, p, object{"annotations": object{"berth.gpus": "1"}})
			k.waitForHeld(t, map[string]int{asks: 1})
			k.checkLease(t, asks)
			k.removePods(t)
		}
	}},
	{"the default runtime", false, func(t *testing.T, k *kubelet) {
		k.restartContainerd(t, "berth")
		defer k.restartContainerd(t, "runc")
		p := k.pod(t, "", "default", nil)
		id, other := k.startContainer(t, p, object{"annotations": object{"berth.gpus": "2"}}), k.startContainer(t, p, nil)
		k.waitForHeld(t, map[string]int{id: 2})
		k.checkLease(t, id)
		k.checkLease(t, other)
		k.removePods(t)
	}},
}
