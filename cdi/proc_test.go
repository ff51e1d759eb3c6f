package cdi

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

// procHost has the driver's files as NVIDIA's driver has them.
func procHost(t *testing.T) gpu.Host {
	t.Helper()
	proc := t.TempDir()
	for name, content := range map[string]string{
		"version":                                 "NVRM version: 550.1\n",
		"params":                                  "ResmanDebugLevel: 1\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n",
		"registry":                                "Binary: \"\"\n",
		"suspend":                                 "suspend hibernate resume\n",
		"gpus/0000:1b:00.0/information":           "Model: A\n",
		"gpus/0000:1b:00.0/power":                 "Runtime D3 status: Disabled\n",
		"gpus/0000:43:00.0/information":           "Model: B\n",
		"gpus/0000:99:00.0/information":           "Model: foreign\n",
		"capabilities/mig/config":                 "DeviceFileMinor: 1\n",
		"capabilities/gpu3/mig/.keep":             "",
		"capabilities/gpu0/mig/gi3/access":        "DeviceFileMinor: 30\n",
		"capabilities/gpu0/mig/gi3/ci0/access":    "DeviceFileMinor: 31\n",
		"capabilities/gpu0/mig/gi4/access":        "DeviceFileMinor: 39\n",
		"capabilities/gpu0/mig/gi4/ci0/access":    "DeviceFileMinor: 40\n",
		"capabilities/fabric-imex-mgmt":           "DeviceFileMinor: 3\n",
		"../nvidia-fs/version":                    "version: 2.19\n",
		"../nvidia-nvswitch/permissions":          "x\n",
		"../nvidia-caps/mig-minors":               "config 1\nmonitor 2\ngpu0/gi3/access 30\ngpu0/gi3/ci0/access 31\ngpu0/gi3/ci1/access 32\ngpu0/gi4/access 39\ngpu0/gi4/ci0/access 40\n",
		"../nvidia-caps-imex-channels/permission": "x\n",
	} {
		write(t, filepath.Join(proc, "driver/nvidia", name), content)
	}
	return gpu.Host{Proc: proc}
}

// TestProcEdits: the files of devices that aren't leased are masked, whole directories at once.
func TestProcEdits(t *testing.T) {
	const always = "nvidia/suspend nvidia-caps-imex-channels "
	for _, tt := range []struct {
		name, leased string
		features     []gpu.Feature
		masked       string
	}{
		{
			name: "a GPU", leased: "GPU-a",
			masked: always + "nvidia-fs nvidia-nvswitch nvidia/gpus/0000:43:00.0 nvidia/gpus/0000:99:00.0 nvidia/capabilities",
		},
		{
			name: "a slice", leased: "MIG-2",
			masked: always + "nvidia-fs nvidia-nvswitch nvidia/gpus/0000:1b:00.0 nvidia/gpus/0000:99:00.0 " +
				"nvidia/capabilities/fabric-imex-mgmt nvidia/capabilities/gpu0/mig/gi3 nvidia/capabilities/gpu3 nvidia/capabilities/mig",
		},
		{
			name: "a GPU that is cut, and another", leased: "GPU-b GPU-a", features: []gpu.Feature{"gdrcopy", "gds"},
			masked: always + "nvidia-nvswitch nvidia/gpus/0000:99:00.0 nvidia/capabilities/fabric-imex-mgmt nvidia/capabilities/gpu3 nvidia/capabilities/mig",
		},
		{
			name: "the switches", leased: "GPU-b GPU-a", features: []gpu.Feature{"nvswitch"},
			masked: always + "nvidia-fs nvidia/gpus/0000:99:00.0 nvidia/capabilities/fabric-imex-mgmt nvidia/capabilities/gpu3 nvidia/capabilities/mig",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, err := ProcEdits(procHost(t), inventory(), devices(strings.Fields(tt.leased)), usualSelection(tt.features...))
			must(t, err)
			must(t, e.Validate())
			checkReasons(t, e)
			want := map[string]bool{}
			for name := range strings.FieldsSeq(tt.masked) {
				want[filepath.Join("/proc/driver", name)] = true
			}
			got := map[string]bool{}
			for _, name := range e.MaskedPaths {
				got[name] = true
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("masked (-want +got):\n%s", d)
			}
			if d := cmp.Diff([]string{"/proc/driver"}, e.ReadonlyPaths); d != "" {
				t.Errorf("read-only (-want +got):\n%s", d)
			}
		})
	}
}

func TestProcEditsOfNothing(t *testing.T) {
	e, err := ProcEdits(procHost(t), inventory(), nil, usualSelection("gds"))
	if err != nil || !cmp.Equal(e, edits.Edits{}) {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := ProcEdits(procHost(t), inventory(), devices([]string{"GPU-gone"}), usualSelection()); err == nil {
		t.Error("a GPU that isn't there has edits")
	}
}
