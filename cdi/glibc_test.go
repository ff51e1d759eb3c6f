package cdi

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/testutil"
)

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// runInside runs a program with root as its root directory.
func runInside(t *testing.T, root, name string, args ...string) (string, error) {
	t.Helper()
	cmd := &exec.Cmd{Path: name, Args: append([]string{name}, args...), Dir: "/", Env: []string{}, SysProcAttr: &syscall.SysProcAttr{Chroot: root}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

const opener = `#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
	for (int i = 1; i < argc; i++) {
		void *lib = dlopen(argv[i], RTLD_NOW);
		const char *(*where)(void) = lib ? dlsym(lib, "where") : 0;
		puts(where ? where() : dlerror());
	}
}
`

// glibcRoot makes a minimal root that runs a dynamic program and ldconfig: this machine's loader, C
// library and ldconfig, and a program that opens libraries.
func glibcRoot(t *testing.T, root string) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "open.c")
	write(t, source, opener)
	must(t, os.MkdirAll(filepath.Join(root, "bin"), 0o755))
	program := filepath.Join(root, "bin/open")
	run(t, "cc", "-o", program, source, "-ldl")
	files := []string{"/sbin/ldconfig"}
	for _, word := range strings.Fields(run(t, "ldd", program)) {
		if filepath.IsAbs(word) {
			files = append(files, word)
		}
	}
	for _, f := range files {
		must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(f)), 0o755))
		run(t, "cp", "-L", f, filepath.Join(root, f))
	}
	write(t, filepath.Join(root, "etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n")
	write(t, filepath.Join(root, "etc/ld.so.conf.d/image.conf"), "/opt/image\n")
	writeTextLibrary(t, filepath.Join(root, "opt/image/libcuda.so.1"), "libcuda.so.1", "image")
	writeTextLibrary(t, filepath.Join(root, "opt/image/libimage.so.1"), "libimage.so.1", "image")
	must(t, os.MkdirAll(filepath.Join(root, "var/cache/ldconfig"), 0o755))
}

// writeTextLibrary makes a library that returns this text.
func writeTextLibrary(t *testing.T, path, soname, answer string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	source := filepath.Join(t.TempDir(), "lib.c")
	write(t, source, `const char *where(void) { return "`+answer+`"; }`)
	run(t, "cc", "-shared", "-nostdlib", "-Wl,-soname,"+soname, "-o", path, source)
}

// realDriver builds a driver directory of libraries that can be loaded.
func realDriver(t *testing.T) driver.Dir {
	t.Helper()
	root, data := t.TempDir(), t.TempDir()
	writeTextLibrary(t, filepath.Join(root, "usr/lib64/libcuda.so.550.1"), "libcuda.so.1", "driver")
	writeTextLibrary(t, filepath.Join(root, "usr/lib64/libnvidia-ml.so.550.1"), "libnvidia-ml.so.1", "driver")
	write(t, filepath.Join(root, "usr/bin/nvidia-smi"), "\x7fELF")
	must(t, os.Chmod(filepath.Join(root, "usr/bin/nvidia-smi"), 0o755))
	home, err := driver.Build(t.Context(), gpu.Host{DriverRoot: root}, "550.1", data)
	must(t, err)
	dir, err := driver.Load(home, gpu.Compute|gpu.Utility)
	must(t, err)
	return dir
}

// mountAll makes the bind mounts as a runtime does.
func mountAll(t *testing.T, root string, mounts []specs.Mount) {
	t.Helper()
	for _, m := range mounts {
		to := filepath.Join(root, m.Destination)
		if fi, err := os.Stat(m.Source); err == nil && fi.IsDir() {
			must(t, os.MkdirAll(to, 0o755))
		} else if _, err := os.Stat(to); err != nil {
			write(t, to, "")
		}
		must(t, unix.Mount(m.Source, to, "", unix.MS_BIND|unix.MS_REC, ""))
		must(t, unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""))
	}
}

