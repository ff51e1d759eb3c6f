package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// makeOverlay makes an ext3 file system of a user's, as apptainer overlay create does.
func (h home) makeOverlay(name string) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	h.Do(h.t, "sh", "-ec", `mkdir -p "$0".d/upper "$0".d/work; chown -R 4711:4711 "$0".d; mke2fs -q -t ext3 -d "$0".d "$0" 16M; rm -r "$0".d; chown 4711:4711 "$0"`, path)
	return path
}

// listServers returns the servers of overlays of the user's.
func (h home) listServers() string {
	h.t.Helper()
	return h.Do(h.t, "sh", "-c", "pgrep -u 4711 -r R,S,D 'fuse2fs|fuse-overlayfs' || true")
}

// TestSIFOverlayFiles: overlays in files keep changes for one command at a time, which removes files too; all commands that only read share them; and their
// servers end with the last process of the command.
func TestSIFOverlayFiles(t *testing.T) {
	h, image := sifHome(t, nil)
	first, second := h.makeOverlay("first.img"), h.makeOverlay("second:b.img")
	for _, tt := range []struct {
		what  string
		words []string
		want  rig.Said
	}{
		{"write", []string{"exec", "--overlay", first, image, "sh", "-c", "echo one >/x && mkdir /d && echo deep >/d/f && rm /bin/cat && id -u"}, rig.Said{Out: "4711\n"}},
		{"read", []string{"exec", "--overlay", first, image, "sh", "-c", "read a </x; read b </d/f; echo $a $b; test -e /bin/cat || echo removed"}, rig.Said{Out: "one deep\nremoved\n"}},
		{"read-only", []string{"exec", "--overlay", first + ":ro", image, "sh", "-c", "ls /d; test -e /bin/cat; echo $?; touch /y"}, rig.Said{Code: 1, Out: "f\n1\n", Err: "touch: /y: Read-only file system\n"}},
		{"in memory above", []string{"exec", "--writable-tmpfs", "--overlay", first + ":ro", image, "sh", "-c", "echo y >/y; echo two >/x; sed p -n /x"}, rig.Said{Out: "two\n"}},
		{"not kept", []string{"exec", "--overlay", first + ":ro", image, "sh", "-c", "ls -d /x /y"}, rig.Said{Code: 1, Out: "/x\n", Err: "ls: /y: No such file or directory\n"}},
		{"with a mount point", []string{"exec", "--overlay", first, "-B", "/etc/hostname:/new/name", image, "sh", "-c", "test -s /new/name && echo there"}, rig.Said{Out: "there\n"}},
		{"two that are written to", []string{"exec", "--overlay", first, "--overlay", h.makeOverlay("third.img"), image, "true"}, rig.Said{Code: 255, Err: "berth: --overlay " + first + ": changes can be kept in one overlay; the others are FILE:ro\n"}},
		{"no file system", []string{"exec", "--overlay", "/bin/busybox", image, "true"}, rig.Said{Code: 255, Err: "berth: --overlay /bin/busybox: it is no ext3 file system (apptainer overlay create makes one), no squashfs and no SIF file\n"}},
		{"a colon in the name", []string{"exec", "--overlay", second + ":rw", image, "sh", "-c", "echo >/x"}, rig.Said{}},
		{"root of its own", []string{"exec", "--fakeroot", "--overlay", second, image, "sh", "-c", "id -u; echo >/y; ls -ln /y | cut -c1-10"}, rig.Said{Out: "0\n-rw-r--r--\n"}},
		{"own processes", []string{"exec", "--pid", "--overlay", first, image, "sh", "-c", "echo pid >/x"}, rig.Said{}},
		{"own processes, again", []string{"exec", "--overlay", first, image, "sed", "-n", "p", "/x"}, rig.Said{Out: "pid\n"}},
	} {
		h.wantSaid(tt.what, h.run(alice, h.apptainer(tt.words...)...), tt.want)
	}
	rig.WaitUntil(t, "the servers end", func() bool { return h.listServers() == "" })
	if out := h.Do(t, "sh", "-c", "e2fsck -fn "+first+" 2>&1 || echo damaged"); strings.Contains(out, "damaged") {
		t.Error(out)
	}

	// One writer, or several readers.
	p := h.start(alice, h.apptainer("exec", "--overlay", first, image, "sh", "-c", "echo >"+h.dir+"/ready; exec sleep 1000")...)
	waitForFile(t, h.dir+"/ready")
	for _, word := range []string{first, first + ":ro"} {
		if got := h.run(alice, h.apptainer("exec", "--overlay", word, image, "true")...); got.Code != 255 || !strings.Contains(got.Err, "another command uses it") {
			t.Errorf("%s beside a writer: %+v", word, got)
		}
	}
	rig.Must(t, p.Cmd.Process.Kill())
	rig.WaitUntil(t, "the servers of a killed command end", func() bool { return h.listServers() == "" })
	if out := h.Do(t, "sh", "-c", "e2fsck -fn "+first+" 2>&1 || echo damaged"); strings.Contains(out, "damaged") {
		t.Error(out)
	}
	h.start(alice, h.apptainer("exec", "--overlay", first+":ro", image, "sh", "-c", "echo >"+h.dir+"/reads; exec sleep 1000")...)
	waitForFile(t, h.dir+"/reads")
	h.wantSaid("two readers", h.run(alice, h.apptainer("exec", "--overlay", first+":ro", image, "sed", "-n", "p", "/x")...), rig.Said{Out: "pid\n"})
}

