package wrapper

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestCallingEngine(t *testing.T) {
	tests := []struct {
		name, bundle, root string
		annotations        map[string]string
		parent, want       string
		cgroup             string
	}{
		{"docker", "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/c1", "/var/run/docker/runtime-berth/moby", nil, "containerd-shim", "docker", ""},
		{"docker with an exec-root", "/x/containerd/daemon/io.containerd.runtime.v2.task/second/c1", "", nil, "containerd-shim", "docker", ""},
		{"docker with userns-remap", "/run/containerd/io.containerd.runtime.v2.task/moby-231072.231072/c1", "", nil, "containerd-shim", "docker", ""},
		{"docker with a namespace", "/run/containerd/io.containerd.runtime.v2.task/second/c1", "/x/runtime-berth/second", nil, "containerd-shim", "docker", ""},
		{"containerd", "/run/containerd/io.containerd.runtime.v2.task/default/c1", "/run/containerd/runc/default", nil, "containerd-shim", "containerd", ""},
		{"podman by annotation", "/u", "", map[string]string{"io.container.manager": "libpod"}, "sh", "podman", ""},
		{"podman by parent", "/u", "", nil, "conmon", "podman", ""},
		{"CRI-O", "/u", "", map[string]string{"io.container.manager": "cri-o"}, "conmon", "cri-o", ""},
		{"podman with an image's annotation", "/u", "", map[string]string{"io.container.manager": "cri-o"}, "conmon", "podman", "machine.slice:libpod:c1"},
		{"by hand", "/tmp/moby", "/tmp/runtime-x/moby", nil, "bash", "runtime", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := callingEngine(tt.bundle, tt.root, &specs.Spec{Annotations: tt.annotations, Linux: &specs.Linux{CgroupsPath: tt.cgroup}}, tt.parent); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// TestContainerName: the name under which the engine's user knows a container.
func TestContainerName(t *testing.T) {
	for _, tt := range []struct {
		engine      string
		annotations map[string]string
		want        string
	}{
		{"containerd", nil, ""},
		{"containerd", map[string]string{"berth/name": "train"}, "train"},
		{"containerd", map[string]string{"nerdctl/name": "web"}, "web"},
		{"containerd", map[string]string{"io.kubernetes.cri.sandbox-namespace": "ns", "io.kubernetes.cri.sandbox-name": "pod", "io.kubernetes.cri.container-name": "c"}, "ns/pod/c"},
		{"cri-o", map[string]string{"io.kubernetes.cri-o.Name": "pod"}, "pod"},
		{"docker", map[string]string{"nerdctl/name": "web"}, ""},
		{"podman", map[string]string{"nerdctl/name": "web", "io.kubernetes.cri.container-name": "c"}, ""},
	} {
		if got := containerName(tt.engine, tt.annotations); got != tt.want {
			t.Errorf("%s, %v: %q, want %q", tt.engine, tt.annotations, got, tt.want)
		}
	}
}

// TestReportToPodman: podman puts the runtime's name before the message itself.
func TestReportToPodman(t *testing.T) {
	t.Chdir(t.TempDir())
	var stderr bytes.Buffer
	reportError(&stderr, call{log: "oci-log", logFormat: "json"}, errors.New("it is busy"))
	log, err := os.ReadFile("oci-log")
	if err != nil || !bytes.Contains(log, []byte(`"msg":"it is busy"`)) || stderr.String() != "berth: it is busy\n" {
		t.Errorf("log %s, stderr %s: %v", log, &stderr, err)
	}
}

func TestReportError(t *testing.T) {
	odd := errors.Join(&fs.PathError{Op: "open", Path: "/x\t\"y\"", Err: fs.ErrNotExist}, errors.New("fork: permission denied"),
		errors.New("no such file or directory"))
	const said = `open /x "y": file does not exist; fork: access was refused; it does not exist`
	tests := []struct {
		name, log, format string
		text              bool // the log is a text line
		stderr            string
	}{
		{name: "json", log: "log", format: "json", stderr: "berth: " + said + "\n"},
		{name: "text", log: "log", format: "text", text: true, stderr: "berth: " + said + "\n"},
		{name: "text by default", log: "log", text: true, stderr: "berth: " + said + "\n"},
		{name: "crun's prefix", log: "file:log", format: "json", stderr: "berth: " + said + "\n"},
		{name: "no log", stderr: "berth: " + said + "\n"},
		{name: "journal", log: "journald:x", stderr: "berth: " + said + "\n"},
		{name: "log that can't be", log: "none/log", stderr: "berth: " + said + "\n"},
		{name: "json without a log", format: "json"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.WriteFile("log", []byte("{\"level\":\"error\",\"msg\":\"old\"}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			var stderr bytes.Buffer
			reportError(&stderr, call{log: tt.log, logFormat: tt.format}, odd)
			if tt.stderr != "" && stderr.String() != tt.stderr {
				t.Errorf("stderr: %q", stderr.String())
			}
			if tt.stderr == "" {
				checkJSON(t, stderr.Bytes(), said)
			}
			log, err := os.ReadFile("log")
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case strings.TrimPrefix(tt.log, "file:") != "log":
			case tt.text:
				if bytes.Count(log, []byte("\n")) != 1 || !bytes.Contains(log, []byte(" level=error msg=")) {
					t.Errorf("log: %s", log)
				}
			default:
				checkJSON(t, log, said)
			}
		})
	}
}

func checkJSON(t *testing.T, line []byte, said string) {
	t.Helper()
	var got struct{ Level, Msg, Time string }
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatalf("not one JSON object: %v: %s", err, line)
	}
	if got.Level != "error" || got.Msg != "berth: "+said || got.Time == "" || bytes.Count(line, []byte("\n")) != 1 {
		t.Errorf("got %s", line)
	}
}

func TestChooseRuntime(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []string{"crun/old/status", "shared/old/status", "runc/new/state.json"} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runc := Runtime{Name: "runc", Path: "/runc", Root: dir + "/runc"}
	crun := Runtime{Name: "crun", Path: "/crun", Root: dir + "/crun"}
	tests := []struct{ name, line, want string }{
		{"new container", "create c1", "/runc"},
		{"made by the other one", "kill old KILL", "/crun"},
		{"made by the first", "kill new KILL", "/runc"},
		{"under an engine's root", "--root " + dir + "/shared start old", "/crun"},
		{"after unknown flags", "exec --odd value old sh", "/crun"},
		{"not an id", "kill ../crun/old", "/runc"},
		{"no container", "list", "/runc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := chooseRuntime([]Runtime{runc, crun}, parseArgs(append([]string{""}, strings.Fields(tt.line)...)))
			if err != nil || got.Path != tt.want {
				t.Errorf("got %s (%v), want %s", got.Path, err, tt.want)
			}
		})
	}
	// A runtime is looked for only if it has the container.
	for line, want := range map[string]string{"kill old KILL": "/found", "kill new KILL": "/runc", "create c1": "/runc"} {
		looked := false
		crun.Path, crun.Find = "", func() (string, error) { looked = true; return "/found", nil }
		got, err := chooseRuntime([]Runtime{runc, crun}, parseArgs(append([]string{""}, strings.Fields(line)...)))
		if err != nil || got.Path != want || looked != (want == "/found") {
			t.Errorf("%s: got %s (%v), want %s; looked for the other: %v", line, got.Path, err, want, looked)
		}
	}
	crun.Find = func() (string, error) { return "", fs.ErrNotExist }
	if got, err := chooseRuntime([]Runtime{runc, crun}, parseArgs([]string{"", "kill", "old", "KILL"})); err != nil || got.Path != "/runc" {
		t.Errorf("the runtime that made the container isn't installed: got %s (%v)", got.Path, err)
	}
	if _, err := chooseRuntime(nil, call{}); err == nil {
		t.Error("no runtime is no error")
	}
}

func TestDefaultRoot(t *testing.T) {
	tests := []struct {
		name, runtime, xdg string
		uid                int
		want               string
	}{
		{"runc as root", "runc", "/run/user/0", 0, "/run/runc"},
		{"runc as a user", "runc", "/run/user/7", 7, "/run/user/7/runc"},
		{"crun as root", "crun", "", 0, "/run/crun"},
		{"crun with a directory for root", "crun", "/run/user/0", 0, "/run/user/0/crun"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := DefaultRoot(tt.runtime, tt.xdg, tt.uid); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestParseBundlePath(t *testing.T) {
	root := t.TempDir()
	files := map[string]string{
		"runc/c/state.json":  `{"id":"c","config":{"labels":["x=y","bundle=/b/runc"]}}`,
		"crun/c/status":      `{"pid":1,"bundle":"/b/crun"}`,
		"crun/broken/status": `{"pid":`,
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]string{
		"runc":    Runtime{Name: "runc"}.readBundlePath(root+"/runc", "c"),
		"crun":    Runtime{Name: "crun"}.readBundlePath(root+"/crun", "c"),
		"broken":  Runtime{Name: "crun"}.readBundlePath(root+"/crun", "broken"),
		"missing": Runtime{Name: "crun"}.readBundlePath(root+"/crun", "none"),
	}
	want := map[string]string{"runc": "/b/runc", "crun": "/b/crun", "broken": "", "missing": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