func prepareWith(t *testing.T, root string, spec *specs.Spec, dir driver.Dir, state string) Prepared {
	t.Helper()
	f, err := inroot.OpenRoot(root)
	must(t, err)
	defer f.Close()
	p, err := PrepareRoot(f, spec, dir, state, RootOptions{Shared: shared.Dir{Source: state}})
	must(t, err)
	return p
}

// TestLoaderFindsDriver asks glibc itself, in a root with and without a cache, and
// again after the image ran its own ldconfig.
func TestLoaderFindsDriver(t *testing.T) {
	testutil.NeedRoot(t, "cc", "ldd")
	for _, withCache := range []bool{true, false} {
		t.Run(map[bool]string{true: "with a cache", false: "without"}[withCache], func(t *testing.T) {
			testutil.PrivateMounts(t)
			root, dir := t.TempDir(), realDriver(t)
			glibcRoot(t, root)
			want := "driver\ndriver\ndriver\n"
			libs := []string{"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"}
			if withCache {
				_, err := runInside(t, root, "/sbin/ldconfig")
				must(t, err)
				libs, want = append(libs, "libimage.so.1"), want+"image\n"
			}
			p := prepareWith(t, root, &specs.Spec{}, dir, t.TempDir())
			mountAll(t, root, p.Edits.Mounts)
			t.Cleanup(func() { unmountAll(t, root, p.Edits.Mounts) })
			for _, when := range []string{"after PrepareRoot", "after ldconfig"} {
				out, err := runInside(t, root, "/bin/open", libs...)
				if err != nil || out != want {
					t.Fatalf("%s: %v:\n%s", when, err, out)
				}
				if out, err := runInside(t, root, "/sbin/ldconfig"); err != nil || out != "" {
					t.Fatalf("ldconfig: %v: %s", err, out)
				}
			}
		})
	}
}