func waitForFile(t *testing.T, name string) {
	t.Helper()
	rig.WaitUntil(t, name, func() bool {
		_, err := os.Stat(name)
		return err == nil
	})
}

// TestSIFOverlays: of several overlays the last hides the others, directories, squashfs and ext3 alike, and one of them is written to.
func TestSIFOverlays(t *testing.T) {
	h, image := sifHome(t, nil)
	file := h.makeOverlay("file.img")
	for n := range 3 {
		dir := fmt.Sprintf("%s/d%d", h.dir, n)
		h.Do(t, "sh", "-ec", `mkdir -p "$0/upper" "$0/work"; echo "$1" >"$0/upper/x"; echo "$1" >"$0/upper/only$1"; chown -R 4711:4711 "$0"`, dir, fmt.Sprint(n))
	}
	squashfs := filepath.Join(h.dir, "squashfs")
	h.Do(t, "sh", "-ec", `mkdir s; echo s >s/x; echo s >s/onlys; mksquashfs s "$0" -quiet -no-progress >/dev/null; rm -r s; chmod 644 "$0"`, squashfs)
	const show = "cat /x; cd /; echo only*"
	d := func(n int) string { return fmt.Sprintf("%s/d%d", h.dir, n) }
	for _, tt := range []struct {
		what  string
		words []string
		want  rig.Said
	}{
		{"directories", []string{"--overlay", d(0) + ":ro," + d(1) + ":ro", image, "sh", "-c", show + "; touch /new"}, rig.Said{Code: 1, Out: "1\nonly0 only1\n", Err: "touch: /new: Read-only file system\n"}},
		{"one that is written to", []string{"--overlay", d(0) + ":ro", "--overlay", d(2), image, "sh", "-c", show + "; echo new >/new"}, rig.Said{Out: "2\nonly0 only2\n"}},
		{"again", []string{"--overlay", d(2) + ":ro", image, "cat", "/new"}, rig.Said{Out: "new\n"}},
		{"two that are written to", []string{"--overlay", d(0), "--overlay", d(1), image, "true"}, rig.Said{Code: 255, Err: "berth: --overlay " + d(1) + ": changes can be kept in one overlay; the others are DIR:ro\n"}},
		{"squashfs", []string{"--overlay", squashfs, image, "sh", "-c", show}, rig.Said{Out: "s\nonlys\n"}},
		{"squashfs below a directory", []string{"--overlay", squashfs + "," + d(1) + ":ro", image, "sh", "-c", show}, rig.Said{Out: "1\nonly1 onlys\n"}},
		{"squashfs below one that is written to", []string{"--overlay", squashfs, "--overlay", d(1), image, "sh", "-c", show + "; echo w >/w"}, rig.Said{Out: "1\nonly1 onlys\n"}},
		{"ext3 above all", []string{"--overlay", d(0) + ":ro", "--overlay", squashfs, "--overlay", file, image, "sh", "-c", show + "; echo f >/x; rm /onlys"}, rig.Said{Out: "s\nonly0 onlys\n"}},
		{"ext3 below", []string{"--overlay", squashfs, "--overlay", file + ":ro", "--overlay", d(0) + ":ro", image, "sh", "-c", show}, rig.Said{Out: "0\nonly0\n"}},
		{"a directory as image", []string{"--overlay", file + ":ro", h.dir + "/image", "sh", "-c", "cat /x"}, rig.Said{Out: "f\n"}},
	} {
		if tt.what == "a directory as image" {
			h.makeImage(h.dir + "/image")
		}
		h.wantSaid(tt.what, h.run(alice, h.apptainer(append([]string{"exec"}, tt.words...)...)...), tt.want)
	}
	if data, err := os.ReadFile(d(1) + "/upper/w"); string(data) != "w\n" {
		t.Errorf("%q, %v", data, err)
	}
	oci := "oci:" + makeOCI(t, "of oci")
	h.wantSaid("an OCI image", withoutUnpacking(h.run(alice, h.apptainer("exec", "--overlay", file, oci, "sh", "-c", "cat /x /mark; echo; echo $IMAGE; echo o >/x")...)), rig.Said{Out: "f\nof oci\nimage\n"})
	opaque := "oci:" + makeOpaqueOCI(t)
	for range 2 { // the second one finds the layers unpacked
		h.wantSaid("a layer that hides those below", withoutUnpacking(h.run(alice, h.apptainer("exec", "--overlay", file+":ro", opaque, "ls", "/bin/sh", "/hidden")...)),
			rig.Said{Code: 1, Out: "/bin/sh\n", Err: "ls: /hidden: No such file or directory\n"})
	}
	h.wantSaid("an OCI image again", h.run(alice, h.apptainer("exec", "--overlay", file+":ro", oci, "cat", "/x")...), rig.Said{Out: "o\n"})
}

