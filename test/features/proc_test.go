package features

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

const procNVIDIA = "/proc/driver/nvidia"

// shown is what /proc/driver/nvidia of a container says.
type shown struct {
	GPUs         []string // by UUID
	Capabilities []string // directories of GPUs and their instances
	Minors       []string // of MIG, that have a line in the table
	Modify       string   // the parameter that says whether nodes are to be made
}

func (c *container) shown() (s shown) {
	c.t.Helper()
	for _, bus := range c.ask("ls " + procNVIDIA + "/gpus") {
		for _, line := range c.ask("cat " + procNVIDIA + "/gpus/" + bus + "/information") {
			if uuid, ok := strings.CutPrefix(line, "GPU UUID:"); ok {
				s.GPUs = append(s.GPUs, strings.TrimSpace(uuid))
			}
		}
	}
	slices.Sort(s.GPUs)
	s.Capabilities = c.below(procNVIDIA+"/capabilities", 4)
	for _, line := range c.ask("cat /proc/driver/nvidia-caps/mig-minors") {
		s.Minors = append(s.Minors, strings.Fields(line)...)
	}
	for _, line := range c.ask("cat " + procNVIDIA + "/params") {
		if value, ok := strings.CutPrefix(line, "ModifyDeviceFiles:"); ok {
			s.Modify += value
		}
	}
	return s
}

// below lists the files in a directory that have to do with MIG.
func (c *container) below(dir string, depth int) (all []string) {
	for _, name := range c.ask("ls " + dir) {
		if name == "access" {
			all = append(all, strings.TrimPrefix(path.Join(dir, name), procNVIDIA+"/capabilities/"))
		} else if depth > 0 && !slices.Contains([]string{"ENOENT", "ENOTDIR"}, name) {
			all = append(all, c.below(path.Join(dir, name), depth-1)...)
		}
	}
	return all
}

// expected is what /proc/driver/nvidia ought to say of the lease, by what the
// simulated server is made of.
func (c *container) expected() shown {
	c.t.Helper()
	s := shown{Modify: " 0"}
	p := c.d.State.Blueprint()
	for _, d := range c.lease().Devices {
		for i, g := range p.GPUs {
			for _, slice := range c.d.State.Slices(i) {
				if p.SliceUUID(i, slice) != d.UUID {
					continue
				}
				gi, ci := slice.Minors(g.Minor)
				at := fmt.Sprintf("gpu%d/mig/gi%d", g.Minor, slice.GI)
				s.GPUs = append(s.GPUs, p.UUID(i))
				s.Capabilities = append(s.Capabilities, at+"/access", fmt.Sprintf("%s/ci%d/access", at, slice.CI))
				at = strings.Replace(at, "/mig/", "/", 1)
				s.Minors = append(s.Minors, at+"/access", fmt.Sprint(gi), fmt.Sprintf("%s/ci%d/access", at, slice.CI), fmt.Sprint(ci))
			}
			if p.UUID(i) == d.UUID {
				s.GPUs = append(s.GPUs, d.UUID)
			}
		}
	}
	slices.Sort(s.GPUs)
	s.GPUs = slices.Compact(s.GPUs)
	return s
}

// A container sees in /proc/driver what it holds, that nodes aren't its to make, and
// can change none of it.
func TestProcDriver(t *testing.T) {
	for _, tt := range []struct{ profile, request string }{
		{"dgx-h100", "2"}, {"dgx-a100-mig", "1g.10gb"}, {"dgx-a100-mig", "3g.40gb"}, {"l40s-pcie", "device=3"},
	} {
		t.Run(tt.profile+" "+tt.request, func(t *testing.T) {
			all := few()
			if tt.profile != "l40s-pcie" && tt.request != "3g.40gb" {
				all = kinds()
			}
			through(t, tt.profile, all, func(t *testing.T, d door) {
				c := d.run(t, task{request: tt.request})
				got := c.shown()
				slices.Sort(got.Capabilities)
				if d := cmp.Diff(c.expected(), got); d != "" {
					t.Errorf("-want +got:\n%s", d)
				}
				c.is("ls /proc/driver", "nvidia", "nvidia-caps")
				for _, file := range []string{"params", "version"} {
					c.is("open "+procNVIDIA+"/"+file, "ok EROFS EROFS")
				}
				for _, dir := range []string{"", "/gpus", "/capabilities"} {
					if tt.profile != "l40s-pcie" || dir != "/capabilities" {
						c.is("make "+procNVIDIA+dir+"/new", "EROFS EROFS")
					}
				}
				c.end()
			})
		})
	}
}

// The parameters are the host's, but for that one.
func TestProcParams(t *testing.T) {
	through(t, "dgx-h100", few(), func(t *testing.T, d door) {
		data, err := os.ReadFile(d.Path(procNVIDIA + "/params"))
		rig.Must(t, err)
		want := strings.Replace(string(data), "ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0", 1)
		if want == string(data) {
			t.Fatal("the host's parameters already say so")
		}
		c := d.run(t, task{request: "1"})
		if d := cmp.Diff(want, strings.Join(c.ask("cat "+procNVIDIA+"/params"), "\n")+"\n"); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
		c.end()
	})
}

// runc makes no mount below /proc: there a hook does it, which the spec doesn't need
// for crun.
func TestProcIsMountedAsTheRuntimeCan(t *testing.T) {
	through(t, "dgx-h100", kinds()[:2], func(t *testing.T, d door) {
		c := d.run(t, task{request: "1"})
		data, err := os.ReadFile(c.configJSON())
		rig.Must(t, err)
		var s specs.Spec
		rig.Must(t, json.Unmarshal(data, &s))
		mounted := slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/proc/driver" })
		hooked := s.Hooks != nil && slices.ContainsFunc(s.Hooks.CreateRuntime, func(h specs.Hook) bool {
			return filepath.Base(h.Path) == "berth-hook" && slices.Contains(h.Args, "/proc/driver")
		})
		if crun := d.runtime == "crun"; mounted != crun || hooked == crun {
			t.Errorf("mount: %v, hook: %v", mounted, hooked)
		}
		c.end()
	})
}