func unmountAll(t *testing.T, root string, mounts []specs.Mount) {
	for _, m := range mounts {
		if err := unix.Unmount(filepath.Join(root, m.Destination), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
}

// makeReadOnly turns the root into a file system that can't be written.
func makeReadOnly(t *testing.T, root string, fill func(t *testing.T, root string)) {
	t.Helper()
	must(t, unix.Mount("tmpfs", root, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(root, unix.MNT_DETACH)) })
	fill(t, root)
	must(t, unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

func TestReadOnlyRoot(t *testing.T) {
	testutil.NeedRoot(t, "cc", "ldd")
	testutil.PrivateMounts(t)
	root, dir, state := t.TempDir(), realDriver(t), t.TempDir()
	makeReadOnly(t, root, func(t *testing.T, root string) {
		glibcRoot(t, root)
		must(t, os.MkdirAll(filepath.Join(root, "usr/local/nvidia"), 0o755))
		_, err := runInside(t, root, "/sbin/ldconfig")
		must(t, err)
	})
	spec := &specs.Spec{}
	p := prepareWith(t, root, spec, dir, state)
	var places []string
	for _, m := range p.Edits.Mounts {
		places = append(places, m.Destination)
	}
	// nvidia-smi can't be bound in /usr/bin, and a note says so.
	if d := cmp.Diff([]string{Target, cachePath}, places); d != "" || len(p.Notes) != 1 {
		t.Errorf("mounts (-want +got):\n%s\nnotes %q", d, p.Notes)
	}
	mountAll(t, root, p.Edits.Mounts)
	out, err := runInside(t, root, "/bin/open", "libcuda.so.1", "libimage.so.1")
	if err != nil || out != "driver\nimage\n" {
		t.Errorf("%v:\n%s", err, out)
	}
	unmountAll(t, root, p.Edits.Mounts)
	must(t, p.Edits.Apply(spec))
	again := prepareWith(t, root, spec, dir, state)
	if d := cmp.Diff(p.Edits, again.Edits); d != "" {
		t.Errorf("twice isn't once (-once +twice):\n%s", d)
	}
}

func TestReadOnlyRootWithoutPlaces(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.PrivateMounts(t)
	root := t.TempDir()
	makeReadOnly(t, root, func(t *testing.T, root string) {
		write(t, filepath.Join(root, machineOf(runtime.GOARCH).loaders[0]), "")
	})
	spec := &specs.Spec{
		Process: &specs.Process{Env: []string{"PATH=/bin"}},
		Mounts:  []specs.Mount{{Type: "proc", Destination: "/proc"}, {Type: "tmpfs", Destination: "/dev"}},
	}
	p, err := prepare(t, root, spec, t.TempDir())
	must(t, err)
	want := Prepared{Target: "/dev/berth/nvidia", Notes: p.Notes}
	want.Edits = Files(testDir(), want.Target, shared.Dir{})
	want.Edits.Mounts = want.Edits.Mounts[:1]
	want.Edits.SetEnv(whyLibraryPath, "LD_LIBRARY_PATH", "/dev/berth/nvidia/lib64")
	if d := cmp.Diff(want, p); d != "" || len(p.Notes) != 3 {
		t.Errorf("-want +got:\n%s\nnotes %q", d, p.Notes)
	}
}

func TestReadOnlyEtc(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.PrivateMounts(t)
	root, state := t.TempDir(), t.TempDir()
	debianRoot(t, root)
	etc := filepath.Join(root, "etc")
	must(t, unix.Mount(etc, etc, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(etc, unix.MNT_DETACH)) })
	must(t, unix.Mount("", etc, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	p, err := prepare(t, root, &specs.Spec{}, state)
	must(t, err)
	last := p.Edits.Mounts[len(p.Edits.Mounts)-1]
	if last.Destination != cachePath || !strings.Contains(read(t, last.Source), "/usr/local/nvidia/lib64/libcuda.so.1") {
		t.Errorf("mounts %v", p.Edits.Mounts)
	}
}

func BenchmarkPrepareRoot(b *testing.B) {
	cache, err := os.ReadFile(cachePath)
	if err != nil {
		b.Skip(err)
	}
	dir := testDir()
	for i := range 50 {
		dir.Libraries = append(dir.Libraries, driver.Library{
			File: fmt.Sprintf("lib64/libnvidia-%d.so.550.1", i), Names: []string{fmt.Sprintf("libnvidia-%d.so.1", i)}, Bits: 64,
		})
	}
	for _, again := range []bool{false, true} {
		b.Run(map[bool]string{false: "first", true: "again"}[again], func(b *testing.B) {
			root := b.TempDir()
			for _, d := range []string{"etc/ld.so.conf.d", "lib64", "lib"} {
				if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
					b.Fatal(err)
				}
			}
			f, err := inroot.OpenRoot(root)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			state := b.TempDir()
			for i := 0; b.Loop(); i++ {
				if i == 0 || !again {
					if err := os.WriteFile(filepath.Join(root, "etc/ld.so.cache"), cache, 0o644); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := PrepareRoot(f, &specs.Spec{}, dir, state, RootOptions{Shared: shared.Dir{Source: state}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestRaceOfEtc swaps etc for a link to the host's while roots are prepared.
func TestRaceOfEtc(t *testing.T) {
	host := t.TempDir()
	root := filepath.Join(host, "root")
	debianRoot(t, root)
	write(t, host+"/etc/ld.so.cache", "secret")
	write(t, host+"/etc/ld.so.conf.d/x.conf", "secret")
	must(t, os.Symlink("../etc", root+"/up"))
	must(t, os.Symlink(host+"/etc", root+"/across"))
	before := listing(t, host, root)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			link := root + []string{"/up", "/across"}[i/2%2]
			if err := unix.Renameat2(unix.AT_FDCWD, root+"/etc", unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	})
	f, err := inroot.OpenRoot(root)
	must(t, err)
	defer f.Close()
	for range 500 {
		// An error is fine while etc is a link that leads nowhere.
		_, _ = PrepareRoot(f, &specs.Spec{}, testDir(), "/nowhere", RootOptions{Compat: true, Shared: shared.Dir{Source: "/nowhere"}})
	}
	close(stop)
	wg.Wait()
	if d := cmp.Diff(before, listing(t, host, root)); d != "" {
		t.Errorf("the host was changed (-before +after):\n%s", d)
	}
}
