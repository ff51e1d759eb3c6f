package engines

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// object is a message of the CRI, as JSON.
type object = map[string]any

// kubelet calls the CRI of containerd, as Kubernetes does on each node.
type kubelet struct{ *crate }

// client builds the program that speaks the CRI, a module of its own.
var client = sync.OnceValues(func() (string, error) {
	path := filepath.Join(shared.Dir, "cri")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Dir = "cri"
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the client of the CRI: %w\n%s", err, out)
	}
	return path, nil
})

// try calls the CRI.
func (k *kubelet) try(t *testing.T, method string, request object) said {
	t.Helper()
	program, err := client()
	rig.Must(t, err)
	text, err := json.Marshal(request)
	rig.Must(t, err)
	return k.run(t, "sh", "-c", `printf %s "$0" | "$@"`, string(text), program, "/run/containerd/containerd.sock", method)
}

// call calls the CRI, which has to work.
func (k *kubelet) call(t *testing.T, method string, request object) (response object) {
	t.Helper()
	got := k.try(t, method, request)
	if got.code != 0 {
		t.Fatalf("%s: %s", method, got.err)
	}
	rig.Must(t, json.Unmarshal([]byte(got.out), &response))
	return response
}

// pod is a sandbox.
type pod struct {
	id     string
	config object
}

// pod runs a sandbox of a runtime class, "" being the default one.
func (k *kubelet) pod(t *testing.T, class, namespace string, annotations map[string]string, more ...object) *pod {
	t.Helper()
	name := newID()
	config := object{
		"metadata":      object{"name": name, "uid": name, "namespace": namespace},
		"log_directory": "/tmp", "annotations": annotations,
		"linux": object{"security_context": with(object{"namespace_options": object{"network": "NODE"}}, more...)},
	}
	response := k.call(t, "RunPodSandbox", object{"config": config, "runtime_handler": class})
	return &pod{id: response["podSandboxId"].(string), config: config}
}

func with(o object, more ...object) object {
	for _, m := range more {
		for key, value := range m {
			o[key] = value
		}
	}
	return o
}

// creates makes a container of a pod; more is what its config has besides.
func (k *kubelet) creates(t *testing.T, p *pod, more object) (id string) {
	t.Helper()
	config := with(object{
		"metadata": object{"name": newID()}, "image": object{"image": sandboxImage}, "command": []string{"/wait"},
		"mounts": []object{{"container_path": "/nodes", "host_path": "/dev"}}, "log_path": "log", "linux": object{"resources": object{}},
	}, more)
	return k.call(t, "CreateContainer", object{"pod_sandbox_id": p.id, "config": config, "sandbox_config": p.config})["containerId"].(string)
}

// starts runs one.
func (k *kubelet) starts(t *testing.T, p *pod, more object) (id string) {
	t.Helper()
	id = k.creates(t, p, more)
	k.call(t, "StartContainer", object{"container_id": id})
	return id
}

// sees is what a container can open, by the exec of the CRI.
func (k *kubelet) sees(t *testing.T, id string) (own, all []string) {
	t.Helper()
	response := k.call(t, "ExecSync", object{"container_id": id, "cmd": []string{"/probe", "/look"}, "timeout": 60})
	text, err := base64.StdEncoding.DecodeString(response["stdout"].(string))
	rig.Must(t, err)
	return seen(string(text))
}

// agrees says that a container opens what its lease has.
func (k *kubelet) agrees(t *testing.T, id string) []string {
	t.Helper()
	own, all := k.sees(t, id)
	held := k.held(t)[id]
	if !slices.Equal(own, held) || !slices.Equal(all, held) {
		t.Errorf("container %s has %v in /dev and opens %v, its lease has %v", id, own, all, held)
	}
	return held
}

// clear removes all pods.
func (k *kubelet) clear(t *testing.T) {
	t.Helper()
	pods, _ := k.call(t, "ListPodSandbox", object{})["items"].([]any)
	for _, p := range pods {
		id := p.(object)["id"]
		k.call(t, "StopPodSandbox", object{"pod_sandbox_id": id})
		k.call(t, "RemovePodSandbox", object{"pod_sandbox_id": id})
	}
}

// sandboxImage is the image of sandboxes and containers.
const sandboxImage = "localhost/wait:1"

