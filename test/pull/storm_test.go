package pull

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rig"
)

// makeCheckedImage returns an image that can be run, and that finds out by itself whether all of it is
// there: its command says so in one word, and fails otherwise.
func makeCheckedImage(t *testing.T, tag string, seed uint64) oci.Image {
	t.Helper()
	program, err := os.ReadFile("/bin/busybox")
	rig.Must(t, err)
	img := oci.Image{Tag: tag, Config: ispec.ImageConfig{
		Cmd: []string{"sh", "-c", "sha256sum -c -s /sums && sleep 0.1 && echo whole"},
		Env: []string{"PATH=/bin"},
	}}
	add := func(files ...oci.File) {
		img.Layers = append(img.Layers, oci.Layer{Compression: "gzip", Tar: oci.Tar(files...)})
	}
	add(oci.Busybox(program, []string{"sh", "sleep", "sha256sum", "dd"})...)
	var sums strings.Builder
	for layer, first := range []uint64{1, seed, seed + 100} { // the first is every image's
		var files []oci.File
		for i := range uint64(20) {
			f := oci.File{Name: fmt.Sprintf("%d/%d", layer, i), Body: content(first+i, 40<<10)}
			fmt.Fprintf(&sums, "%x  /%s\n", sha256.Sum256([]byte(f.Body)), f.Name)
			files = append(files, f)
		}
		add(files...)
	}
	add(oci.File{Name: "sums", Body: sums.String()})
	return img
}

// storm is 32 processes at a time that pull, run and prune, and are killed.
type storm struct {
	home
	t     *testing.T
	names []string // of images
	ids   map[string]bool
}

// watchTasks notes the ids of tasks, whose cgroups are beside those of others, until stop.
func (s storm) watchTasks() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			entries, _ := os.ReadDir(s.dir + "/data/tasks") // there may be none yet
			for _, e := range entries {
				s.ids[e.Name()] = true
			}
			select {
			case <-quit:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() { close(quit); <-done }
}

// commandOf are the i-th of a round.
func (s storm) commandOf(i int) []string {
	name := s.names[i%len(s.names)]
	switch i % 8 {
	case 0:
		return []string{"run", name}
	case 1:
		return []string{"run", "--gpus", "1", "--name", fmt.Sprint("named-", i), name}
	case 2:
		return []string{"run", "-t", "--rm", name}
	case 3:
		return []string{"run", "-d", "--gpus", "1", name}
	case 4:
		return []string{"prune"}
	}
	return []string{"pull", "--quiet", name}
}

// startAndKill starts 32 processes, and kills each at any moment until a time has passed. Those
// that come to their end are right.
func (s storm) startAndKill(within time.Duration) (killed int) {
	var all sync.WaitGroup
	var count sync.Mutex
	for i := range 32 {
		words := s.commandOf(i)
		cmd := s.command(words...)
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errs, time.Minute // a container may outlive it
		rig.Must(s.t, cmd.Start())
		timer := time.AfterFunc(rand.N(within), func() { _ = cmd.Process.Kill() }) // it may have ended
		all.Go(func() {
			_ = cmd.Wait() // the code says it
			timer.Stop()
			code := cmd.ProcessState.ExitCode()
			count.Lock()
			defer count.Unlock()
			switch foreground := words[0] == "run" && i%8 < 3; {
			case code == -1:
				killed++
			case code == 75 && strings.Contains(errs.String(), "; held: "), code == 125 && strings.Contains(errs.String(), "named-"):
				// what was killed has its GPU or its name still
			case code != 0, foreground && strings.TrimSpace(out.String()) != "whole":
				s.t.Errorf("berth %q: code %d: %s%s", words, code, &out, &errs)
			}
		})
	}
	all.Wait()
	return killed
}

