package broker

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// openNodes prints the numbers of the GPUs whose nodes are in a container.
const openNodes = `for n in 0 1 2 3 4 5 6 7; do [ -e /dev/nvidia$n ] && printf $n; done; echo`

// apptainer returns the words of a command line in the manner of Apptainer.
func (h home) apptainer(words ...string) []string {
	return h.words(append([]string{"apptainer"}, words...)...)
}

// sifHome returns a user that may use FUSE, as on hosts with udev, and an image.
func sifHome(t *testing.T, scripts map[string]string) (home, string) {
	t.Helper()
	n := start(t)
	n.broker()
	n.Do(t, "chmod", "666", "/dev/fuse")
	return n.home(alice), rig.MakeSIF(t, "busybox", scripts)
}

// TestSIF: a user's command in a SIF file has the user's id, home and working directory, the leased devices and no others, its own exit code,
// and the image's environment in Apptainer's order.
func TestSIF(t *testing.T) {
	h, image := sifHome(t, map[string]string{
		".singularity.d/env/90-environment.sh": "export A=image B=image\n",
		".singularity.d/runscript":             "#!/bin/sh\necho run \"$@\"\n",
	})
	h.start(bob, h.Berth, "alloc", "1", "--", "sleep", "1000")
	h.waitForLeases(1)
	rig.Must(t, os.WriteFile(filepath.Join(h.dir, "data"), []byte("of home\n"), 0o644))
	for _, tt := range []struct {
		what  string
		words []string
		want  rig.Said
	}{
		{
			"ids",
			[]string{"exec", image, "sh", "-c", "id -u; id -g; cat /proc/self/uid_map | tr -s ' '; grep -E 'Cap(Prm|Eff)|NoNew' /proc/self/status"},
			rig.Said{Out: "4711\n4711\n 4711 4711 1\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n"},
		},
		{"no devices", []string{"exec", image, "sh", "-c", openNodes + "; " + opening}, rig.Said{Out: "\n????????\n"}},
		{"exit code", []string{"exec", image, "sh", "-c", "exit 7"}, rig.Said{Code: 7}},
		{"signal", []string{"exec", image, "sh", "-c", "kill -9 $$"}, rig.Said{Code: -1}},
		{"home", []string{"exec", "--pwd", h.dir, image, "sh", "-c", "pwd; cat data; echo new >new; echo $HOME"}, rig.Said{}},
		{"read-only", []string{"exec", image, "touch", "/x"}, rig.Said{Code: 1, Err: "touch: /x: Read-only file system\n"}},
		{"memory", []string{"exec", "--writable-tmpfs", image, "sh", "-c", "echo x >/bin/x && cat /bin/x"}, rig.Said{Out: "x\n"}},
		{"runscript", []string{"run", image, "a", "b c"}, rig.Said{Out: "run a b c\n"}},
		{"order", []string{"exec", "--env", "A=1,C=$HOME", image, "sh", "-c", "echo $A $B $C $D"}, rig.Said{Out: "1 image / host\n"}},
		{"no program", []string{"exec", image, "nosuch"}, rig.Said{Code: 255, Err: "berth: nosuch: executable file not found in $PATH\n"}},
		{
			"bind",
			[]string{"exec", "-B", "/etc/hostname:/a/b:ro", image, "sh", "-c", "cmp /a/b /proc/sys/kernel/hostname && touch /a/b"},
			rig.Said{Code: 1, Err: "touch: /a/b: Read-only file system\n"},
		},
		{"no such bind", []string{"exec", "-B", "/nosuch", image, "true"}, rig.Said{Code: 255, Err: "berth: --bind /nosuch: stat /nosuch: no such file or directory\n"}},
	} {
		words := append([]string{"env", "D=host", "B=host", "HOME=" + h.dir}, h.apptainer(tt.words...)[2:]...)
		got := h.run(alice, words...)
		if tt.what == "home" { // alice has no name and no line in /etc/passwd
			tt.want.Out = h.dir + "\nof home\n" + h.dir + "\n"
		}
		if tt.what == "order" {
			tt.want.Out = "1 image " + h.dir + " host\n"
		}
		h.wantSaid(tt.what, got, tt.want)
	}
	var st unix.Stat_t
	rig.Must(t, unix.Stat(filepath.Join(h.dir, "new"), &st))
	if st.Uid != alice {
		t.Errorf("a new file in the home directory is user %d's", st.Uid)
	}

	got := h.run(alice, h.apptainer("exec", "--nv", image, "sh", "-c", openNodes+"; "+opening)...)
	nodes, opened, _ := strings.Cut(got.Out, "\n")
	if got.Code != 0 || len(nodes) != 1 || nodes == "0" || strings.Trim(opened, "?\n") != nodes {
		t.Errorf("--nv: %+v; GPU 0 is leased", got)
	}
	if got := h.run(alice, h.apptainer("exec", "--gpus", "8", image, "true")...); got.Code != 75 || !strings.HasPrefix(got.Err, "berth: request 8: 8 asked, 7 of 8 free; held: GPU 0 by daemon") {
		t.Errorf("too many: %+v", got)
	}
	for _, dir := range []string{"image", "image/bin", "image/etc"} { // a directory as image
		rig.Must(t, os.Mkdir(filepath.Join(h.dir, dir), 0o755))
		rig.Must(t, os.Chown(filepath.Join(h.dir, dir), alice, alice))
	}
	h.Do(t, "cp", "/bin/busybox", h.dir+"/image/bin/sh")
	h.wantSaid("a directory", h.run(alice, h.apptainer("exec", h.dir+"/image", "sh", "-c", "cd /; echo *; echo x >/new")...),
		rig.Said{Code: 1, Out: "bin dev etc proc sys tmp var\n", Err: "sh: can't create /new: Read-only file system\n"})
	h.wantSaid("a directory that is written to", h.run(alice, h.apptainer("exec", "-w", h.dir+"/image", "sh", "-c", "echo x >/new")...), rig.Said{})
	if data, err := os.ReadFile(filepath.Join(h.dir, "image/new")); string(data) != "x\n" {
		t.Errorf("written to the directory: %q, %v", data, err)
	}
	root := h.Run(t, h.Command(h.Berth, "apptainer", "exec", "--nv", image, "sh", "-c", openNodes+"; id -u; echo x >/proc/sys/kernel/hostname"))
	if root.Code != 1 || !strings.HasSuffix(root.Out, "\n0\n") || len(root.Out) != 4 || !strings.Contains(root.Err, "Read-only file system") {
		t.Errorf("root: %+v", root)
	}
	if got := h.run(alice, h.words("alloc", "2", "--", h.Berth, "apptainer", "exec", image, "sh", "-c", openNodes)...); got.Code != 0 || len(got.Out) != 3 {
		t.Errorf("in an alloc of two GPUs: %+v", got)
	}
	h.waitForLeases(1)
	launcher := h.start(alice, h.apptainer("exec", "--nv", image, "sleep", "1000")...)
	h.waitForLeases(2)
	rig.Must(t, launcher.Cmd.Process.Kill())
	h.waitForLeases(1) // the command has ended with its launcher
}

