package cdi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/internal/inroot"
)

// Files with destinations of their own are bound where that is possible, over the image's files;
// otherwise the container starts without them, and a note says why.
func TestPlaceFiles(t *testing.T) {
	const vulkan, smi = "/usr/share/vulkan/icd.d/nvidia_icd.json", "/usr/bin/nvidia-smi"
	link := func(to, name string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
			must(t, os.Symlink(to, filepath.Join(root, name)))
		}
	}
	for _, tt := range []struct {
		name   string
		make   func(t *testing.T, root string)
		mounts []specs.Mount
		closed bool // the root can't be written
		less   []string
		note   string
	}{
		{name: "an empty root"},
		{name: "files are bound over", closed: true, make: func(t *testing.T, root string) {
			write(t, root+vulkan, "the image's")
			write(t, root+smi, "")
		}},
		{name: "a link to a file is bound over", make: func(t *testing.T, root string) {
			write(t, root+"/etc/vulkan.json", "the image's")
			link("/etc/vulkan.json", vulkan)(t, root)
		}},
		{name: "a link above", make: func(t *testing.T, root string) {
			must(t, os.MkdirAll(root+"/usr/lib/vulkan", 0o755))
			link("/usr/lib/vulkan", "usr/share/vulkan")(t, root)
		}},
		{name: "a closed root", closed: true, less: []string{vulkan, smi}, note: "it can't be made in a root that is read-only"},
		{name: "a directory", less: []string{vulkan}, note: "something there that is no file", make: func(t *testing.T, root string) {
			must(t, os.MkdirAll(root+vulkan, 0o755))
		}},
		{name: "a FIFO", less: []string{smi}, note: "no file: use /usr/local/nvidia/bin/nvidia-smi", make: func(t *testing.T, root string) {
			must(t, os.MkdirAll(root+"/usr/bin", 0o755))
			must(t, unix.Mkfifo(root+smi, 0o644))
		}},
		{name: "a link to nowhere", less: []string{vulkan}, note: "leads nowhere", make: link("/etc/none", vulkan)},
		{name: "a link to itself", less: []string{vulkan}, note: "leads nowhere", make: link("nvidia_icd.json", vulkan)},
		{name: "a link out of the root", less: []string{vulkan}, note: "leads nowhere", make: link("../../../../../../../../../../etc/passwd", vulkan)},
		{name: "a link to nowhere above", less: []string{vulkan}, note: "/usr/share/vulkan of the image is no directory", make: link("/none", "usr/share/vulkan")},
		{name: "a file above", less: []string{vulkan}, note: "leads nowhere", make: func(t *testing.T, root string) { write(t, root+"/usr/share", "") }},
		{
			name: "a directory of the user's above", less: []string{vulkan}, note: "a mount is in its place",
			mounts: []specs.Mount{{Destination: "/usr/share/vulkan/", Type: "bind", Source: "/home/user"}},
		},
		{
			name: "a file of the user's", less: []string{smi}, note: "a mount is in its place",
			mounts: []specs.Mount{{Destination: smi, Type: "bind", Source: "/home/user/nvidia-smi"}},
		},
		{
			name: "a tmpfs above", closed: true, less: []string{smi}, note: "read-only",
			mounts: []specs.Mount{{Destination: "/usr/share", Type: "tmpfs", Source: "tmpfs"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "root")
			must(t, os.MkdirAll(root, 0o755))
			if tt.make != nil {
				tt.make(t, root)
			}
			f, err := inroot.OpenRoot(root)
			must(t, err)
			defer f.Close()
			dir := testDir()
			dir.Extras = []driver.File{{Source: "/extras/vulkan.json", Destination: vulkan}}
			want := map[string]bool{Target: true, vulkan: true, smi: true}
			for _, name := range tt.less {
				delete(want, name)
			}
			spec := &specs.Spec{Mounts: tt.mounts}
			for range 2 {
				p := preparation{root: f, spec: spec, dir: dir, writable: !tt.closed, Prepared: Prepared{Target: Target, Edits: Files(dir, Target, shared.Dir{})}}
				p.dropBlockedBinds()
				got := map[string]bool{}
				for _, m := range p.Edits.Mounts {
					got[m.Destination] = true
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("-want +got:\n%s", d)
				}
				if len(p.Notes) != len(tt.less) || tt.less != nil && !strings.Contains(p.Notes[0], tt.note) {
					t.Errorf("notes %q", p.Notes)
				}
				must(t, p.Edits.Apply(spec))
			}
		})
	}
}

