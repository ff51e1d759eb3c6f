package driver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
)

// TestExtras: where files are found, what their content becomes, and where they are bound.
func TestExtras(t *testing.T) {
	const bare = `{"ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.3"}}`
	for _, tt := range []struct {
		name  string
		files map[string]string // below the driver root
		links map[string]string
		want  map[string]string // content by destination
	}{
		{name: "none"},
		{
			name:  "as NVIDIA's installer does",
			files: map[string]string{"usr/share/vulkan/icd.d/nvidia_icd.json": bare, "etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1\n", "lib/firmware/nvidia/" + version + "/gsp_ga10x.bin": "GSP", "lib/firmware/nvidia/" + version + "/README": ""},
			want:  map[string]string{"/etc/vulkan/icd.d/nvidia_icd.json": bare, "/etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1\n", "/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin": "GSP"},
		},
		{
			name:  "of a name with the machine's, as packages of Fedora do",
			files: map[string]string{"usr/share/vulkan/icd.d/nvidia_icd." + machineOf("amd64").name + ".json": bare, "usr/share/vulkan/icd.d/nvidia_icd.aarch64.json": bare, "usr/share/vulkan/icd.d/nvidia_icd.i686.json": bare},
			want:  map[string]string{"/etc/vulkan/icd.d/nvidia_icd.x86_64.json": bare, "/etc/vulkan/icd.d/nvidia_icd.i686.json": bare},
		},
		{
			name:  "of two names the first, of two places the first",
			files: map[string]string{"etc/vulkan/icd.d/nvidia_icd.json": bare, "usr/share/vulkan/icd.d/nvidia_icd.json": "{}", "usr/share/vulkan/icd.d/nvidia_icd.x86_64.json": "{}"},
			want:  map[string]string{"/etc/vulkan/icd.d/nvidia_icd.json": bare},
		},
		{
			name:  "behind a link, which is followed below the root",
			files: map[string]string{"usr/share/nvidia/vulkan/icd": bare},
			links: map[string]string{"etc/vulkan/icd.d/nvidia_icd.json": "/usr/share/nvidia/vulkan/icd", "usr/share/glvnd/egl_vendor.d/10_nvidia.json": "/proc/self/status"},
			want:  map[string]string{"/etc/vulkan/icd.d/nvidia_icd.json": bare},
		},
		{
			name: "that name a library of ours by its path",
			files: map[string]string{
				"etc/vulkan/icd.d/nvidia_icd.json": `{"ICD": {"library_path": "/usr/lib64/libcuda.so.1", "n": 1.10}}`,
				"etc/OpenCL/vendors/nvidia.icd":    "/usr/lib64/nvidia/libnvidia-ml.so.1",
			},
			want: map[string]string{
				"/etc/vulkan/icd.d/nvidia_icd.json": "{\n    \"ICD\": {\n        \"library_path\": \"libcuda.so.1\",\n        \"n\": 1.10\n    }\n}\n",
				"/etc/OpenCL/vendors/nvidia.icd":    "libnvidia-ml.so.1\n",
			},
		},
		{
			name: "that name another library by its path, or are malformed",
			files: map[string]string{
				"etc/vulkan/icd.d/nvidia_icd.json":               `{"library_path": "/usr/lib64/libother.so.1"}`,
				"etc/vulkan/implicit_layer.d/nvidia_layers.json": "not JSON: /usr/lib64/libcuda.so.1",
				"etc/glvnd/egl_vendor.d/10_nvidia.json":          strings.Repeat(" ", maxText+1),
			},
			want: map[string]string{
				"/etc/vulkan/icd.d/nvidia_icd.json":               `{"library_path": "/usr/lib64/libother.so.1"}`,
				"/etc/vulkan/implicit_layer.d/nvidia_layers.json": "not JSON: /usr/lib64/libcuda.so.1",
				"/usr/share/glvnd/egl_vendor.d/10_nvidia.json":    strings.Repeat(" ", maxText+1),
			},
		},
		{
			name:  "directories and pipes aren't files",
			files: map[string]string{"etc/OpenCL/vendors/nvidia.icd/x": "", "usr/share/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1"},
			want:  map[string]string{"/etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if machineOf("amd64").name != machineOf(runtime.GOARCH).name && strings.Contains(tt.name, "machine") {
				t.Skip("names of another machine")
			}
			host := writeDebianDriver(t)
			for name, content := range tt.files {
				writeFile(t, filepath.Join(host.DriverRoot, name), content, 0o600)
			}
			for name, to := range tt.links {
				testutil.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(host.DriverRoot, name)), 0o755))
				testutil.Must(t, os.Symlink(to, filepath.Join(host.DriverRoot, name)))
			}
			home, err := Build(t.Context(), host, version, t.TempDir())
			testutil.Must(t, err)
			dir, err := Load(home, whole)
			testutil.Must(t, err)
			got := map[string]string{}
			for _, e := range dir.Extras {
				data, err := os.ReadFile(e.Source)
				testutil.Must(t, err)
				got[e.Destination] = string(data)
				if fi, err := os.Stat(e.Source); err != nil || fi.Mode() != 0o644 || !strings.HasPrefix(e.Source, filepath.Join(home, extrasName)+"/") {
					t.Errorf("%s: %v, %v", e.Source, fi, err)
				}
			}
			if d := cmp.Diff(tt.want, got, cmp.Transformer("", noneEmpty)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if none, err := Load(home, gpu.Compat32); err != nil || len(none.Extras) > 0 {
				t.Errorf("without a capability: %v, %v", none.Extras, err)
			}
		})
	}
}

func noneEmpty(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return m
}

// FuzzBareJSON: the result is JSON, and differs from the input only in the paths of the driver's
// libraries.
func FuzzBareJSON(f *testing.F) {
	f.Add([]byte(`{"ICD": {"library_path": "/usr/lib64/libcuda.so.1", "x": [1, 2.50, {"library_path": "/a/libcuda.so.1"}]}}`))
	f.Add([]byte(`[{"library_path": "/usr/lib64/libother.so.1"}]`))
	f.Add([]byte(`{"library_path": "/usr/lib64/libcuda.so.1"} x`))
	libraries := map[string]bool{"libcuda.so.1": true}
	f.Fuzz(func(t *testing.T, data []byte) {
		out := bareJSON(data, libraries)
		if out == nil {
			return
		}
		if !json.Valid(out) {
			t.Fatalf("%q became %q", data, out)
		}
		if again := bareJSON(out, libraries); again != nil {
			t.Fatalf("%q became %q and then %q", data, out, again)
		}
	})
}