// TestSIFApart: a command with namespaces of its own, root of its own, and writes of its own.
func TestSIFApart(t *testing.T) {
	h, image := sifHome(t, nil)
	for _, tt := range []struct {
		what  string
		words []string
		want  rig.Said
	}{
		{"ids of a fake root", []string{"exec", "--fakeroot", image, "sh", "-c", "id -u; cat /proc/self/uid_map | tr -s ' '; touch " + h.dir + "/root"}, rig.Said{Out: "0\n 0 4711 1\n"}},
		{"host name", []string{"exec", "--hostname", "other", image, "sh", "-c", "hostname; cat /etc/hostname"}, rig.Said{Out: "other\nother\n"}},
		{"scratch", []string{"exec", "--scratch", "/s", image, "sh", "-c", "echo x >/s/x && cat /s/x"}, rig.Said{Out: "x\n"}},
		{"scratch directory", []string{"exec", "--workdir", h.dir + "/w", "--scratch", "/s", image, "touch", "/s/x"}, rig.Said{}},
		{"contained", []string{"exec", "--contain", "--no-home", "--pwd", "/", "--workdir", h.dir + "/w", image, "touch", "/tmp/y"}, rig.Said{}},
	} {
		h.wantSaid(tt.what, h.run(alice, h.apptainer(tt.words...)...), tt.want)
	}
	under, err := os.MkdirTemp("/tmp", "berth-home") // a home directory there
	rig.Must(t, err)
	t.Cleanup(func() { rig.Must(t, os.RemoveAll(under)) })
	rig.Must(t, os.Chmod(under, 0o755))
	makeDir(t, under+"/home", 0o755, alice)
	h.wantSaid("a home directory in /tmp", h.run(alice, h.apptainer("exec", "--contain", "--home", under+"/home", "--workdir", h.dir+"/w", image, "sh", "-c", "cd && pwd && touch x /tmp/z")...),
		rig.Said{Out: under + "/home\n"})
	for flag, name := range map[string]string{"--ipc": "ipc", "--uts": "uts"} {
		got := h.run(alice, h.apptainer("exec", flag, image, "readlink", "/proc/self/ns/"+name)...)
		if host, err := os.Readlink("/proc/self/ns/" + name); err != nil || got.Code != 0 || got.Out == host+"\n" {
			t.Errorf("%s: %+v, %v", flag, got, err)
		}
	}
	for _, name := range []string{"root", "w/scratch/s/x", "w/tmp/y", "w/tmp/z"} {
		if _, err := os.Stat(filepath.Join(h.dir, name)); err != nil {
			t.Error(err)
		}
	}
	rig.Must(t, os.Mkdir(filepath.Join(h.dir, "changes"), 0o755))
	rig.Must(t, os.Chown(filepath.Join(h.dir, "changes"), alice, alice))
	h.wantSaid("overlay", h.run(alice, h.apptainer("exec", "--overlay", h.dir+"/changes", image, "sh", "-c", "echo x >/x")...), rig.Said{})
	h.wantSaid("overlay again", h.run(alice, h.apptainer("exec", "--overlay", h.dir+"/changes:ro", image, "sh", "-c", "cat /x; touch /y")...),
		rig.Said{Code: 1, Out: "x\n", Err: "touch: /y: Read-only file system\n"})
}