// Sockets, directories and views are bound at their destinations: no mount point is made in a
// directory of the host that a user mounts, and binds whose mount point can't be made are left out.
func TestPlaceMounts(t *testing.T) {
	all := []specs.Mount{
		bindView("/view/driver", "/proc/driver"), bindView("/view/by-path", ByPath),
		bindView("/run/nvidia-fabricmanager/socket", fabricManagerSocket), bindView("/run/udev", udevState),
	}
	proc := specs.Mount{Destination: "/proc", Type: "proc", Source: "proc"}
	dev := specs.Mount{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"}
	run := specs.Mount{Destination: "/run", Type: "tmpfs", Source: "tmpfs"}
	for _, tt := range []struct {
		name   string
		make   func(t *testing.T, root string)
		mounts []specs.Mount
		closed bool
		want   string
	}{
		{name: "as usual", mounts: []specs.Mount{proc, dev}, want: "/proc/driver " + ByPath + " " + fabricManagerSocket + " " + udevState},
		{name: "a closed root", closed: true, mounts: []specs.Mount{proc, dev}, want: "/proc/driver " + ByPath},
		{name: "a closed root with a tmpfs", closed: true, mounts: []specs.Mount{proc, dev, run}, want: "/proc/driver " + ByPath + " " + fabricManagerSocket + " " + udevState},
		{name: "no procfs", mounts: []specs.Mount{dev}, want: ByPath + " " + fabricManagerSocket + " " + udevState},
		{
			name: "the host's own /dev and /run", want: "/proc/driver",
			mounts: []specs.Mount{proc, {Destination: "/dev", Type: "bind", Source: "/dev"}, {Destination: "/run", Type: "bind", Source: "/run"}},
		},
		{
			name: "files of other types in the image", mounts: []specs.Mount{proc, dev}, want: "/proc/driver " + ByPath,
			make: func(t *testing.T, root string) {
				write(t, root+udevState, "")
				must(t, os.MkdirAll(root+fabricManagerSocket, 0o755))
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if tt.make != nil {
				tt.make(t, root)
			}
			f, err := inroot.OpenRoot(root)
			must(t, err)
			defer f.Close()
			spec := &specs.Spec{Mounts: tt.mounts}
			for range 2 {
				p := preparation{root: f, spec: spec, dir: testDir(), writable: !tt.closed, Prepared: Prepared{Target: Target}}
				p.Edits.Mounts = append(p.Edits.Mounts, all...)
				p.dropBlockedBinds()
				var got []string
				for _, m := range p.Edits.Mounts {
					got = append(got, m.Destination)
				}
				if strings.Join(got, " ") != tt.want {
					t.Errorf("got %q", got)
				}
				must(t, p.Edits.Apply(spec))
			}
		})
	}
}

// The files of EGL, Vulkan and OpenCL name libraries that only glibc's loader finds.
func TestFilesOfLibrariesNeedALoader(t *testing.T) {
	for _, glibc := range []bool{false, true} {
		root := t.TempDir()
		want := []string{Target, "/usr/bin/nvidia-smi"}
		if glibc {
			debianRoot(t, root)
			want = append(want, "/etc/OpenCL/vendors/nvidia.icd")
		}
		f, err := inroot.OpenRoot(root)
		must(t, err)
		defer f.Close()
		dir := testDir()
		dir.Extras = []driver.File{{Source: "/extras/nvidia.icd", Destination: "/etc/OpenCL/vendors/nvidia.icd"}}
		p, err := PrepareRoot(f, &specs.Spec{}, dir, t.TempDir(), RootOptions{Shared: shared.Dir{Source: t.TempDir()}})
		must(t, err)
		var got []string
		for _, m := range p.Edits.Mounts {
			got = append(got, m.Destination)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("glibc %v (-want +got):\n%s", glibc, d)
		}
	}
}