// importImage gives containerd the image, as an archive.
func (k *kubelet) importImage(t *testing.T) {
	t.Helper()
	layer := k.do(t, "tar", "-C", image, "-c", ".")
	config, err := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux", "config": object{"Entrypoint": []string{"/wait"}},
		"rootfs": object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(layer)))}},
	})
	rig.Must(t, err)
	manifest, err := json.Marshal([]object{{"Config": "config.json", "RepoTags": []string{sandboxImage}, "Layers": []string{"layer.tar"}}})
	rig.Must(t, err)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, data := range map[string][]byte{"manifest.json": manifest, "config.json": config, "layer.tar": []byte(layer)} {
		rig.Must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}))
		_, err := w.Write(data)
		rig.Must(t, err)
	}
	rig.Must(t, w.Close())
	path := filepath.Join(k.dir, "image.tar")
	rig.Must(t, os.WriteFile(path, archive.Bytes(), 0o644))
	k.do(t, "ctr", "--namespace", "k8s.io", "images", "import", path)
}

// criConfig is containerd's configuration with berth as a runtime class, and with a
// default one.
func criConfig(suite, standard string) string {
	const third = `version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '%[1]s'
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = '%[2]s'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.berth]
runtime_type = 'io.containerd.runc.v2'
pod_annotations = ['berth.*']
container_annotations = ['berth.*']
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.berth.options]
BinaryName = '%[3]s'
`
	const second = `version = 2
[plugins.'io.containerd.grpc.v1.cri']
sandbox_image = '%[1]s'
restrict_oom_score_adj = true
[plugins.'io.containerd.grpc.v1.cri'.containerd]
default_runtime_name = '%[2]s'
[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.berth]
runtime_type = 'io.containerd.runc.v2'
pod_annotations = ['berth.*']
container_annotations = ['berth.*']
[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.berth.options]
BinaryName = '%[3]s'
`
	text := map[string]string{"forky": third, "bookworm": second}[suite]
	return fmt.Sprintf(text, sandboxImage, standard, program("berth"))
}

// restarts has containerd read a configuration.
func (k *kubelet) restarts(t *testing.T, standard string) {
	t.Helper()
	k.slay(t, "containerd")
	k.write(t, "/etc/containerd/config.toml", criConfig(k.suite, standard))
	k.up(t)
}

// up waits for the CRI as well.
func (k *kubelet) up(t *testing.T) {
	t.Helper()
	k.crate.up(t)
	eventually(t, func() string { return k.try(t, "Status", object{}).err })
}

