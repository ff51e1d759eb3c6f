package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sylabs/sif/v2/pkg/sif"

	"github.com/berth-gpu/berth/test/rig"
)

// makeRootOverlay makes an ext3 file system of root's with a file of another user and a device node.
func (h home) makeRootOverlay(path string) string {
	h.t.Helper()
	h.Do(h.t, "sh", "-ec", `mkdir -p "$0".d/upper "$0".d/work; echo of another >"$0".d/upper/foreign; chown 1234:1235 "$0".d/upper/foreign; mknod -m 666 "$0".d/upper/null c 1 3; mke2fs -q -t ext3 -d "$0".d "$0" 16M; rm -r "$0".d; chmod 600 "$0"`, path)
	return path
}

// listLoops returns the files of loop devices in a directory.
func (h home) listLoops(dir string) string {
	h.t.Helper()
	return h.Do(h.t, "sh", "-c", "cat /sys/block/loop*/loop/backing_file 2>/dev/null | grep '^"+dir+"' || true")
}

// runRoot runs a command of root's.
func (h home) runRoot(words ...string) rig.Said {
	h.t.Helper()
	return h.Run(h.t, h.Command(h.Berth, append([]string{"apptainer", "exec"}, words...)...))
}

// TestSIFRootOverlays: root's overlays in files keep changes and owners as users' do, hide each other in the same order, have one writer or several readers, and
// end with the last process, however it ends.
func TestSIFRootOverlays(t *testing.T) {
	h, image := sifHome(t, nil)
	dir := t.TempDir()
	first, second := h.makeRootOverlay(dir+"/first.img"), h.makeRootOverlay(dir+"/second:b.img")
	squashfs := filepath.Join(dir, "squashfs")
	h.Do(t, "sh", "-ec", `cd "$1"; mkdir s; echo s >s/x; echo s >s/onlys; mksquashfs s "$0" -quiet -no-progress >/dev/null; rm -r s; chmod 644 "$0"`, squashfs, dir)
	d := dir + "/d"
	h.Do(t, "sh", "-ec", `mkdir -p "$0/upper" "$0/work"; echo d >"$0/upper/x"; echo d >"$0/upper/onlyd"`, d)
	const show = "cat /x; cd /; echo only*"
	for _, tt := range []struct {
		what  string
		words []string
		want  rig.Said
	}{
		{"write", []string{"--overlay", first, image, "sh", "-c", "echo one >/x && mkdir /d && echo deep >/d/f && rm /bin/cat && chown 7:8 /d/f && id -u"}, rig.Said{Out: "0\n"}},
		{"read", []string{"--overlay", first, image, "sh", "-c", "read a </x; read b </d/f; echo $a $b; test -e /bin/cat || echo removed"}, rig.Said{Out: "one deep\nremoved\n"}},
		{"owners", []string{"--overlay", first, image, "sh", "-c", "ls -ln /x /d/f /foreign /bin/busybox | tr -s ' ' | cut -d' ' -f3,4"}, rig.Said{Out: "0 0\n7 8\n1234 1235\n0 0\n"}},
		{"a device node", []string{"--overlay", first, image, "sh", "-c", ": </null"}, rig.Said{Code: 1, Err: "sh: can't open /null: Permission denied\n"}},
		{"read-only", []string{"--overlay", first + ":ro", image, "sh", "-c", "ls /d; test -e /bin/cat; echo $?; touch /y"}, rig.Said{Code: 1, Out: "f\n1\n", Err: "touch: /y: Read-only file system\n"}},
		{"in memory above", []string{"--writable-tmpfs", "--overlay", first + ":ro", image, "sh", "-c", "echo y >/y; echo two >/x; sed p -n /x"}, rig.Said{Out: "two\n"}},
		{"not kept", []string{"--overlay", first + ":ro", image, "sh", "-c", "ls -d /x /y"}, rig.Said{Code: 1, Out: "/x\n", Err: "ls: /y: No such file or directory\n"}},
		{"with a mount point", []string{"--overlay", first, "-B", "/etc/hostname:/new/name", image, "sh", "-c", "test -s /new/name && echo there"}, rig.Said{Out: "there\n"}},
		{"two that are written to", []string{"--overlay", first, "--overlay", second, image, "true"}, rig.Said{Code: 255, Err: "berth: --overlay " + first + ": changes can be kept in one overlay; the others are FILE:ro\n"}},
		{"a colon in the name", []string{"--overlay", second + ":rw", image, "sh", "-c", "echo kept >/x"}, rig.Said{}},
		{"own processes", []string{"--pid", "--overlay", second, image, "sh", "-c", "cat /x; echo pid >/x"}, rig.Said{Out: "kept\n"}},
		{"devices", []string{"--nv", "--overlay", second, image, "sh", "-c", "cat /x; echo again >/x"}, rig.Said{Out: "pid\n"}},
		{"squashfs", []string{"--overlay", squashfs, image, "sh", "-c", show}, rig.Said{Out: "s\nonlys\n"}},
		{"squashfs below a directory", []string{"--overlay", squashfs + "," + d + ":ro", image, "sh", "-c", show}, rig.Said{Out: "d\nonlyd onlys\n"}},
		{"squashfs below one that is written to", []string{"--overlay", squashfs, "--overlay", d, image, "sh", "-c", show + "; echo w >/w"}, rig.Said{Out: "d\nonlyd onlys\n"}},
		{"ext3 above all", []string{"--overlay", d + ":ro", "--overlay", squashfs, "--overlay", second, image, "sh", "-c", show + "; echo f >/x; rm /onlys"}, rig.Said{Out: "again\nonlyd onlys\n"}},
		{"ext3 below", []string{"--overlay", squashfs, "--overlay", second + ":ro", "--overlay", d + ":ro", image, "sh", "-c", show}, rig.Said{Out: "d\nonlyd\n"}},
		{"two that are read", []string{"--overlay", second + ":ro", "--overlay", first + ":ro", image, "sed", "-n", "p", "/x"}, rig.Said{Out: "one\n"}},
		{"a directory as image", []string{"--overlay", second + ":ro", dir + "/image", "sh", "-c", "cat /x"}, rig.Said{Out: "f\n"}},
	} {
		if tt.what == "a directory as image" {
			h.makeImage(dir + "/image")
		}
		h.wantSaid(tt.what, h.runRoot(tt.words...), tt.want)
	}
	oci := "oci:" + makeOCI(t, "of oci")
	h.wantSaid("an OCI image", withoutUnpacking(h.runRoot("--overlay", second, oci, "sh", "-c", "cat /x /mark; echo; echo $IMAGE; echo o >/x")), rig.Said{Out: "f\nof oci\nimage\n"})
	h.wantSaid("an OCI image again", h.runRoot("--overlay", second+":ro", oci, "cat", "/x"), rig.Said{Out: "o\n"})

	withPartition := changeSIF(t, image, func(f *sif.FileImage) error {
		data, err := os.Open(h.makeRootOverlay(dir + "/partition"))
		rig.Must(t, err)
		defer data.Close() // only read
		in, err := sif.NewDescriptorInput(sif.DataPartition, data, sif.OptPartitionMetadata(sif.FsExt3, sif.PartOverlay, runtime.GOARCH))
		rig.Must(t, err)
		return f.AddObject(in)
	})
	h.wantSaid("a partition of a SIF file", h.runRoot(withPartition, "sh", "-c", "cat /foreign; touch /x"), rig.Said{Code: 1, Out: "of another\n", Err: "touch: /x: Read-only file system\n"})
	h.wantSaid("--writable", h.runRoot("--writable", withPartition, "sh", "-c", "echo kept >/x"), rig.Said{})
	h.wantSaid("the partition again", h.runRoot(withPartition, "cat", "/x"), rig.Said{Out: "kept\n"})
	h.wantSaid("the partition of another file", h.runRoot("--overlay", withPartition, image, "sh", "-c", "cat /x; echo more >/x"), rig.Said{Out: "kept\n"})
	h.wantSaid("the partition of another file, again", h.runRoot("--overlay", withPartition+":ro", image, "cat", "/x"), rig.Said{Out: "more\n"})

	instance := func(words ...string) {
		t.Helper()
		if got := h.Run(t, h.Command(h.Berth, append([]string{"apptainer", "instance"}, words...)...)); got.Code != 0 {
			t.Errorf("instance %q: %+v", words, got)
		}
	}
	instance("start", "--overlay", second, image, "over")
	h.wantSaid("in an instance", h.runRoot("instance://over", "sh", "-c", "cat /x; echo instance >/x"), rig.Said{Out: "o\n"})
	instance("stop", "over")
	h.wantSaid("after an instance", h.runRoot("--overlay", second+":ro", image, "cat", "/x"), rig.Said{Out: "instance\n"})

	// One writer, or several readers.
	start := func(words ...string) rig.Process {
		t.Helper()
		return rig.StartProcess(t, h.Command(h.Berth, append([]string{"apptainer", "exec"}, words...)...))
	}
	p := start("--overlay", first, image, "sh", "-c", "echo >"+h.dir+"/ready; exec sleep 1000")
	waitForFile(t, h.dir+"/ready")
	for _, word := range []string{first, first + ":ro"} {
		if got := h.runRoot("--overlay", word, image, "true"); got.Code != 255 || !strings.Contains(got.Err, "another command uses it") {
			t.Errorf("%s beside a writer: %+v", word, got)
		}
	}
	rig.Must(t, p.Cmd.Process.Kill())
	rig.WaitUntil(t, "the loop device of a killed command ends", func() bool { return h.listLoops(dir) == "" })
	reader := start("--nv", "--overlay", first+":ro", image, "sh", "-c", "echo >"+h.dir+"/reads; exec sleep 1000")
	waitForFile(t, h.dir+"/reads")
	h.wantSaid("two readers", h.runRoot("--overlay", first+":ro", image, "sed", "-n", "p", "/x"), rig.Said{Out: "one\n"})
	rig.Must(t, reader.Cmd.Process.Kill())
	rig.WaitUntil(t, "all loop devices end", func() bool { return h.listLoops(dir) == "" })
	for _, file := range []string{first, second} {
		if out := h.Do(t, "sh", "-c", "e2fsck -fn '"+file+"' 2>&1 || echo damaged"); strings.Contains(out, "damaged") {
			t.Error(out)
		}
	}
}

