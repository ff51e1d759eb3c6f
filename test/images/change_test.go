package images

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// writers returns the entry points whose writes stay in the root.
func writers() []entryPoint {
	all := entryPoints()
	for i, d := range all {
		if !d.wrapper {
			all[i].flags = []string{"--rw"}
			all[i].name = strings.Replace(d.name, "run", "run --rw", 1)
		}
	}
	return all
}

// What stays in a root that is written to: the loader's cache, the line that keeps
// it, and what the runtime made to mount on, which is empty.
func TestWhatStaysInTheRoot(t *testing.T) {
	through(t, writers(), func(t *testing.T, d entryPoint) {
		without, with := imageOf(t, debianRoot, nil), imageOf(t, debianRoot, nil)
		control := d
		control.gpus = "none"
		good(t, control.run(t, without, "true"))
		good(t, d.run(t, with, "opener libcuda.so.1"))
		before := tree(t, without.upper)
		added := slices.DeleteFunc(tree(t, with.upper), func(name string) bool { return slices.Contains(before, name) })
		files := slices.DeleteFunc(slices.Clone(added), func(name string) bool { return empty(t, filepath.Join(with.upper, name)) })
		if d := cmp.Diff([]string{"etc/ld.so.cache", "etc/ld.so.conf.d/00-berth.conf"}, files); d != "" {
			t.Errorf("what isn't empty (-want +got):\n%s", d)
		}
		points := slices.DeleteFunc(added, func(name string) bool { return strings.HasPrefix(name, "etc") })
		firmware := "usr/lib/firmware/nvidia/" + node.State.Driver
		want := []string{
			"usr", "usr/bin", "usr/bin/nvidia-smi", "usr/lib", "usr/lib/firmware", "usr/lib/firmware/nvidia",
			firmware, firmware + "/gsp_ga10x.bin", firmware + "/gsp_tu10x.bin", "usr/local", "usr/local/nvidia",
		}
		if d := cmp.Diff(want, points); d != "" {
			t.Errorf("mount points (-want +got):\n%s", d)
		}
	})
}

// empty: a directory, whose content is looked at by itself, or a file without any.
func empty(t *testing.T, path string) bool {
	t.Helper()
	info, err := os.Lstat(path)
	rig.Must(t, err)
	return info.IsDir() || info.Mode().IsRegular() && info.Size() == 0
}

// A second start finds everything as it ought to be.
func TestSecondStartChangesNothing(t *testing.T) {
	through(t, writers(), func(t *testing.T, d entryPoint) {
		i := imageOf(t, debianRoot, nil)
		var caches []string
		for range 2 {
			found(t, d.run(t, i, "opener libcuda.so.1"), libcuda)
			data, err := os.ReadFile(filepath.Join(i.upper, "etc/ld.so.cache"))
			rig.Must(t, err)
			caches = append(caches, string(data))
		}
		if caches[0] != caches[1] {
			t.Errorf("the cache had %d bytes and now has %d", len(caches[0]), len(caches[1]))
		}
		before := tree(t, i.upper)
		d.gpus = "none"
		good(t, d.run(t, i, "true"))
		if d := cmp.Diff(before, tree(t, i.upper)); d != "" {
			t.Errorf("after a container without a GPU (-want +got):\n%s", d)
		}
	})
}

// A root that was used with one driver is used with the next, which lacks a
// library: the inventory that no longer fits is taken again, and of the old driver
// nothing stays in the cache.
func TestAnotherDriver(t *testing.T) {
	old := node
	t.Cleanup(func() { node = old })
	var err error
	node, err = old.Start("one-gpu", "v1")
	rig.Must(t, err)
	i := imageOf(t, debianRoot, nil)
	d := entryPoint{runtime: "runc", wrapper: true}
	const script = "opener libcuda.so.1; ldconfig -p | grep -c libnvidia-opencl; ls /usr/local/nvidia/lib64 | grep libcuda.so.5"
	found(t, d.run(t, i, script), libcuda, "2", "libcuda.so."+node.State.Driver)
	node.Do(t, "sh", "-c", "rm "+filepath.Join(node.State.Libraries, "libnvidia-opencl.so*"))
	rig.Must(t, sim.ControlNode(node.State.ID, "driver", "560.35.03"))
	found(t, d.run(t, i, script), libcuda, "0", "libcuda.so.560.35.03")
}

// An image without glibc has nothing that reads a cache: it starts as ever, and
// nothing is written to it.
func TestBusybox(t *testing.T) {
	const script = `find /etc -type f -exec md5sum {} + | grep -v -e /hosts -e /hostname -e /resolv.conf; ls /lib* /usr/lib* 2>/dev/null; echo started`
	through(t, writers(), func(t *testing.T, d entryPoint) {
		without, with := imageOf(t, busyboxRoot, nil), imageOf(t, busyboxRoot, nil)
		control := d
		control.gpus = "none"
		want := good(t, control.run(t, without, script))
		if got := good(t, d.run(t, with, script)); got != want || !strings.HasSuffix(got, "started\n") {
			t.Errorf("with a GPU:\n%s\nwithout:\n%s", got, want)
		}
		before := tree(t, without.upper)
		added := slices.DeleteFunc(tree(t, with.upper), func(name string) bool { return slices.Contains(before, name) })
		for _, name := range added {
			if !empty(t, filepath.Join(with.upper, name)) || strings.HasPrefix(name, "etc") {
				t.Errorf("%s was written", name)
			}
		}
	})
	through(t, readOnlyEntryPoints(), func(t *testing.T, d entryPoint) {
		good(t, d.run(t, imageOf(t, busyboxRoot, nil), "true"))
	})
	layout, err := filepath.Abs(filepath.Join(layouts, "busybox"))
	rig.Must(t, err)
	good(t, entryPoint{runtime: "crun"}.run(t, image{dir: "oci:" + layout}, "true"))
}
