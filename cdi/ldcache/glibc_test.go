package ldcache

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/testutil"
)

// The tests here compare the package with glibc itself: its ldconfig and its loader.

func program(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	testutil.SkipOrFail(t, "needs "+name)
	return ""
}

func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return string(out)
}

// listing returns a cache as ldconfig -p prints it, without the line that names the file.
func listing(t *testing.T, file []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cache")
	write(t, path, file)
	_, list, _ := strings.Cut(run(t, program(t, "ldconfig"), "-p", "-C", path), "\n")
	return list
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parse(t *testing.T, data []byte) Cache {
	t.Helper()
	c, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestThisMachine: the machine's own cache keeps its entries and their order, and is the same file
// where a recent glibc wrote it.
func TestThisMachine(t *testing.T) {
	data, err := os.ReadFile("/etc/ld.so.cache")
	if errors.Is(err, os.ErrNotExist) {
		testutil.SkipOrFail(t, "needs /etc/ld.so.cache")
	} else if err != nil {
		t.Fatal(err)
	}
	c := parse(t, data)
	if c.Generator != "" && !bytes.Equal(c.Bytes(), data) {
		t.Error("written back it is another file")
	}
	if !slices.Equal(c.Merge(nil).Entries, c.Entries) {
		t.Error("sorted it has another order")
	}
	if got, want := listing(t, c.Bytes()), listing(t, data); got != want {
		t.Errorf("ldconfig prints\n%s, want\n%s", got, want)
	}
}

const placeholder = "libABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJKL.so.1"

// library compiles a library that returns text, with a placeholder as its soname.
func library(t *testing.T, text string) []byte {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("expects the flags of x86-64 in what ldconfig writes")
	}
	cc := program(t, "gcc")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "lib.c"), []byte(`const char *says(void) { return "`+text+`"; }`))
	run(t, cc, "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,"+placeholder, "-o", filepath.Join(dir, "lib.so"), filepath.Join(dir, "lib.c"))
	return read(t, filepath.Join(dir, "lib.so"))
}

// withSoname returns the library with another soname.
func withSoname(lib []byte, soname string) []byte {
	field := make([]byte, len(placeholder))
	copy(field, soname)
	return bytes.Replace(lib, []byte(placeholder), field, 1)
}

// TestSameAsLdconfig: the merged cache of an image is the file that ldconfig would have written,
// had the libraries been in its directories.
func TestSameAsLdconfig(t *testing.T) {
	ldconfig := program(t, "ldconfig")
	lib := library(t, "x")
	name := rapid.StringMatching(`lib[a-c]{0,2}[0-9]{0,2}[+_-]?[a-zA-Z]{1,2}\.so(\.[0-9]{1,2}){0,3}`)
	rapid.Check(t, func(rt *rapid.T) {
		names := rapid.SliceOfNDistinct(name, 2, 12, rapid.ID).Draw(rt, "names")
		cut := rapid.IntRange(0, len(names)).Draw(rt, "image's")
		root, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		cache := func(dirs ...string) []byte {
			write(t, filepath.Join(root, "etc/ld.so.conf"), []byte(strings.Join(dirs, "\n")+"\n"))
			run(t, ldconfig, "-i", "-r", root)
			return read(t, filepath.Join(root, "etc/ld.so.cache"))
		}
		var mine []Entry
		for i, n := range names {
			dir := "/opt/image/"
			if i >= cut {
				dir = "/opt/ours/"
				mine = append(mine, Entry{Name: n, Path: dir + n, Flags: X8664})
			}
			write(t, filepath.Join(root, dir, n), withSoname(lib, n))
		}
		got := parse(t, cache("/opt/image")).Merge(mine).Bytes()
		if want := cache("/opt/image", "/opt/ours"); !bytes.Equal(got, want) {
			rt.Fatalf("merged\n%s, ldconfig\n%s", listing(t, got), listing(t, want))
		}
	})
}