// TestSIFRootOverlayHostile: the kernel mounts no file for root that a user could change or replace, follows no link in one, and doesn't end the machine for a damaged one.
func TestSIFRootOverlayHostile(t *testing.T) {
	h, image := sifHome(t, nil)
	dir := t.TempDir()
	refused := func(what, file, want string) {
		t.Helper()
		for _, word := range []string{file, file + ":ro"} {
			if got := h.runRoot("--overlay", word, image, "sh", "-c", "echo x >/x"); got.Code != 255 || !strings.Contains(got.Err, want) {
				t.Errorf("%s: %+v", what, got)
			}
		}
		if left := h.listLoops(filepath.Dir(file)); left != "" {
			t.Errorf("%s: loop devices of %s", what, left)
		}
	}
	owned := h.makeRootOverlay(dir + "/owned")
	rig.Must(t, os.Chown(owned, alice, 0))
	refused("a user's file", owned, fmt.Sprintf("%s belongs to user %d", owned, alice))
	writable := h.makeRootOverlay(dir + "/writable")
	rig.Must(t, os.Chmod(writable, 0o660))
	refused("a file that a group can write to", writable, "others can write to "+writable)
	inHome := h.makeRootOverlay(h.dir + "/file")
	refused("a user's directory", inHome, fmt.Sprintf("%s belongs to user %d", h.dir, alice))
	rig.Must(t, os.Symlink(inHome, dir+"/link"))
	refused("a link to a user's directory", dir+"/link", fmt.Sprintf("%s belongs to user %d", h.dir, alice))
	makeDir(t, dir+"/open", 0o777, 0)
	rig.Must(t, os.Chmod(dir+"/open", 0o777))
	refused("a directory that all can write to", h.makeRootOverlay(dir+"/open/file"), "others can write to "+dir+"/open")
	system, at := dir+"/system", dir+"/at"
	makeDir(t, at, 0o755, bob)
	makeDir(t, dir+"/files", 0o755, 0)
	h.makeRootOverlay(dir + "/files/file")
	h.Do(t, "sh", "-ec", `chmod 644 "$0"/file; mksquashfs "$0" "$1" -all-root -noappend -quiet -no-progress; chmod 644 "$1"`, dir+"/files", system)
	h.serveSquashfs(bob, system, at)
	if got := h.runRoot("--overlay", at+"/file:ro", image, "true"); got.Code != 255 || !strings.Contains(got.Err, fmt.Sprintf("user %d, who serves its file system", bob)) {
		t.Errorf("a file system of a user's: %+v", got)
	}

	victim := dir + "/victim"
	makeDir(t, victim, 0o755, 0)
	for _, name := range []string{"upper", "work"} {
		file := filepath.Join(dir, name+".img")
		h.Do(t, "sh", "-ec", `mkdir "$0".d; mkdir "$0".d/upper "$0".d/work; rmdir "$0".d/"$1"; ln -s "$2" "$0".d/"$1"; mke2fs -q -t ext3 -d "$0".d "$0" 16M`, file, name, victim)
		if got := h.runRoot("--overlay", file, image, "sh", "-c", "echo x >/x"); got.Code != 255 {
			t.Errorf("a link %s: %+v", name, got)
		}
	}
	if got := h.runRoot("--overlay", dir+"/upper.img:ro", image, "ls", "/"); got.Code != 255 || !strings.Contains(got.Err, "no directory upper") {
		t.Errorf("a link that is read: %+v", got)
	}
	if all, err := os.ReadDir(victim); err != nil || len(all) > 0 {
		t.Errorf("written to a directory of the host: %v, %v", all, err)
	}
	damaged := h.makeRootOverlay(dir + "/damaged")
	h.Do(t, "sh", "-ec", `tune2fs -e panic "$0" >/dev/null; head -c 200000 /dev/urandom | dd of="$0" bs=1 seek=4096 conv=notrunc status=none`, damaged)
	if got := h.runRoot("--overlay", damaged, image, "sh", "-c", "echo x >/x"); got.Code == 0 {
		t.Errorf("damaged: %+v", got)
	}
	rig.WaitUntil(t, "all loop devices end", func() bool { return h.listLoops(dir) == "" })
}
