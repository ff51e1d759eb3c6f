package driver

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/ldcache"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
)

const version = "550.163.01"

// writeProgram writes what counts as one of the driver's programs.
func writeProgram(t testing.TB, path string) {
	t.Helper()
	writeFile(t, path, elf.ELFMAG, 0o755)
}

// writeDebianDriver makes a driver root with the layout of Debian's packages.
func writeDebianDriver(t *testing.T) gpu.Host {
	t.Helper()
	root := t.TempDir()
	libs := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	current := filepath.Join(libs, "nvidia/current")
	writeLibrary(t, filepath.Join(current, "libcuda.so."+version), "libcuda.so.1")
	writeLibrary(t, filepath.Join(current, "libnvidia-ml.so."+version), "libnvidia-ml.so.1")
	writeLibrary(t, filepath.Join(libs, "libnvidia-glcore.so."+version), "libnvidia-glcore.so."+version)
	writeLibrary(t, filepath.Join(libs, "libunrelated.so.1.2"), "libunrelated.so.1")
	// Two libraries claim one name: the first in order gets it.
	writeLibrary(t, filepath.Join(libs, "libcudb.so."+version), "libcuda.so.1")
	testutil.Must(t, os.Symlink("/etc/alternatives/glx--libcuda.so.1", filepath.Join(libs, "libcuda.so.1")))
	// A file that is a link, which must be followed below the root.
	writeLibrary(t, filepath.Join(root, "opt/libnvidia-nvvm.so"), "libnvidia-nvvm.so.4")
	testutil.Must(t, os.Symlink("/opt/libnvidia-nvvm.so", filepath.Join(libs, "libnvidia-nvvm.so."+version)))
	testutil.Must(t, os.Symlink("/proc/self/exe", filepath.Join(libs, "libevil.so."+version)))
	testutil.Must(t, os.Symlink("x86_64-linux-gnu", filepath.Join(root, "usr/lib/elsewhere")))
	testutil.Must(t, os.Mkdir(filepath.Join(root, "usr/bin"), 0o755))
	testutil.Must(t, os.MkdirAll(filepath.Join(root, "etc/alternatives"), 0o755))
	writeProgram(t, filepath.Join(root, "usr/lib/nvidia/current/nvidia-smi"))
	testutil.Must(t, os.Symlink("/etc/alternatives/nvidia--nvidia-smi", filepath.Join(root, "usr/bin/nvidia-smi")))
	testutil.Must(t, os.Symlink("/usr/lib/nvidia/current/nvidia-smi", filepath.Join(root, "etc/alternatives/nvidia--nvidia-smi")))
	writeProgram(t, filepath.Join(root, "usr/bin/nvidia-modprobe"))
	writeProgram(t, filepath.Join(root, "usr/bin/nvidia-persistenced"))
	testutil.Must(t, os.Chmod(filepath.Join(root, "usr/bin/nvidia-persistenced"), 0o4755))
	return gpu.Host{DriverRoot: root}
}

