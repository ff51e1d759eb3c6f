package pull

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rig"
)

// content is what a file has: it doesn't compress.
func content(seed uint64, size int) string {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b) // never fails
	return string(b)
}

// layered is an image of four layers, of which the lowest is every image's.
func layered(tag string, seed uint64) oci.Image {
	layer := func(name string, seed uint64) oci.Layer {
		var files []oci.File
		for i := range uint64(20) {
			files = append(files, oci.File{Name: fmt.Sprintf("%s/%d", name, i), Body: content(seed+i, 40<<10)})
		}
		return oci.Layer{Compression: "gzip", Tar: oci.Tar(files...)}
	}
	return oci.Image{Tag: tag, Layers: []oci.Layer{layer("base", 1), layer("a", seed), layer("b", seed+100), layer("c", seed+200)}}
}

// complete fails unless each layer in a store is whole: it may be missing, but never
// half. It returns how many there are.
func complete(t *testing.T, h home) (n int) {
	t.Helper()
	homes, err := filepath.Glob(h.dir + "/data/images/sha256/*/fs/*")
	rig.Must(t, err)
	for _, dir := range homes {
		for i := range 20 {
			if fi, err := os.Stat(fmt.Sprintf("%s/%d", dir, i)); err != nil || fi.Size() != 40<<10 {
				t.Errorf("%s is there, and %d isn't whole: %v", dir, i, err)
			}
		}
	}
	return len(homes)
}

// children are the processes that a process has started.
func children(t *testing.T, pid int) (pids []int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	rig.Must(t, err)
	for _, file := range files {
		data, _ := os.ReadFile(file) // the process may have ended
		for word := range strings.FieldsSeq(string(data)) {
			child, err := strconv.Atoi(word)
			rig.Must(t, err)
			pids = append(pids, child)
		}
	}
	return pids
}

// TestKilled has 32 processes pull three images into one store and prune it, kills
// them or the processes that they have started at any moment, and looks at what they leave.
func TestKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	tags := []string{"one", "two", "three"}
	rig.Must(t, oci.Write(dir, layered("one", 1000), layered("two", 2000), layered("three", 3000)))
	r := fake.Serve(t, dir)
	h := newHome(t)
	for round := range 6 {
		var all sync.WaitGroup
		for i := range 32 {
			args := []string{"pull", "--quiet", r.Host + "/app:" + tags[i%3]}
			if i%8 == 7 {
				args = []string{"prune"}
			}
			cmd := h.command(args...)
			rig.Must(t, cmd.Start())
			after := time.Duration(rand.IntN(250*(round+1))) * time.Millisecond
			all.Go(func() {
				timer := time.AfterFunc(after, func() {
					if i%2 == 0 {
						_ = cmd.Process.Kill() // it may have ended
						return
					}
					for _, pid := range children(t, cmd.Process.Pid) {
						_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
					}
				})
				_ = cmd.Wait() // killed, or not
				timer.Stop()
			})
		}
		all.Wait()
		if round%2 == 1 {
			h.must(t, "prune", "--all") // the next begins with nothing
		}
		t.Logf("round %d leaves %d layers, and %d downloads that broke", round, complete(t, h), len(parts(t, h)))
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if said := h.berth(t, "pull", "--quiet", r.Host+"/app:"+tags[i%3]); said.Code != 0 {
				t.Errorf("after all, a pull fails: %s", said.Err)
			}
		})
	}
	all.Wait()
	if n := complete(t, h); n != 10 {
		t.Errorf("%d layers, want 10", n)
	}
	h.must(t, "prune")
	if left := append(parts(t, h), matches(t, h, "tmp")...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, image := range h.listImages(t) {
		if image.Broken {
			t.Errorf("%s is incomplete", image.Short)
		}
	}
	h.must(t, "prune", "--all")
	if left := listFiles(t, h.dir+"/data/images"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func parts(t *testing.T, h home) []string { return matches(t, h, "part-*") }

func matches(t *testing.T, h home, name string) []string {
	t.Helper()
	found, err := filepath.Glob(h.dir + "/data/images/sha256/*/" + name)
	rig.Must(t, err)
	return found
}

// A pull that was killed goes on where it ended.
func TestKilledGoesOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	rig.Must(t, oci.Write(dir, oci.Image{Tag: "1", Layers: []oci.Layer{{Compression: "gzip", Tar: oci.Tar(oci.File{Name: "file", Body: content(7, 4<<20)})}}}))
	r := fake.Serve(t, dir)
	h := newHome(t)
	h.must(t, "pull", "--quiet", r.Host+"/app:1") // with that, only the layer is to come
	h.must(t, "rmi", r.Host+"/app:1")
	hold := make(chan struct{})
	cmd := h.command("pull", r.Host+"/app:1")
	r.Change(func(r *fake.Registry) { r.Hold = hold })
	rig.Must(t, cmd.Start())
	for begun := false; !begun; time.Sleep(10 * time.Millisecond) {
		if p := parts(t, h); len(p) > 0 {
			fi, err := os.Stat(p[0])
			begun = err == nil && fi.Size() >= 1<<20
		}
	}
	pulling := children(t, cmd.Process.Pid)
	if len(pulling) != 1 {
		t.Errorf("%d processes pull, want one", len(pulling))
	}
	rig.Must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	for _, pid := range pulling {
		for unix.Kill(pid, 0) == nil { // it ends with its parent
			time.Sleep(time.Millisecond)
		}
	}
	close(hold)
	r.Change(func(r *fake.Registry) { r.Hold = nil })
	r.Seen()
	h.must(t, "pull", "--quiet", r.Host+"/app:1")
	ranged := 0
	for _, request := range r.Seen() {
		if strings.Contains(request, " bytes=") {
			ranged++
		}
	}
	if ranged != 1 {
		t.Errorf("%d requests for the rest of a blob, want 1", ranged)
	}
}

// When the process that pulls is killed, it is said in one line.
func TestPullerKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	rig.Must(t, oci.Write(dir, oci.Image{Tag: "1", Layers: []oci.Layer{{Compression: "gzip", Tar: oci.Tar(oci.File{Name: "file", Body: content(7, 4<<20)})}}}))
	r := fake.Serve(t, dir)
	hold := make(chan struct{})
	defer close(hold)
	r.Change(func(r *fake.Registry) { r.Hold = hold })
	cmd := newHome(t).command("run", r.Host+"/app:1", "true")
	var errs strings.Builder
	cmd.Stderr = &errs
	rig.Must(t, cmd.Start())
	for asked := false; !asked; time.Sleep(time.Millisecond) {
		asked = slices.ContainsFunc(r.Seen(), func(s string) bool { return strings.Contains(s, "/blobs/") })
	}
	for _, pid := range children(t, cmd.Process.Pid) {
		rig.Must(t, unix.Kill(pid, unix.SIGKILL))
	}
	_ = cmd.Wait() // the code says it
	if code := cmd.ProcessState.ExitCode(); code != 125 || errs.String() != "berth: berth-containerd ended early: signal: killed\n" {
		t.Errorf("exit code %d, says %q", code, &errs)
	}
}

