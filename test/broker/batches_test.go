package broker

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/test/rig"
)

// batchHome is a user's home on a node with a broker.
func batchHome(t *testing.T) home {
	n := start(t)
	n.broker()
	return n.home(alice)
}

// TestMap: each task of a user's and of root's batch opens one GPU, all GPUs are used, and nothing is left.
func TestMap(t *testing.T) {
	h := batchHome(t)
	for _, uid := range []int{alice, 0} {
		script := opening + "; sleep 0.1"
		words := append([]string{"env", "HOME=" + h.dir, h.Berth, "map", "--gpus", "1", "--", "sh", "-c", script, ":::"}, strings.Fields(strings.Repeat("x ", 24))...)
		said := h.run(uid, words...)
		lines := strings.Fields(said.Out)
		if said.Code != 0 || len(lines) != 24 || !strings.Contains(said.Err, "24 of 24 succeeded") {
			t.Fatalf("user %d: %+v", uid, said)
		}
		used := map[string]int{}
		for _, line := range lines {
			if used[line]++; len(line) != 1 {
				t.Errorf("user %d: a task opens the GPUs %q", uid, line)
			}
		}
		if len(used) != 8 {
			t.Errorf("user %d: only these GPUs were used: %v", uid, used)
		}
		h.waitForLeases(0)
	}
}

// TestMapContainers: with an image each task is a container with the worker's devices.
func TestMapContainers(t *testing.T) {
	h := batchHome(t)
	for _, uid := range []int{alice, 0} {
		said := h.run(uid, h.words("map", "--gpus", "2", "-k", "-e", "A=x y", rig.ImagePath(t, "busybox"), "sh", "-c", `echo "$0 $A $(ls /dev/nvidia? | wc -l)"`, ":::", "one", "two")...)
		if said.Code != 0 || said.Out != "one x y 2\ntwo x y 2\n" {
			t.Errorf("user %d: %+v", uid, said)
		}
		h.wantClean()
	}
}

// TestMapLeftovers: the background processes of a task are killed at its end, before the next task gets the GPU.
func TestMapLeftovers(t *testing.T) {
	h := batchHome(t)
	begun := time.Now()
	said := h.berth("map", "--gpus", "1", "-j", "1", "--", "sh", "-c", `pgrep -xf "sleep 4711"; setsid sh -c "setsid sleep 4711 </dev/nvidia0 & sleep 4711" >/dev/null 2>&1 & sleep 0.2`, ":::", "1", "2", "3")
	if said.Code != 0 || said.Out != "" || time.Since(begun) > time.Minute {
		t.Errorf("%+v", said)
	}
	h.wantClean()
}

// TestMapShares: a batch that has all GPUs releases one for the waiting request of another user. Its leases are shown with the batch's name.
func TestMapShares(t *testing.T) {
	h := batchHome(t)
	p := h.start(alice, append(h.words("map", "--gpus", "1", "-q", "--name", "long", "--", "sleep", "0.3", ":::"), strings.Split(strings.Repeat("0", 2000), "")...)...)
	h.waitForLeases(8)
	for _, l := range h.Leases(t) {
		if l.Owner.Name != "batch long" {
			t.Errorf("a lease has the name %q", l.Owner.Name)
		}
	}
	h.wantSaid("another user", h.run(bob, "sh", "-c", h.Berth+` alloc --wait=1m --name mine 1 -- `+h.Berth+` leases --json 2>/dev/null | grep -c '"name": "mine"'`), rig.Said{Out: "1\n"})
	h.wantSaid("stop", h.berth("batches", "stop", "long"), rig.Said{})
	if code := p.Wait(t); code != 128+15 {
		t.Errorf("the batch ends with %d", code)
	}
	h.wantClean()
}

