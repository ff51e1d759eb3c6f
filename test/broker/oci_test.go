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

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rig"
)

// ociLayers is how many layers the image of makeOCI has.
const ociLayers = 2

// makeOCI makes an OCI layout that all users may read, with an image that has an entry point, files of several owners, and a layer that removes files. mark
// tells one image from another.
func makeOCI(t *testing.T, mark string) string {
	t.Helper()
	program, err := exec.LookPath("busybox")
	rig.Must(t, err)
	data, err := os.ReadFile(program)
	rig.Must(t, err)
	files := append(oci.Busybox(data, []string{"sh", "cat", "env", "id", "ls", "stat", "touch", "sleep", "readlink", "echo", "sed", "true", "test"}),
		oci.File{Name: "removed", Body: "old\n"}, oci.File{Name: "dir/"}, oci.File{Name: "dir/old", Body: "old\n"},
		oci.File{Name: "secret", Body: "of root\n", Mode: 0o600}, oci.File{Name: "other/", Mode: 0o700, UID: 1000, GID: 1000},
		oci.File{Name: "other/file", Body: "of another\n", Mode: 0o400, UID: 1000, GID: 1000})
	above := oci.Tar(oci.File{Name: ".wh.removed"}, oci.File{Name: "dir/"}, oci.File{Name: "dir/.wh..wh..opq"}, oci.File{Name: "dir/new", Body: "new\n"}, oci.File{Name: "mark", Body: mark})
	dir := filepath.Join(t.TempDir(), "layout")
	for d := filepath.Dir(dir); d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		rig.Must(t, os.Chmod(d, 0o755))
	}
	rig.Must(t, oci.Write(dir, oci.Image{Tag: "1", Layers: []oci.Layer{{Tar: oci.Tar(files...), Compression: "gzip"}, {Tar: above}}, Config: ispec.ImageConfig{
		Env:        []string{"PATH=/own:/bin", "IMAGE=image", "BOTH=image", "TEXT=a 'b' \"c\" $HOME", "HOME=/of/image", "NVIDIA_DRIVER_CAPABILITIES=video"},
		Entrypoint: []string{"sh", "-c", `echo "$0 $@: $IMAGE $BOTH $PWD"`}, Cmd: []string{"one", "$HOME"}, WorkingDir: "/dir", User: "1000",
	}}))
	return dir
}

// makeBareOCI makes an OCI layout that all users may read, with an image without a shell.
func makeBareOCI(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(filepath.Dir(makeOCI(t, "")), "bare")
	program, err := exec.LookPath("busybox")
	rig.Must(t, err)
	data, err := os.ReadFile(program)
	rig.Must(t, err)
	layer := oci.Tar(oci.File{Name: "own/"}, oci.File{Name: "own/busybox", Body: string(data), Mode: 0o755})
	rig.Must(t, oci.Write(dir, oci.Image{Layers: []oci.Layer{{Tar: layer}}, Config: ispec.ImageConfig{
		Env: []string{"PATH=/own", "IMAGE=image", "BERTH_MOUNTS=1", "BERTH_HELPER=9"}, Entrypoint: []string{"busybox"}, Cmd: []string{"sh", "-c", "echo $IMAGE $HOME $PATH"},
	}}))
	return dir
}

// makeArchives makes archives of a layout's only image, as docker save writes them, and of the layout.
func makeArchives(t *testing.T, layout string) (docker, archive string) {
	t.Helper()
	dir := filepath.Dir(layout)
	archive, docker = filepath.Join(dir, "oci.tar"), filepath.Join(dir, "docker.tar")
	var index ispec.Index
	var manifest ispec.Manifest
	read := func(name string, value any) {
		data, err := os.ReadFile(filepath.Join(layout, name))
		rig.Must(t, err)
		rig.Must(t, json.Unmarshal(data, value))
	}
	blob := func(d ispec.Descriptor) string { return "blobs/sha256/" + d.Digest.Encoded() }
	read("index.json", &index)
	read(blob(index.Manifests[0]), &manifest)
	saved := map[string]any{"Config": blob(manifest.Config), "RepoTags": []string{"app:1"}}
	var layers []string
	for _, l := range manifest.Layers {
		layers = append(layers, blob(l))
	}
	saved["Layers"] = layers
	data, err := json.Marshal([]any{saved})
	rig.Must(t, err)
	rig.Must(t, os.WriteFile(filepath.Join(dir, "manifest.json"), data, 0o644))
	for _, words := range [][]string{{"tar", "cf", archive, "-C", layout, "."}, {"tar", "cf", docker, "-C", layout, "blobs", "-C", dir, "manifest.json"}} {
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", words, err, out)
		}
	}
	return docker, archive
}