// A full disk is said in one line, with the way out, and nothing half is left.
func TestFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	rig.Must(t, oci.Write(dir, layered("one", 1000)))
	r := fake.Serve(t, dir)
	h := newHome(t)
	rig.Must(t, os.MkdirAll(h.dir+"/data", 0o700))
	rig.Must(t, unix.Mount("tmpfs", h.dir+"/data", "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { rig.Must(t, unix.Unmount(h.dir+"/data", 0)) })
	// The node has its own mounts: this is looked at from outside.
	cmd := h.command("pull", "--quiet", r.Host+"/app:one")
	cmd.Args = cmd.Args[indexOf(cmd.Args, "env"):]
	cmd.Path = "/usr/bin/env"
	out, err := cmd.CombinedOutput()
	said := string(out)
	if err == nil || strings.Count(said, "\n") != 1 || !strings.Contains(said, "no space left on device; berth prune --all frees") {
		t.Errorf("%v, says %q", err, said)
	}
	if left := append(parts(t, h), matches(t, h, "tmp")...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func indexOf(words []string, word string) int {
	for i, w := range words {
		if w == word {
			return i
		}
	}
	return 0
}

// What a running task uses stays, and is said; when it has ended, it goes.
func TestPruneLeavesWhatRuns(t *testing.T) {
	push(t, "oci:"+busybox+":latest", "docker://"+open+"/running:1")
	name := open + "/running:1"
	h := newHome(t)
	h.must(t, "pull", "--quiet", name)
	cmd := h.command("run", "-i", name, "cat")
	in, err := cmd.StdinPipe()
	rig.Must(t, err)
	out, err := cmd.StdoutPipe()
	rig.Must(t, err)
	rig.Must(t, cmd.Start())
	_, err = in.Write([]byte("x"))
	rig.Must(t, err)
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if said := h.must(t, "prune", "--all"); said.Out != "" || !strings.Contains(said.Err, "0 layers") {
		t.Errorf("%+v", said)
	}
	h.fails(t, 1, "image "+name+" is used by a task", "rmi", name)
	rig.Must(t, in.Close())
	rig.Must(t, cmd.Wait())
	if said := h.must(t, "prune", "--all"); said.Out != name+"\n" {
		t.Errorf("%+v", said)
	}
}
