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

func TestRequest(t *testing.T) {
	note := func(text string) map[string]string { return map[string]string{RequestAnnotation: text} }
	tests := []struct {
		name        string
		annotations map[string]string
		hooks       []string // each a list of berth-hook's words
		env         []string
		environment bool
		want        string // "" for none
		err         string
	}{
		{name: "none"},
		{name: "annotation", annotations: note("2"), want: "2"},
		{name: "variable is off", env: []string{"BERTH_GPUS=2"}},
		{name: "variable", env: []string{"BERTH_GPUS=2"}, environment: true, want: "2"},
		{name: "last variable", env: []string{"BERTH_GPUS=1", "BERTH_GPUS=2"}, environment: true, want: "2"},
		{name: "empty variable", env: []string{"BERTH_GPUS="}, environment: true},
		{name: "both agree", annotations: note("2"), env: []string{"BERTH_GPUS=2"}, environment: true, want: "2"},
		{name: "both disagree", annotations: note("2"), env: []string{"BERTH_GPUS=1"}, environment: true, err: "contradicting requests"},
		{name: "disagreement of a variable that is off", annotations: note("2"), env: []string{"BERTH_GPUS=1"}, want: "2"},
		{name: "bad annotation", annotations: note("!"), err: "annotation berth.gpus"},
		{name: "empty annotation", annotations: note(""), err: "annotation berth.gpus"},
		{name: "bad variable", env: []string{"BERTH_GPUS=!"}, environment: true, err: "environment variable BERTH_GPUS"},
		{name: "pause container of containerd", annotations: map[string]string{RequestAnnotation: "2", "io.kubernetes.cri.container-type": "sandbox"}},
		{name: "infra container of CRI-O and podman", annotations: map[string]string{RequestAnnotation: "2", "io.kubernetes.cri-o.ContainerType": "sandbox"}},
		{name: "CDI device", hooks: []string{"createRuntime --request 2"}, want: "2"},
		{name: "CDI devices that are named", hooks: []string{"createRuntime --request device=0", "createRuntime --request device=1"}, want: "device=0,1"},
		{name: "CDI device with a feature", hooks: []string{"createRuntime --request 2", "createRuntime --with gds"}, want: "2,+gds"},
		{name: "CDI device and annotation", annotations: note("2"), hooks: []string{"createRuntime --request 2"}, want: "2"},
		{name: "CDI devices that contradict", hooks: []string{"createRuntime --request 2", "createRuntime --request 3"}, err: "contradicting requests"},
		{name: "CDI device that contradicts the annotation", annotations: note("1"), hooks: []string{"createRuntime --request 2"}, err: "contradicting requests"},
		{name: "feature alone", hooks: []string{"createRuntime --with gds"}, err: "gds is asked for"},
		{name: "another stage", hooks: []string{"mount /a /b"}},
		{name: "odd words", hooks: []string{"createRuntime --frob 2"}, err: "unknown word"},
		{name: "pod's container", annotations: map[string]string{RequestAnnotation: "2", "io.kubernetes.cri.container-type": "container"}, want: "2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := &specs.Spec{Annotations: tt.annotations, Process: &specs.Process{Env: tt.env}, Hooks: &specs.Hooks{
				CreateRuntime: []specs.Hook{{Path: "/usr/bin/other", Args: []string{"berth-hook", "createRuntime", "--request", "8"}}},
			}}
			for _, words := range tt.hooks {
				spec.Hooks.CreateRuntime = append(spec.Hooks.CreateRuntime,
					specs.Hook{Path: "/usr/bin/berth-hook", Args: append([]string{"berth-hook"}, strings.Fields(words)...)})
			}
			r, ok, err := request(spec, tt.environment)
			if (err == nil) != (tt.err == "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if ok != (tt.want != "") || (ok && r.String() != tt.want) {
				t.Errorf("got %v %v, want %q", r, ok, tt.want)
			}
		})
	}
}

func TestDoor(t *testing.T) {
	tests := []struct {
		name, bundle string
		annotations  map[string]string
		parent, want string
	}{
		{"docker", "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/c1", nil, "containerd-shim", "docker"},
		{"containerd", "/run/containerd/io.containerd.runtime.v2.task/default/c1", nil, "containerd-shim", "containerd"},
		{"podman by annotation", "/u", map[string]string{"io.container.manager": "libpod"}, "sh", "podman"},
		{"podman by parent", "/u", nil, "conmon", "podman"},
		{"CRI-O", "/u", map[string]string{"io.container.manager": "cri-o"}, "conmon", "cri-o"},
		{"by hand", "/tmp/moby", nil, "bash", "runtime"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := door(tt.bundle, tt.annotations, tt.parent); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestReport(t *testing.T) {
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
			report(&stderr, call{log: tt.log, logFormat: tt.format}, odd)
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

func TestChoose(t *testing.T) {
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
			got, err := choose([]Runtime{runc, crun}, parse(append([]string{""}, strings.Fields(tt.line)...)))
			if err != nil || got.Path != tt.want {
				t.Errorf("got %s (%v), want %s", got.Path, err, tt.want)
			}
		})
	}
	if _, err := choose(nil, call{}); err == nil {
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

func TestBundleOf(t *testing.T) {
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
		"runc":    Runtime{Name: "runc"}.bundleOf(root+"/runc", "c"),
		"crun":    Runtime{Name: "crun"}.bundleOf(root+"/crun", "c"),
		"broken":  Runtime{Name: "crun"}.bundleOf(root+"/crun", "broken"),
		"missing": Runtime{Name: "crun"}.bundleOf(root+"/crun", "none"),
	}
	want := map[string]string{"runc": "/b/runc", "crun": "/b/crun", "broken": "", "missing": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
