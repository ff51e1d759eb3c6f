package wrapper

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// leases returns "container: devices" for each lease, by the output of berth.
func (w *world) leases() []string {
	w.t.Helper()
	berth, err := buildBerth()
	w.must(err)
	out, err := exec.Command(berth, "--config", w.config, "leases", "--json").Output()
	w.must(err)
	var view struct {
		Leases []struct {
			Devices []struct{ UUID string }
			Owner   struct{ Container string }
		}
	}
	w.must(json.Unmarshal(out, &view))
	var all []string
	for _, l := range view.Leases {
		all = append(all, fmt.Sprintf("%s: %d", l.Owner.Container, len(l.Devices)))
	}
	return all
}

// withRequest makes the container of a world request GPUs, on a node that has been discovered.
func (w *world) withRequest(request string) {
	w.t.Helper()
	berth, err := buildBerth()
	w.must(err)
	data := w.t.TempDir()
	w.t.Cleanup(func() { _ = unix.Unmount(data+"/shared", unix.MNT_DETACH) }) // not mounted where discover has failed
	w.config = configure(w.t, w.runtime, fmt.Sprintf("berth = '%s'\nstate = '%s'\ndata = '%s'\n", berth, w.t.TempDir(), data))
	if out, err := exec.Command(berth, "--config", w.config, "discover").CombinedOutput(); err != nil {
		w.t.Fatalf("discover: %v: %s", err, out)
	}
	w.edit(func(s *specs.Spec) { s.Annotations = map[string]string{"berth.gpus": request} })
}

// open tries every node, its own and foreign ones that it makes itself, and prints the errors.
const open = `for n in 0 1 2 3 4 5 6 7; do
  mine=-; test -e /dev/nvidia$n && mine=mine
  echo $mine $(cat /dev/nvidia$n 2>&1)
done
/bin/busybox mknod /foreign c 195 9 && cat /foreign
echo done; sleep 1000`

// A container with a request gets a GPU that it can open, and releases it at its delete, by an
// engine's calls alone.
func TestLeaseThroughTheRuntime(t *testing.T) {
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			b := programs(t)
			w := newWorld(t, runtime, "lease-"+runtime, "sh", "-c", open)
			w.withRequest("2")
			original, err := os.ReadFile(filepath.Join(w.dir, "config.json"))
			w.must(err)
			w.succeed(b.wrapper, "create", "--pid-file", w.dir+"/pid", w.id)
			w.succeed(b.wrapper, "start", w.id)
			// Meanwhile its GPU can't be leased, and the bundle can't be used again.
			if got := w.run(b.wrapper, "", w.global("create", "other")...); got.Code != 1 || !strings.Contains(got.Log, "in use by container "+numbers.ReplaceAllString(w.id, "N")) {
				t.Errorf("second container in the bundle: %+v", got)
			}
			if got := fmt.Sprint(w.leases()); got != "["+w.id+": 2]" {
				t.Errorf("leases: %s", got)
			}
			own := w.run(b.wrapper, "", w.global("exec", w.id, "/bin/busybox", "sh", "-c", strings.Replace(open, "sleep 1000", "", 1))...)
			if n := strings.Count(own.Out, "mine cat: can't open '/dev/nvidiaN': No such device or address"); n != 2 {
				t.Errorf("%d devices of its own can be opened, want 2: %+v", n, own)
			}
			if strings.Count(own.Out, "No such device") != 2 {
				t.Errorf("foreign devices can be opened: %+v", own)
			}
			w.succeed(b.wrapper, "delete", "--force", w.id)
			if got := w.leases(); len(got) > 0 {
				t.Errorf("leases after the delete: %v", got)
			}
			restored, err := os.ReadFile(filepath.Join(w.dir, "config.json"))
			w.must(err)
			if string(restored) != string(original) {
				t.Error("config.json isn't the original")
			}
		})
	}
}

