package features

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	lib64 = "/usr/local/nvidia/lib64/"
	lib32 = "/usr/local/nvidia/lib/"
)

// filesOfCapabilities are a file or node of each capability.
func filesOfCapabilities() []string {
	return []string{
		lib64 + "libcuda.so.1", lib64 + "libnvidia-ml.so.1", lib64 + "libnvidia-encode.so.1", lib64 + "libEGL_nvidia.so.0",
		lib64 + "libnvidia-opencl.so.1", lib64 + "libnvidia-ngx.so.1",
		lib32 + "libcuda.so.1", lib32 + "libnvidia-ml.so.1",
		"/usr/local/nvidia/bin/nvidia-smi", "/usr/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-cuda-mps-control",
		"/etc/OpenCL/vendors/nvidia.icd", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/etc/vulkan/icd.d/nvidia_icd.json",
		"/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json", "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
		"/dev/nvidia-uvm", "/dev/nvidia-modeset", "/dev/dri",
	}
}

// existingPaths returns those of the paths that exist in the container.
func (c *container) existingPaths(paths []string) []string {
	return slices.DeleteFunc(paths, func(path string) bool { return !c.exists(path) })
}

const chosen = "NVIDIA_DRIVER_CAPABILITIES="

var (
	compute  = []string{lib64 + "libcuda.so.1", lib64 + "libnvidia-opencl.so.1", "/usr/local/nvidia/bin/nvidia-cuda-mps-control", "/etc/OpenCL/vendors/nvidia.icd", "/dev/nvidia-uvm"}
	utility  = []string{lib64 + "libnvidia-ml.so.1", "/usr/local/nvidia/bin/nvidia-smi", "/usr/bin/nvidia-smi"}
	video    = []string{lib64 + "libnvidia-encode.so.1"}
	graphics = []string{
		lib64 + "libEGL_nvidia.so.0", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/etc/vulkan/icd.d/nvidia_icd.json",
		"/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json", "/dev/nvidia-modeset", "/dev/dri",
	}
)

// Each capability brings exactly its own files and nodes. "all", and an unset variable, mean what
// the admin allows at most.
func TestCapabilities(t *testing.T) {
	for _, tt := range []struct {
		name   string
		env    []string
		policy string
		want   [][]string
	}{
		{"silence", nil, "", [][]string{compute, utility}},
		{"nothing", []string{chosen}, "", [][]string{compute, utility}},
		{"utility", []string{chosen + "utility"}, "", [][]string{utility}},
		{"compute", []string{chosen + "compute"}, "", [][]string{compute}},
		{"video", []string{chosen + "video"}, "", [][]string{video}},
		{"graphics", []string{chosen + "graphics"}, "", [][]string{graphics}},
		{"compat32 and compute", []string{chosen + "compute,compat32"}, "", [][]string{compute, {lib32 + "libcuda.so.1"}}},
		{"compat32 and utility", []string{chosen + "utility,compat32"}, "", [][]string{utility, {lib32 + "libnvidia-ml.so.1"}}},
		{"two", []string{chosen + "video, Compute"}, "", [][]string{compute, video}},
		{"the last one counts", []string{chosen + "all", chosen + "video"}, "", [][]string{video}},
		{"all", []string{chosen + "all"}, "", [][]string{filesOfCapabilities()}},
		{"all of what the admin allows", []string{chosen + "all"}, `capabilities = "video,utility"`, [][]string{utility, video}},
		{"silence where the admin allows less", nil, `capabilities = "video,utility"`, [][]string{utility}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := oneOfEach()
			if tt.name == "utility" || tt.name == "graphics" {
				all = allKinds()
			}
			eachKind(t, "dgx-h100", all, func(t *testing.T, d entryPoint) {
				c := d.run(t, task{request: "1", env: tt.env, policy: tt.policy})
				got := c.existingPaths(filesOfCapabilities())
				want := slices.Concat(tt.want...)
				slices.Sort(got)
				slices.Sort(want)
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("-want +got:\n%s", d)
				}
				c.end()
			})
		})
	}
}

// Unknown and forbidden capabilities are refused in one line.
func TestCapabilitiesThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name, env, policy string
		want              []string
	}{
		{"unknown", "compute,utilty", "", []string{`"utilty"`, "known: compute, compat32, graphics, utility, video, display, ngx, all"}},
		{"all and unknown", "all,root", "", []string{`"root"`, "known: "}},
		{"more than the admin allows", "compute,utility", `capabilities = "utility"`, []string{"compute", "policy.capabilities"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachKind(t, "dgx-h100", allKinds(), func(t *testing.T, d entryPoint) {
				want := append(tt.want, "NVIDIA_DRIVER_CAPABILITIES")
				d.wantRefused(t, task{request: "1", env: []string{chosen + tt.env}, policy: tt.policy}, want...)
			})
		})
	}
}

// Only the leased GPU has graphics: its nodes, and the links by its PCI address.
func TestGraphicsOfTheLeasedGPU(t *testing.T) {
	for _, tt := range []struct {
		profile, request string
		cards            []int
	}{
		{"dgx-h100", "device=5", []int{5}},
		{"dgx-h100", "device=2,6", []int{2, 6}},
		{"dgx-a100-mig", "device=7", []int{7}}, // minors of GPUs and of cards differ
		{"l40s-pcie", "device=1", []int{1}},
		{"dgx-a100-mig", "1g.10gb", nil}, // such a node would give access to the whole GPU
	} {
		t.Run(tt.profile+" "+tt.request, func(t *testing.T) {
			all := oneOfEach()
			if tt.profile == "dgx-h100" {
				all = allKinds()
			}
			eachKind(t, tt.profile, all, func(t *testing.T, d entryPoint) {
				c := d.run(t, task{request: tt.request, env: []string{chosen + "graphics,compute"}})
				nodes, links := d.cards(t, tt.cards)
				c.opens(append(nodes, "/dev/nvidia-modeset")...)
				c.links(links)
				c.end()
			})
		})
	}
}

// cards are the graphics nodes of GPUs by index, and the links that lead to them.
func (d entryPoint) cards(t *testing.T, indices []int) (nodes []string, links map[string]string) {
	t.Helper()
	links = map[string]string{}
	entries, err := filepath.Glob(d.Path("/dev/dri/by-path/pci-*"))
	if err != nil || len(entries) < 8 {
		t.Fatalf("links of the server: %v: %v", entries, err)
	}
	for _, i := range indices {
		bus := strings.ToLower(strings.TrimSpace(strings.Split(d.Do(t, "nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader"), "\n")[i]))
		at := "pci-" + strings.TrimPrefix(bus, "0000")
		card, render := numbered("card%d", i+1)[i], numbered("renderD%d", 129+i)[128+i]
		nodes = append(nodes, "/dev/dri/"+card, "/dev/dri/"+render)
		links[at+"-card"], links[at+"-render"] = "../"+card, "../"+render
	}
	return nodes, links
}

// links compares the links by PCI address with the expected ones.
func (c *container) links(want map[string]string) {
	c.t.Helper()
	const dir = "/dev/dri/by-path"
	got := map[string]string{}
	if c.exists("/dev/dri") {
		for _, name := range c.ask("ls " + dir) {
			got[name] = c.ask("link " + dir + "/" + name)[0]
			c.wantAnswer("open "+dir+"/"+name, readWriteBoth("ENXIO"))
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		c.t.Errorf("links (-want +got):\n%s", d)
	}
}