// TestOCI: a command in an image of a layout, an archive or a registry has the user's id, the image's environment and entry point as under Apptainer, all files
// of the image, which belong to the user, and the leased devices.
func TestOCI(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	layout := makeOCI(t, "")
	docker, archive := makeArchives(t, layout)
	registry := fake.Serve(t, layout)
	image, pulled, bare := "oci:"+layout, "docker://"+registry.Host+"/app:1", "oci:"+makeBareOCI(t)
	for _, tt := range []struct {
		what  string
		words []string
		want  rig.Said
	}{
		{
			"identity",
			[]string{"exec", image, "sh", "-c", "id -u; id -g; sed 's/  */ /g' /proc/self/uid_map; stat -c '%u:%g %a' /secret /other; cat /secret /other/file"},
			rig.Said{Out: "4711\n4711\n 4711 4711 1\n4711:4711 600\n4711:4711 700\nof root\nof another\n"},
		},
		{"layers", []string{"exec", image, "sh", "-c", "echo /dir/*; test -e /removed; echo $?"}, rig.Said{Out: "/dir/new\n1\n"}},
		{"read-only", []string{"exec", image, "touch", "/x"}, rig.Said{Code: 1, Err: "touch: /x: Read-only file system\n"}},
		{"memory", []string{"exec", "--writable-tmpfs", image, "sh", "-c", "echo x >/bin/x && cat /bin/x"}, rig.Said{Out: "x\n"}},
		{
			"environment",
			[]string{"exec", image, "sh", "-c", `echo "$IMAGE|$BOTH|$TEXT|$PATH|$HOME|$PWD"`},
			rig.Said{Out: `image|image|a 'b' "c" $HOME|/own:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin|` + h.dir + "|/tmp\n"},
		},
		{"environment of the command line", []string{"exec", "--env", "IMAGE=mine", image, "sh", "-c", "echo $IMAGE"}, rig.Said{Out: "mine\n"}},
		{"entry point", []string{"run", image}, rig.Said{Out: "one $HOME: image image /tmp\n"}},
		{"arguments", []string{"run", image, "three", "four five", `$HOME \$HOME "q"`}, rig.Said{Out: "three four five " + h.dir + ` $HOME "q": image image /tmp` + "\n"}},
		{"arguments as they are", []string{"run", "--no-eval", image, "$HOME"}, rig.Said{Out: "$HOME : image image /tmp\n"}},
		{"shell", []string{"shell", image}, rig.Said{}},
		{"root of its own", []string{"exec", "--fakeroot", image, "stat", "-c", "%u:%g", "/secret", "/other"}, rig.Said{Out: "0:0\n0:0\n"}},
		{"archive of docker", []string{"run", "docker-archive:" + docker}, rig.Said{Out: "one $HOME: image image /tmp\n"}},
		{"archive of a layout", []string{"exec", "oci-archive:" + archive + ":1", "cat", "/dir/new"}, rig.Said{Out: "new\n"}},
		{"registry", []string{"run", pulled, "a"}, rig.Said{Out: "a : image image /tmp\n"}},
		{"entry point without a shell", []string{"run", bare}, rig.Said{Out: "image " + h.dir + " /own\n"}},
		{"init process without a shell", []string{"run", "--pid", bare}, rig.Said{Out: "image " + h.dir + " /own\n"}},
		{"arguments without a shell", []string{"run", bare, "echo", "$HOME"}, rig.Said{Out: "$HOME\n"}},
		{"command without a shell", []string{"exec", "--env", "IMAGE=mine", bare, "busybox", "sh", "-c", "echo $IMAGE $BOTH"}, rig.Said{Out: "mine host\n"}},
		{"shell without a shell", []string{"shell", bare}, rig.Said{Code: 255, Err: "berth: " + bare + ": the image has no shell: berth apptainer exec runs a command of it\n"}},
		{"a layout without its scheme", []string{"exec", layout, "true"}, rig.Said{Code: 255, Err: "berth: " + layout + ": it is an OCI layout: oci:" + layout + "\n"}},
		{
			"an archive without its scheme",
			[]string{"exec", archive, "true"},
			rig.Said{Code: 255, Err: "berth: " + archive + ": it is no SIF file; docker-archive:" + archive + " is an archive of docker save, and oci-archive:" + archive + " one of an OCI layout\n"},
		},
		{"no program", []string{"exec", image, "nosuch"}, rig.Said{Code: 255, Err: "berth: nosuch: executable file not found in $PATH\n"}},
		{"no file", []string{"exec", "nosuch.tar", "true"}, rig.Said{Code: 255, Err: "berth: image \"nosuch.tar\": there is no such file or directory; docker://NAME is an image of a registry\n"}},
		{"no such devices", []string{"exec", "--gpus", "nosuch:1", "docker://" + registry.Host + "/not/asked", "true"}, rig.Said{Code: 255, Err: "berth: request nosuch: node has no nosuch; it has h100; berth gpus lists the node's devices\n"}},
		{"no tag", []string{"exec", image + ":2", "true"}, rig.Said{Code: 255, Err: "berth: open image " + image + ":2: no image is tagged \"2\"; there are: 1\n"}},
		{"written to", []string{"exec", "-w", image, "true"}, rig.Said{Code: 255, Err: "berth: --writable: SIF files and images of the store never change; --writable-tmpfs keeps changes in memory\n"}},
		{"a SIF file of a library", []string{"exec", "library://a/b/c:1", "true"}, rig.Said{Code: 255, Err: "berth: library://a/b/c:1: there is no library: apptainer.library in /etc/berth/config.toml names a server of such images\n"}},
		{"pull into a file", []string{"pull", "a.sif", pulled}, rig.Said{Code: 255, Err: "berth: pull writes no SIF file: berth apptainer exec " + pulled + " pulls the image and runs it\n"}},
		{"pull", []string{"pull", pulled}, rig.Said{Out: registry.Host + "/app:1\n", Err: "berth: no SIF file is written: berth apptainer exec " + pulled + " runs the image\n"}},
		{"another verb", []string{"build", "a.sif", "a.def"}, rig.Said{Code: 255, Err: "berth: apptainer build: berth makes no images: apptainer, docker, podman and buildah do\n"}},
	} {
		words := append([]string{"env", "-C", "/tmp", "BOTH=host", "OWN=host"}, h.apptainer(tt.words...)[1:]...)
		h.wantSaid(tt.what, withoutUnpacking(h.run(alice, words...)), tt.want)
	}
	got := h.run(alice, h.apptainer("exec", "--gpus", "1", image, "sh", "-c", openNodes+"; "+opening)...)
	nodes, opened, _ := strings.Cut(got.Out, "\n")
	if got.Code != 0 || len(nodes) != 1 || strings.Trim(opened, "?\n") != nodes {
		t.Errorf("--gpus 1: %+v", got)
	}
	if got := h.run(alice, h.apptainer("exec", "--nv", image, "cat", "/proc/self/mountinfo")...); !strings.Contains(got.Out, "/video/files ") {
		t.Errorf("the driver's files aren't those that the image asks for: %+v", got)
	}
	h.waitForLeases(0)
	rig.Must(t, os.Symlink(h.Berth, filepath.Join(h.dir, "apptainer")))
	h.wantSaid("a link", h.run(alice, "env", "-C", "/tmp", "HOME="+h.dir, h.dir+"/apptainer", "run", image), rig.Said{Out: "one $HOME: image image /tmp\n"})
	h.wantSaid("a link's version", h.run(alice, h.dir+"/apptainer", "--version"), rig.Said{Out: "apptainer version 1.4.5+berth\n"})

	root := h.Run(t, h.Command("env", "-C", "/tmp", h.Berth, "apptainer", "exec", "--nv", image, "sh", "-c", openNodes+"; id -u; stat -c %u:%g /other; echo $IMAGE; cat /other/file; touch /x"))
	h.wantSaid("root", withoutUnpacking(root), rig.Said{Code: 1, Out: "0\n0\n1000:1000\nimage\nof another\n", Err: "touch: /x: Read-only file system\n"})
	root = h.Run(t, h.Command("env", "-C", "/tmp", h.Berth, "apptainer", "run", pulled, "a"))
	h.wantSaid("root, of a registry", withoutUnpacking(root), rig.Said{Out: "a : image image /tmp\n"})
}