// TestMapDetached: a batch in the background outlives its terminal, is waited for, and is stopped with its tasks.
func TestMapDetached(t *testing.T) {
	h := batchHome(t)
	script := fmt.Sprintf("setsid %s map -d --gpus 1 --name back -- sh -c 'until test -e go; do sleep 0.02; done; exit $0' ::: 0 3", h.Berth)
	h.wantSaid("start", h.run(alice, "env", "HOME="+h.dir, "sh", "-c", "cd; "+script), rig.Said{Out: "back\n"})
	h.waitForLeases(2)
	rig.Must(t, os.WriteFile(filepath.Join(h.dir, "go"), nil, 0o644))
	h.wantSaid("wait", h.berth("batches", "wait", "back"), rig.Said{Code: 1, Err: "berth: batch back: 1 of 2 succeeded, 1 failed\n"})
	h.wantSaid("rm", h.berth("batches", "rm", "back"), rig.Said{Out: "back\n"})
	h.wantSaid("start", h.berth("map", "-d", "--gpus", "1", "--name", "back", "--", "sleep", ":::", "1000", "1001"), rig.Said{Out: "back\n"})
	h.waitForLeases(2)
	if got := h.berth("batches", "rm", "back"); got.Code != 1 || got.Err != "berth: batch back is running: berth batches stop back ends it\n" {
		t.Errorf("rm of a running batch: %+v", got)
	}
	if got := h.berth("batch", "--resume", "back"); got.Code != 1 || got.Err != "berth: batch back is running: berth batches show back shows how far it is\n" {
		t.Errorf("resume of a running batch: %+v", got)
	}
	h.wantSaid("stop", h.berth("batches", "stop", "--now", "back"), rig.Said{})
	h.wantClean()
}

// batchTask is a task in the output of berth batches show --json.
type batchTask struct {
	Number int
	State  string
}

func (h home) readBatch(name string) (tasks []batchTask) {
	h.t.Helper()
	said := h.berth("batches", "show", "--json", name)
	rig.Must(h.t, json.Unmarshal([]byte(said.Out), &tasks))
	return tasks
}