func TestBuild(t *testing.T) {
	host, data := writeDebianDriver(t), t.TempDir()
	home, err := Build(t.Context(), host, version, data)
	testutil.Must(t, err)
	dir, err := Load(home, whole)
	testutil.Must(t, err)
	want := Manifest{
		Driver: version,
		Libraries: []Library{
			{File: "lib64/libcuda.so." + version, Names: []string{"libcuda.so.1", "libcuda.so"}, Bits: 64},
			{File: "lib64/libcudb.so." + version, Names: []string{}, Bits: 64},
			{File: "lib64/libnvidia-glcore.so." + version, Names: []string{}, Bits: 64},
			{File: "lib64/libnvidia-ml.so." + version, Names: []string{"libnvidia-ml.so.1", "libnvidia-ml.so"}, Bits: 64},
			{File: "lib64/libnvidia-nvvm.so." + version, Names: []string{"libnvidia-nvvm.so.4", "libnvidia-nvvm.so"}, Bits: 64},
		},
		Programs: []string{"nvidia-persistenced", "nvidia-smi"},
	}
	if d := cmp.Diff(want, dir.Manifest); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if !strings.HasPrefix(home, filepath.Join(data, "driver", version+"-")) || dir.Home != home || dir.Path != filepath.Join(home, "all/files") {
		t.Errorf("built %s, loaded %s", home, dir.Path)
	}
	for name, mode := range map[string]fs.FileMode{
		".": fs.ModeDir | 0o755, "bin": fs.ModeDir | 0o755, "lib64": fs.ModeDir | 0o755,
		"bin/nvidia-persistenced": 0o755, "lib64/libcuda.so." + version: 0o755,
	} {
		if fi, err := os.Lstat(filepath.Join(dir.Path, name)); err != nil || fi.Mode() != mode {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir.Path, "lib64/libcuda.so.1")); err != nil || to != "libcuda.so."+version {
		t.Errorf("libcuda.so.1 -> %s, %v", to, err)
	}
	if entries, err := os.ReadDir(filepath.Join(data, "driver")); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestElsewhere: driver files are found where only the loader cache or Google's installer has them.
func TestElsewhere(t *testing.T) {
	const vendor = "opt/vendor/lib"
	cache := ldcache.Cache{}.Merge([]ldcache.Entry{{Name: "libcuda.so.1", Path: "/" + vendor + "/libcuda.so.1"}})
	for _, tt := range []struct {
		name, dir string
		cache     []byte
		ok        bool
	}{
		{"in the loader cache", vendor, cache.Bytes(), true},
		{"Google's", "usr/local/nvidia/lib64", nil, true},
		{"nowhere", vendor, nil, false},
		{"in a damaged cache", vendor, []byte("ld.so-1.7.0"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			writeLibrary(t, filepath.Join(root, tt.dir, "libcuda.so."+version), "libcuda.so.1")
			writeLibrary(t, filepath.Join(root, tt.dir, "libnvidia-ml.so."+version), "libnvidia-ml.so.1")
			writeFile(t, filepath.Join(root, "usr/bin/nvidia-smi"), "#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi\n", 0o755)
			writeProgram(t, filepath.Join(root, "usr/local/nvidia/bin/nvidia-smi"))
			if tt.cache != nil {
				testutil.Must(t, os.MkdirAll(filepath.Join(root, "etc"), 0o755))
				testutil.Must(t, os.WriteFile(filepath.Join(root, "etc/ld.so.cache"), tt.cache, 0o644))
			}
			home, err := Build(t.Context(), gpu.Host{DriverRoot: root}, version, t.TempDir())
			if !tt.ok {
				if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "host.driver_root") {
					t.Errorf("%v", err)
				}
				return
			}
			testutil.Must(t, err)
			dir, err := Load(home, whole)
			testutil.Must(t, err)
			if len(dir.Libraries) != 2 || len(dir.Programs) != 1 {
				t.Errorf("%+v", dir.Manifest)
			}
			if smi, err := os.ReadFile(filepath.Join(dir.Path, "bin/nvidia-smi")); err != nil || string(smi) != elf.ELFMAG {
				t.Errorf("nvidia-smi is %q, %v", smi, err)
			}
		})
	}
}

func TestBuildAgain(t *testing.T) {
	host, data := writeDebianDriver(t), t.TempDir()
	first, err := Build(t.Context(), host, version, data)
	testutil.Must(t, err)
	lib := filepath.Join(first, "compute/files/lib64/libcuda.so."+version)
	before, err := os.Stat(lib)
	testutil.Must(t, err)

	again, err := Build(t.Context(), host, version, data)
	testutil.Must(t, err)
	after, err := os.Stat(lib)
	testutil.Must(t, err)
	if again != first || !os.SameFile(before, after) {
		t.Error("an unchanged driver was copied again")
	}

	testutil.Must(t, os.Truncate(lib, 10))
	_, err = Build(t.Context(), host, version, data)
	testutil.Must(t, err)
	if fi, err := os.Stat(lib); err != nil || fi.Size() != before.Size() {
		t.Errorf("a damaged directory wasn't made anew: %v", err)
	}

	writeLibrary(t, filepath.Join(host.DriverRoot, "usr/lib64/libnvidia-new.so."+version), "libnvidia-new.so.1")
	other, err := Build(t.Context(), host, version, data)
	testutil.Must(t, err)
	if _, err := os.Stat(filepath.Join(other, "utility/files/lib64/libnvidia-new.so."+version)); other == first || err != nil {
		t.Errorf("a new library changed nothing: %s, %v", other, err)
	}
	if _, err := Load(first, whole); err != nil {
		t.Errorf("the old directory isn't there any more: %v", err)
	}
}

