package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/ldcache"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/internal/inroot"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

func testDir() driver.Dir {
	return driver.Dir{Path: "/driver", Manifest: driver.Manifest{
		Driver: "550.1",
		Libraries: []driver.Library{
			{File: "lib64/libcuda.so.550.1", Names: []string{"libcuda.so.1", "libcuda.so"}, Bits: 64},
			{File: "lib64/libnvidia-glcore.so.550.1", Names: []string{}, Bits: 64},
		},
		Programs: []string{"nvidia-smi"},
	}}
}

// ourEntries are the entries that the test directory brings, in the cache's order.
func ourEntries(target string) []ldcache.Entry {
	flags := machineOf(runtime.GOARCH).flags[64]
	var all []ldcache.Entry
	for _, name := range []string{"libnvidia-glcore.so.550.1", "libcuda.so.1", "libcuda.so"} {
		all = append(all, ldcache.Entry{Name: name, Path: target + "/lib64/" + name, Flags: flags})
	}
	return all
}

// debianRoot has the relevant files of Debian's libc-bin, with a loader that isn't run.
func debianRoot(t *testing.T, root string) {
	t.Helper()
	for _, l := range machineOf(runtime.GOARCH).loaders {
		write(t, filepath.Join(root, l), "")
	}
	write(t, filepath.Join(root, "sbin/ldconfig"), "")
	write(t, filepath.Join(root, "etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n")
	write(t, filepath.Join(root, "etc/ld.so.conf.d/libc.conf"), "/usr/local/lib\n")
	write(t, filepath.Join(root, "etc/ld.so.cache"), string(image().Bytes()))
}

func image() ldcache.Cache {
	return ldcache.Cache{Generator: "ldconfig", Entries: []ldcache.Entry{
		{Name: "libcuda.so.1", Path: "/opt/libcuda.so.1", Flags: ldcache.X8664},
		{Name: "libc.so.6", Path: "/lib/libc.so.6", Flags: ldcache.X8664},
	}}
}

func prepare(t *testing.T, root string, spec *specs.Spec, state string) (Prepared, error) {
	t.Helper()
	f, err := inroot.OpenRoot(root)
	must(t, err)
	defer f.Close()
	return PrepareRoot(f, spec, testDir(), state, RootOptions{Shared: shared.Dir{Source: state}})
}

func TestPrepareRoot(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(t *testing.T, root string)
		spec specs.Spec
		// want are files of the root; "-" stands for a missing one, and a cache is given as entries
		cache  []ldcache.Entry // nil: there must be no such file
		want   map[string]string
		target string
		notes  int
		env    map[string]string
	}{
		{
			name: "debian", make: debianRoot, target: Target,
			cache: append(ourEntries(Target)[:2:2], image().Entries[0], ourEntries(Target)[2], image().Entries[1]),
			want: map[string]string{
				"etc/ld.so.conf.d/00-berth.conf": "/usr/local/nvidia/lib64\n",
				"etc/ld.so.conf":                 "include /etc/ld.so.conf.d/*.conf\n",
			},
		},
		{
			name: "busybox or musl isn't touched", target: Target,
			make: func(t *testing.T, root string) { write(t, root+"/bin/busybox", "") },
			want: map[string]string{"etc": "-"},
		},
		{
			name: "distroless: a loader, no cache, no ldconfig, no etc", target: Target,
			make: func(t *testing.T, root string) {
				write(t, filepath.Join(root, machineOf(runtime.GOARCH).loaders[0]), "")
			},
			cache: ourEntries(Target),
			want:  map[string]string{"etc/ld.so.conf": "-", "etc/ld.so.conf.d/00-berth.conf": "/usr/local/nvidia/lib64\n"},
		},
		{
			name: "empty cache", target: Target,
			make: func(t *testing.T, root string) {
				debianRoot(t, root)
				write(t, root+"/etc/ld.so.cache", "")
			},
			cache: ourEntries(Target),
		},
		{
			name: "what isn't a cache is replaced, and said", target: Target, notes: 1,
			make: func(t *testing.T, root string) {
				debianRoot(t, root)
				write(t, root+"/etc/ld.so.cache", "garbage")
			},
			cache: ourEntries(Target),
		},
		{
			name: "ld.so.conf that doesn't include", target: Target,
			make: func(t *testing.T, root string) {
				debianRoot(t, root)
				write(t, root+"/etc/ld.so.conf", "/opt/lib\n")
				must(t, os.RemoveAll(root+"/etc/ld.so.conf.d"))
				must(t, os.Remove(root+"/etc/ld.so.cache"))
			},
			cache: ourEntries(Target),
			want: map[string]string{
				"etc/ld.so.conf":                 "include /etc/ld.so.conf.d/00-berth.conf\n/opt/lib\n",
				"etc/ld.so.conf.d/00-berth.conf": "/usr/local/nvidia/lib64\n",
			},
		},
		{
			name: "entries of an earlier driver go", target: Target,
			make: func(t *testing.T, root string) {
				debianRoot(t, root)
				old := ldcache.Cache{}.Merge([]ldcache.Entry{
					{Name: "libold.so.1", Path: Target + "/lib64/libold.so.1", Flags: ldcache.X8664},
					{Name: "libold.so.1", Path: OtherTarget + "/lib64/libold.so.1", Flags: ldcache.X8664},
				})
				write(t, root+"/etc/ld.so.cache", string(old.Bytes()))
			},
			cache: ourEntries(Target),
		},
		{
			name: "the image has files at the target", target: OtherTarget, notes: 1,
			make: func(t *testing.T, root string) {
				debianRoot(t, root)
				must(t, os.Remove(root+"/etc/ld.so.cache"))
				write(t, root+"/usr/local/nvidia/lib64/libmine.so", "")
			},
			cache: ourEntries(OtherTarget),
			want:  map[string]string{"etc/ld.so.conf.d/00-berth.conf": "/usr/local/berth/nvidia/lib64\n"},
		},
		{
			name: "an empty directory at the target", target: Target,
			make: func(t *testing.T, root string) {
				must(t, os.MkdirAll(root+"/usr/local/nvidia", 0o755))
			},
		},
		{
			name: "a link at the target", target: OtherTarget, notes: 1,
			make: func(t *testing.T, root string) {
				must(t, os.MkdirAll(root+"/usr/local", 0o755))
				must(t, os.Symlink("/etc", root+"/usr/local/nvidia"))
			},
		},
		{
			name: "the user mounts something there", target: OtherTarget, notes: 1,
			make: func(*testing.T, string) {},
			spec: specs.Spec{Mounts: []specs.Mount{{Destination: "/usr/local/nvidia/lib64/", Source: "/x"}}},
		},
		{
			name: "a mount over etc", target: Target, notes: 1, make: debianRoot, cache: image().Entries,
			spec: specs.Spec{
				Mounts:  []specs.Mount{{Destination: "/etc", Source: "/x"}},
				Process: &specs.Process{Env: []string{"LD_LIBRARY_PATH=/mine"}},
			},
			env:  map[string]string{"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/mine"},
			want: map[string]string{"etc/ld.so.conf.d/00-berth.conf": "-"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			tt.make(t, root)
			var stamp int64
			for _, times := range []string{"once", "twice"} {
				p, err := prepare(t, root, &tt.spec, t.TempDir())
				must(t, err)
				if p.Target != tt.target || len(p.Notes) != tt.notes && times == "once" {
					t.Errorf("%s: target %s, notes %q", times, p.Target, p.Notes)
				}
				if d := cmp.Diff(Files(testDir(), tt.target, shared.Dir{}).Mounts, p.Edits.Mounts); d != "" {
					t.Errorf("%s: mounts (-want +got):\n%s", times, d)
				}
				if d := cmp.Diff(tt.env, p.Edits.Env); d != "" {
					t.Errorf("%s: environment (-want +got):\n%s", times, d)
				}
				must(t, p.Edits.Apply(&tt.spec))
				checkCache(t, root, tt.cache)
				for name, want := range tt.want {
					checkFile(t, filepath.Join(root, name), want)
				}
				if times == "twice" && stamp != inode(root) {
					t.Error("an unchanged cache was written again")
				}
				stamp = inode(root)
			}
			noLeftovers(t, root)
		})
	}
}

