package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/launcher/tasks"
	"github.com/berth-gpu/berth/test/rig"
)

// TestManyEndedTasks: thousands of tasks that have ended make neither berth run nor berth ps much
// dearer, in time of CPUs, and berth discover and launches remove those that aren't to be kept.
func TestManyEndedTasks(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "runc")
	dir := t.TempDir()
	store := tasks.Store{Data: filepath.Join(dir, "data"), State: filepath.Join(dir, "state")}
	config := filepath.Join(dir, "config.toml")
	configure := func(more string) {
		t.Helper()
		text := fmt.Sprintf("data = %q\nstate = %q\nberth = %q\n[run]\n%s", store.Data, store.State, s.Berth, more)
		rig.Must(t, os.WriteFile(config, []byte(text), 0o600))
	}
	configure("")
	// spend returns what a verb uses of CPUs, children included: the least of some calls.
	spend := func(words ...string) (least time.Duration) {
		t.Helper()
		for range 3 {
			cmd := s.Command(s.Berth, append([]string{"--config", config}, words...)...)
			if said := s.Run(t, cmd); said.Code != 0 {
				t.Fatalf("berth %q: %+v", words, said)
			}
			if used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); least == 0 || used < least {
				least = used
			}
		}
		return least
	}
	run := []string{"run", "--runtime", s.runtime, imagePath(t, "busybox"), "true"}
	spend(run...) // unpacks the image
	runBefore, psBefore := spend(run...), spend("ps")
	const many, kept = 2000, 1900
	makeEndedTasks(t, store, many)
	const dear = 70 * time.Millisecond // to read each record takes twice that
	if used := spend(run...); used > runBefore+dear {
		t.Errorf("berth run takes %v of CPU, and %v without tasks that have ended", used, runBefore)
	}
	if used := spend("ps"); used > psBefore+dear {
		t.Errorf("berth ps takes %v of CPU, and %v without tasks that have ended", used, psBefore)
	}
	count := func() int {
		t.Helper()
		ids, err := store.IDs()
		rig.Must(t, err)
		return len(ids)
	}
	configure(fmt.Sprintf("keep_count = %d", many-10))            // a launch removes two
	rig.Must(t, os.RemoveAll(store.Dir(fmt.Sprintf("%012x", 1)))) // somebody was quicker
	s.Do(t, s.Berth, append([]string{"--config", config}, run...)...)
	if n := count(); n != many-3 {
		t.Errorf("%d tasks after a launch, want %d", n, many-3)
	}
	configure(fmt.Sprintf("keep_ended = \"1h\"\nkeep_count = %d", kept))
	deadline := time.Now().Add(2 * time.Minute)
	for count() > kept && time.Now().Before(deadline) { // each call has a limit of its own
		s.Do(t, s.Berth, "--config", config, "discover", "--if-stale", "--processes", "--quiet")
	}
	if n := count(); n != kept {
		t.Errorf("%d tasks after berth discover, want %d", n, kept)
	}
	if left := s.Do(t, s.Berth, "--config", config, "ps", "--all", "--quiet"); strings.Count(left, "\n") != kept || !strings.Contains(left, fmt.Sprintf("%012x", many-1)) {
		t.Errorf("not the latest are left: %s", left)
	}
}

// makeEndedTasks makes what is left of so many tasks that ended one after another in the last minutes. Their ids are
// numbers.
func makeEndedTasks(t *testing.T, store tasks.Store, n int) {
	t.Helper()
	boot, err := store.BootID()
	rig.Must(t, err)
	dead := tasks.Process{PID: 1 << 29, Start: 1}
	for i := range n {
		id, ended := fmt.Sprintf("%012x", i), time.Now().Add(time.Duration(i-n)*100*time.Millisecond)
		rig.Must(t, os.MkdirAll(store.Path(id, "bundle"), 0o700))
		rig.Must(t, store.WriteRecord(tasks.Record{
			ID: id, Name: id, Image: "busybox", Command: []string{"sh", "-c", "true"}, Created: ended, BootID: boot, Maker: dead, Detached: true,
			Runtime: "/usr/bin/runc", RuntimeRoot: "/run/berth/runtime/runc", Cgroup: "/berth/" + id,
		}))
		rig.Must(t, store.WriteLife(id, tasks.Life{Init: dead, Monitor: dead, BootID: boot}))
		rig.Must(t, store.WriteExit(id, tasks.Exit{Finished: ended}))
		rig.Must(t, os.Chtimes(store.Path(id, "exit.json"), ended, ended))
	}
}
