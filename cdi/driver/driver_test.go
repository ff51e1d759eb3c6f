package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
)

const version = "550.163.01"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// compile makes a shared library with this SONAME.
func compile(t *testing.T, path, soname string, flags ...string) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		if os.Getenv("BERTH_TEST_ROOT") == "1" {
			t.Fatal("needs a C compiler")
		}
		t.Skip("needs a C compiler")
	}
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	args := append([]string{"-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", path}, flags...)
	if soname != "" {
		args = append(args, "-Wl,-soname,"+soname)
	}
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v: %s", err, out)
	}
}

func script(t *testing.T, path string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
}

// debian lays a driver root out as Debian's packages do.
func debian(t *testing.T) gpu.Host {
	t.Helper()
	root := t.TempDir()
	libs := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	current := filepath.Join(libs, "nvidia/current")
	compile(t, filepath.Join(current, "libcuda.so."+version), "libcuda.so.1")
	compile(t, filepath.Join(current, "libnvidia-ml.so."+version), "libnvidia-ml.so.1")
	compile(t, filepath.Join(libs, "libnvidia-glcore.so."+version), "libnvidia-glcore.so."+version)
	compile(t, filepath.Join(libs, "libunrelated.so.1.2"), "libunrelated.so.1")
	// Two libraries want one name: the first in order has it.
	compile(t, filepath.Join(libs, "libcudb.so."+version), "libcuda.so.1")
	must(t, os.Symlink("/etc/alternatives/glx--libcuda.so.1", filepath.Join(libs, "libcuda.so.1")))
	// A file that is a link, which must be followed below the root.
	compile(t, filepath.Join(root, "opt/libnvidia-nvvm.so"), "libnvidia-nvvm.so.4")
	must(t, os.Symlink("/opt/libnvidia-nvvm.so", filepath.Join(libs, "libnvidia-nvvm.so."+version)))
	must(t, os.Symlink("/proc/self/exe", filepath.Join(libs, "libevil.so."+version)))
	must(t, os.Symlink("x86_64-linux-gnu", filepath.Join(root, "usr/lib/elsewhere")))
	must(t, os.Mkdir(filepath.Join(root, "usr/bin"), 0o755))
	must(t, os.MkdirAll(filepath.Join(root, "etc/alternatives"), 0o755))
	script(t, filepath.Join(root, "usr/lib/nvidia/current/nvidia-smi"))
	must(t, os.Symlink("/etc/alternatives/nvidia--nvidia-smi", filepath.Join(root, "usr/bin/nvidia-smi")))
	must(t, os.Symlink("/usr/lib/nvidia/current/nvidia-smi", filepath.Join(root, "etc/alternatives/nvidia--nvidia-smi")))
	script(t, filepath.Join(root, "usr/bin/nvidia-modprobe"))
	script(t, filepath.Join(root, "usr/bin/nvidia-persistenced"))
	must(t, os.Chmod(filepath.Join(root, "usr/bin/nvidia-persistenced"), 0o4755))
	return gpu.Host{DriverRoot: root}
}

func TestBuild(t *testing.T) {
	host, data := debian(t), t.TempDir()
	dir, err := Build(t.Context(), host, version, data)
	must(t, err)
	var sizes []int64
	for i := range dir.Libraries {
		sizes = append(sizes, dir.Libraries[i].Size)
		dir.Libraries[i].Size = 0
	}
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
	if slices.Contains(sizes, 0) {
		t.Errorf("sizes %v", sizes)
	}
	if !strings.HasPrefix(dir.Path, filepath.Join(data, "driver", version+"-")) {
		t.Errorf("path %s", dir.Path)
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
	noneShared(t, dir.Path)
	if entries, err := os.ReadDir(filepath.Join(data, "driver")); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// noneShared checks that no file of the directory is a hard link.
func noneShared(t *testing.T, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			out, err := exec.Command("stat", "-c", "%h", path).Output()
			if err != nil || strings.TrimSpace(string(out)) != "1" {
				t.Errorf("%s has %s links, %v", path, out, err)
			}
		}
		return err
	}))
}

