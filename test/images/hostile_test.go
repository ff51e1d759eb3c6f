package images

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// hostile changes a root so that path, joined to the root as a string, leads to outside, a directory
// of the host. path is a path inside the root, outside one of the host.
type hostile struct {
	name   string
	change func(t *testing.T, root, outside string)
}

// instead puts a symbolic link to the host's directory, or to what is in it, in
// the place of a file of the image: an absolute one, or one that climbs.
func instead(name, target string) []hostile {
	put := func(climb string) func(*testing.T, string, string) {
		return func(t *testing.T, root, outside string) {
			path := filepath.Join(root, name)
			rig.Must(t, os.RemoveAll(path))
			rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			rig.Must(t, os.Symlink(climb+filepath.Join(outside, target), path))
		}
	}
	return []hostile{
		{name + " is an absolute link", put("")},
		{name + " is a link that climbs", put(strings.Repeat("../", 40))},
	}
}

// fifo puts a FIFO without a writer in the place of a file.
func fifo(name string) hostile {
	return hostile{name + " is a pipe", func(t *testing.T, root, _ string) {
		path := filepath.Join(root, name)
		rig.Must(t, os.RemoveAll(path))
		rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		rig.Must(t, unix.Mkfifo(path, 0o644))
	}}
}

// directory puts one in the place of a file.
func directory(name string) hostile {
	return hostile{name + " is a directory", func(t *testing.T, root, _ string) {
		rig.Must(t, os.RemoveAll(filepath.Join(root, name)))
		rig.Must(t, os.MkdirAll(filepath.Join(root, name, "full"), 0o755))
	}}
}

func attacks() []hostile {
	all := []hostile{
		fifo("etc/ld.so.cache"), fifo("etc/ld.so.conf"), fifo("etc/ld.so.conf.d"), fifo("etc/ld.so.conf.d/00-berth.conf"), fifo("etc"),
		fifo("usr/bin/nvidia-smi"), fifo("usr/local/nvidia"), fifo("usr/local"),
		directory("etc/ld.so.cache"), directory("etc/ld.so.conf"), directory("etc/ld.so.conf.d/00-berth.conf"), directory("usr/bin/nvidia-smi"),
		{"etc/ld.so.cache is a link to itself", func(t *testing.T, root, _ string) {
			rig.Must(t, os.RemoveAll(root+"/etc/ld.so.cache"))
			rig.Must(t, os.Symlink("ld.so.cache", root+"/etc/ld.so.cache"))
		}},
		{"etc/ld.so.cache is a link into proc", func(t *testing.T, root, _ string) {
			rig.Must(t, os.RemoveAll(root+"/etc/ld.so.cache"))
			rig.Must(t, os.Symlink("/proc/self/root/etc/ld.so.cache", root+"/etc/ld.so.cache"))
		}},
		{"etc/ld.so.cache is a device", func(t *testing.T, root, _ string) {
			rig.Must(t, os.RemoveAll(root+"/etc/ld.so.cache"))
			rig.Must(t, unix.Mknod(root+"/etc/ld.so.cache", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))) // zero
		}},
		{"etc/ld.so.cache is huge", func(t *testing.T, root, _ string) {
			write(t, root+"/etc/ld.so.cache", "glibc-ld.so.cache1.1")
			rig.Must(t, os.Truncate(root+"/etc/ld.so.cache", 1<<40))
		}},
	}
	for name, target := range map[string]string{
		"etc": "etc", "etc/ld.so.cache": "etc/ld.so.cache", "etc/ld.so.conf": "etc/ld.so.conf", "etc/ld.so.conf.d": "etc/ld.so.conf.d",
		"etc/ld.so.conf.d/00-berth.conf": "etc/ld.so.conf", "usr/local": "etc", "usr/local/nvidia": "etc",
		"usr/local/berth": "etc", "usr/bin/nvidia-smi": "etc/ld.so.conf", "usr/local/nvidia/lib64": "etc",
	} {
		all = append(all, instead(name, target)...)
	}
	return all
}

// Whatever the image holds, the container starts, or berth or the runtime says in
// one line why not; and the host's files are as they were.
func TestHostileImages(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	for _, name := range []string{"etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d/theirs.conf", "etc/keep"} {
		write(t, filepath.Join(outside, name), "the host's\n")
	}
	before := list(t, outside)
	for _, attack := range attacks() {
		t.Run(attack.name, func(t *testing.T) {
			through(t, writers(), func(t *testing.T, d entryPoint) {
				i := imageOf(t, debianRoot, func(root string) { attack.change(t, root, outside) })
				said := d.run(t, i, "echo started")
				t.Logf("%+v", said)
				switch {
				case said.Code == 0 && said.Out == "started\n":
				case said.Code == 124 || said.Code == 137:
					t.Error("it hangs")
				case said.Code == 0 || said.Err == "" || strings.Count(said.Err, "\n") > 2 || said.Out != "":
					t.Errorf("neither started nor refused in a line: %+v", said)
				}
				if d := cmp.Diff(before, list(t, outside)); d != "" {
					t.Fatalf("the host's files (-before +after):\n%s", d)
				}
			})
		})
	}
	if l := node.Leases(t); len(l) > 0 {
		t.Errorf("leases are left: %+v", l)
	}
}

// list says what is below a directory: names, modes and contents.
func list(t *testing.T, dir string) []string {
	t.Helper()
	names := tree(t, dir)
	for i, name := range names {
		info, err := os.Lstat(filepath.Join(dir, name))
		rig.Must(t, err)
		names[i] = fmt.Sprint(name, " ", info.Mode(), " ", info.ModTime().UnixNano())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(filepath.Join(dir, name))
			rig.Must(t, err)
			names[i] += fmt.Sprintf(" %q", data)
		}
	}
	return names
}
