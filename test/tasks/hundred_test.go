package tasks

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

var (
	hundredTasks = flag.Int("hundred.tasks", 16, "detached `tasks`, half of them on each version of cgroups")
	hundredSeed  = flag.Uint64("hundred.seed", 1, "`seed` of what is drawn; 0 draws one")
)

// TestHundred has many detached tasks share eight GPUs while everything that takes part is
// killed at random: monitors, commands, launchers, first processes, runtimes that are in
// the middle of making a container. From inside, each container looks all its life whether
// it can open its own GPUs and no other, and holds a lock of each, so that two holders of
// one are seen. Meanwhile others use every verb on the tasks, and remove some.
//
// At the end each task has ended as it did inside, has lost nothing that it wrote, and all
// of them are removed by verbs alone: nothing else is left then, and all GPUs are free.
//
// What is drawn follows from the seed; when it happens doesn't.
func TestHundred(t *testing.T) {
	for _, cgroup := range []string{"v1", "v2"} {
		t.Run(cgroup, func(t *testing.T) {
			h := newHundred(t, cgroup)
			before := h.listState()
			h.storm()
			h.report()
			h.checkJobs()
			h.removeAllTasks(before)
		})
	}
}

// hundred is one server with many tasks.
type hundred struct {
	*rig.Node
	t    *testing.T
	seed uint64
	dir  string // /hold of the containers
	box  string // the image

	background sync.WaitGroup // verbs that last

	mu    sync.Mutex
	jobs  []*job
	known map[string]string     // names of tasks by their ids, "" as long as it isn't known
	past  map[string][]incident // what happened to a task, by its name
	kills map[string]int        // by what was killed
	hits  map[string]int        // by jobOf the killed task
	said  map[string]int        // what verbs said, without what differs
	calls int
}

// incident is something that was done to a task.
type incident struct {
	at   time.Time
	what string
}

// What can happen to a task. All but adopted are kills.
const (
	monitorKilled = "monitor"
	adopted       = "adopted"
	initKilled    = "init"
	runtimeKilled = "runtime"
	commandKilled = "command"
	attacked      = "attacked" // a verb that ends tasks was used on it
)

func newHundred(t *testing.T, cgroup string) *hundred {
	t.Helper()
	n, err := shared.Start("dgx-h100", cgroup)
	rig.Must(t, err)
	h := &hundred{
		Node: n, t: t, seed: *hundredSeed, dir: t.TempDir(), box: rig.ImagePath(t, "busybox"),
		known: map[string]string{}, past: map[string][]incident{}, kills: map[string]int{}, hits: map[string]int{}, said: map[string]int{},
	}
	if h.seed == 0 {
		h.seed = rand.Uint64N(1 << 32)
	}
	t.Logf("-hundred.seed %d", h.seed)
	t.Cleanup(h.end)
	h.makeSharedDir()
	h.runOnAllGPUs() // what berth makes once stays
	return h
}

