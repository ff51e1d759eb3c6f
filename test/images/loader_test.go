package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

const (
	libcuda = "/usr/local/nvidia/lib64/libcuda.so.1"
	nvml    = "/usr/local/nvidia/lib64/libnvidia-ml.so.1"
)

// found fails unless the last lines of the output are these.
func found(t *testing.T, said rig.Said, want ...string) {
	t.Helper()
	got := lines(good(t, said))
	if d := cmp.Diff(want, got[max(0, len(got)-len(want)):]); d != "" {
		t.Errorf("-want +got:\n%s\nall: %s", d, said.Out)
	}
}

// Programs load the driver's libraries by name in each kind of root, and ldconfig -p lists them.
func TestLibrariesAreFound(t *testing.T) {
	const script = `ldconfig -p | grep -c '=> /usr/local/nvidia/lib64/libcuda.so.1$'; opener libcuda.so.1 libnvidia-ml.so.1`
	through(t, append(entryPoints(), readOnlyEntryPoints()...), func(t *testing.T, d entryPoint) {
		i := imageOf(t, debianRoot, nil)
		found(t, d.run(t, i, script), "1", libcuda, nvml)
	})
}

// An OCI layout is what most people have.
func TestLibrariesAreFoundInLayout(t *testing.T) {
	layout, err := filepath.Abs(filepath.Join(layouts, "debian"))
	rig.Must(t, err)
	for _, d := range entryPoints() {
		if d.wrapper {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			d.flags = []string{"-v", filepath.Join(debianRoot, "usr/bin/opener") + ":/usr/bin/opener"}
			found(t, d.run(t, image{dir: "oci:" + layout}, "opener libcuda.so.1"), libcuda)
		})
	}
}

// What people and packages do with the cache: afterwards the driver is still there.
func TestCacheIsKept(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         []string
	}{
		{"ldconfig", "ldconfig && opener libcuda.so.1", []string{libcuda}},
		{"ldconfig twice, from nothing", "rm /etc/ld.so.cache && ldconfig && ldconfig && opener libcuda.so.1 libnvidia-ml.so.1", []string{libcuda, nvml}},
		{"ldconfig of a directory", "ldconfig /usr/local/lib && opener libcuda.so.1", []string{libcuda}},
		{
			"apt-get install", "apt-get install -y /test-plain.deb && opener libplain.so.1 libcuda.so.1",
			[]string{"/lib/x86_64-linux-gnu/libplain.so.1", libcuda},
		},
		{
			"install and remove", "apt-get install -y /test-plain.deb && apt-get remove -y test-plain && dpkg --audit && opener libcuda.so.1",
			[]string{libcuda},
		},
		{
			"a package with an old driver", "apt-get install -y /test-libcuda.deb && ldconfig -p | grep -c libcuda.so.1 && opener libcuda.so.1",
			[]string{"2", libcuda},
		},
		{
			"libc-bin's trigger", "dpkg-trigger --by-package=libc-bin ldconfig && dpkg --triggers-only --pending && dpkg --audit && opener libcuda.so.1",
			[]string{libcuda},
		},
		{
			"libc-bin's own script", "/var/lib/dpkg/info/libc-bin.postinst triggered ldconfig && opener libcuda.so.1",
			[]string{libcuda},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			through(t, entryPoints(), func(t *testing.T, d entryPoint) {
				said := d.run(t, imageOf(t, debianRoot, nil), tt.script)
				found(t, said, tt.want...)
				if strings.Contains(said.Out+said.Err, "busy") || strings.Contains(said.Err, "error") {
					t.Errorf("it complains: %s%s", said.Out, said.Err)
				}
			})
		})
	}
}

