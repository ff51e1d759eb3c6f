package engines

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// object is a message of the CRI, as JSON.
type object = map[string]any

// kubelet calls the CRI of containerd, as Kubernetes does on each node.
type kubelet struct{ *ctrHost }

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

// call makes a call of the CRI that has to succeed.
func (k *kubelet) call(t *testing.T, method string, request object) (response object) {
	t.Helper()
	got := k.try(t, method, request)
	if got.code != 0 {
		t.Fatalf("%s: %s", method, got.err)
	}
	rig.Must(t, json.Unmarshal([]byte(got.out), &response))
	return response
}

// pod is a pod sandbox.
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

// createContainer creates a container in a pod; more is merged into its config.
func (k *kubelet) createContainer(t *testing.T, p *pod, more object) (id string) {
	t.Helper()
	config := with(object{
		"metadata": object{"name": newID()}, "image": object{"image": sandboxImage}, "command": []string{"/wait"},
		"mounts": []object{{"container_path": "/nodes", "host_path": "/dev"}}, "log_path": "log", "linux": object{"resources": object{}},
	}, more)
	return k.call(t, "CreateContainer", object{"pod_sandbox_id": p.id, "config": config, "sandbox_config": p.config})["containerId"].(string)
}

// startContainer creates and starts a container.
func (k *kubelet) startContainer(t *testing.T, p *pod, more object) (id string) {
	t.Helper()
	id = k.createContainer(t, p, more)
	k.call(t, "StartContainer", object{"container_id": id})
	return id
}

// openedDevices returns the devices that a container can open, by the exec of the CRI.
func (k *kubelet) openedDevices(t *testing.T, id string) (own, all []string) {
	t.Helper()
	response := k.call(t, "ExecSync", object{"container_id": id, "cmd": []string{"/probe", "/look"}, "timeout": 60})
	text, err := base64.StdEncoding.DecodeString(response["stdout"].(string))
	rig.Must(t, err)
	return parseProbe(string(text))
}

// checkLease checks that a container opens exactly the devices of its lease.
func (k *kubelet) checkLease(t *testing.T, id string) []string {
	t.Helper()
	own, all := k.openedDevices(t, id)
	held := k.heldGPUs(t)[id]
	if !slices.Equal(own, held) || !slices.Equal(all, held) {
		t.Errorf("container %s has %v in /dev and opens %v, its lease has %v", id, own, all, held)
	}
	return held
}

// removePods removes all pods.
func (k *kubelet) removePods(t *testing.T) {
	t.Helper()
	pods, _ := k.call(t, "ListPodSandbox", object{})["items"].([]any)
	for _, p := range pods {
		id := p.(object)["id"]
		k.call(t, "StopPodSandbox", object{"pod_sandbox_id": id})
		k.call(t, "RemovePodSandbox", object{"pod_sandbox_id": id})
	}
}

// restartContainerd restarts containerd with a configuration.
func (k *kubelet) restartContainerd(t *testing.T, standard string) {
	t.Helper()
	k.killDaemon(t, "containerd")
	k.write(t, "/etc/containerd/config.toml", criConfig(t, k.suite, standard))
	k.up(t)
}

// up waits for the CRI as well.
func (k *kubelet) up(t *testing.T) {
	t.Helper()
	k.ctrHost.up(t)
	eventually(t, func() string { return k.try(t, "Status", object{}).err })
}

// Pods that request GPUs, in each of Kubernetes' ways: the container gets them, the sandbox gets
// none, and the lease ends with the container.
func TestCRI(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on hosts of its own
	for _, on := range [][]string{{"forky", "crun"}, {"bookworm", "runc"}} {
		suite, real := on[0], on[1]
		t.Run(strings.Join(on, "/"), func(t *testing.T) {
			k := &kubelet{newCtrHost(t, "-cri", suite, "v1")} // v2 has none of the controllers that pods need, on some machines
			k.once("CRI", func() {
				k.do(t, "sh", "-c", `echo "exempt_namespaces = ['monitoring']" >>/etc/berth/config.toml`)
				k.write(t, "/etc/cni/net.d/00-pods.conflist", network)
				k.restartContainerd(t, "runc")
				k.importImage(t)
			})
			k.setRuntime(t, real)
			k.startContainer(t, k.pod(t, "berth", "default", nil), object{"annotations": object{"berth.gpus": "1"}})
			k.removePods(t)
			k.removeTask(t, k.startTask(t, "1")) // engines make some directories at the first use
			k.takeGPUs(t, 1)()
			before := k.footprint(t)
			for _, c := range criCases {
				if c.devices && suite == "bookworm" {
					continue // its containerd has no CDI
				}
				t.Run(c.name, func(t *testing.T) {
					defer func() {
						k.removePods(t)
						k.waitUntilFree(t, before)
					}()
					c.run(t, k)
				})
			}
		})
	}
}

// pid is the first process of a container.
func (k *kubelet) pid(t *testing.T, id string) string {
	t.Helper()
	info := k.call(t, "ContainerStatus", object{"container_id": id, "verbose": true})["info"].(object)["info"].(string)
	var status struct{ PID int }
	rig.Must(t, json.Unmarshal([]byte(info), &status))
	return fmt.Sprint(status.PID)
}
