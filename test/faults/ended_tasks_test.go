package faults

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/tasks"
	"github.com/berth-gpu/berth/test/rig"
)

// TestManyEndedTasks: berth run and berth ps read none of the records of thousands of tasks that have ended, and berth
// discover and launches remove those that aren't to be kept.
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
	run := []string{"run", "--runtime", s.runtime, rig.ImagePath(t, "busybox"), "true"}
	berth := func(words ...string) {
		t.Helper()
		s.Do(t, s.Berth, append([]string{"--config", config}, words...)...)
	}
	berth(run...) // unpacks the image
	const many, kept = 2000, 1900
	makeEndedTasks(t, store, many)
	for _, words := range [][]string{run, {"ps"}} {
		watch := watchRecords(t, store, many)
		berth(words...)
		if opened := countOpened(t, watch); opened > 0 {
			t.Errorf("berth %s opens the records of %d ended tasks", words[0], opened)
		}
	}
	watch := watchRecords(t, store, many)
	berth("ps", "--all")
	if opened := countOpened(t, watch); opened < many {
		t.Errorf("berth ps --all opens the records of %d tasks: the watch sees nothing", opened)
	}
	count := func() int {
		t.Helper()
		ids, err := store.IDs()
		rig.Must(t, err)
		return len(ids)
	}
	configure(fmt.Sprintf("keep_count = %d", many-10))            // a launch removes two
	rig.Must(t, os.RemoveAll(store.Dir(fmt.Sprintf("%012x", 1)))) // another command removed it first
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

// watchRecords watches the records of so many tasks that makeEndedTasks made, with inotify.
func watchRecords(t *testing.T, store tasks.Store, n int) (watch *os.File) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	rig.Must(t, err)
	watch = os.NewFile(uintptr(fd), "inotify")
	t.Cleanup(func() { _ = watch.Close() }) // nothing is written
	for i := range n {
		_, err := unix.InotifyAddWatch(fd, store.Path(fmt.Sprintf("%012x", i), "task.json"), unix.IN_OPEN|unix.IN_ONESHOT)
		rig.Must(t, err)
	}
	return watch
}

// countOpened returns how many watched files were opened.
func countOpened(t *testing.T, watch *os.File) (n int) {
	t.Helper()
	buffer := make([]byte, 1<<20)
	for {
		size, err := unix.Read(int(watch.Fd()), buffer)
		if errors.Is(err, unix.EAGAIN) {
			return n
		}
		rig.Must(t, err)
		for at := 0; at < size; at += unix.SizeofInotifyEvent { // the events of files have no names
			if mask := binary.NativeEndian.Uint32(buffer[at+4:]); mask&unix.IN_OPEN != 0 {
				n++
			}
		}
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
