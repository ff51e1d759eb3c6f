package hook

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/hook/entry"
)

// podman's directory of hooks has NVIDIA's in every container where their tools are
// installed, and podman takes CDI devices of NVIDIA's specs: both go before the runtime
// reads the spec, and only the devices ask for something.
func TestPrecreateRemovesNVIDIA(t *testing.T) {
	rule := func(minor int64) specs.LinuxDeviceCgroup {
		major := int64(195)
		return specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"}
	}
	legacy := specs.Hook{Path: "/usr/bin/nvidia-container-runtime-hook", Args: []string{"nvidia-container-runtime-hook", "prestart"}, Env: []string{"PATH=/usr/bin"}}
	cdi := specs.Hook{Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}
	for _, tt := range []struct {
		name   string
		hooks  specs.Hooks
		minors []int64
		asked  string
		told   string
	}{
		{"its hook, and an image that says all", specs.Hooks{Prestart: []specs.Hook{legacy}}, nil, "", "guarded  "}, //nolint:staticcheck // Docker still writes it.
		{"CDI devices", specs.Hooks{CreateContainer: []specs.Hook{cdi}}, []int64{3, 5}, "device=gpu-3,gpu-5", "prepared new "},
		{"CDI devices of one that is exempt", specs.Hooks{CreateContainer: []specs.Hook{cdi}}, []int64{3}, "", ""},
		{"neither", specs.Hooks{}, []int64{3}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, dir := bundled(t, specs.Spec{})
			spec := specs.Spec{
				Version: "1.0.2", Root: &specs.Root{Path: filepath.Join(dir, "rootfs")}, Hooks: &tt.hooks,
				Annotations: map[string]string{"io.container.manager": "libpod"},
				Process:     &specs.Process{Cwd: "/", Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}}, Linux: &specs.Linux{Resources: &specs.LinuxResources{}},
			}
			for _, m := range tt.minors {
				spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: fmt.Sprint("/dev/nvidia", m), Type: "c", Major: 195, Minor: m})
				spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, rule(m))
			}
			if strings.Contains(tt.name, "exempt") {
				spec.Annotations["berth.exempt"] = "secret"
			}
			in, err := json.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			f := &fakeNode{}
			if err := (Hook{Node: f, Call: []string{"/usr/bin/berth-hook"}}).Precreate(t.Context(), strings.NewReader(string(in)), &out, entry.RequestSet{}, 1); err != nil {
				t.Fatal(err)
			}
			if tt.told != "" && strings.Contains(out.String(), "nvidia-c") || tt.told == "" && out.String() != string(in) {
				t.Errorf("podman gets %s", out.String())
			}
			var asked []string
			for _, a := range f.asked {
				asked = append(asked, strings.ToLower(a.Request.String()))
			}
			if got := strings.Join(asked, "; "); got != tt.asked {
				t.Errorf("asked for %q, want %q", got, tt.asked)
			}
			if (tt.told == "") != (len(f.told) == 0) || !slices.ContainsFunc(append(f.told, ""), func(line string) bool { return strings.HasPrefix(line, tt.told) }) {
				t.Errorf("told %q, want %q", f.told, tt.told)
			}
		})
	}
}