// Every change that a container with write access can make is detected, even if it restores sizes
// and times; another directory is then made.
func TestChangesAreNoticed(t *testing.T) {
	lib := "lib64/libcuda.so." + version
	same := func(t *testing.T, file string, change func()) {
		before, err := os.Stat(file)
		testutil.Must(t, err)
		change()
		testutil.Must(t, os.Chtimes(file, before.ModTime(), before.ModTime()))
	}
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, dir string)
	}{
		{"a byte of a library", func(t *testing.T, dir string) {
			same(t, filepath.Join(dir, lib), func() {
				f, err := os.OpenFile(filepath.Join(dir, lib), os.O_WRONLY, 0)
				testutil.Must(t, err)
				_, err = f.WriteAt([]byte("PWN"), 100)
				testutil.Must(t, errors.Join(err, f.Close()))
			})
		}},
		{"a program", func(t *testing.T, dir string) {
			file := filepath.Join(dir, "bin/nvidia-smi")
			same(t, file, func() { testutil.Must(t, os.WriteFile(file, []byte("#!/bin/id\n"), 0o755)) })
		}},
		{"a link", func(t *testing.T, dir string) {
			same(t, filepath.Join(dir, "lib64"), func() {
				testutil.Must(t, os.Remove(filepath.Join(dir, "lib64/libcuda.so.1")))
				testutil.Must(t, os.Symlink("libnvidia-ml.so."+version, filepath.Join(dir, "lib64/libcuda.so.1")))
			})
		}},
		{"a file in another's place", func(t *testing.T, dir string) {
			testutil.Must(t, os.Rename(filepath.Join(dir, "lib64/libnvidia-ml.so."+version), filepath.Join(dir, lib)))
		}},
		{"another directory", func(t *testing.T, dir string) {
			testutil.Must(t, os.Rename(filepath.Join(dir, "lib64"), filepath.Join(dir, "old")))
			testutil.Must(t, os.Mkdir(filepath.Join(dir, "lib64"), 0o755))
			testutil.Must(t, os.Rename(filepath.Join(dir, "old", filepath.Base(lib)), filepath.Join(dir, lib)))
		}},
		{"one more file", func(t *testing.T, dir string) { writeProgram(t, filepath.Join(dir, "bin/sh")) }},
		{"modes", func(t *testing.T, dir string) { testutil.Must(t, os.Chmod(filepath.Join(dir, lib), 0o777)) }},
		{"an attribute", func(t *testing.T, dir string) {
			testutil.Must(t, unix.Setxattr(filepath.Join(dir, lib), "user.x", []byte("y"), 0))
		}},
		{"a manifest of its own", func(t *testing.T, dir string) {
			testutil.Must(t, os.WriteFile(filepath.Join(dir, manifestName), []byte("{}"), 0o644))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, data := writeDebianDriver(t), t.TempDir()
			first, err := Build(t.Context(), host, version, data)
			testutil.Must(t, err)
			waitForClock(t)
			usual := filepath.Join(first, "compute-utility", filesName)
			tt.change(t, usual)
			if _, err := Load(first, gpu.Compute|gpu.Utility); !errors.Is(err, ErrDamaged) {
				t.Errorf("error %v", err)
			}
			for range 2 {
				again, err := Build(t.Context(), host, version, data)
				testutil.Must(t, err)
				if _, err := Load(again, gpu.Compute|gpu.Utility); again != first || err != nil {
					t.Errorf("made %s in place of %s: %v", again, first, err)
				}
				tt.change(t, usual)
			}
			// The damaged directory is kept for running containers, until the next one is set
			// aside.
			if entries, err := os.ReadDir(filepath.Join(data, "driver")); err != nil || len(entries) != 2 {
				t.Errorf("there are %v, %v", entries, err)
			}
		})
	}
}

// waitForClock waits until a change of a file gets a time other than that of earlier changes: the
// clock for file times is coarse.
func waitForClock(t *testing.T) {
	t.Helper()
	for before := fileClock(t); fileClock(t) == before; {
		runtime.Gosched()
	}
}

// fileClock returns the time that a file gets if it is made now.
func fileClock(t *testing.T) int64 {
	t.Helper()
	var st unix.Stat_t
	testutil.Must(t, unix.Stat(t.TempDir(), &st))
	return st.Ctim.Nano()
}