// Pods that ask for GPUs, by whichever way of Kubernetes': the container has them, the
// sandbox has none, and they end with the container.
func TestCRI(t *testing.T) {
	wanted(t)
	for _, on := range [][]string{{"forky", "crun"}, {"bookworm", "runc"}} {
		suite, real := on[0], on[1]
		t.Run(strings.Join(on, "/"), func(t *testing.T) {
			k := &kubelet{crateOn(t, suite, "v1")} // v2 has none of the controllers that pods need, on some machines
			k.once("CRI", func() {
				k.do(t, "sh", "-c", `echo "exempt_namespaces = ['monitoring']" >>/etc/berth/config.toml`)
				k.restarts(t, "runc")
				k.importImage(t)
			})
			k.becoming(t, real)
			k.starts(t, k.pod(t, "berth", "default", nil), object{"annotations": object{"berth.gpus": "1"}})
			k.clear(t)
			k.takes(t, 1)()
			before := k.footprint(t)
			for _, c := range criCases {
				if c.devices && suite == "bookworm" {
					continue // its containerd has no CDI
				}
				t.Run(c.name, func(t *testing.T) {
					defer func() {
						k.clear(t)
						k.free(t, before)
					}()
					c.run(t, k)
				})
			}
		})
	}
}

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
		// Each container of it asks for the same.
		a, b := k.starts(t, p, nil), k.starts(t, p, nil)
		k.holds(t, map[string]int{a: 2, b: 2})
		k.agrees(t, a)
		k.agrees(t, b)
		k.call(t, "StopContainer", object{"container_id": a, "timeout": 5})
		k.holds(t, map[string]int{b: 2})
		k.agrees(t, b)
		k.call(t, "StopPodSandbox", object{"pod_sandbox_id": p.id})
		k.holds(t, map[string]int{})
	}},
	{"container's annotation", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", nil)
		a, b := k.starts(t, p, object{"annotations": object{"berth.gpus": "h100:3"}}), k.starts(t, p, nil)
		k.holds(t, map[string]int{a: 3})
		k.agrees(t, a)
		k.agrees(t, b)
		k.call(t, "RemoveContainer", object{"container_id": a})
		k.holds(t, map[string]int{})
	}},
	{"CDI", true, func(t *testing.T, k *kubelet) {
		for _, class := range []string{"berth", "runc"} {
			p := k.pod(t, class, "default", nil)
			id := k.starts(t, p, object{"CDI_devices": []object{{"name": "berth/gpus=2"}}})
			k.holds(t, map[string]int{id: 2})
			k.agrees(t, id)
			other := k.starts(t, p, object{"annotations": object{"cdi.k8s.io/berth": "berth/gpus=1"}})
			k.holds(t, map[string]int{id: 2, other: 1})
			k.agrees(t, other)
			k.call(t, "StopPodSandbox", object{"pod_sandbox_id": p.id})
			k.holds(t, map[string]int{})
		}
		k.takes(t, 1)() // without the wrapper, the next acquire gives back what has ended
	}},
	{"dies, and the next attempt", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", map[string]string{"berth.gpus": "8"})
		for attempt := range 3 {
			id := k.starts(t, p, object{"metadata": object{"name": "task", "attempt": attempt}})
			k.holds(t, map[string]int{id: 8})
			k.agrees(t, id)
			k.kill(t, k.pid(t, id))
			k.holds(t, map[string]int{})
		}
	}},
	{"update", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", nil)
		id := k.starts(t, p, object{"annotations": object{"berth.gpus": "2"}})
		had := k.agrees(t, id)
		k.call(t, "UpdateContainerResources", object{"container_id": id, "linux": object{"cpu_shares": 512, "memory_limit_in_bytes": 512 << 20}})
		if diff := cmp.Diff(had, k.agrees(t, id)); diff != "" {
			t.Errorf("GPUs (-before +after):\n%s", diff)
		}
		path := strings.Split(k.do(t, "grep", ":memory:", "/proc/"+k.pid(t, id)+"/cgroup"), ":")[2]
		if got := k.do(t, "cat", "/sys/fs/cgroup/memory"+strings.TrimSpace(path)+"/memory.limit_in_bytes"); strings.TrimSpace(got) != fmt.Sprint(512<<20) {
			t.Errorf("the limit is %s", got)
		}
	}},
	{"a full host", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", nil)
		all := k.starts(t, p, object{"annotations": object{"berth.gpus": "6"}})
		for range 2 {
			held := k.footprint(t)
			id := k.creates(t, p, object{"annotations": object{"berth.gpus": "3"}})
			got := k.try(t, "StartContainer", object{"container_id": id})
			if text := strings.TrimSpace(got.err); got.code == 0 || strings.Contains(text, "\n") || !strings.Contains(text, "request 3: 3 asked, 2 of 8 free") {
				t.Errorf("exit code %d: %s", got.code, text)
			}
			k.call(t, "RemoveContainer", object{"container_id": id})
			eventually(t, func() string { return diffOf("left on the host (-before +after):\n", held, k.footprint(t)) })
		}
		k.holds(t, map[string]int{all: 6})
	}},
	{"containerd killed", false, func(t *testing.T, k *kubelet) {
		p := k.pod(t, "berth", "default", map[string]string{"berth.gpus": "2"})
		id, dies := k.starts(t, p, nil), k.starts(t, p, nil)
		had, pid := k.agrees(t, id), k.pid(t, dies)
		k.slay(t, "containerd")
		k.kill(t, pid)
		k.holds(t, map[string]int{id: 2})
		release := k.takes(t, 6)
		k.up(t)
		k.holds(t, map[string]int{id: 2, "": 6})
		if diff := cmp.Diff(had, k.agrees(t, id)); diff != "" {
			t.Errorf("GPUs (-before +after):\n%s", diff)
		}
		release()
	}},
	{"who must see all", false, func(t *testing.T, k *kubelet) {
		privileged := object{"privileged": true}
		for namespace, want := range map[string]int{"default": 0, "monitoring": 8} {
			p := k.pod(t, "berth", namespace, nil, privileged)
			id := k.starts(t, p, object{"linux": object{"security_context": privileged}})
			if _, all := k.sees(t, id); len(all) != want {
				t.Errorf("in %s a privileged container opens %v", namespace, all)
			}
			k.holds(t, map[string]int{})
			// What it asks for it leases there as well.
			asks := k.starts(t, p, object{"annotations": object{"berth.gpus": "1"}})
			k.holds(t, map[string]int{asks: 1})
			k.agrees(t, asks)
			k.clear(t)
		}
	}},
	{"the default runtime", false, func(t *testing.T, k *kubelet) {
		k.restarts(t, "berth")
		defer k.restarts(t, "runc")
		p := k.pod(t, "", "default", nil)
		id, other := k.starts(t, p, object{"annotations": object{"berth.gpus": "2"}}), k.starts(t, p, nil)
		k.holds(t, map[string]int{id: 2})
		k.agrees(t, id)
		k.agrees(t, other)
		k.clear(t)
	}},
}

// pid is the first process of a container.
func (k *kubelet) pid(t *testing.T, id string) string {
	t.Helper()
	info := k.call(t, "ContainerStatus", object{"container_id": id, "verbose": true})["info"].(object)["info"].(string)
	var status struct{ PID int }
	rig.Must(t, json.Unmarshal([]byte(info), &status))
	return fmt.Sprint(status.PID)
}
