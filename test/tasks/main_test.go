// Package tasks holds black-box tests of the verbs around a task that runs: what they
// print, how they end, and what they leave behind, with both runtimes, both versions
// of cgroups, on simulated servers.
package tasks

import (
	"bytes"
	"os"
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
		return rig.MakeImages()
	})
}

// server is a simulated one, and the runtime that its tasks are run with.
type server struct {
	*rig.Node
	runtime string
}

func startServer(t *testing.T, profile, cgroup, runtime string) server {
	t.Helper()
	return server{shared.Shared(t, profile, cgroup), runtime}
}

// everywhere runs a test on the pairs of runtime and version of cgroups that it has.
func everywhere(t *testing.T, test func(*testing.T, server)) {
	t.Helper()
	for _, p := range testutil.Pairs(t) {
		t.Run(p.Runtime+" "+p.Cgroup, func(t *testing.T) { test(t, startServer(t, "dgx-h100", p.Cgroup, p.Runtime)) })
	}
}

// prints expects that a verb succeeds with this output.
func (s server) prints(t *testing.T, want string, words ...string) {
	t.Helper()
	if got := s.RunBerth(t, words...); got.Code != 0 || got.Out != want || got.Err != "" {
		t.Errorf("berth %q: %+v, want %q", words, got, want)
	}
}

// fails expects that a verb ends so and says that line.
func (s server) fails(t *testing.T, code int, line string, words ...string) {
	t.Helper()
	if got := s.RunBerth(t, words...); got.Code != code || got.Err != "berth: "+line+"\n" || got.Out != "" {
		t.Errorf("berth %q: %+v, want %d %q", words, got, code, line)
	}
}

// running is a task in the foreground of a process.
type running struct {
	rig.Process
	out, errs bytes.Buffer
}

// run starts a task in the foreground and waits until its first process runs. It ends
// with the test.
func (s server) run(t *testing.T, words ...string) *running {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	rig.Must(t, os.Mkdir(ready, 0o777))
	rig.Must(t, os.Chmod(ready, 0o777)) // whatever the mask
	before := []string{"run", "--runtime", s.runtime, "-v", ready + ":/ready"}
	cmd, r := s.Command(s.Berth, append(before, words...)...), &running{}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &r.out, &r.errs, time.Second // a container may outlive the process
	r.Process = rig.StartProcess(t, cmd)
	rig.WaitUntil(t, "the task runs", func() bool {
		entries, err := os.ReadDir(ready)
		rig.Must(t, err)
		return len(entries) > 0 || r.HasEnded()
	})
	if r.HasEnded() {
		t.Fatalf("berth run %q ended: %s%s", words, r.out.String(), r.errs.String())
	}
	return r
}

// announceReady is a shell's line that tells run that it runs, and then goes on.
func announceReady(rest string) string { return "touch /ready/yes || exit 99; " + rest }

func lines(text string) []string {
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