// TestSIFOverlayHostile: a link in an overlay of a stranger leads to no directory of the host, and its servers have nothing of the caller's.
func TestSIFOverlayHostile(t *testing.T) {
	h, image := sifHome(t, nil)
	victim := h.dir + "/victim"
	makeDir(t, victim, 0o755, alice)
	for _, name := range []string{"upper", "work"} {
		file := filepath.Join(h.dir, name+".img")
		h.Do(t, "sh", "-ec", `mkdir "$0".d; mkdir "$0".d/upper "$0".d/work; rmdir "$0".d/"$1"; ln -s "$2" "$0".d/"$1"; chown -hR 4711:4711 "$0".d; mke2fs -q -t ext3 -d "$0".d "$0" 16M; chown 4711:4711 "$0"`,
			file, name, victim)
		got := h.run(alice, h.apptainer("exec", "--overlay", file, image, "sh", "-c", "echo x >/x")...)
		if got.Code != 255 || !strings.Contains(got.Err, "has no directory "+name) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	h.Do(t, "sh", "-ec", `mkdir "$0"; ln -s "$1" "$0"/upper`, h.dir+"/linked", victim)
	for _, words := range [][]string{{h.dir + "/linked:ro"}, {h.dir + "/linked:ro", h.makeOverlay("good.img")}} {
		if got := h.run(alice, h.apptainer("exec", "--overlay", strings.Join(words, ","), image, "true")...); got.Code != 255 || !strings.Contains(got.Err, "upper") {
			t.Errorf("%q: %+v", words, got)
		}
	}
	if all, err := os.ReadDir(victim); err != nil || len(all) > 0 {
		t.Errorf("written to a directory of the host: %v, %v", all, err)
	}
	damaged := h.makeOverlay("damaged.img")
	h.Do(t, "sh", "-ec", `head -c 200000 /dev/urandom | dd of="$0" bs=1 seek=2048 conv=notrunc status=none`, damaged)
	if got := h.run(alice, h.apptainer("exec", "--overlay", damaged, image, "true")...); got.Code != 255 || !strings.HasPrefix(got.Err, "berth: ") {
		t.Errorf("damaged: %+v", got)
	}

	script := `exec 7<"$0"; SECRET=of-the-caller exec "$@"`
	words := append([]string{"sh", "-c", script, "/etc/hostname"}, h.apptainer("exec", "--overlay", h.dir+"/good.img", image, "sh", "-c", "echo >"+h.dir+"/ready; exec sleep 1000")...)
	h.start(alice, words...)
	waitForFile(t, h.dir+"/ready")
	servers := strings.Fields(h.listServers())
	if len(servers) != 2 {
		t.Fatalf("servers: %q", servers)
	}
	for _, pid := range servers {
		environ := h.Do(t, "sh", "-c", "tr '\\0' '\\n' </proc/"+pid+"/environ")
		files := h.Do(t, "sh", "-c", "ls -l /proc/"+pid+"/fd")
		if strings.Contains(environ, "SECRET") || strings.Contains(environ, "HOME") || strings.Contains(files, "/etc/hostname") || strings.Contains(files, "socket") {
			t.Errorf("process %s has %s%s", pid, environ, files)
		}
	}
}