func TestSetAside(t *testing.T) {
	host, data := writeDebianDriver(t), t.TempDir()
	home, err := Build(t.Context(), host, version, data)
	testutil.Must(t, err)
	for range 2 { // the second time there is none
		testutil.Must(t, SetAside(home))
		if _, err := Load(home, whole); !errors.Is(err, ErrDamaged) || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v", err)
		}
	}
}

func TestBuildAtOnce(t *testing.T) {
	host, data := writeDebianDriver(t), t.TempDir()
	var wg sync.WaitGroup
	paths := make([]string, 8)
	for i := range paths {
		wg.Go(func() {
			home, err := Build(context.Background(), host, version, data)
			if err != nil {
				t.Errorf("builder %d: %v", i, err)
			}
			paths[i] = home
		})
	}
	wg.Wait()
	if len(slices.Compact(paths)) != 1 {
		t.Errorf("different directories: %v", paths)
	}
	if entries, err := os.ReadDir(filepath.Join(data, "driver")); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestBuildRefuses(t *testing.T) {
	for _, tt := range []struct {
		name    string
		version string
		change  func(t *testing.T, root string)
		want    string
	}{
		{name: "no driver", version: version, want: "libcuda.so.550.163.01 not found", change: func(t *testing.T, root string) {
			testutil.Must(t, os.RemoveAll(filepath.Join(root, "usr")))
		}},
		{name: "another version", version: "570.1", want: "libcuda.so.570.1 not found, but version 550.163.01: kernel module and libraries don't match"},
		{name: "no NVML", version: version, want: "libnvidia-ml.so.550.163.01 not found", change: func(t *testing.T, root string) {
			testutil.Must(t, os.Remove(filepath.Join(root, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so."+version)))
		}},
		{name: "not a library", version: version, want: "libcuda.so.550.163.01 in ", change: func(t *testing.T, root string) {
			testutil.Must(t, os.WriteFile(filepath.Join(root, "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so."+version), []byte("text"), 0o644))
		}},
		{name: "SONAME that leads out", version: version, want: `soname "../../x.so.1" isn't the name of a file`, change: func(t *testing.T, root string) {
			writeLibrary(t, filepath.Join(root, "usr/lib64/libx.so."+version), "../../x.so.1")
		}},
		{name: "no version", version: "", want: `"" isn't a version`},
		{name: "version that leads out", version: "../x", want: `"../x" isn't a version`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, data := writeDebianDriver(t), t.TempDir()
			if tt.change != nil {
				tt.change(t, host.DriverRoot)
			}
			_, err := Build(t.Context(), host, tt.version, data)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if entries, err := os.ReadDir(filepath.Join(data, "driver")); err == nil && len(entries) > 0 {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
}

func TestBuildStops(t *testing.T) {
	host, data := writeDebianDriver(t), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Build(ctx, host, version, data); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(data, "driver")); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "no JSON": "x", "past": `{"schema":2}`, "future": `{"schema":4}`, "no files": `{"schema":3}`, "of another kind": `{"libraries":1}`, "no schema": `{}`,
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			writeFile(t, filepath.Join(home, "compute", manifestName), content, 0o644)
			if _, err := Load(home, gpu.Compute); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), home) {
				t.Errorf("error %v", err)
			}
		})
	}
	if _, err := Load(t.TempDir(), gpu.Compute); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no manifest: %v", err)
	}
	// An error of the caller: no new directory is needed.
	if _, err := Load(t.TempDir(), 1<<7); err == nil || errors.Is(err, ErrDamaged) {
		t.Errorf("an unknown capability: %v", err)
	}
}

func BenchmarkLoad(b *testing.B) {
	root, data := b.TempDir(), b.TempDir()
	for i := range 8 { // of a driver newer than the table
		name := fmt.Sprintf("usr/lib64/libnvidia-something-%d.so", i)
		writeLibrary(b, filepath.Join(root, name+"."+version), filepath.Base(name)+".1")
	}
	for _, l := range libraryTable() {
		writeLibrary(b, filepath.Join(root, "usr/lib64", l.fileName(version)), l.name+".so.1")
	}
	home, err := Build(b.Context(), gpu.Host{DriverRoot: root}, version, data)
	testutil.Must(b, err)
	for _, set := range []gpu.Capabilities{gpu.Compute | gpu.Utility, whole} {
		b.Run(set.String(), func(b *testing.B) {
			for b.Loop() {
				if _, err := Load(home, set); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
