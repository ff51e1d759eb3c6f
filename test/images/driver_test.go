package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// withEnv adds to the environment of every entry point.
func withEnv(all []entryPoint, env ...string) []entryPoint {
	for i := range all {
		all[i].env = append(all[i].env, env...)
	}
	return all
}

// Graphics brings the nodes of the leased GPU and the links that lead to them, and
// nothing else does.
func TestGraphicsNodes(t *testing.T) {
	const script = `ls /dev/dri 2>/dev/null; ls -l /dev/dri/by-path 2>/dev/null | sed -n 's/.*pci-\(.*\)-\([a-z]*\) -> /\2 /p'; ls /dev/nvidia-modeset 2>&1 | grep -v cannot; true`
	through(t, withEnv(wrappers()[:1:1], "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"), func(t *testing.T, d entryPoint) {
		if out := good(t, d.run(t, imageOf(t, debianRoot, nil), script)); out != "" {
			t.Errorf("without graphics: %q", out)
		}
	})
	through(t, withEnv(wrappers(), "NVIDIA_DRIVER_CAPABILITIES=graphics"), func(t *testing.T, d entryPoint) {
		got := lines(good(t, d.run(t, imageOf(t, debianRoot, nil), script)))
		if len(got) != 6 || got[0] != "by-path" {
			t.Fatalf("%q", got)
		}
		want := []string{"by-path", got[1], got[2], "card ../" + got[1], "render ../" + got[2], "/dev/nvidia-modeset"}
		if d := cmp.Diff(want, got); d != "" || !strings.HasPrefix(got[1], "card") || !strings.HasPrefix(got[2], "renderD") {
			t.Errorf("-want +got:\n%s", d)
		}
	})
}

// Capabilities choose libraries and programs.
func TestCapabilities(t *testing.T) {
	for _, tt := range []struct{ caps, want string }{
		{"utility", "no yes no nvidia-smi"},
		{"compute", "yes no no "},
		{"graphics", "no no yes "},
		{"all", "yes yes yes nvidia-smi"},
	} {
		const script = `cd /usr/local/nvidia/lib64 && for l in libcuda.so.1 libnvidia-ml.so.1 libEGL_nvidia.so.0; do
			if [ -e $l ]; then echo -n 'yes '; else echo -n 'no '; fi; done; ls /usr/bin/nvidia-smi 2>/dev/null | sed s,.*/,,`
		t.Run(tt.caps, func(t *testing.T) {
			through(t, withEnv(wrappers()[:1:1], "NVIDIA_DRIVER_CAPABILITIES="+tt.caps), func(t *testing.T, d entryPoint) {
				out := good(t, d.run(t, imageOf(t, debianRoot, nil), script))
				if strings.TrimSpace(out) != strings.TrimSpace(tt.want) {
					t.Errorf("%q", out)
				}
			})
		})
	}
}

// The libraries of a newer driver in a CUDA image (cuda-compat) come first in the loader's path,
// unless the image or its capabilities turn that off.
func TestForwardCompatibility(t *testing.T) {
	const compat = "/usr/local/cuda/compat/libcuda.so."
	bring := func(t *testing.T, root, version string) {
		t.Helper()
		dir := filepath.Join(root, "usr/local/cuda-13.0/compat")
		data, err := os.ReadFile(ownLibrary)
		rig.Must(t, err)
		write(t, filepath.Join(dir, "libcuda.so."+version), string(data))
		rig.Must(t, os.Symlink("libcuda.so."+version, filepath.Join(dir, "libcuda.so.1")))
		rig.Must(t, os.Symlink("cuda-13.0", filepath.Join(root, "usr/local/cuda")))
	}
	const script = "opener libcuda.so.1 && ldconfig && opener libcuda.so.1"
	for _, tt := range []struct {
		name    string
		version string
		env     []string
		want    string
		again   string // after ldconfig, which knows libraries by the names of links
	}{
		{"newer", "990.1", nil, compat + "990.1", "/usr/local/cuda/compat/libcuda.so.1"},
		{"older", "440.1", nil, libcuda, libcuda},
		{"turned off", "990.1", []string{"NVIDIA_DISABLE_FORWARD_COMPATIBILITY=1"}, libcuda, libcuda},
		{
			"in a CUDA image", "990.1",
			[]string{"LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"},
			compat + "990.1", "/usr/local/cuda/compat/libcuda.so.1",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			through(t, withEnv(entryPoints(), tt.env...), func(t *testing.T, d entryPoint) {
				i := imageOf(t, debianRoot, func(root string) { bring(t, root, tt.version) })
				found(t, d.run(t, i, script), tt.want, tt.again)
			})
		})
	}
}
