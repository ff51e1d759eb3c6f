package engines

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

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

// criConfig is containerd's configuration as the guide has it, and a default runtime.
func criConfig(t *testing.T, suite, standard string) string {
	t.Helper()
	const third = `version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '%s'
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = '%s'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
`
	const second = `version = 2
[plugins.'io.containerd.grpc.v1.cri']
sandbox_image = '%s'
restrict_oom_score_adj = true
[plugins.'io.containerd.grpc.v1.cri'.cni]
bin_dir = '/usr/lib/cni'
[plugins.'io.containerd.grpc.v1.cri'.containerd]
default_runtime_name = '%s'
[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
`
	text := fmt.Sprintf(map[string]string{"forky": third, "bookworm": second}[suite], sandboxImage, standard)
	kind := map[string]string{"forky": "toml containerd 3", "bookworm": "toml containerd 2"}[suite]
	return text + strings.ReplaceAll(shown(t, kind), "/usr/bin/berth-runtime", program("berth"))
}

// network is what pods that don't share the host's are connected to.
const network = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "pods0", "ipam": {"type": "host-local", "subnet": "10.99.0.0/16"}}
]}`

// shown returns the text of the guide's block of a kind.
func shown(t *testing.T, kind string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/containerd.md")
	rig.Must(t, err)
	_, text, ok := strings.Cut(string(page), "```"+kind+"\n")
	text, _, closed := strings.Cut(text, "```\n")
	if !ok || !closed {
		t.Fatalf("the guide has no block %q", kind)
	}
	return text
}

// runBlock runs the commands of a block of the guide.
func (k *kubelet) runBlock(t *testing.T, kind string) {
	t.Helper()
	for line := range strings.Lines(shown(t, kind)) {
		words := strings.Fields(strings.NewReplacer("/usr/bin/berth-runtime", program("berth"), "$ berth ", "$ "+shared.Berth+" ").Replace(line))
		out := k.do(t, words[1:]...)
		if words[1] == shared.Berth && !strings.Contains(out, "train") {
			t.Errorf("%s prints %s", line, out)
		}
	}
}

// podOfGuide runs the guide's pod, and returns how many GPUs it requests, and for which container.
func (k *kubelet) podOfGuide(t *testing.T) (p *pod, gpus, container string) {
	t.Helper()
	text := shown(t, "yaml kubernetes")
	class, handler, asked := value(t, text, "runtimeClassName"), value(t, text, "handler"), value(t, text, "berth.gpus/train")
	container = value(t, text, "- name")
	if name := value(t, text, "name"); name != class {
		t.Errorf("the pod wants the class %s, and there is %s", class, name)
	}
	return k.pod(t, handler, "default", map[string]string{"berth.gpus/" + container: asked}), asked, container
}

// value returns the value of the first line with a key in a YAML text.
func value(t *testing.T, text, key string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^ *` + regexp.QuoteMeta(key) + `: "?([^"\n]*)"?$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("the guide has no %s", key)
	}
	return m[1]
}
