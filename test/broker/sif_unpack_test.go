package broker

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// unpackHome returns a user that may not use FUSE, and an image.
func unpackHome(t *testing.T, scripts map[string]string) (home, string) {
	t.Helper()
	h, image := sifHome(t, scripts)
	h.Do(t, "chmod", "600", "/dev/fuse")
	return h, image
}

// listUnpacked returns the directories of unpacked layers, complete or not.
func (h home) listUnpacked() []string {
	h.t.Helper()
	return strings.Fields(h.Do(h.t, "sh", "-c", "ls -d "+h.dir+"/.local/share/berth/images/sha256/* 2>/dev/null || true"))
}

// TestSIFUnpack: where a user can't mount a SIF file it is unpacked once, whatever the name of its copies, by one of several commands at once. Commands
// run in it as in one that is mounted, berth system df shows it, and berth prune removes it after the last command.
func TestSIFUnpack(t *testing.T) {
	h, image := unpackHome(t, map[string]string{
		".singularity.d/env/90-environment.sh": "export A=image\n", ".singularity.d/runscript": "#!/bin/sh\necho run \"$A $@\"\n",
	})
	var running sync.WaitGroup
	for range 12 {
		running.Go(func() {
			h.wantSaid("one of many", withoutUnpacking(h.run(alice, h.apptainer("run", image, "a", "b c")...)), rig.Said{Out: "run image a b c\n"})
		})
	}
	running.Wait()
	second := filepath.Join(filepath.Dir(image), "second.sif")
	h.Do(t, "cp", image, second)
	for _, tt := range []struct {
		what  string
		words []string
		want  rig.Said
	}{
		{"ids", []string{"exec", second, "sh", "-c", "id -u; ls -ldn /bin/busybox | tr -s ' ' | cut -d' ' -f3"}, rig.Said{Out: "4711\n4711\n"}},
		{"read-only", []string{"exec", image, "touch", "/x"}, rig.Said{Code: 1, Err: "touch: /x: Read-only file system\n"}},
		{"memory", []string{"exec", "--writable-tmpfs", image, "sh", "-c", "echo x >/bin/x && cat /bin/x"}, rig.Said{Out: "x\n"}},
		{"name", []string{"exec", image, "sh", "-c", "echo $APPTAINER_CONTAINER"}, rig.Said{Out: image + "\n"}},
		{"root of its own", []string{"exec", "--fakeroot", image, "id", "-u"}, rig.Said{Out: "0\n"}},
	} {
		h.wantSaid(tt.what, withoutUnpacking(h.run(alice, h.apptainer(tt.words...)...)), tt.want)
	}
	if all := h.listUnpacked(); len(all) != 1 {
		t.Errorf("unpacked: %q", all)
	}
	h.Do(t, "chmod", "666", "/dev/fuse")
	h.wantSaid("--unsquash", h.run(alice, h.apptainer("exec", "--unsquash", image, "true")...), rig.Said{})
	if holder := h.Do(t, "sh", "-c", "pgrep -f 'hold-image [0-9]+ "+h.dir+"' || true"); holder != "" {
		t.Errorf("--unsquash mounts the image: process %s", holder)
	}
	p := h.start(alice, h.apptainer("exec", "--unsquash", image, "sleep", "1000")...)
	h.waitForUse()
	var usage struct{ Layers []struct{ Image string } }
	got := h.berth("system", "df", "--json")
	if err := json.Unmarshal([]byte(got.Out), &usage); err != nil || len(usage.Layers) != 1 || usage.Layers[0].Image != image {
		t.Errorf("system df: %+v, %v", got, err)
	}
	h.wantSaid("prune of an image in use", h.berth("prune", "--all"), rig.Said{Err: "freed 0 B, 0 layers\n"})
	rig.Must(t, p.Cmd.Process.Kill())
	rig.WaitUntil(t, "prune removes the layer of an ended process", func() bool {
		h.berth("prune", "--all")
		return len(h.listUnpacked()) == 0
	})
	root := h.Run(t, h.Command(h.Berth, "apptainer", "exec", "--unsquash", image, "true"))
	if root.Code != 255 || !strings.Contains(root.Err, "--unsquash") {
		t.Errorf("root: %+v", root)
	}
}

// waitForUse waits until a process uses layers.
func (h home) waitForUse() {
	h.t.Helper()
	rig.WaitUntil(h.t, "a process uses layers", func() bool {
		return h.Do(h.t, "sh", "-c", "find "+h.dir+"/.local/share/berth/images/uses -size +0 2>/dev/null; true") != ""
	})
}

// packUnusual makes a SIF file of a directory with an unusual content.
func packUnusual(t *testing.T, script string, options ...string) string {
	t.Helper()
	root := t.TempDir()
	program, err := exec.LookPath("busybox")
	rig.Must(t, err)
	out, err := exec.Command("sh", "-ec", `cd "$0"; mkdir bin; cp "$1" bin/busybox; for name in sh ls cat stat; do ln -s busybox bin/$name; done; `+script, root, program).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return rig.PackSIF(t, root, options...)
}