// withoutUnpacking removes what a slow machine is told of an image's unpacking.
func withoutUnpacking(said rig.Said) rig.Said {
	var b strings.Builder
	for line := range strings.Lines(said.Err) {
		if !strings.HasPrefix(line, "berth: unpacking layer ") && !strings.HasPrefix(line, "berth: another task is unpacking layer ") {
			b.WriteString(line)
		}
	}
	said.Err = b.String()
	return said
}

// TestOCILayers: commands of one image share its layers, which aren't removed while a process of one of them lives, and which the verbs about images
// show and remove, with subordinate ids, too.
func TestOCILayers(t *testing.T) {
	n := start(t)
	n.broker()
	for _, subordinate := range []bool{false, true} {
		h := n.home(alice)
		if subordinate {
			h.giveSubordinateIDs()
		}
		layout := makeOCI(t, fmt.Sprint(subordinate))
		registry := fake.Serve(t, layout)
		name := registry.Host + "/app:1"
		var running sync.WaitGroup
		for range 12 {
			running.Go(func() {
				if got := withoutUnpacking(h.run(alice, h.apptainer("exec", "oci:"+layout, "cat", "/mark")...)); got != (rig.Said{Out: fmt.Sprint(subordinate)}) {
					t.Errorf("one of many: %+v", got)
				}
			})
		}
		running.Wait()
		store := filepath.Join(h.dir, ".local/share/berth/images")
		countLayers := func() int {
			return len(strings.Fields(h.Do(t, "sh", "-c", "ls -d "+store+"/sha256/*/fs 2>/dev/null || true")))
		}
		if got := countLayers(); got != ociLayers {
			t.Errorf("%d layers are unpacked", got)
		}
		// The first command leaves a process behind, and its launcher ends.
		got := h.run(alice, h.apptainer("exec", "docker://"+name, "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")...)
		pid := strings.TrimSpace(got.Out)
		if pid == "" {
			t.Fatalf("a process in the background: %+v", got)
		}
		if got := h.berth("images", "--format", "{{.Repository}}"); !strings.Contains(got.Out, "app") {
			t.Errorf("berth images: %+v", got)
		}
		h.wantSaid("prune of an image in use", h.berth("prune", "--all"), rig.Said{Err: "freed 0 B, 0 layers\n"})
		if got := h.berth("rmi", name); got.Code != 1 || !strings.Contains(got.Err, "is used by") {
			t.Errorf("rmi of an image in use: %+v", got)
		}
		if got := countLayers(); got != ociLayers {
			t.Errorf("%d layers are left under a process", got)
		}
		h.Do(t, "kill", "-9", pid)
		rig.WaitUntil(t, "the process ends", func() bool { return h.Do(t, "sh", "-c", "kill -0 "+pid+" 2>/dev/null && echo lives || true") == "" })
		if got := h.berth("rmi", name); got.Code != 0 || !strings.HasPrefix(got.Out, "Untagged: "+name+"\n") || countLayers() != 0 {
			t.Errorf("rmi: %+v, %d layers are left", got, countLayers())
		}
	}
}

