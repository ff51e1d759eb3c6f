package images

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

const cached = layouts + "/roots"

// root is an image with a C library of its own, and a program that is linked
// against it: /tiny.
type root struct {
	name  string
	parts []string // below cached, put over each other
	libs  []string // that tiny is linked against, below cached
	// loader of the program
	loader string
	flags  []string
	only   []string // keep nothing but these
	chroot []string // run at last, so that the root is as its distribution leaves it

	dir string // where it was made
}

func roots() []root {
	const triple = "lib/x86_64-linux-gnu/"
	newest := root{
		name: "the newest glibc", parts: []string{"new"}, loader: "/lib64/ld-linux-x86-64.so.2",
		libs: []string{"new/usr/" + triple + "libc.so.6"}, chroot: []string{"/sbin/ldconfig"},
	}
	distroless := newest
	distroless.name, distroless.chroot = "distroless", nil
	distroless.only = []string{"usr/" + triple + "libc.so.6", "usr/" + triple + "ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"}
	uncached := newest
	uncached.name, uncached.chroot = "no loader cache", nil
	return []root{
		newest, uncached, distroless,
		{
			name: "glibc 2.31", parts: []string{"old"}, loader: "/lib64/ld-linux-x86-64.so.2",
			libs: []string{"old/" + triple + "libdl.so.2", "old/" + triple + "libc.so.6"}, chroot: []string{"/sbin/ldconfig"},
		},
		{
			name: "32 bits beside 64", parts: []string{"new", "i386"}, loader: "/lib/ld-linux.so.2", flags: []string{"-m32"},
			libs: []string{"i386/lib/i386-linux-gnu/libc.so.6"}, chroot: []string{"/sbin/ldconfig"},
		},
		{name: "32 bits alone", parts: []string{"i386"}, loader: "/lib/ld-linux.so.2", flags: []string{"-m32"}, libs: []string{"i386/lib/i386-linux-gnu/libc.so.6"}},
		{name: "musl", parts: []string{"musl"}, loader: "/lib/ld-musl-x86_64.so.1", libs: []string{"musl/lib/x86_64-linux-musl/libc.so"}},
	}
}

// make makes the root in a directory of its own.
func (r *root) make(t *testing.T) {
	t.Helper()
	r.dir = t.TempDir()
	for _, name := range []string{"lib", "lib64", "sbin", "bin"} {
		rig.Must(t, os.MkdirAll(filepath.Join(r.dir, "usr", name), 0o755))
		rig.Must(t, os.Symlink("usr/"+name, filepath.Join(r.dir, name)))
	}
	for _, part := range r.parts {
		r.copy(t, part)
	}
	program := filepath.Join(r.dir, "tiny")
	args := slices.Concat([]string{"-O1", "-Wall", "-Werror", "-fno-builtin", "-nostdlib", "-Wl,--dynamic-linker=" + r.loader}, r.flags,
		[]string{"-Wl,--allow-shlib-undefined", "-o", program, "testdata/tiny.c"})
	for _, lib := range r.libs {
		args = append(args, "-L"+filepath.Join(cached, filepath.Dir(lib)), "-l:"+filepath.Base(lib))
	}
	do(t, "cc", args...)
	if r.chroot != nil {
		do(t, "chroot", append([]string{r.dir}, r.chroot...)...)
	}
}

func (r *root) copy(t *testing.T, part string) {
	t.Helper()
	from := filepath.Join(cached, part)
	names := r.only
	if names == nil {
		names = []string{"."}
	}
	archive := filepath.Join(t.TempDir(), "part.tar")
	do(t, "tar", append([]string{"-C", from, "-cf", archive}, names...)...)
	do(t, "tar", "-C", r.dir, "--keep-directory-symlink", "-xf", archive)
}

func do(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// wrappers are the wrapper's entry points with every capability of the driver.
func wrappers() []entryPoint {
	var all []entryPoint
	for _, runtime := range []string{"runc", "crun"} {
		all = append(all, entryPoint{name: runtime, runtime: runtime, wrapper: true, env: []string{"NVIDIA_DRIVER_CAPABILITIES=all"}})
	}
	return all
}

// readOnly returns the same entry points to roots that can't be written to from inside.
func readOnly(all []entryPoint) []entryPoint {
	for i := range all {
		all[i].readOnly = true
		all[i].name += " read-only"
	}
	return all
}

// Whichever C library an image has, its programs find the driver, or start as if
// there was none; and the image is left as it was, but for what says where the
// driver is.
func TestRoots(t *testing.T) {
	want := map[string]string{
		"32 bits beside 64": "/usr/local/nvidia/lib/libcuda.so.1", "32 bits alone": "/usr/local/nvidia/lib/libcuda.so.1",
		"musl": "Error loading shared library libcuda.so.1: No such file or directory",
	}
	for _, r := range roots() {
		t.Run(r.name, func(t *testing.T) {
			r.make(t)
			expect := libcuda
			if w, ok := want[r.name]; ok {
				expect = w
			}
			through(t, wrappers(), func(t *testing.T, d entryPoint) {
				i := imageOf(t, r.dir, nil)
				found(t, d.exec(t, i, "/tiny"), expect)
				if _, err := os.Stat(filepath.Join(r.dir, "usr/sbin/ldconfig")); err == nil {
					good(t, d.exec(t, i, "/sbin/ldconfig"))
					found(t, d.exec(t, i, "/tiny"), expect)
				}
				leaves(t, r, i)
			})
			through(t, readOnly(wrappers()), func(t *testing.T, d entryPoint) {
				found(t, d.exec(t, imageOf(t, r.dir, nil), "/tiny"), expect)
			})
		})
	}
}

// Minimal roots that have files of their own at the paths of the driver's files.
func TestRootsWithTheirOwnFiles(t *testing.T) {
	for _, r := range roots() {
		if r.name != "distroless" && r.name != "glibc 2.31" {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			r.make(t)
			through(t, wrappers(), func(t *testing.T, d entryPoint) {
				i := imageOf(t, r.dir, func(root string) { write(t, root+"/usr/local/nvidia/lib64/libown.so", "the image's") })
				found(t, d.exec(t, i, "/tiny"), "/usr/local/berth/nvidia/lib64/libcuda.so.1")
				leaves(t, r, i, "usr/local/nvidia/lib64/libown.so")
			})
		})
	}
}

// leaves fails if a commit of the container would carry anything of the driver's: of
// what the container's layer has, only the loader's cache and configuration aren't
// empty files and directories.
func leaves(t *testing.T, r root, i image, own ...string) {
	t.Helper()
	allowed := append(own, "etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d/00-berth.conf", "var/cache/ldconfig/aux-cache")
	var odd []string
	for _, name := range tree(t, i.upper) {
		path := filepath.Join(i.upper, name)
		if slices.Contains(allowed, name) || empty(t, path) {
			continue
		}
		fi, err := os.Lstat(path)
		rig.Must(t, err)
		odd = append(odd, fmt.Sprint(name, " ", fi.Mode(), " ", fi.Size()))
	}
	if d := cmp.Diff([]string(nil), odd); d != "" {
		t.Errorf("%s: left in the image (-want +got):\n%s", r.name, d)
	}
	if _, err := os.Lstat(filepath.Join(i.upper, "etc/ld.so.cache")); r.name == "musl" && err == nil {
		t.Error("a loader cache was written where nothing reads it")
	}
}