func TestMergedCacheIsStored(t *testing.T) {
	state := t.TempDir()
	memory := filepath.Join(state, "ldmemo")
	count := func() int {
		names, err := os.ReadDir(memory)
		must(t, err)
		return len(names)
	}
	want := append(ourEntries(Target)[:2:2], image().Entries[0], ourEntries(Target)[2], image().Entries[1])
	for range 2 {
		root := t.TempDir()
		debianRoot(t, root)
		_, err := prepare(t, root, &specs.Spec{}, state)
		must(t, err)
		checkCache(t, root, want)
		if count() != 1 {
			t.Errorf("%d caches are remembered", count())
		}
	}

	root, other := t.TempDir(), testDir()
	debianRoot(t, root)
	other.Path, other.Libraries = "/newer", other.Libraries[1:]
	f, err := inroot.OpenRoot(root)
	must(t, err)
	defer f.Close()
	_, err = PrepareRoot(f, &specs.Spec{}, other, state, RootOptions{Shared: shared.Dir{Source: state}})
	must(t, err)
	checkCache(t, root, append(ourEntries(Target)[:1:1], image().Entries...))

	for i := range maxMerged {
		write(t, filepath.Join(memory, fmt.Sprint(i)), "")
	}
	root = t.TempDir()
	debianRoot(t, root)
	write(t, root+"/etc/ld.so.cache", "")
	_, err = prepare(t, root, &specs.Spec{}, state)
	must(t, err)
	checkCache(t, root, ourEntries(Target))
	if count() != 1 {
		t.Errorf("%d caches are remembered", count())
	}
}