// end kills and removes what a failed test left.
func (h *hundred) end() {
	for range 500 {
		found := h.victims()
		for _, v := range found {
			_ = unix.PidfdSendSignal(v.pidfd, unix.SIGKILL, nil, 0) // it may have ended
		}
		release(found)
		if len(found) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	h.t.Error("not all processes can be ended")
}

// runOnAllGPUs runs a task that has all GPUs, with each runtime.
func (h *hundred) runOnAllGPUs() {
	h.t.Helper()
	for _, runtime := range []string{"crun", "runc"} {
		h.must("run", "-d", "--rm", "--name", "whole", "--gpus", "8", "--runtime", runtime, h.box, "sleep", "1000")
		h.must("exec", "whole", "true")
		h.must("rm", "-f", "whole")
	}
}

// makeSharedDir makes what all containers have in common.
func (h *hundred) makeSharedDir() {
	h.t.Helper()
	holder, err := shared.Compile("holder", "testdata/holder.c", "-static")
	rig.Must(h.t, err)
	program, err := os.ReadFile(holder)
	rig.Must(h.t, err)
	rig.Must(h.t, os.WriteFile(h.hold("holder"), program, 0o755))
	for _, dir := range []string{"nodes", "locks", "records"} {
		rig.Must(h.t, os.Mkdir(h.hold(dir), 0o755))
	}
	var list strings.Builder
	for i := range h.State.Blueprint().GPUs {
		fmt.Fprintf(&list, "%d %s\n", i, h.State.Blueprint().UUID(i))
		rig.Must(h.t, unix.Mknod(h.hold("nodes", fmt.Sprint(i)), unix.S_IFCHR|0o666, int(unix.Mkdev(195, uint32(i)))))
	}
	rig.Must(h.t, os.WriteFile(h.hold("gpus"), []byte(list.String()), 0o644))
}

func (h *hundred) hold(names ...string) string {
	return filepath.Join(append([]string{h.dir}, names...)...)
}

// atOnce is how many tasks run or wait for GPUs at most.
const atOnce = 100

// storm runs all tasks to their ends while others kill and use verbs.
func (h *hundred) storm() {
	h.jobs = drawJobs(rand.New(rand.NewPCG(h.seed, 0)), *hundredTasks/2)
	ctx, calm := context.WithCancel(context.Background())
	var storm, work sync.WaitGroup
	storm.Go(func() { h.killer(ctx, rand.New(rand.NewPCG(h.seed, 1))) })
	for i := range uint64(2) {
		storm.Go(func() { h.user(ctx, rand.New(rand.NewPCG(h.seed, 2+i))) })
	}
	slots := make(chan struct{}, atOnce)
	for _, j := range h.jobs {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			h.launch(j)
		})
	}
	work.Wait()
	calm()
	storm.Wait()
	h.background.Wait()
}

// call is a verb that was run to its end.
type call struct {
	code     int // -1 if it was killed
	out, err string
}

// berth runs a verb. It may be called by any goroutine, and may be killed.
func (h *hundred) berth(words ...string) call {
	// Files, for a command of exec may outlive it.
	var files [2]*os.File
	for i := range files {
		f, err := os.CreateTemp(h.dir, "said")
		if err != nil {
			h.t.Error(err)
			return call{code: 125}
		}
		defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }() // the directory goes, too
		files[i] = f
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	from := h.Command(h.Berth, words...)
	cmd := exec.CommandContext(ctx, from.Path, from.Args[1:]...)
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		h.t.Errorf("berth %q: %v", words, err)
	}
	out, err1 := os.ReadFile(files[0].Name())
	errs, err2 := os.ReadFile(files[1].Name())
	if err := errors.Join(err1, err2); err != nil {
		h.t.Error(err)
	}
	c := call{cmd.ProcessState.ExitCode(), string(out), string(errs)}
	if ctx.Err() != nil {
		h.t.Errorf("berth %q takes for ever: %+v", words, c)
	}
	h.noteOutput(words, c)
	return c
}

// noteOutput keeps what verbs say, and finds what they must never say.
func (h *hundred) noteOutput(words []string, c call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	if strings.Contains(c.err, "goroutine ") || strings.Contains(c.err, "panic") {
		h.t.Errorf("berth %q: %+v", words, c)
	}
	for line := range strings.Lines(c.err) {
		h.said[words[0]+": "+withoutNumbers(line)]++
	}
}

// withoutNumbers is a line without what differs from task to task.
func withoutNumbers(line string) string {
	words := strings.Fields(line)
	for i, w := range words {
		if strings.ContainsAny(w, "0123456789") {
			words[i] = "…"
		}
	}
	return strings.Join(slices.Compact(words), " ")
}

func (h *hundred) must(words ...string) string {
	h.t.Helper()
	c := h.berth(words...)
	if c.code != 0 {
		h.t.Fatalf("berth %q: %+v; -hundred.seed %d", words, c, h.seed)
	}
	return c.out
}

// noteIncident notes an incident.
func (h *hundred) noteIncident(name, what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.past[name] = append(h.past[name], incident{time.Now(), what})
}

// incidents are those of a task, of some kinds.
func (h *hundred) incidents(name string, what ...string) (found []incident) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, i := range h.past[name] {
		if slices.Contains(what, i.what) {
			found = append(found, i)
		}
	}
	return found
}

func (h *hundred) report() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.t.Logf("%d tasks, %d verbs, killed: %v", len(h.jobs), h.calls, h.kills)
	for _, line := range slices.Sorted(maps.Keys(h.said)) {
		h.t.Logf("%4d × %s", h.said[line], line)
	}
}
