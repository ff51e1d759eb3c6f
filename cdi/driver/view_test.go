package driver

import (
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/testutil"
)

// writeFullDriver makes a driver root with every file of the table, and some files that the table doesn't
// know, for a machine.
func writeFullDriver(t testing.TB, m machine) string {
	t.Helper()
	root := t.TempDir()
	libs := filepath.Join(root, "usr/lib", m.triple)
	for elfMachine, bits := range m.bits {
		dir := libs
		if bits == 32 {
			dir = filepath.Join(root, "usr/lib32")
		}
		for _, l := range append(libraryTable(), library{name: "libnvidia-newer"}) {
			writeLibraryOf(t, elfMachine, filepath.Join(dir, l.fileName(version)), strings.Split(l.name, ".so")[0]+".so.1")
		}
	}
	writeLibraryOf(t, elf.EM_RISCV, filepath.Join(libs, "libnvidia-elsewhere.so."+version), "")
	writeLibrary(t, filepath.Join(libs, "libnvidia-egl-gbm.so.1.1.1"), "libnvidia-egl-gbm.so.1") // of another version's name
	for _, p := range append(programTable(), program{name: "nvidia-modprobe"}) {
		writeProgram(t, filepath.Join(root, "usr/bin", p.name))
	}
	for _, e := range extraTable() {
		if e.from != nil {
			name := strings.ReplaceAll(m.expandPaths(version, e.names)[0], "*", "x")
			writeFile(t, filepath.Join(root, m.expandPaths(version, e.from)[0], name), "{}", 0o644)
		}
	}
	return root
}