// makeOpaqueOCI makes an OCI layout that all users may read, with an image in which a layer hides all files of the one below.
func makeOpaqueOCI(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/bin/busybox")
	rig.Must(t, err)
	files := append(oci.Busybox(data, []string{"sh", "ls"}), oci.File{Name: ".wh..wh..opq"})
	dir := filepath.Join(filepath.Dir(makeOCI(t, "")), "opaque")
	rig.Must(t, oci.Write(dir, oci.Image{Tag: "1", Layers: []oci.Layer{{Tar: oci.Tar(oci.File{Name: "hidden"})}, {Tar: oci.Tar(files...)}}}))
	return dir
}

// TestOCIUnpackedBefore: for an image whose layers are unpacked no process is started that may unpack them. A layer that hides all below it does so all the same.
func TestOCIUnpackedBefore(t *testing.T) {
	h, sif := unpackHome(t, nil)
	dir := makeOpaqueOCI(t)
	registry := fake.Serve(t, dir)
	for _, ref := range []string{"oci:" + dir, "docker://" + registry.Host + "/app:1", sif} {
		for i := range 2 {
			calls := filepath.Join(h.dir, "calls")
			words := append([]string{"strace", "-f", "-qq", "-e", "trace=execve", "-o", calls}, h.apptainer("exec", ref, "ls", "/bin/sh", "/hidden")...)
			h.wantSaid(ref, withoutUnpacking(h.run(alice, words...)), rig.Said{Code: 1, Out: "/bin/sh\n", Err: "ls: /hidden: No such file or directory\n"})
			data, err := os.ReadFile(calls)
			rig.Must(t, err)
			if got := strings.Count(string(data), `"unpack-image"`); got > 0 != (i == 0) {
				t.Errorf("%s, command %d: %d processes unpack", ref, i+1, got)
			}
		}
	}
}