func TestBuildAgain(t *testing.T) {
	host, data := debian(t), t.TempDir()
	first, err := Build(t.Context(), host, version, data)
	must(t, err)
	lib := filepath.Join(first.Path, "lib64/libcuda.so."+version)
	before, err := os.Stat(lib)
	must(t, err)

	again, err := Build(t.Context(), host, version, data)
	must(t, err)
	after, err := os.Stat(lib)
	must(t, err)
	if again.Path != first.Path || !os.SameFile(before, after) {
		t.Error("an unchanged driver was copied again")
	}

	must(t, os.Truncate(lib, 10))
	_, err = Build(t.Context(), host, version, data)
	must(t, err)
	if fi, err := os.Stat(lib); err != nil || fi.Size() != before.Size() {
		t.Errorf("a damaged directory wasn't made anew: %v", err)
	}

	compile(t, filepath.Join(host.DriverRoot, "usr/lib64/libnvidia-new.so."+version), "libnvidia-new.so.1")
	other, err := Build(t.Context(), host, version, data)
	must(t, err)
	if other.Path == first.Path || len(other.Libraries) != len(first.Libraries)+1 {
		t.Errorf("a new library changed nothing: %s", other.Path)
	}
	if _, err := Load(first.Path); err != nil {
		t.Errorf("the old directory isn't there any more: %v", err)
	}
}

// What a container that can write to the directory may do is noticed, though it
// puts sizes and times back; and another directory is made.
func TestChangesAreNoticed(t *testing.T) {
	lib := "lib64/libcuda.so." + version
	same := func(t *testing.T, file string, change func()) {
		before, err := os.Stat(file)
		must(t, err)
		change()
		must(t, os.Chtimes(file, before.ModTime(), before.ModTime()))
	}
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, dir string)
	}{
		{"a byte of a library", func(t *testing.T, dir string) {
			same(t, filepath.Join(dir, lib), func() {
				f, err := os.OpenFile(filepath.Join(dir, lib), os.O_WRONLY, 0)
				must(t, err)
				_, err = f.WriteAt([]byte("PWN"), 100)
				must(t, errors.Join(err, f.Close()))
			})
		}},
		{"a program", func(t *testing.T, dir string) {
			file := filepath.Join(dir, "bin/nvidia-smi")
			same(t, file, func() { must(t, os.WriteFile(file, []byte("#!/bin/id\n"), 0o755)) })
		}},
		{"a link", func(t *testing.T, dir string) {
			same(t, filepath.Join(dir, "lib64"), func() {
				must(t, os.Remove(filepath.Join(dir, "lib64/libcuda.so.1")))
				must(t, os.Symlink("libnvidia-ml.so."+version, filepath.Join(dir, "lib64/libcuda.so.1")))
			})
		}},
		{"a file in another's place", func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, "lib64/libnvidia-ml.so."+version), filepath.Join(dir, lib)))
		}},
		{"another directory", func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, "lib64"), filepath.Join(dir, "old")))
			must(t, os.Mkdir(filepath.Join(dir, "lib64"), 0o755))
			must(t, os.Rename(filepath.Join(dir, "old", filepath.Base(lib)), filepath.Join(dir, lib)))
		}},
		{"one more file", func(t *testing.T, dir string) { script(t, filepath.Join(dir, "bin/sh")) }},
		{"modes", func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, lib), 0o777)) }},
		{"an attribute", func(t *testing.T, dir string) {
			must(t, unix.Setxattr(filepath.Join(dir, lib), "user.x", []byte("y"), 0))
		}},
		{"a manifest of its own", func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, manifestName), []byte("{}"), 0o644))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, data := debian(t), t.TempDir()
			first, err := Build(t.Context(), host, version, data)
			must(t, err)
			// The clock that stamps files is a coarse one.
			before := clock(t)
			for clock(t) == before {
				runtime.Gosched()
			}
			tt.change(t, first.Path)
			if _, err := Load(first.Path); !errors.Is(err, ErrDamaged) {
				t.Errorf("error %v", err)
			}
			for range 2 {
				again, err := Build(t.Context(), host, version, data)
				must(t, err)
				if d := cmp.Diff(first, again); d != "" {
					t.Errorf("-want +got:\n%s", d)
				}
				tt.change(t, first.Path)
			}
			// What it had before is kept for containers, but not without end.
			if entries, err := os.ReadDir(filepath.Join(data, "driver")); err != nil || len(entries) != 2 {
				t.Errorf("there are %v, %v", entries, err)
			}
		})
	}
}