// TestTable: the files of each set of one capability, on every machine.
func TestTable(t *testing.T) {
	for arch, m := range map[string]machine{
		"amd64": {"x86_64", "x86_64-linux-gnu", map[elf.Machine]int{elf.EM_X86_64: 64, elf.EM_386: 32}},
		"arm64": {"aarch64", "aarch64-linux-gnu", map[elf.Machine]int{elf.EM_AARCH64: 64, elf.EM_ARM: 32}},
	} {
		t.Run(arch, func(t *testing.T) {
			root, err := inroot.OpenRoot(writeFullDriver(t, m))
			testutil.Must(t, err)
			defer root.Close()
			files, err := newFinder(root, version, arch).findFiles()
			testutil.Must(t, err)
			for _, tt := range []struct {
				set  gpu.Capabilities
				want string
			}{
				{0, ""},
				{gpu.Compat32, ""},
				{gpu.Compute, `bin/nvidia-cuda-mps-control bin/nvidia-cuda-mps-server bin/nvidia-imex bin/nvidia-imex-ctl
					lib64/libcuda lib64/libcudadebugger lib64/libnvidia-allocator lib64/libnvidia-compiler lib64/libnvidia-fatbinaryloader
					lib64/libnvidia-gpucomp lib64/libnvidia-newer lib64/libnvidia-nvvm lib64/libnvidia-nvvm70.so.4 lib64/libnvidia-opencl
					lib64/libnvidia-pkcs11-openssl3 lib64/libnvidia-pkcs11 lib64/libnvidia-ptxjitcompiler lib64/libnvidia-tileiras
					/lib/firmware/nvidia/VERSION/gspx.bin /etc/OpenCL/vendors/nvidia.icd`},
				{gpu.Utility, `bin/nv-fabricmanager bin/nvidia-debugdump bin/nvidia-imex bin/nvidia-imex-ctl bin/nvidia-persistenced bin/nvidia-smi
					lib64/libnvidia-cfg lib64/libnvidia-ml lib64/libnvidia-newer lib64/libnvidia-nscq lib64/libnvidia-sandboxutils
					/lib/firmware/nvidia/VERSION/gspx.bin`},
				{gpu.Utility | gpu.Compat32, `bin/nv-fabricmanager bin/nvidia-debugdump bin/nvidia-imex bin/nvidia-imex-ctl bin/nvidia-persistenced bin/nvidia-smi
					lib/libnvidia-cfg lib/libnvidia-ml lib/libnvidia-newer lib/libnvidia-nscq lib/libnvidia-sandboxutils
					lib64/libnvidia-cfg lib64/libnvidia-ml lib64/libnvidia-newer lib64/libnvidia-nscq lib64/libnvidia-sandboxutils
					/lib/firmware/nvidia/VERSION/gspx.bin`},
				{gpu.Video, `lib64/libnvcuvid lib64/libnvidia-encode lib64/libnvidia-newer lib64/libnvidia-opticalflow lib64/libvdpau_nvidia
					/lib/firmware/nvidia/VERSION/gspx.bin`},
				{gpu.NGX, `bin/nvidia-ngx-updater lib64/libnvidia-api.so.1 lib64/libnvidia-newer lib64/libnvidia-ngx
					/lib/firmware/nvidia/VERSION/gspx.bin`},
				{gpu.Graphics, `bin/nvidia-pcc lib64/libEGL lib64/libEGL_nvidia lib64/libGL lib64/libGLESv1_CM lib64/libGLESv1_CM_nvidia
					lib64/libGLESv2 lib64/libGLESv2_nvidia lib64/libGLX_nvidia lib64/libnvidia-allocator lib64/libnvidia-api.so.1 lib64/libnvidia-cbl
					lib64/libnvidia-egl-gbm.so.1 lib64/libnvidia-egl-wayland.so.1 lib64/libnvidia-egl-wayland2.so.1 lib64/libnvidia-egl-xcb.so.1
					lib64/libnvidia-egl-xlib.so.1 lib64/libnvidia-eglcore lib64/libnvidia-fbc lib64/libnvidia-glcore lib64/libnvidia-glsi
					lib64/libnvidia-glvkspirv lib64/libnvidia-gpucomp lib64/libnvidia-ifr lib64/libnvidia-newer lib64/libnvidia-present
					lib64/libnvidia-rtcore lib64/libnvidia-tls lib64/libnvidia-vksc-core lib64/libnvidia-vulkan-producer lib64/libnvoptix
					/lib/firmware/nvidia/VERSION/gspx.bin /usr/share/glvnd/egl_vendor.d/10_nvidia.json
					/usr/share/egl/egl_external_platform.d/x_nvidia_x.json /etc/vulkan/icd.d/nvidia_icd.json
					/etc/vulkan/implicit_layer.d/nvidia_layers.json /etc/vulkansc/icd.d/nvidia_icd_vksc.json /usr/share/nvidia/nvoptix.bin
					/usr/share/nvidia/nvidia-application-profiles-VERSION-rc /usr/lib/TRIPLE/gbm/nvidia-drm_gbm.so /usr/lib64/gbm/nvidia-drm_gbm.so`},
			} {
				t.Run(tt.set.String(), func(t *testing.T) {
					want := m.expandPaths(version, strings.Fields(tt.want))
					if d := cmp.Diff(want, describeFiles(files, tt.set), cmp.Transformer("", emptyNil)); d != "" {
						t.Errorf("-want +got:\n%s", d)
					}
				})
			}
			display := describeFiles(files, gpu.Display)
			for _, f := range describeFiles(files, gpu.Graphics) {
				if !slices.Contains(display, f) {
					t.Errorf("%s is for graphics, and not for display", f)
				}
			}
			for _, to := range []string{"drivers/nvidia_drv.so", "extensions/libglxserver_nvidia.so"} {
				if !slices.Contains(display, "/usr/lib/xorg/modules/"+to) || slices.Contains(describeFiles(files, whole&^gpu.Display), "/usr/lib/xorg/modules/"+to) {
					t.Errorf("%s isn't in the sets with display alone", to)
				}
			}
		})
	}
}

func emptyNil(s []string) []string { return append([]string{}, s...) }

// describeFiles returns the files of a set: their destinations, or their paths in the view without the
// driver's version.
func describeFiles(files []source, set gpu.Capabilities) []string {
	var all []string
	for _, s := range files {
		if !s.isIn(set) {
			continue
		}
		if s.destinations != nil {
			all = append(all, s.destinations...)
		} else {
			all = append(all, strings.TrimSuffix(s.to, ".so."+version))
		}
	}
	return all
}

