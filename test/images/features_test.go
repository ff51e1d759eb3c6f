package images

import (
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// present lists what there is of the classes that have to be asked for.
const present = `cd /dev; for n in nvidia-fs0 gdrdrv nvidia-nvswitch0 nvidia-nvswitchctl nvidia-nvlink nvidia-caps-imex-channels/*; do
		[ -c $n ] && echo $n; done
	for s in /run/nvidia-*/socket; do [ -S $s ] && echo $s; done
	[ -d /run/udev ] && grep -q ' /run/udev ro' /proc/self/mountinfo && echo udev; true`

// Classes of devices beside the GPUs come by being asked for, and allowed; nothing
// else that a container says brings them.
func TestFeatures(t *testing.T) {
	node.Do(t, "mkdir", "-p", "/run/udev")
	t.Cleanup(func() { node.Do(t, "rmdir", "/run/udev") })
	const manager = "/run/nvidia-fabricmanager/socket"
	for _, tt := range []struct {
		gpus string
		env  string
		want []string
	}{
		{"1", "NVIDIA_DRIVER_CAPABILITIES=all", nil},
		{"1", "NVIDIA_IMEX_CHANNELS=0,1", nil},
		{"1", "NVIDIA_GDS=enabled", nil},
		{"1", "NVIDIA_GDRCOPY=enabled", nil},
		{"1", "NVIDIA_NVSWITCH=enabled", nil},
		{"1", "NVIDIA_DRIVER_CAPABILITIES=compute", nil},
		{"1,+gdrcopy", "", []string{"gdrdrv"}},
		{"1,+imex=1-2", "", []string{"nvidia-caps-imex-channels/channel1", "nvidia-caps-imex-channels/channel2"}},
		{"1,+fabricmanager", "", []string{manager}},
		{"1,+gds", "", []string{"nvidia-fs0", "udev"}},
		{"1,+nvswitch", "", []string{"nvidia-nvswitch0", "nvidia-nvswitchctl"}},
	} {
		t.Run(strings.TrimSpace(tt.gpus+" "+path.Base(tt.env)), func(t *testing.T) {
			all := wrappers()
			for i := range all {
				all[i].gpus, all[i].config = tt.gpus, "[policy]\nfeatures = [\"gdrcopy\", \"imex\", \"fabricmanager\", \"gds\", \"nvswitch\"]\n"
				all[i].env = nil
				if tt.env != "" {
					all[i].env = []string{tt.env}
				}
			}
			through(t, all, func(t *testing.T, d entryPoint) {
				out := good(t, d.run(t, imageOf(t, debianRoot, nil), present))
				if d := cmp.Diff(tt.want, strings.Fields(out)); d != "" && len(tt.want)+len(out) > 0 {
					t.Errorf("-want +got:\n%s", d)
				}
			})
		})
	}
}

// What the admin doesn't allow, and what the node doesn't have, is refused by name.
func TestFeaturesThatAreRefused(t *testing.T) {
	for _, tt := range []struct{ gpus, config, want string }{
		{"1,+gdrcopy", "", "gdrcopy"},
		{"1,+gdrcopy", "[policy]\nfeatures = [\"gds\"]\n", "gdrcopy"},
		{"1,+imex=0-9", "[policy]\nfeatures = [\"imex\"]\n", "/dev/nvidia-caps-imex-channels/channel4"},
	} {
		d := wrappers()[0]
		d.gpus, d.config = tt.gpus, tt.config
		said := d.run(t, imageOf(t, debianRoot, nil), "true")
		if said.Code == 0 || !strings.Contains(said.Err, tt.want) {
			t.Errorf("%s: %+v", tt.gpus, said)
		}
	}
	if l := node.Leases(t); len(l) > 0 {
		t.Errorf("leases are left: %+v", l)
	}
}