// Images whose loader was set up in another way, or not at all.
func TestOddImages(t *testing.T) {
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			for _, name := range names {
				rig.Must(t, os.RemoveAll(filepath.Join(root, name)))
			}
		}
	}
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, root string)
		want   string // libcuda's path
	}{
		{"without a cache", remove("etc/ld.so.cache"), libcuda},
		{"without any configuration", remove("etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d"), libcuda},
		{"with an empty cache", func(t *testing.T, root string) { write(t, root+"/etc/ld.so.cache", "") }, libcuda},
		{"with a broken cache", func(t *testing.T, root string) { write(t, root+"/etc/ld.so.cache", "glibc-ld.so.cache1.1 and no more") }, libcuda},
		{"whose configuration reads no directory", func(t *testing.T, root string) {
			write(t, root+"/etc/ld.so.conf", "/usr/lib/x86_64-linux-gnu\n")
		}, libcuda},
		{"with an older driver", olderDriver("usr/lib/x86_64-linux-gnu"), libcuda},
		{"with an older driver that its configuration names", func(t *testing.T, root string) {
			write(t, root+"/etc/ld.so.conf.d/000_cuda.conf", "/opt/cuda\n")
			olderDriver("opt/cuda")(t, root)
		}, libcuda},
		{"with files where the driver goes", func(t *testing.T, root string) {
			write(t, root+"/usr/local/nvidia/lib64/libown.so", "the image's")
		}, "/usr/local/berth/nvidia/lib64/libcuda.so.1"},
		{"with an older driver where the driver goes", olderDriver("usr/local/nvidia/lib64"), "/usr/local/berth/nvidia/lib64/libcuda.so.1"},
		{"with an empty directory where the driver goes", func(t *testing.T, root string) {
			rig.Must(t, os.MkdirAll(root+"/usr/local/nvidia", 0o755))
		}, libcuda},
	} {
		t.Run(tt.name, func(t *testing.T) {
			through(t, entryPoints(), func(t *testing.T, d entryPoint) {
				i := imageOf(t, debianRoot, func(root string) { tt.change(t, root) })
				found(t, d.run(t, i, "opener libcuda.so.1 && ldconfig && opener libcuda.so.1 && nvidia-smi -L | grep -c ^GPU"), tt.want, tt.want, "1")
			})
		})
	}
}

// Of two libraries of one name ldconfig puts the one for newer processors first,
// wherever it lies. At the start ours is first all the same.
func TestOlderDriverForNewerProcessors(t *testing.T) {
	through(t, entryPoints(), func(t *testing.T, d entryPoint) {
		change := olderDriver("usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2")
		i := imageOf(t, debianRoot, func(root string) { change(t, root) })
		found(t, d.run(t, i, "opener libcuda.so.1"), libcuda)
	})
}

// olderDriver puts a library of the driver's into the image, and into its cache.
func olderDriver(dir string) func(*testing.T, string) {
	return func(t *testing.T, root string) {
		t.Helper()
		data, err := os.ReadFile(ownLibrary)
		rig.Must(t, err)
		write(t, filepath.Join(root, dir, "libcuda.so.440.1"), string(data))
		out, err := exec.Command("chroot", root, "sh", "-c", "ldconfig && ldconfig -p | grep libcuda").CombinedOutput()
		if known := err == nil; known == (dir == "usr/local/nvidia/lib64") {
			t.Fatalf("does the image's cache know its driver? %v: %s", err, out)
		}
	}
}

// Files of the image stay visible in directories that the driver's files are mounted in.
func TestImageFilesStay(t *testing.T) {
	through(t, append(entryPoints(), readOnlyEntryPoints()...), func(t *testing.T, d entryPoint) {
		i := imageOf(t, debianRoot, func(root string) { write(t, root+"/usr/local/nvidia/share/own", "the image's\n") })
		found(t, d.run(t, i, "cat /usr/local/nvidia/share/own"), "the image's")
	})
}

// A root that can't be written: the driver is found, and the root stays as it is.
func TestRootThatCannotBeWritten(t *testing.T) {
	const script = `opener libcuda.so.1 | sed 's,.*/nvidia/,,'; PATH=$PATH:/dev/berth/nvidia/bin; nvidia-smi -L | grep -c ^GPU`
	through(t, append(entryPoints(), readOnlyEntryPoints()...), func(t *testing.T, d entryPoint) {
		whole := imageOf(t, debianRoot, nil)
		found(t, d.run(t, whole.readOnly(t), script), "lib64/libcuda.so.1", "1")
		if d := cmp.Diff([]string{"."}, tree(t, whole.upper)); d != "" {
			t.Errorf("changes in the image (-want +got):\n%s", d)
		}
	})
}

// TestReadWriteOnReadOnlyImage: --rw is refused for an image on a read-only file system.
func TestReadWriteOnReadOnlyImage(t *testing.T) {
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			whole := imageOf(t, debianRoot, nil)
			i := whole.readOnly(t)
			said := entryPoint{runtime: runtime, flags: []string{"--rw"}}.run(t, i, "true")
			want := rig.Said{Code: 125, Err: "berth: image " + i.dir + " can't be written to: read-only file system\n"}
			if d := cmp.Diff(want, said); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if d := cmp.Diff([]string{"."}, tree(t, whole.upper)); d != "" {
				t.Errorf("changes in the image (-want +got):\n%s", d)
			}
		})
	}
}

// tree lists what is below a directory.
func tree(t *testing.T, dir string) (names []string) {
	t.Helper()
	rig.Must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		name, e := filepath.Rel(dir, path)
		names = append(names, name)
		if err != nil {
			return err
		}
		return e
	}))
	slices.Sort(names)
	return names
}