// TestKilledBatch: while random processes of a batch are killed, and the batch is resumed, no task is lost, no task that has succeeded is repeated, and no GPU has
// two tasks at once. No lease and no process is left.
func TestKilledBatch(t *testing.T) {
	h := batchHome(t)
	draw := rand.New(rand.NewPCG(*killSeed, 1))
	// A task notes its begin, and has the GPU to itself.
	script := `cd "$HOME"; echo $0 >>begun; mkdir gpu-$CUDA_VISIBLE_DEVICES.$$ || echo $0 >>twice
ls -d gpu-$CUDA_VISIBLE_DEVICES.* | grep -v "\.$$\$" | while read other; do grep -q . /proc/${other##*.}/cmdline 2>/dev/null && echo $0 $other >>twice; done
sleep 0.1; rmdir gpu-$CUDA_VISIBLE_DEVICES.$$`
	words := append(h.words("map", "--gpus", "1", "-q", "--retries", "20", "--name", "b", "--", "sh", "-c", script, ":::"), listNumbers(300)...)
	killed, resumed, code := 0, 0, -1
	begunBefore := map[int]int{}
	for ; code != 0; resumed++ {
		if resumed > 60 {
			t.Fatal("the batch doesn't come to its end")
		}
		p := h.start(h.uid, words...)
		ended := make(chan int, 1)
		go func() { ended <- p.Wait(t) }()
		for running := true; running; {
			select {
			case code = <-ended:
				running = false
			case <-time.After(time.Duration(draw.IntN(200)) * time.Millisecond):
				if victims := append(listBelow(p.Cmd.Process.Pid), p.Cmd.Process.Pid); unix.Kill(victims[draw.IntN(len(victims))], unix.SIGKILL) == nil {
					killed++
				}
			}
		}
		now := h.countBegun()
		for n, begun := range begunBefore {
			if now[n] != begun {
				t.Errorf("task %d had succeeded, and was begun again", n)
			}
		}
		begunBefore = map[int]int{}
		for _, task := range h.readBatch("b") {
			if task.State == "succeeded" {
				begunBefore[task.Number] = now[task.Number]
			}
		}
		words = h.words("batch", "--resume", "b", "-q")
	}
	for n, begun := range h.countBegun() {
		if begun > killed+1 {
			t.Errorf("task %d was begun %d times after %d kills", n, begun, killed)
		}
	}
	if tasks := h.readBatch("b"); len(tasks) != 300 {
		t.Errorf("%d tasks", len(tasks))
	} else {
		for _, task := range tasks {
			if task.State != "succeeded" {
				t.Errorf("task %d: %s", task.Number, task.State)
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(h.dir, "twice")); err == nil {
		t.Errorf("GPUs that had two tasks: %s", text)
	}
	t.Logf("%d kills, %d resumed", killed, resumed)
	h.wantClean()
}

func listNumbers(n int) (words []string) {
	for i := range n {
		words = append(words, fmt.Sprint(i+1))
	}
	return words
}

// countBegun returns how often each task has begun.
func (h home) countBegun() map[int]int {
	text, _ := os.ReadFile(filepath.Join(h.dir, "begun")) // before the first task there is none
	begun := map[int]int{}
	for word := range strings.FieldsSeq(string(text)) {
		var n int
		if _, err := fmt.Sscan(word, &n); err == nil {
			begun[n]++
		}
	}
	return begun
}

// listBelow returns the descendants of a process.
func listBelow(pid int) (all []int) {
	for _, child := range process.Children("/proc", pid) {
		all = append(append(all, child), listBelow(child)...)
	}
	return all
}

// TestBatchSignals: a task that the second ^C kills is pending in the resumed batch, berth batches stop kills none however often it is called, and nohup holds.
func TestBatchSignals(t *testing.T) {
	h := batchHome(t)
	interrupt := func(name, prefix, command string, stop func(pid int)) {
		p := h.start(h.uid, "sh", "-c", prefix+` exec "$@"`, "sh", "env", "HOME="+h.dir, h.Berth, "map", "--gpus", "1", "-j", "1", "-q", "--name", name, "--", "sh", "-c", command, ":::", "1", "2")
		rig.WaitUntil(t, "batch "+name+" runs", func() bool { return strings.Contains(h.berth("batches", "list").Out, "1 running") })
		stop(p.Cmd.Process.Pid)
		p.Wait(t)
	}
	want := func(name, states string) {
		var got []string
		for _, task := range h.readBatch(name) {
			got = append(got, task.State)
		}
		if strings.Join(got, " ") != states {
			t.Errorf("batch %s: %s, want %s", name, got, states)
		}
	}
	interrupt("twice", "", `test -e "$HOME/quick" || sleep 1000`, func(pid int) {
		for range 2 {
			rig.Must(t, unix.Kill(pid, unix.SIGINT))
			time.Sleep(100 * time.Millisecond)
		}
	})
	want("twice", "waiting waiting")
	rig.Must(t, os.WriteFile(filepath.Join(h.dir, "quick"), nil, 0o644))
	if said := h.berth("batch", "--resume", "twice"); said.Code != 0 {
		t.Errorf("%+v", said)
	}
	interrupt("stopped", "", "sleep 2", func(int) {
		go h.berth("batches", "stop", "stopped")
		time.Sleep(100 * time.Millisecond)
		h.berth("batches", "stop", "stopped")
	})
	want("stopped", "succeeded waiting")
	interrupt("nohup", "trap '' HUP;", "sleep 1", func(pid int) { rig.Must(t, unix.Kill(pid, unix.SIGHUP)) })
	want("nohup", "succeeded succeeded")
	h.wantClean()
}

// TestTwoBatches: a batch doesn't wait for the end of another one of the same user's.
func TestTwoBatches(t *testing.T) {
	h := batchHome(t)
	for _, uid := range []int{alice, 0} {
		p := h.start(uid, append([]string{"env", "HOME=" + h.dir, h.Berth, "map", "--gpus", "1", "-q", "--", "sh", "-c", "sleep 0.5"}, append([]string{":::"}, listNumbers(400)...)...)...)
		h.waitForLeases(8)
		begun := time.Now()
		if said := h.run(uid, "env", "HOME="+h.dir, h.Berth, "map", "--gpus", "1", "--", "true", ":::", "x"); said.Code != 0 || time.Since(begun) > 10*time.Second {
			t.Errorf("user %d: the second batch took %v: %+v", uid, time.Since(begun), said)
		}
		rig.Must(t, unix.Kill(p.Cmd.Process.Pid, unix.SIGINT))
		p.Wait(t)
		h.waitForLeases(0)
	}
}