// TestOCILayersOfRoot: layers that a process of root's uses aren't removed.
func TestOCILayersOfRoot(t *testing.T) {
	n := start(t)
	layout := makeOCI(t, "of root")
	isThere := func() bool {
		return n.Do(t, "sh", "-c", "grep -lx 'of root' /var/lib/berth/images/sha256/*/fs/mark 2>/dev/null || true") != ""
	}
	p, out := rig.StartReading(t, n.Command(n.Berth, "apptainer", "exec", "oci:"+layout, "sh", "-c", "echo ready; exec sleep 1000"))
	if line, err := out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	n.Do(t, n.Berth, "prune")
	if !isThere() {
		t.Error("layers are removed under a process")
	}
	rig.Must(t, p.Cmd.Process.Kill())
	rig.WaitUntil(t, "prune removes the layers of an ended process", func() bool {
		n.Do(t, n.Berth, "prune")
		return !isThere()
	})
}

// TestOCIUseIsReadOnly: a command that has only the image's files can't write to the file that keeps the image's layers, which is its user's: neither the user's
// nor root's further commands depend on what it does.
func TestOCIUseIsReadOnly(t *testing.T) {
	n := start(t)
	n.broker()
	layout := makeOCI(t, "mark")
	const write = "for f in /proc/self/fd/*; do [ ${f##*/} -gt 2 ] && [ -f $f ] && { chmod 666 $f; echo written >$f; }; done 2>/dev/null; echo ready; exec sleep 1000"
	for _, uid := range []int{alice, 0} {
		h := n.home(uid)
		store := filepath.Join(h.dir, ".local/share/berth/images")
		if uid == 0 {
			store = "/var/lib/berth/images"
		}
		words := as(uid, h.apptainer("exec", "--containall", "oci:"+layout, "sh", "-c", write)...)
		p, out := rig.StartReading(t, h.Command(words[0], words[1:]...))
		if line, err := out.ReadString('\n'); line != "ready\n" {
			t.Fatalf("user %d: %q, %v", uid, line, err)
		}
		if got := n.Do(t, "sh", "-c", "cat "+store+"/uses/* | grep -c .; grep -l written "+store+"/uses/*; ls -l "+store+"/uses | grep -c '^-rw-rw-rw-'; :"); got != "3\n0\n" {
			t.Errorf("user %d: %q", uid, got)
		}
		rig.Must(t, p.Cmd.Process.Kill())
		p.Wait(t)
	}
}