func checkCache(t *testing.T, root string, want []ldcache.Entry) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "etc/ld.so.cache"))
	if errors.Is(err, fs.ErrNotExist) && want == nil {
		return
	}
	must(t, err)
	cache, err := ldcache.Parse(data)
	must(t, err)
	if d := cmp.Diff(want, cache.Entries); d != "" {
		t.Errorf("cache (-want +got):\n%s", d)
	}
}

func checkFile(t *testing.T, path, want string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte("-"), nil
	}
	if err != nil || string(data) != want {
		t.Errorf("%s: %q, %v; want %q", path, data, err, want)
	}
}

// inode of the cache changes when it is replaced.
func inode(root string) int64 {
	var st unix.Stat_t
	if unix.Stat(filepath.Join(root, "etc/ld.so.cache"), &st) != nil {
		return 0
	}
	return int64(st.Ino)
}

func noLeftovers(t *testing.T, root string) {
	t.Helper()
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), ".") {
			t.Errorf("left behind: %s", path)
		}
		return err
	}))
}

// TestHostileRoot checks that the host's /etc stays as it is, whatever the image's etc is.
func TestHostileRoot(t *testing.T) {
	link := func(to, name string) func(t *testing.T, root, host string) {
		return func(t *testing.T, root, host string) {
			must(t, os.RemoveAll(filepath.Join(root, name)))
			must(t, os.Symlink(strings.ReplaceAll(to, "HOST", host), filepath.Join(root, name)))
		}
	}
	for _, tt := range []struct {
		name string
		make func(t *testing.T, root, host string)
		err  string // "" if the container may start
	}{
		{"etc is a link to /", link("/", "etc"), ""},
		{"etc is a link upwards", link("../../../../etc", "etc"), "too many levels"},
		{"etc is a link to the host's", link("HOST/etc", "etc"), "open etc in"},
		{"etc is a file", func(t *testing.T, root, _ string) {
			must(t, os.RemoveAll(root+"/etc"))
			write(t, root+"/etc", "")
		}, "not a directory"},
		{"cache is a link to the host", link("HOST/etc/ld.so.cache", "etc/ld.so.cache"), ""},
		{"cache is a link upwards", link("../../etc/ld.so.cache", "etc/ld.so.cache"), ""},
		{"cache is a link to procfs", link("/proc/self/fd/0", "etc/ld.so.cache"), ""},
		{"cache is a link inside", link("/usr/cache", "etc/ld.so.cache"), ""},
		{"cache is a FIFO", func(t *testing.T, root, _ string) {
			must(t, os.Remove(root+"/etc/ld.so.cache"))
			must(t, unix.Mkfifo(root+"/etc/ld.so.cache", 0o644))
		}, "not a regular file but a FIFO"},
		{"cache is a directory", func(t *testing.T, root, _ string) {
			must(t, os.Remove(root+"/etc/ld.so.cache"))
			must(t, os.Mkdir(root+"/etc/ld.so.cache", 0o755))
		}, "not a regular file but a directory"},
		{"cache is huge", func(t *testing.T, root, _ string) { must(t, os.Truncate(root+"/etc/ld.so.cache", 1<<40)) }, "too large"},
		{"conf.d is a link to the host", link("HOST/etc/ld.so.conf.d", "etc/ld.so.conf.d"), ""},
		{"conf.d is a link upwards", link("../../etc/ld.so.conf.d", "etc/ld.so.conf.d"), ""},
		{"conf.d is a file", func(t *testing.T, root, _ string) {
			must(t, os.RemoveAll(root+"/etc/ld.so.conf.d"))
			write(t, root+"/etc/ld.so.conf.d", "")
		}, ""},
		{"our line is a link to the host", link("HOST/etc/passwd", "etc/ld.so.conf.d/00-berth.conf"), ""},
		{"conf is a link to the host", link("HOST/etc/passwd", "etc/ld.so.conf"), ""},
		{"conf is a FIFO", func(t *testing.T, root, _ string) {
			must(t, os.Remove(root+"/etc/ld.so.conf"))
			must(t, unix.Mkfifo(root+"/etc/ld.so.conf", 0o644))
		}, ""},
		{"the target's parent is a link to the host", link("HOST/etc", "usr"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := t.TempDir()
			root := filepath.Join(host, "a/b/root")
			debianRoot(t, root)
			write(t, host+"/etc/passwd", "secret")
			write(t, host+"/etc/ld.so.cache", "secret")
			write(t, host+"/etc/ld.so.conf.d/x.conf", "secret")
			before := listing(t, host, root)
			tt.make(t, root, host)
			_, err := prepare(t, root, &specs.Spec{}, t.TempDir())
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if d := cmp.Diff(before, listing(t, host, root)); d != "" {
				t.Errorf("the host was changed (-before +after):\n%s", d)
			}
			if tt.err == "" && !strings.Contains(read(t, cacheOf(root)), "/usr/local/nvidia/lib64/libcuda.so.1") &&
				!strings.Contains(read(t, cacheOf(root)), "/usr/local/berth/nvidia/lib64/libcuda.so.1") {
				t.Error("the cache doesn't lead to the driver")
			}
		})
	}
}

// cacheOf returns the path of the cache that the container sees.
func cacheOf(root string) string {
	if to, err := os.Readlink(filepath.Join(root, "etc")); err == nil && to == "/" {
		return filepath.Join(root, "ld.so.cache")
	}
	return filepath.Join(root, "etc/ld.so.cache")
}

// listing returns names, kinds and content of everything below host except the root.
func listing(t *testing.T, host, except string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(host, func(path string, d fs.DirEntry, err error) error {
		if path == except {
			return fs.SkipDir
		}
		if err == nil {
			all[path] = d.Type().String()
			if d.Type().IsRegular() {
				all[path] += read(t, path)
			}
		}
		return err
	}))
	return all
}

func TestHostsOwnRootIsNotWritten(t *testing.T) {
	f, err := inroot.OpenRoot("/")
	must(t, err)
	defer f.Close()
	if isWritable(f) {
		t.Error("the host's root counts as writable")
	}
}
