package pull

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rig"
)

// disk is a home whose data is on a disk of its own, inside the node.
type disk struct{ home }

func newDisk(t *testing.T, megabytes int) disk {
	t.Helper()
	d := disk{newHome(t)}
	data := d.dir + "/data"
	rig.Must(t, os.MkdirAll(data, 0o700))
	node.Do(t, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm,mode=700", megabytes), "tmpfs", data)
	t.Cleanup(func() {
		// The driver's files stay mounted for later containers.
		node.Do(t, "sh", "-c", "! mountpoint -q "+data+"/shared || umount "+data+"/shared")
		node.Do(t, "umount", data) // which fails if anything is left that uses it
	})
	return d
}

func (d disk) path(name string) string { return node.Path(filepath.Join(d.dir, "data", name)) }

// fill leaves as many pages as there are to be, until the disk is filled anew or empty.
func (d disk) fill(t *testing.T, pages int64) {
	t.Helper()
	f, err := os.OpenFile(d.path("filling"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	rig.Must(t, err)
	size := int64(0)
	for page := make([]byte, 4096); err == nil; {
		var n int
		n, err = f.Write(page)
		size += int64(n)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	rig.Must(t, errors.Join(f.Truncate(size-pages*4096), f.Close()))
}

func (d disk) empty(t *testing.T) {
	t.Helper()
	rig.Must(t, os.Remove(d.path("filling")))
}

// nothing fails if a task has left anything; a detached one may need a moment.
func (d disk) nothing(t *testing.T) {
	t.Helper()
	var left []string
	for last := time.Now().Add(10 * time.Second); time.Now().Before(last); time.Sleep(10 * time.Millisecond) {
		left = nil
		for _, pattern := range []string{
			d.path("tasks/*"), d.path("names/*"), d.path("images/sha256/*/tmp"), d.path("images/sha256/*/part-*"), d.path("driver/.new-*"),
			d.dir + "/state/runtime/*/*", d.dir + "/state/attach/*", d.dir + "/state/exec/*",
		} {
			found, err := filepath.Glob(pattern)
			rig.Must(t, err)
			left = append(left, found...)
		}
		if len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if leases := d.must(t, "leases").Out; strings.Count(leases, "\n") > 1 {
		t.Errorf("leases are left: %s", leases)
	}
	mounts := node.Do(t, "cat", "/proc/self/mountinfo")
	if strings.Contains(strings.ReplaceAll(mounts, d.dir+"/data/shared ", ""), d.dir+"/data/") {
		t.Errorf("mounts are left: %s", mounts)
	}
}

// run runs berth, and leaves out what it writes of a pull's progress: whether it does depends on the time.
func (d disk) run(t *testing.T, words ...string) rig.Said {
	t.Helper()
	said := d.berth(t, words...)
	lines := slices.DeleteFunc(slices.Collect(strings.Lines(said.Err)), func(line string) bool {
		return strings.HasPrefix(line, "berth: pulling the image: ") || strings.HasPrefix(line, "berth: unpacking layer ")
	})
	said.Err = strings.Join(lines, "")
	return said
}

// A disk that is full at any moment of a launch is said in one line, nothing is left, and
// with room there it goes on as if nothing had been.
func TestRunOnAFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	rig.Must(t, oci.Write(dir, makeCheckedImage(t, "1", 1000)))
	name := fake.Serve(t, dir).Host + "/app:1"
	t.Run("the image has no room", func(t *testing.T) {
		d := newDisk(t, 3)
		for range 2 {
			said := d.run(t, "run", "--gpus", "1", name)
			if said.Code != 125 || strings.Count(said.Err, "\n") != 1 || !strings.Contains(said.Err, "no space left on device; berth prune --all frees") {
				t.Errorf("%+v", said)
			}
			d.nothing(t)
		}
	})
	d := newDisk(t, 12)
	d.must(t, "pull", "--quiet", name)
	t.Run("the driver's files have no room", func(t *testing.T) {
		for _, pages := range []int64{0, 1, 5, 20, 40} { // they are copied by the first who needs them
			d.fill(t, pages)
			said := d.run(t, "run", "--gpus", "1", name)
			if said.Code != 125 || strings.Count(said.Err, "\n") != 1 || !strings.Contains(said.Err, "no space left on device; berth prune --all frees") {
				t.Errorf("with %d pages: %+v", pages, said)
			}
			d.nothing(t)
		}
		d.empty(t)
		if said := d.must(t, "run", "--gpus", "1", name); said.Out != "whole\n" {
			t.Errorf("with room: %+v", said)
		}
	})
	for _, tt := range []struct {
		name  string
		words []string
		out   func(string) bool
	}{
		{"run", []string{"run", "--gpus", "1", name}, func(out string) bool { return out == "whole\n" }},
		{"run with a name", []string{"run", "--name", "one", name}, func(out string) bool { return out == "whole\n" }},
		{"run -t", []string{"run", "-t", name}, func(out string) bool { return strings.TrimSpace(out) == "whole" }},
		{"run -d", []string{"run", "-d", "--rm", "--gpus", "1", name}, func(out string) bool { return len(out) == 13 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			full, ran := 0, 0
			for pages := int64(0); ran < 3 && pages < 64; pages++ {
				d.fill(t, pages)
				said := d.run(t, tt.words...)
				said.Err = strings.TrimPrefix(said.Err, "berth: write event log: no space left on device\n") // if its file was full to a block
				switch {
				case said.Code == 125 && said.Out == "" && strings.Count(said.Err, "\n") == 1 && strings.Contains(said.Err, "no space left on device"):
					full++
				case said.Code == 0 && said.Err == "" && tt.out(said.Out):
					ran++
				default:
					t.Errorf("with %d pages: %+v", pages, said)
				}
				d.nothing(t)
			}
			if full == 0 || ran < 3 {
				t.Errorf("it has said %d times that the disk is full, and run %d times", full, ran)
			}
			d.empty(t)
			if said := d.must(t, tt.words...); !tt.out(said.Out) {
				t.Errorf("with room: %+v", said)
			}
			d.nothing(t)
		})
	}
	t.Run("a task fills it", func(t *testing.T) {
		// A runtime writes the pid file after it has started the container, for which it needs room.
		gate := t.TempDir()
		go func() {
			for begun := []string(nil); len(begun) == 0; time.Sleep(time.Millisecond) {
				begun, _ = filepath.Glob(d.path("tasks/*/bundle/pid")) // the pattern is right
			}
			_ = os.WriteFile(filepath.Join(gate, "open"), nil, 0o600) // without it the test never ends
		}()
		said := d.berth(t, "run", "--gpus", "1", "-v", gate+":/gate", name, "sh", "-c",
			"until [ -e /gate/open ]; do sleep 0.01; done; dd if=/dev/zero of=/big bs=1M; echo $?; exit 5")
		if said.Code != 5 || said.Out != "1\n" || !strings.Contains(said.Err, "No space left on device") {
			t.Errorf("%+v", said)
		}
		d.nothing(t)
		if said := d.must(t, "run", name); said.Out != "whole\n" {
			t.Errorf("%+v", said)
		}
	})
}