// TestTableRows: no row exists twice, and the paths of each row are valid.
func TestTableRows(t *testing.T) {
	seen := map[string]bool{}
	once := func(name string) {
		if seen[name] {
			t.Errorf("%s is in the table twice", name)
		}
		seen[name] = true
	}
	for _, l := range libraryTable() {
		once(l.name)
		if l.caps&^whole != 0 || l.caps.Has(gpu.Compat32) {
			t.Errorf("%s: %v", l.name, l.caps)
		}
	}
	for _, p := range programTable() {
		once(p.name)
	}
	for _, e := range extraTable() {
		once(strings.Join(e.names, " "))
		if e.caps == 0 || len(e.to) == 0 {
			t.Errorf("%v goes nowhere", e.names)
		}
		for _, to := range e.to {
			if !path.IsAbs(to) || strings.Contains(to, "..") {
				t.Errorf("%v goes to %s", e.names, to)
			}
		}
	}
}

// TestViews compares each view of a driver that has all files with the table.
func TestViews(t *testing.T) {
	host, data := gpu.Host{DriverRoot: writeFullDriver(t, machineOf(runtime.GOARCH))}, t.TempDir()
	home, err := Build(t.Context(), host, version, data)
	testutil.Must(t, err)
	root, err := inroot.OpenRoot(host.DriverRoot)
	testutil.Must(t, err)
	defer root.Close()
	files, err := newFinder(root, version, runtime.GOARCH).findFiles()
	testutil.Must(t, err)
	theirs := inodes(t, host.DriverRoot)
	links := map[uint64]uint64{}
	paths := map[string]bool{}
	for set := gpu.Capabilities(0); set <= whole; set++ {
		dir, err := Load(home, set)
		testutil.Must(t, err)
		if d := cmp.Diff(describeFiles(files, set), describeDir(dir), cmp.Transformer("", emptyNil)); d != "" {
			t.Fatalf("%s: -table +loaded:\n%s", set, d)
		}
		own := inodes(t, dir.Path)
		if len(own) != len(dir.Libraries)+len(dir.Programs) {
			t.Errorf("%s: %d files on disk, %d libraries, %d programs", set, len(own), len(dir.Libraries), len(dir.Programs))
		}
		for ino := range own {
			if _, ok := theirs[ino]; ok {
				t.Errorf("%s: a file is the host's own", set)
			}
			if !paths[dir.Path] {
				links[ino]++
			}
		}
		paths[dir.Path] = true
		for _, l := range dir.Libraries {
			for _, name := range l.Names {
				if to, err := os.Readlink(filepath.Join(dir.Path, path.Dir(l.File), name)); err != nil || to != path.Base(l.File) {
					t.Errorf("%s: %s leads to %s, %v", set, name, to, err)
				}
			}
		}
	}
	if d := cmp.Diff(links, inodes(t, filepath.Join(home, "all", filesName))); d != "" {
		t.Errorf("files have other links than the views' (-views +there):\n%s", d)
	}
	for ino, n := range inodes(t, filepath.Join(home, extrasName)) {
		if _, ok := theirs[ino]; ok || n != 1 {
			t.Errorf("an extra has %d links, or is the host's own", n)
		}
	}
	// Display has all of graphics, and compat32 nothing of its own.
	if want := 1 + 3*32 - 2; len(paths) != want {
		t.Errorf("%d views of %d libraries, want %d", len(paths), len(files), want)
	}
}

// inodes returns the regular files below a directory, and how many links each has.
func inodes(t *testing.T, dir string) map[uint64]uint64 {
	t.Helper()
	all := map[uint64]uint64{}
	testutil.Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		var st unix.Stat_t
		err = unix.Lstat(path, &st)
		all[st.Ino] = st.Nlink
		return err
	}))
	return all
}

// describeDir describes a Dir as described does its files.
func describeDir(d Dir) []string {
	var all []string
	for _, p := range d.Programs {
		all = append(all, "bin/"+p)
	}
	for _, l := range d.Libraries {
		all = append(all, strings.TrimSuffix(l.File, ".so."+version))
	}
	for _, e := range d.Extras {
		all = append(all, e.Destination)
	}
	return all
}