// A container that its runtime has forgotten, and so "deletes" without an error, keeps its devices
// until its processes have ended.
func TestForgottenContainer(t *testing.T) {
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			b := programs(t)
			w := newWorld(t, runtime, "forgotten-"+runtime, "sleep", "1000")
			w.withRequest("8")
			w.succeed(b.wrapper, "create", "--pid-file", w.dir+"/pid", w.id)
			w.succeed(b.wrapper, "start", w.id)
			text, err := os.ReadFile(w.dir + "/pid")
			w.must(err)
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			w.must(err)
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // it may have ended
			w.must(os.RemoveAll(filepath.Join(w.dir, "state", w.id)))
			got := w.run(b.wrapper, "", w.global("delete", "--force", w.id)...)
			if got.Code != 0 || !strings.Contains(got.Err, "holder still lives") {
				t.Errorf("delete: %+v", got)
			}
			if got := fmt.Sprint(w.leases()); got != "["+w.id+": 8]" {
				t.Errorf("leases while it lives: %s", got)
			}
			w.must(syscall.Kill(pid, syscall.SIGKILL))
			w.succeed(b.wrapper, "delete", "--force", w.id)
			if got := w.leases(); len(got) > 0 {
				t.Errorf("leases after its end: %v", got)
			}
		})
	}
}

func (w *world) succeed(program string, words ...string) {
	w.t.Helper()
	if got := w.run(program, "", w.global(words...)...); got.Code != 0 || got.Log != "" {
		w.t.Fatalf("%v: %+v", words, got)
	}
}

// Engines show the log's one line, which has the reason.
func TestRefusals(t *testing.T) {
	b := programs(t)
	w := newWorld(t, "runc", "refused", "true")
	w.withRequest("9")
	for request, want := range map[string]string{
		"9":       "node has N GPUs, N asked",
		"zx81":    "node has no zxN",
		"h100:99": "node has N HN, N asked",
		"":        "annotation berth.gpus",
	} {
		w.edit(func(s *specs.Spec) { s.Annotations = map[string]string{"berth.gpus": request} })
		got := w.run(b.wrapper, "", w.global("create", w.id)...)
		if got.Code != 1 || !strings.Contains(got.Log, want) || strings.Count(got.Log, "\n") != 1 || strings.Count(got.Err, "\n") != 1 {
			t.Errorf("%q: %+v, want %q", request, got, want)
		}
	}
	if got := w.leases(); len(got) > 0 {
		t.Errorf("leases: %v", got)
	}
}

// If the wrapper is killed at any moment, the bundle can be used again, and everything is free
// again at the next create.
func TestKilledWrapper(t *testing.T) {
	b := programs(t)
	w := newWorld(t, "crun", "killed", "true")
	w.withRequest("8") // all GPUs: a remaining lease would make this fail
	original, err := os.ReadFile(filepath.Join(w.dir, "config.json"))
	w.must(err)
	for i := range 40 {
		cmd := exec.Command(b.wrapper, w.global("create", w.id)...)
		cmd.Env = append(os.Environ(), "BERTH_CONFIG="+w.config)
		cmd.Dir = w.dir
		w.must(cmd.Start())
		time.Sleep(time.Duration(rand.IntN(9000)) * time.Microsecond)
		w.must(cmd.Process.Kill())
		_ = cmd.Wait()
		var spec specs.Spec
		now, err := os.ReadFile(filepath.Join(w.dir, "config.json"))
		w.must(err)
		if err := json.Unmarshal(now, &spec); err != nil {
			t.Fatalf("round %d: %v: %s", i, err, now)
		}
		// The rest of a container is removed as by an engine. A crun that was killed itself may not
		// know the container's process.
		w.succeed(b.wrapper, "delete", "--force", w.id)
		w.removeLeftovers()
	}
	w.succeed(b.wrapper, "create", w.id)
	w.succeed(b.wrapper, "delete", "--force", w.id)
	restored, err := os.ReadFile(filepath.Join(w.dir, "config.json"))
	w.must(err)
	if string(restored) != string(original) {
		t.Errorf("config.json is %s", restored)
	}
	left, err := filepath.Glob(filepath.Join(w.dir, "config.json?*"))
	w.must(err)
	if len(left) > 0 || len(w.leases()) > 0 {
		t.Errorf("left: %v, leases %v", left, w.leases())
	}
}