// TestSIFMounts: tasks of one image at once have one mount of it, also if the process that holds the mount is killed, and all of it ends with
// the last of them. No two have the same GPU.
func TestSIFMounts(t *testing.T) {
	h, image := sifHome(t, nil)
	const servers = `for p in $(pgrep -x squashfuse_ll); do [ "$(readlink /proc/$p/fd/3)" = "$0" ] && echo $p; done; true`
	var running sync.WaitGroup
	for i := range 40 {
		running.Go(func() {
			words := []string{"exec", image, "cat", "/etc/group"}
			if i%5 == 0 {
				words = []string{"exec", "--nv", image, "sh", "-c", "[ $(ls /dev/nvidia[0-9] | wc -l) = 1 ] && sleep 1"}
			}
			if got := h.run(alice, h.apptainer(words...)...); got.Code != 0 {
				t.Errorf("%q: %+v", words, got)
			}
		})
	}
	running.Wait()
	if got := strings.Fields(h.Do(t, "sh", "-c", servers, image)); len(got) > 1 {
		t.Errorf("%d processes serve one image", len(got))
	}
	h.Do(t, "sh", "-c", "pkill -9 -f 'hold-image [0-9]+ "+h.dir+"'; true")
	h.wantSaid("after the holder was killed", h.run(alice, h.apptainer("exec", image, "echo", "again")...), rig.Said{Out: "again\n"})
	h.waitForLeases(0)
	rig.WaitUntil(t, "no process of the image is left", func() bool {
		return h.Do(t, "sh", "-c", "pgrep -f 'hold-image [0-9]+ "+h.dir+"' || true") == ""
	})
	if left := h.Do(t, "find", h.dir, "-path", "*/images/*", "-type", "f", "-o", "-type", "s"); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// TestSIFMountStays: commands that follow one another share a mount: the process that holds it outlives the command that has started it.
func TestSIFMountStays(t *testing.T) {
	h, image := sifHome(t, nil)
	var first string
	for i := range 6 {
		if got := h.run(alice, h.apptainer("exec", image, "true")...); got.Code != 0 {
			t.Fatalf("%+v", got)
		}
		holder := h.Do(t, "sh", "-c", "pgrep -f 'hold-image [0-9]+ "+h.dir+"' || true")
		if i == 0 {
			first = holder
		}
		if holder == "" || holder != first {
			t.Fatalf("after command %d process %q holds the mount, and at first it was %q", i+1, holder, first)
		}
	}
}