// TestSelections: for any files of a driver, every set leads to one view with the files that belong
// to it, and a larger set has all files of its subsets.
func TestSelections(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		files := rapid.SliceOf(rapid.Custom(func(t *rapid.T) source {
			s := source{caps: gpu.Capabilities(rapid.Uint8Range(0, 127).Draw(t, "caps")), compat32: rapid.Bool().Draw(t, "compat32")}
			s.to = rapid.StringN(1, 8, -1).Draw(t, "to")
			return s
		})).Draw(t, "files")
		found := map[string]view{}
		for _, v := range listViews(version, files) {
			for _, name := range append([]string{v.name}, v.others...) {
				if _, twice := found[name]; twice {
					t.Fatalf("two views for %s", name)
				}
				found[name] = v
			}
		}
		for set := gpu.Capabilities(0); set <= whole; set++ {
			want := slices.DeleteFunc(slices.Clone(files), func(s source) bool { return !s.isIn(set) })
			got := found[setName(set)].files
			if !slices.EqualFunc(want, got, func(a, b source) bool { return a.to == b.to }) {
				t.Fatalf("%s: want %v, got %v", set, want, got)
			}
		}
		a := gpu.Capabilities(rapid.Uint8Range(0, 127).Draw(t, "a"))
		b := gpu.Capabilities(rapid.Uint8Range(0, 127).Draw(t, "b"))
		for _, s := range files {
			if (s.isIn(a) || s.isIn(b)) && !s.isIn(a|b) {
				t.Fatalf("%v is in %s or %s, but not in both together", s, a, b)
			}
			if !s.compat32 && s.isIn(a|b) && !s.isIn(a) && !s.isIn(b) {
				t.Fatalf("%v is in neither %s nor %s", s, a, b)
			}
		}
	})
}

// TestChangesOfOtherSets: only a change of its own files makes a set damaged.
func TestChangesOfOtherSets(t *testing.T) {
	const compute, utility, graphics = gpu.Compute, gpu.Utility, gpu.Graphics
	for _, tt := range []struct {
		name    string
		change  func(t *testing.T, home string)
		damaged []gpu.Capabilities
		whole   []gpu.Capabilities
	}{
		{"a library, seen from one view", func(t *testing.T, home string) {
			testutil.Must(t, os.Chmod(filepath.Join(home, "compute/files/lib64/libcuda.so."+version), 0o700))
		}, []gpu.Capabilities{compute, compute | utility, compute | graphics, whole}, []gpu.Capabilities{0, utility, graphics}},
		{"a link of one view", func(t *testing.T, home string) {
			testutil.Must(t, os.Remove(filepath.Join(home, "compute/files/lib64/libcuda.so.1")))
		}, []gpu.Capabilities{compute}, []gpu.Capabilities{compute | utility, whole}},
		{"a 32-bit directory", func(t *testing.T, home string) {
			writeProgram(t, filepath.Join(home, "compat32-utility/files/lib/more"))
		}, []gpu.Capabilities{utility | gpu.Compat32}, []gpu.Capabilities{utility, whole}},
		{"an extra", func(t *testing.T, home string) {
			testutil.Must(t, os.Chmod(filepath.Join(home, "extras/etc/OpenCL/vendors/nvidia.icd"), 0o666))
		}, []gpu.Capabilities{compute, whole}, []gpu.Capabilities{utility, graphics}},
		{"firmware", func(t *testing.T, home string) {
			testutil.Must(t, os.WriteFile(filepath.Join(home, "extras/lib/firmware/nvidia", version, "gsp.bin"), []byte("other"), 0o644))
		}, []gpu.Capabilities{compute, utility, graphics, gpu.Video, whole}, []gpu.Capabilities{0, gpu.Compat32}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := writeDebianDriver(t)
			writeLibrary32(t, filepath.Join(host.DriverRoot, "usr/lib32/libnvidia-ml.so."+version), "libnvidia-ml.so.1")
			writeFile(t, filepath.Join(host.DriverRoot, "etc/OpenCL/vendors/nvidia.icd"), "libnvidia-opencl.so.1\n", 0o644)
			writeFile(t, filepath.Join(host.DriverRoot, "lib/firmware/nvidia", version, "gsp.bin"), "firmware", 0o644)
			home, err := Build(t.Context(), host, version, t.TempDir())
			testutil.Must(t, err)
			waitForClock(t)
			tt.change(t, home)
			for _, set := range tt.damaged {
				if _, err := Load(home, set); !errors.Is(err, ErrDamaged) {
					t.Errorf("%s: %v", set, err)
				}
			}
			for _, set := range tt.whole {
				if _, err := Load(home, set); err != nil {
					t.Errorf("%s: %v", set, err)
				}
			}
		})
	}
}
