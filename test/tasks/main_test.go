// Package tasks holds black-box tests of the verbs around a task that runs: what they
// print, how they end, and what they leave behind, with both runtimes, both versions
// of cgroups, on simulated servers.
package tasks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/rig"
)

var shared *rig.Rig

func TestMain(m *testing.M) {
	rig.Main(m, func(r *rig.Rig) error {
		shared = r
		if out, err := exec.Command("../image/make.sh").CombinedOutput(); err != nil {
			return fmt.Errorf("make images: %w: %s", err, out)
		}
		return nil
	})
}

// server is a simulated one, and the runtime that its tasks are run with.
type server struct {
	*rig.Node
	runtime string
}

func start(t *testing.T, profile, cgroup, runtime string) server {
	t.Helper()
	return server{shared.Shared(t, profile, cgroup), runtime}
}

// everywhere runs a test on the pairs of runtime and version of cgroups that it has.
func everywhere(t *testing.T, test func(*testing.T, server)) {
	t.Helper()
	for _, p := range testutil.Pairs(t) {
		t.Run(p.Runtime+" "+p.Cgroup, func(t *testing.T) { test(t, start(t, "dgx-h100", p.Cgroup, p.Runtime)) })
	}
}

// image is the path of a small image; debian is one with glibc.
func image(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../.cache/image/" + name)
	rig.Must(t, err)
	return path
}

// berth runs a verb to its end.
func (s server) berth(t *testing.T, words ...string) rig.Said {
	t.Helper()
	return s.Run(t, s.Command(s.Berth, words...))
}

// prints expects that a verb succeeds with this output.
func (s server) prints(t *testing.T, want string, words ...string) {
	t.Helper()
	if got := s.berth(t, words...); got.Code != 0 || got.Out != want || got.Err != "" {
		t.Errorf("berth %q: %+v, want %q", words, got, want)
	}
}

// fails expects that a verb ends so and says that line.
func (s server) fails(t *testing.T, code int, line string, words ...string) {
	t.Helper()
	if got := s.berth(t, words...); got.Code != code || got.Err != "berth: "+line+"\n" || got.Out != "" {
		t.Errorf("berth %q: %+v, want %d %q", words, got, code, line)
	}
}

// running is a task in the foreground of a process.
type running struct {
	cmd       *exec.Cmd
	out, errs *bytes.Buffer
	done      chan struct{}
}

// run starts a task in the foreground and waits until its first process runs. It ends
// with the test.
func (s server) run(t *testing.T, words ...string) *running {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	rig.Must(t, os.Mkdir(ready, 0o777))
	rig.Must(t, os.Chmod(ready, 0o777)) // whatever the mask
	before := []string{"run", "--runtime", s.runtime, "-v", ready + ":/ready"}
	r := &running{cmd: s.Command(s.Berth, append(before, words...)...), out: &bytes.Buffer{}, errs: &bytes.Buffer{}, done: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr, r.cmd.WaitDelay = r.out, r.errs, time.Second // a container may outlive it
	rig.Must(t, r.cmd.Start())
	go func() {
		defer close(r.done)
		_ = r.cmd.Wait() // the test looks at its state
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Signal(os.Interrupt) // it may have ended
		r.wait(t)
	})
	until(t, "the task runs", func() bool {
		entries, err := os.ReadDir(ready)
		rig.Must(t, err)
		return len(entries) > 0 || r.ended()
	})
	if r.ended() {
		t.Fatalf("berth run %q ended: %s%s", words, r.out, r.errs)
	}
	return r
}

// says is a shell's line that tells run that it runs, and then goes on.
func says(rest string) string { return "touch /ready/yes || exit 99; " + rest }

func (r *running) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// wait returns the exit code.
func (r *running) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(time.Minute):
		t.Errorf("%q doesn't end", r.cmd.Args)
		_ = r.cmd.Process.Kill() // it may end at last
		<-r.done
	}
	return r.cmd.ProcessState.ExitCode()
}

// until waits for what will be soon; a minute is for machines that are busy.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for last := time.Now().Add(time.Minute); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(last) {
			t.Fatalf("waited for a minute: %s", what)
		}
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

func lines(text string) []string {
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