// clock is the time that a file gets which is made now.
func clock(t *testing.T) int64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(t.TempDir(), &st))
	return st.Ctim.Nano()
}

func TestSetAside(t *testing.T) {
	host, data := debian(t), t.TempDir()
	dir, err := Build(t.Context(), host, version, data)
	must(t, err)
	for range 2 { // the second time it's gone
		must(t, SetAside(dir.Path))
		if _, err := Load(dir.Path); !errors.Is(err, ErrDamaged) || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v", err)
		}
	}
}

func TestBuildAtOnce(t *testing.T) {
	host, data := debian(t), t.TempDir()
	var wg sync.WaitGroup
	paths := make([]string, 8)
	for i := range paths {
		wg.Go(func() {
			d, err := Build(context.Background(), host, version, data)
			if err != nil {
				t.Errorf("builder %d: %v", i, err)
			}
			paths[i] = d.Path
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
			must(t, os.RemoveAll(filepath.Join(root, "usr")))
		}},
		{name: "another version", version: "570.1", want: "libcuda.so.570.1 not found, but version 550.163.01: kernel module and libraries don't match"},
		{name: "no NVML", version: version, want: "libnvidia-ml.so.550.163.01 not found", change: func(t *testing.T, root string) {
			must(t, os.Remove(filepath.Join(root, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so."+version)))
		}},
		{name: "not a library", version: version, want: "libcuda.so.550.163.01 in ", change: func(t *testing.T, root string) {
			must(t, os.WriteFile(filepath.Join(root, "usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so."+version), []byte("text"), 0o644))
		}},
		{name: "SONAME that leads out", version: version, want: `soname "../../x.so.1" isn't the name of a file`, change: func(t *testing.T, root string) {
			compile(t, filepath.Join(root, "usr/lib64/libx.so."+version), "../../x.so.1")
		}},
		{name: "no version", version: "", want: `"" isn't a version`},
		{name: "version that leads out", version: "../x", want: `"../x" isn't a version`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, data := debian(t), t.TempDir()
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
	host, data := debian(t), t.TempDir()
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
		"empty": "", "no JSON": "x", "past": `{"schema":1}`, "future": `{"schema":3}`, "no files": `{"schema":2}`, "of another kind": `{"libraries":1}`, "no schema": `{}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, manifestName), []byte(content), 0o644))
			if _, err := Load(filepath.Join(dir, filesName)); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), dir) {
				t.Errorf("error %v", err)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), filesName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no manifest: %v", err)
	}
}

func TestSettleNames(t *testing.T) {
	lib := func(file string, names ...string) source {
		return source{to: file, lib: Library{File: file, Names: names}}
	}
	files := []source{
		lib("lib64/liba.so.1", "liba.so"), lib("lib64/libb.so.9", "liba.so.1", "libb.so"), lib("lib64/libc.so.9", "libb.so.2", "libb.so"),
		lib("lib/libb.so.9", "libb.so"), lib("lib64/libd.so.9", "libb.so.2"),
	}
	settleNames(files)
	var got [][]string
	for _, f := range files {
		got = append(got, f.lib.Names)
	}
	want := [][]string{{"liba.so"}, {"libb.so"}, {"libb.so.2"}, {"libb.so"}, {}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func BenchmarkLoad(b *testing.B) {
	dir := b.TempDir()
	m := manifest{Schema: schema}
	for i := range 60 {
		l := Library{File: fmt.Sprintf("lib64/libnvidia-something-%d.so.%s", i, version), Names: []string{"libnvidia-something.so.1"}, Bits: 64}
		m.Libraries = append(m.Libraries, l)
		path := filepath.Join(dir, filesName, l.File)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			b.Fatal(err)
		}
	}
	err := os.Mkdir(filepath.Join(dir, filesName, "bin"), 0o755)
	if err == nil {
		m.Seal, err = m.sealOf(filepath.Join(dir, filesName))
	}
	if err := errors.Join(err, m.write(dir)); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Load(filepath.Join(dir, filesName)); err != nil {
			b.Fatal(err)
		}
	}
}
