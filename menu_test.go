package berth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cdi/foreign"
	"github.com/berth-gpu/berth/cdi/menu"
	"github.com/berth-gpu/berth/gpu"
)

func TestMenu(t *testing.T) {
	dir := t.TempDir()
	c := Config{State: dir + "/run", Data: dir + "/data", Hook: "/usr/bin/berth-hook", Policy: Policy{Features: []string{"gds"}}}
	inv := gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}}, FeatureNodes: []gpu.FeatureNode{{Feature: "gds", Path: "nvidia-fs0"}}}
	specs := func() (names []string) {
		entries, _ := os.ReadDir(dir + "/cdi")
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	write := func(kinds ...string) {
		t.Helper()
		if _, err := WriteMenu(t.Context(), c, inv, Menu{Dir: dir + "/cdi", Kinds: kinds}); err != nil {
			t.Fatal(err)
		}
	}

	write(menu.KindGPUs, menu.KindWith, menu.KindNVIDIA)
	if d := cmp.Diff([]string{"berth-gpus.json", "berth-nvidia-com-gpu.json", "berth-with.json"}, specs()); d != "" {
		t.Error(d)
	}
	path := filepath.Join(dir, "cdi", "berth-gpus.json")
	old := time.Unix(1, 0)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if err := renewMenu(c, inv); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || !fi.ModTime().Equal(old) {
		t.Errorf("a spec that stays the same was written: %v", err)
	}

	inv.GPUs = append(inv.GPUs, gpu.GPU{UUID: "GPU-b", Index: 1})
	c.Policy.Features = nil
	if err := renewMenu(c, inv); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || !strings.Contains(string(data), `"GPU-b"`) {
		t.Errorf("the new GPU isn't on the menu: %v, %s", err, data)
	}
	if d := cmp.Diff([]string{"berth-gpus.json", "berth-nvidia-com-gpu.json"}, specs()); d != "" {
		t.Error(d)
	}
	write(menu.KindGPUs)
	if d := cmp.Diff([]string{"berth-gpus.json"}, specs()); d != "" {
		t.Error(d)
	}
	for range 2 { // twice is the same as once
		if err := RemoveMenu(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := LoadMenu(c); err != nil || m.Kinds != nil || specs() != nil {
		t.Errorf("left: %v, %v, %v", m, err, specs())
	}
	if err := renewMenu(c, inv); err != nil || specs() != nil {
		t.Errorf("written without a menu: %v, %v", err, specs())
	}
}

func TestRefreshCDI(t *testing.T) {
	dir := t.TempDir()
	c := Config{State: dir + "/run", Data: dir + "/data", Host: HostConfig{CDI: []string{dir + "/cdi"}}}
	var reads int
	read := func(dirs []string) foreign.Registry {
		reads++
		if d := cmp.Diff(c.Host.CDI, dirs); d != "" {
			t.Error(d)
		}
		return foreign.Registry{Specs: []foreign.Spec{{Kind: "v/c", Devices: []foreign.Device{{Name: "a"}}}}}
	}
	refresh := func(want int) {
		t.Helper()
		r, err := RefreshCDI(t.Context(), c, read)
		if err != nil || reads != want {
			t.Errorf("%d reads, want %d: %v", reads, want, err)
		}
		if d := cmp.Diff([]string{"v/c=a"}, r.Names()); d != "" {
			t.Error(d)
		}
	}
	refresh(1)
	refresh(1)
	if err := os.MkdirAll(dir+"/cdi", 0o755); err != nil {
		t.Fatal(err)
	}
	refresh(1)
	if err := os.WriteFile(dir+"/cdi/x.json", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refresh(2)
	refresh(2)
}

// TestMenuWithoutDirectory: the error names the key that has the directory of specs.
func TestMenuWithoutDirectory(t *testing.T) {
	c := Config{State: t.TempDir(), Data: t.TempDir(), Hook: "/usr/bin/berth-hook"}
	paths, err := WriteMenu(t.Context(), c, gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}}}, Menu{Kinds: []string{menu.KindGPUs}})
	if err == nil || !strings.Contains(err.Error(), "host.cdi") {
		t.Errorf("%v, written: %v", err, paths)
	}
}