// expectNothingLeft waits until nothing of the tasks is left, after the next verbs have removed them.
func (s storm) expectNothingLeft() {
	s.t.Helper()
	if ids := strings.Fields(s.must(s.t, "ps", "-a", "-q").Out); len(ids) > 0 {
		s.must(s.t, append([]string{"rm", "-f"}, ids...)...)
	}
	// A launch sweeps what others have left, when the last process of that has ended.
	tasks := func() []os.DirEntry {
		entries, err := os.ReadDir(s.dir + "/data/tasks")
		rig.Must(s.t, err)
		return entries
	}
	for n, last := 0, time.Now().Add(time.Minute); n < len(s.names) || len(tasks()) > 0 && time.Now().Before(last); n++ {
		name := s.names[n%len(s.names)]
		if said := s.berth(s.t, "run", "--gpus", "8", name); said.Out != "whole\n" && said.Code != 75 {
			s.t.Errorf("%s: %+v", name, said)
		}
	}
	var left struct{ Leases []json.RawMessage }
	rig.Must(s.t, json.Unmarshal([]byte(s.must(s.t, "leases", "--json").Out), &left))
	if len(left.Leases) > 0 {
		s.t.Errorf("leases are left: %s", left.Leases)
	}
	for _, dir := range []string{"data/tasks", "data/names", "state/runtime/crun", "state/runtime/runc", "state/attach", "state/exec"} {
		entries, err := os.ReadDir(filepath.Join(s.dir, dir))
		if len(entries) > 0 || err != nil && !os.IsNotExist(err) {
			s.t.Errorf("%s: %v, %v", dir, entries, err)
		}
	}
	for line := range strings.Lines(node.Do(s.t, "cat", "/proc/self/mountinfo")) {
		if strings.Contains(line, s.dir) && !strings.Contains(line, s.dir+"/data/shared ") { // which stays for later containers
			s.t.Errorf("a mount is left: %s", line)
		}
	}
	for id := range s.ids {
		if group := node.Path("/sys/fs/cgroup/berth/" + id); fileExists(group) {
			s.t.Errorf("a cgroup is left: %s", group)
		}
	}
}

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestStorm has 32 processes at a time pull, run and prune in one store, kills them at
// any moment, and looks at what they leave: every image runs, and of all else nothing.
func TestStorm(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	rig.Must(t, oci.Write(dir, makeCheckedImage(t, "one", 1000), makeCheckedImage(t, "two", 2000), makeCheckedImage(t, "three", 3000)))
	r := fake.Serve(t, dir)
	s := storm{home: newHome(t), t: t, ids: map[string]bool{}}
	for _, tag := range []string{"one", "two", "three"} {
		s.names = append(s.names, r.Host+"/app:"+tag)
	}
	t.Cleanup(func() { // there is nothing, unless the test has failed
		if ids := strings.Fields(s.berth(t, "ps", "-a", "-q").Out); len(ids) > 0 {
			s.berth(t, append([]string{"rm", "-f"}, ids...)...)
		}
	})
	// Six rounds, and as many more as it takes until enough have come so far as to have a task.
	for n := 0; n < 6 || len(s.ids) < 32 && n < 60; n++ {
		stop := s.watchTasks()
		killed := s.startAndKill(time.Duration(min(n, 5)+1) * 400 * time.Millisecond)
		stop()
		t.Logf("round %d: %d of 32 were killed", n, killed)
		if n == 3 {
			s.expectNothingLeft()
			s.must(t, "prune", "--all") // the next begins with nothing
		}
	}
	if s.expectNothingLeft(); len(s.ids) < 32 {
		t.Errorf("only %d tasks were seen", len(s.ids))
	}
	s.must(t, "prune")
	if left := append(parts(t, s.home), matches(t, s.home, "tmp")...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, image := range s.listImages(t) {
		if image.Broken {
			t.Errorf("%s is incomplete", image.Short)
		}
	}
	s.must(t, "prune", "--all")
	if left := listFiles(t, s.dir+"/data/images"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
