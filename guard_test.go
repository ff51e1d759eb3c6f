package berth

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/guard"
	"github.com/berth-gpu/berth/isolation"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// server has a display of its management controller (226:0) beside a GPU (226:1, 195:0).
func server(t *testing.T) *Node {
	t.Helper()
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/devices", "Character devices:\n  1 mem\n195 nvidia\n226 drm\n\nBlock devices:")
	for address, card := range map[string][3]string{"0000:02:00.0": {"card0", "0x1a03", "226:0"}, "0000:1b:00.0": {"card1", "0x10de", "226:1"}} {
		device := "sys/bus/pci/devices/" + address
		write(device+"/vendor", card[1])
		write(device+"/drm/"+card[0]+"/dev", card[2])
		class := filepath.Join(dir, "sys/class/drm", card[0])
		if err := os.MkdirAll(class, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(dir, device), class+"/device"); err != nil {
			t.Fatal(err)
		}
	}
	c := Config{Host: HostConfig{Proc: dir + "/proc", Sys: dir + "/sys"}}
	return &Node{config: c, guard: guard.Guard{Host: c.GPUHost()}}
}

func opens(numbers ...isolation.Number) *specs.Spec {
	rules := []specs.LinuxDeviceCgroup{{Access: "rwm"}}
	for _, n := range numbers {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &n.Major, Minor: &n.Minor, Access: "rw"})
	}
	return &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: rules}}}
}

// TestDisplayIsNoAccelerator: the display of a management controller has the major of GPUs and is no
// accelerator. The guard leaves it to containers that the engine gives it to.
func TestDisplayIsNoAccelerator(t *testing.T) {
	n := server(t)
	display, card, own := isolation.Number{Major: 226, Minor: 0}, isolation.Number{Major: 226, Minor: 1}, isolation.Number{Major: 195, Minor: 0}
	for _, tt := range []struct {
		name      string
		spec      *specs.Spec
		concerned bool
	}{
		{"nothing", opens(), false},
		{"the display", opens(display), false},
		{"a GPU's card", opens(card), true},
		{"both", opens(display, card), true},
		{"the display and a GPU", opens(display, own), true},
		{"everything", &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := n.guard.CanReachAccelerator(tt.spec, ""); got != tt.concerned || err != nil {
				t.Fatalf("concerned: %v, %v", got, err)
			}
			e, _, err := n.Compose(t.Context(), tt.spec, nil, nil)
			if err == nil {
				err = e.Apply(tt.spec)
			}
			if err != nil {
				t.Fatal(err)
			}
			var left []isolation.Number
			for _, r := range tt.spec.Linux.Resources.Devices {
				if r.Allow && r.Type == "c" && r.Major != nil && *r.Major != 1 {
					left = append(left, isolation.Number{Major: *r.Major, Minor: *r.Minor})
				}
			}
			want := []isolation.Number{display}
			if tt.name == "nothing" || tt.name == "a GPU's card" {
				want = nil
			}
			if !slices.Equal(left, want) {
				t.Errorf("it opens %v, want %v", left, want)
			}
		})
	}
}

// TestNoNVMLCgroup: if the cgroup for NVML can't be created, the error names the way out.
func TestNoNVMLCgroup(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, nvmlCgroup), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := &Node{cgroups: cgroup.Hierarchy{Version: cgroup.V2, Root: root, Mount: root}}
	want := "create the cgroup in which NVML sees every GPU under the device guard: create cgroup: mkdir " + root +
		"/berth-nvml: not a directory (berth guard off turns the guard off)"
	if err := n.createNVMLCgroup(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