// TestSIFUnpackHostile: what is in a SIF file leads to no file outside of the directory into which it is unpacked, makes no device, and a hole needs no
// disk space. Another compressor than those that berth reads is an error that names squashfuse.
func TestSIFUnpackHostile(t *testing.T) {
	h, _ := unpackHome(t, nil)
	victim := filepath.Join(h.dir, "victim")
	makeDir(t, victim, 0o755, alice)
	rig.Must(t, os.WriteFile(filepath.Join(victim, "file"), []byte("kept"), 0o644))
	rig.Must(t, os.Chown(filepath.Join(victim, "file"), alice, alice))
	odd := packUnusual(t, fmt.Sprintf(`
		ln -s %[1]s absolute; ln -s ../../../../../../../..%[1]s relative
		echo x >setuid; chmod 6755 setuid; ln setuid second; mkfifo fifo; echo x >.wh.file; mkdir .wh..wh..opq
		truncate -s 300M sparse; mkdir closed; echo x >closed/file; chmod 0 closed`, victim),
		"-p", "device b 666 0 0 8 0", "-p", "null c 666 0 0 1 3", "-p", "gone c 0 0 0 0 0")
	got := withoutUnpacking(h.run(alice, h.apptainer("exec", odd, "sh", "-c", "ls -A /; stat -c '%a %h %u' /setuid; stat -c %s /sparse")...))
	var names, rest []string
	for name := range strings.FieldsSeq(got.Out) {
		switch name {
		case "dev", "proc", "sys", "tmp", "var", "etc", "bin":
		default:
			rest = append(rest, name)
		}
	}
	names = append(names, ".wh..wh..opq", ".wh.file", "absolute", "closed", "fifo", "relative", "second", "setuid", "sparse", "6755", "2", "4711", "314572800")
	if strings.Join(rest, " ") != strings.Join(names, " ") || got.Code != 0 {
		t.Errorf("%+v", got)
	}
	if out := h.Do(t, "find", h.dir, "-type", "b", "-o", "-type", "c"); out != "" {
		t.Errorf("devices: %s", out)
	}
	if out := h.Do(t, "du", "-sm", h.dir); !strings.HasPrefix(out, "0") && len(strings.Fields(out)[0]) > 2 {
		t.Errorf("the store needs %s MB", out)
	}
	data, err := os.ReadFile(filepath.Join(victim, "file"))
	if entries, e := os.ReadDir(victim); string(data) != "kept" || err != nil || len(entries) != 1 || e != nil {
		t.Errorf("outside: %q, %v, %v, %v", data, err, entries, e)
	}
	for _, name := range []string{"xz", "lz4", "zstd"} {
		image := packUnusual(t, "echo content >file", "-comp", name)
		h.wantSaid(name, withoutUnpacking(h.run(alice, h.apptainer("exec", image, "cat", "/file")...)), rig.Said{Out: "content\n"})
	}
	for name, options := range map[string][]string{"lzo": {"-comp", "lzo"}, "xz and a filter": {"-comp", "xz", "-Xbcj", "x86"}} {
		image := packUnusual(t, "", options...)
		if got := h.run(alice, h.apptainer("exec", image, "true")...); got.Code != 255 || !strings.Contains(got.Err, "compressed with "+name) || !strings.Contains(got.Err, "squashfuse") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	damaged := filepath.Join(filepath.Dir(odd), "damaged.sif")
	for offset := range 24 { // in the root's tables, at the end, and in data
		h.Do(t, "sh", "-ec", fmt.Sprintf(`cp %[1]s %[2]s; size=$(stat -c %%s %[1]s); head -c 64 /dev/urandom | dd of=%[2]s conv=notrunc bs=1 seek=$((size / 24 * %[3]d + 8192)) status=none; chmod 644 %[2]s`, odd, damaged, offset))
		if got := h.run(alice, h.apptainer("exec", damaged, "true")...); strings.Contains(got.Err, "panic") || strings.Contains(got.Err, "goroutine") {
			t.Errorf("damaged: %+v", got)
		}
	}
	if left := h.Do(t, "sh", "-c", "ls -d "+h.dir+"/.local/share/berth/images/sha256/*/tmp 2>/dev/null || true"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestSIFUnpackKilled: what a command leaves that was killed while it unpacked a SIF file, the next one removes. On a full disk the error says so, and nothing
// stays.
func TestSIFUnpackKilled(t *testing.T) {
	h, _ := unpackHome(t, nil)
	large := packUnusual(t, "for n in 1 2 3 4; do head -c 20M /dev/urandom >large$n; done")
	h.start(alice, h.apptainer("exec", large, "true")...)
	rig.WaitUntil(t, "files are unpacked", func() bool {
		return h.Do(t, "sh", "-c", "ls "+h.dir+"/.local/share/berth/images/sha256/*/tmp/large1 2>/dev/null || true") != ""
	})
	h.Do(t, "sh", "-c", "pkill -9 -u 4711 -f unpack-image; true")
	rig.WaitUntil(t, "the command ends", func() bool { return h.Do(t, "sh", "-c", "pgrep -u 4711 -f 'apptainer exec '"+large+" || true") == "" })
	before := h.listUnpacked()
	if len(before) != 1 {
		t.Fatalf("after kill -9: %q", before)
	}
	other := packUnusual(t, "echo >other")
	if got := withoutUnpacking(h.run(alice, h.apptainer("exec", other, "true")...)); got != (rig.Said{}) {
		t.Errorf("another image: %+v", got)
	}
	if after := h.listUnpacked(); len(after) != 1 || after[0] == before[0] {
		t.Errorf("the next command leaves %q", after)
	}
	small := filepath.Join(h.dir, "small")
	makeDir(t, small, 0o755, alice)
	h.Do(t, "mount", "-t", "tmpfs", "-o", "size=32m,uid=4711,gid=4711", "tmpfs", small)
	words := append([]string{"env", "XDG_DATA_HOME=" + small}, h.apptainer("exec", large, "true")...)
	if got := h.run(alice, words...); got.Code != 255 || !strings.Contains(got.Err, "no space left on device; berth prune --all") {
		t.Errorf("on a full disk: %+v", got)
	}
	if out := h.Do(t, "sh", "-c", "du -sm "+small+" | cut -f1"); strings.TrimSpace(out) != "0" && strings.TrimSpace(out) != "1" {
		t.Errorf("%s MB are left on a full disk", out)
	}
}
