package features

import (
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

// shown is the content of a container's /proc/driver/nvidia.
type shown struct {
	GPUs         []string // by UUID
	Capabilities []string // files of GPUs and their instances
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
	return s
}

// below lists the files in a directory that belong to MIG.
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

// expected returns the content of /proc/driver/nvidia for the lease, by the simulated server's
// data.
func (c *container) expected() (s shown) {
	c.t.Helper()
	p := c.d.State.Blueprint()
	for _, d := range c.lease().Devices {
		for i, g := range p.GPUs {
			for _, slice := range c.d.State.Slices(i) {
				if p.SliceUUID(i, slice) != d.UUID {
					continue
				}
				at := fmt.Sprintf("gpu%d/mig/gi%d", g.Minor, slice.GI)
				s.GPUs = append(s.GPUs, p.UUID(i))
				s.Capabilities = append(s.Capabilities, at+"/access", fmt.Sprintf("%s/ci%d/access", at, slice.CI))
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

// mountProcDriver gives the container a copy of the simulated driver's state, which its own procfs
// lacks, because only a kernel module could add it there. Only crun makes mounts below /proc.
func (d entryPoint) mountProcDriver(t *testing.T) func(*specs.Spec) {
	source, other := filepath.Join(t.TempDir(), "driver"), "/proc/driver/nvidia-other"
	d.Do(t, "sh", "-c", "mkdir "+other+" && echo x >"+other+"/version")
	t.Cleanup(func() { d.Do(t, "rm", "-r", other) })
	rig.Must(t, os.CopyFS(source, os.DirFS(d.Path("/proc/driver"))))
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/proc/driver", Type: "bind", Source: source, Options: []string{"rbind", "rw", "rprivate"}})
	}
}

// A container sees only its leased devices in /proc/driver, and can change nothing.
func TestProcDriver(t *testing.T) {
	for _, tt := range []struct{ profile, request string }{
		{"dgx-h100", "2"}, {"dgx-a100-mig", "1g.10gb"}, {"dgx-a100-mig", "3g.40gb"}, {"l40s-pcie", "device=3"},
	} {
		t.Run(tt.profile+" "+tt.request, func(t *testing.T) {
			eachKind(t, tt.profile, []kind{{byWrapper, "crun", "v2"}, {byHook, "crun", "v1"}}, func(t *testing.T, d entryPoint) {
				c := d.run(t, task{request: tt.request, change: d.mountProcDriver(t)})
				got := c.shown()
				slices.Sort(got.Capabilities)
				if d := cmp.Diff(c.expected(), got); d != "" {
					t.Errorf("-want +got:\n%s", d)
				}
				for _, file := range []string{"params", "version"} {
					c.wantAnswer("open "+procNVIDIA+"/"+file, "ok EROFS EROFS")
				}
				for _, dir := range []string{"", "/gpus"} {
					c.wantAnswer("make "+procNVIDIA+dir+"/new", "EROFS EROFS")
				}
				c.wantAnswer("ls /proc/driver/nvidia-other") // an empty directory is mounted there
				c.end()
			})
		})
	}
}

// With each runtime, nothing below /proc/driver can be written to.
func TestProcDriverIsReadOnly(t *testing.T) {
	eachKind(t, "dgx-h100", allKinds(), func(t *testing.T, d entryPoint) {
		c := d.run(t, task{request: "1"})
		if !slices.ContainsFunc(c.ask("cat /proc/self/mountinfo"), func(line string) bool {
			return strings.Contains(line, " /driver /proc/driver ro,")
		}) {
			t.Error("/proc/driver isn't mounted read-only")
		}
		c.end()
	})
}