// TestLdconfigReads: ldconfig prints the entries of merged caches of all formats.
func TestLdconfigReads(t *testing.T) {
	ldconfig := program(t, "ldconfig")
	root := t.TempDir()
	lib := library(t, "x")
	for _, path := range []string{
		"opt/liba.so.1", "opt/glibc-hwcaps/x86-64-v2/liba.so.1", "opt/glibc-hwcaps/x86-64-v3/liba.so.1",
		"opt/libcuda.so.1", "opt/libz.so.1",
	} {
		write(t, filepath.Join(root, path), withSoname(lib, filepath.Base(path)))
	}
	write(t, filepath.Join(root, "etc/ld.so.conf"), []byte("/opt\n"))
	const want = `	libz.so.1 (libc6,x86-64) => /opt/libz.so.1
	libcuda.so.1 (libc6,x86-64) => /usr/local/nvidia/lib64/libcuda.so.1
	libcuda.so.1 (libc6,x86-64) => /opt/libcuda.so.1
	libcuda.so.1 (libc6) => /usr/local/nvidia/lib/libcuda.so.1
	liba.so.1 (libc6,AArch64) => /usr/local/nvidia/lib64/liba.so.1
	liba.so.1 (libc6,x86-64, hwcap: "x86-64-v2") => /opt/glibc-hwcaps/x86-64-v2/liba.so.1
	liba.so.1 (libc6,x86-64, hwcap: "x86-64-v3") => /opt/glibc-hwcaps/x86-64-v3/liba.so.1
	liba.so.1 (libc6,x86-64) => /opt/liba.so.1
`
	aarch64 := Entry{Name: "liba.so.1", Path: driverDir + "liba.so.1", Flags: AArch64}
	mine := []Entry{{Name: "libcuda.so.1", Path: "/usr/local/nvidia/lib/libcuda.so.1", Flags: I386}, ours("libcuda.so.1"), aarch64}
	run(t, ldconfig, "-i", "-r", root)
	image := read(t, filepath.Join(root, "etc/ld.so.cache"))
	tests := []struct {
		name  string
		cache []byte
	}{
		{"new format", image},
		{"behind the old format", combined(parse(t, image), 3)},
		{"merged before", parse(t, image).Merge(mine).Bytes()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := listing(t, parse(t, tt.cache).Merge(mine).Bytes())
			if got, _, _ := strings.Cut(got, "Cache generated by"); got != want {
				t.Errorf("ldconfig prints\n%s, want\n%s", got, want)
			}
		})
	}
}

// root makes a tree for chroot with a program that loads a library by name and prints the library's
// text.
func root(t *testing.T) string {
	t.Helper()
	testutil.NeedRoot(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "main.c"), []byte(`
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
	void *lib = dlopen(argv[argc - 1], RTLD_NOW);
	const char *(*says)(void) = lib ? (const char *(*)(void))dlsym(lib, "says") : 0;
	printf("%s", says ? says() : dlerror());
	return 0;
}`))
	run(t, program(t, "gcc"), "-o", filepath.Join(dir, "main"), filepath.Join(dir, "main.c"), "-ldl")
	for _, line := range strings.Split(run(t, program(t, "ldd"), filepath.Join(dir, "main")), "\n") {
		for _, word := range strings.Fields(line) {
			if strings.HasPrefix(word, "/") {
				write(t, filepath.Join(dir, word), read(t, word))
			}
		}
	}
	return dir
}

// TestLoaderFinds: glibc's own loader finds the added libraries through the written cache, and
// prefers them to the image's.
func TestLoaderFinds(t *testing.T) {
	ldconfig := program(t, "ldconfig")
	const soname = "libcuda.so.1"
	dir := root(t)
	put := func(path, says string) { write(t, filepath.Join(dir, path), withSoname(library(t, says), soname)) }
	put(driverDir+soname, "ours")
	load := func(t *testing.T, name string) string {
		t.Helper()
		cmd := exec.Command("/main", name)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
		cmd.Dir, cmd.Env = "/", []string{}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	cacheFile := filepath.Join(dir, "etc/ld.so.cache")
	image := func(t *testing.T) []byte {
		write(t, filepath.Join(dir, "etc/ld.so.conf"), []byte("/opt/image\n"))
		run(t, ldconfig, "-i", "-r", dir)
		return read(t, cacheFile)
	}
	merged := func(c []byte) []byte { return parse(t, c).Merge([]Entry{ours(soname)}).Bytes() }

	tests := []struct {
		name  string
		cache func(t *testing.T) []byte
		want  string
	}{
		{"no cache", nil, "cannot open shared object file"},
		{"a new cache", func(*testing.T) []byte { return merged(nil) }, "ours"},
		{"the image's, without libcuda", image, "cannot open shared object file"},
		{"merged, without libcuda", func(t *testing.T) []byte { return merged(image(t)) }, "ours"},
		{"the image's libcuda", func(t *testing.T) []byte {
			put("/opt/image/"+soname, "image")
			return image(t)
		}, "image"},
		{"merged, with the image's libcuda", func(t *testing.T) []byte { return merged(image(t)) }, "ours"},
		{"the image's libcuda for better hardware", func(t *testing.T) []byte {
			put("/opt/image/glibc-hwcaps/x86-64-v2/"+soname, "hwcap")
			return image(t)
		}, "hwcap"},
		{"merged, with one for better hardware", func(t *testing.T) []byte { return merged(image(t)) }, "ours"},
		{"merged behind the old format", func(t *testing.T) []byte {
			return merged(combined(parse(t, image(t)), 3))
		}, "ours"},
		{"the old format itself", func(t *testing.T) []byte {
			return combined(parse(t, merged(image(t))), 3)
		}, "ours"},
		{"ours taken away again", func(t *testing.T) []byte {
			return parse(t, merged(image(t))).Without(driverDir).Bytes()
		}, "hwcap"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.Remove(cacheFile); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if tt.cache != nil {
				write(t, cacheFile, tt.cache(t))
			}
			if got := load(t, soname); !strings.Contains(got, tt.want) {
				t.Errorf("loaded %q, want %q", got, tt.want)
			}
		})
	}
}
