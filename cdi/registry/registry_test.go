package registry_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/berth-gpu/berth/cdi/foreign"
	"github.com/berth-gpu/berth/cdi/menu"
	"github.com/berth-gpu/berth/cdi/registry"
	"github.com/berth-gpu/berth/gpu"
)

// write makes the files below a directory, which it returns.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const nic = `cdiVersion: "0.6.0"
kind: vendor.example/nic
containerEdits:
  env: [NIC=1]
devices:
- name: port0
  containerEdits:
    deviceNodes: [{path: /dev/nic0, type: c, major: 240, minor: 0}]
- name: port1
  containerEdits: {env: [PORT=1]}
`

const variable = `{"cdiVersion":"0.5.0","kind":"KIND","devices":[{"name":"NAME","containerEdits":{"env":["FROM=DIR"]}}]}`

func one(kind, name, from string) string {
	return strings.NewReplacer("KIND", kind, "NAME", name, "DIR", from).Replace(variable)
}

func TestRead(t *testing.T) {
	ours, err := menu.Spec(menu.KindNVIDIA, gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-1"}}}, menu.Options{Hook: "/usr/bin/berth-hook"})
	if err != nil {
		t.Fatal(err)
	}
	dir := write(t, map[string]string{
		"etc/nic.yaml":      nic,
		"etc/broken.json":   `{"cdiVersion":`,
		"etc/future.json":   strings.Replace(one("vendor.example/new", "a", "etc"), "0.5.0", "9.0.0", 1),
		"etc/twice1.json":   one("vendor.example/twice", "a", "etc"),
		"etc/twice2.json":   one("vendor.example/twice", "a", "etc"),
		"etc/hidden.json":   one("vendor.example/both", "a", "etc"),
		"run/hides.json":    one("vendor.example/both", "a", "run"),
		"run/berth.json":    string(ours),
		"run/README.md":     "no spec",
		"run/deeper/x.json": one("vendor.example/deeper", "a", "run"),
	})
	dirs := []string{dir + "/etc", dir + "/run", dir + "/missing"}
	got := registry.Read(dirs)
	for i := range got.Specs {
		got.Specs[i].Path = strings.TrimPrefix(got.Specs[i].Path, dir)
	}
	want := []foreign.Spec{
		{
			Path: "/etc/nic.yaml", Kind: "vendor.example/nic", Edits: cdispecs.ContainerEdits{Env: []string{"NIC=1"}},
			Devices: []foreign.Device{
				{Name: "port0", Edits: cdispecs.ContainerEdits{DeviceNodes: []*cdispecs.DeviceNode{{Path: "/dev/nic0", Type: "c", Major: 240}}}},
				{Name: "port1", Edits: cdispecs.ContainerEdits{Env: []string{"PORT=1"}}},
			},
		},
		{
			Path: "/run/hides.json", Kind: "vendor.example/both",
			Devices: []foreign.Device{{Name: "a", Edits: cdispecs.ContainerEdits{Env: []string{"FROM=run"}}}},
		},
	}
	if diff := cmp.Diff(want, got.Specs); diff != "" {
		t.Error(diff)
	}
	var problems []string
	for _, p := range got.Problems {
		problems = append(problems, strings.TrimPrefix(p.Path, dir))
		if strings.Contains(p.Reason, "\n") || p.Reason == "" {
			t.Errorf("%s: reason %q isn't a line", p.Path, p.Reason)
		}
	}
	wantProblems := []string{"/etc/broken.json", "/etc/future.json", "/etc/twice1.json", "/etc/twice2.json"}
	if diff := cmp.Diff(wantProblems, problems); diff != "" {
		t.Error(diff)
	}
}

func TestValidate(t *testing.T) {
	dir := write(t, map[string]string{"good.yaml": nic, "bad.json": `{"cdiVersion":"0.6.0","kind":"nonsense"}`})
	s, err := registry.Validate(dir + "/good.yaml")
	if err != nil || s.Kind != "vendor.example/nic" || len(s.Devices) != 2 {
		t.Errorf("got %+v, %v", s, err)
	}
	if _, err := registry.Validate(dir + "/bad.json"); err == nil || !strings.Contains(err.Error(), "/bad.json: ") {
		t.Errorf("got %v", err)
	}
	if _, err := registry.Validate(dir + "/none.json"); err == nil {
		t.Error("a file that isn't there is no error")
	}
}
