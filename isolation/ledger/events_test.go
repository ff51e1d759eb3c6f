package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/testutil"
)

func readEvents(t *testing.T, path string) []event {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var es []event
	for line := range strings.Lines(string(b)) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		es = append(es, e)
	}
	return es
}

func TestEvents(t *testing.T) {
	w := newFake()
	l := in(t, w)
	w.procs[50] = fakeProcess{start: 5, reaper: true}
	a := ask(t, "device=0")
	a.Owner.Process = Process{PID: 50, Start: 5, Namespace: 7}
	first := mustAcquire(t, l, a)
	if err := l.Bind(t.Context(), first.ID, Owner{Process: Process{PID: 50}}); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(time.Minute)
	delete(w.procs, 50)
	second := mustAcquire(t, l, ask(t, "device=0"))
	if err := l.Release(t.Context(), second.ID); err != nil {
		t.Fatal(err)
	}
	type short struct {
		Event, Lease, Device, Reason string
		Held                         float64
	}
	var got []short
	for _, e := range readEvents(t, l.events.path) {
		got = append(got, short{e.Event, e.Lease, strings.Join(e.Devices, ","), e.Reason, e.Held})
	}
	gpu0 := first.Devices[0].UUID
	want := []short{
		{"acquired", first.ID, gpu0, "", 0},
		{"bound", first.ID, gpu0, "", 0},
		{"reaped", first.ID, gpu0, "init (process 50) and its pid namespace have ended", 60},
		{"acquired", second.ID, gpu0, "", 0},
		{"released", second.ID, gpu0, "", 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestEventsRotate(t *testing.T) {
	l := in(t, newFake())
	l.events.max, l.events.keep = 2000, 2
	for range 30 {
		lease := mustAcquire(t, l, ask(t, "1"))
		if err := l.Release(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(l.events.path + "*")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{l.events.path, l.events.path + ".1", l.events.path + ".2"}
	if len(files) == 2 { // just rotated
		want = want[1:]
	}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Error(diff)
	}
	for _, f := range files {
		readEvents(t, f)
		if fi, err := os.Stat(f); err != nil || fi.Size() > 2000+2000 || fi.Mode() != 0o640 {
			t.Errorf("%s: %v, %v, %v", f, fi.Size(), fi.Mode(), err)
		}
	}
}

// An event log that can't be written is reported, and no call fails.
func TestEventsNeverFailALease(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(path string) error
	}{
		{"directory in its place", func(path string) error { return os.MkdirAll(path, 0o755) }},
		{"FIFO that nobody reads", func(path string) error { return unix.Mkfifo(path, 0o600) }},
		{"symbolic link", func(path string) error { return os.Symlink("/dev/null", path) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := fresh(t)
			var said bytes.Buffer
			l.log = slog.New(slog.NewTextHandler(&said, nil))
			if err := os.MkdirAll(filepath.Dir(l.events.path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tt.spoil(l.events.path); err != nil {
				t.Fatal(err)
			}
			mustAcquire(t, l, ask(t, "1"))
			if !strings.Contains(said.String(), "write event log") {
				t.Errorf("said %q", said.String())
			}
		})
	}
}

// TestLoggedRemovals: the latest removals of a lease are found, also in a rotated file, until that
// file is removed.
func TestLoggedRemovals(t *testing.T) {
	l := Open(Options{Dir: t.TempDir(), Events: t.TempDir()})
	l.events.max, l.events.keep = 2000, 2
	told := func(lease, want string) {
		t.Helper()
		var all []edits.Removal
		if want != "" {
			all = edits.Remarks(strings.Split(want, "|"))
		}
		removed, text, err := l.LoggedRemovals("prepared", lease)
		if diff := cmp.Diff(all, removed); diff != "" || text != strings.ReplaceAll(want, "|", "; ") || err != nil {
			t.Errorf("of lease %s: %q, %v (-want +got):\n%s", lease, text, err, diff)
		}
	}
	told("a", "")
	l.LogRemovals("prepared", "a", Owner{}, remarks("first"))
	l.LogRemovals("prepared", "a", Owner{}, remarks("second; third", "fourth"))
	l.LogRemovals("guarded", "a", Owner{}, remarks("else"))
	l.LogRemovals("prepared", "b", Owner{Name: "a"}, remarks("of b"))
	told("a", "second; third|fourth")
	for range 20 {
		l.LogRemovals("prepared", "c", Owner{}, remarks("of c"))
		if _, err := os.Stat(l.events.path + ".1"); err == nil {
			break
		}
	}
	told("a", "second; third|fourth")
	told("b", "of b")
	for range 100 {
		l.LogRemovals("prepared", "c", Owner{}, remarks("of c"))
	}
	told("a", "")
	told("c", "of c")
}

// TestEventAfterTornLine: after a line that a full disk has cut, no event is lost.
func TestEventAfterTornLine(t *testing.T) {
	l := Open(Options{Dir: t.TempDir(), Events: t.TempDir()})
	l.LogRemovals("prepared", "a", Owner{}, remarks("first"))
	const torn = `{"time":"2026-01-02T03:04:05Z","event":"prep`
	before, err := os.ReadFile(l.events.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.events.path, append(before, torn...), 0o640); err != nil {
		t.Fatal(err)
	}
	l.LogRemovals("prepared", "b", Owner{}, remarks("second"))
	l.LogRemovals("prepared", "b", Owner{}, remarks("third"))
	data, err := os.ReadFile(l.events.path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	if len(lines) != 5 || lines[1] != torn || !strings.Contains(lines[2], "second") || lines[4] != "" {
		t.Errorf("the log is %q", lines)
	}
	if _, text, err := l.LoggedRemovals("prepared", "b"); text != "third" || err != nil {
		t.Errorf("of lease b: %q, %v", text, err)
	}
}

// TestEventsAreShort: no data that containers and users choose makes an event longer than 96 KiB,
// and omitted removals are counted.
func TestEventsAreShort(t *testing.T) {
	l := Open(Options{Dir: t.TempDir(), Events: t.TempDir()})
	long := strings.Repeat("\x01é", 2000)
	var many []edits.Removal
	for range 1000 {
		many = append(many, edits.Removal{Kind: "device", Name: long, Source: "c 195:2", Why: "foreign"})
	}
	many = append(many, edits.Removal{Kind: "capability", Name: "CAP_MKNOD"})
	l.LogRemovals("guarded", "a", Owner{Name: long, Command: long}, many)
	if fi, err := os.Stat(l.events.path); err != nil || fi.Size() > 96<<10 {
		t.Errorf("the log has %d bytes (%v)", fi.Size(), err)
	}
	removed, _, err := l.LoggedRemovals("guarded", "a")
	if err != nil || len(removed) < 2 {
		t.Fatalf("%d removals, %v", len(removed), err)
	}
	last := removed[len(removed)-1].Name
	if want := fmt.Sprintf("and %d more", 1001-len(removed)+1); last != want || removed[0].Name != "CAP_MKNOD" {
		t.Errorf("it begins with %q and ends with %q, not %q", removed[0].Name, last, want)
	}
}

// TestLoggedByOlderVersions: an event without a list is returned as its text.
func TestLoggedByOlderVersions(t *testing.T) {
	l := Open(Options{Dir: t.TempDir(), Events: t.TempDir()})
	line := `{"time":"2026-01-02T03:04:05Z","event":"prepared","lease":"a","devices":null,"owner":{},"reason":"node /dev/nvidia2 (195:2); capability CAP_MKNOD"}` + "\n"
	if err := os.WriteFile(l.events.path, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	removed, text, err := l.LoggedRemovals("prepared", "a")
	if removed != nil || text != "node /dev/nvidia2 (195:2); capability CAP_MKNOD" || err != nil {
		t.Errorf("%+v, %q, %v", removed, text, err)
	}
}

func remarks(texts ...string) []edits.Removal { return edits.Remarks(texts) }

// TestEventOnFullDisk: the error of an event that a full disk cuts says that there is no space.
func TestEventOnFullDisk(t *testing.T) {
	testutil.NeedRoot(t)
	dir := t.TempDir()
	testutil.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprint("size=", os.Getpagesize())))
	t.Cleanup(func() { testutil.Must(t, unix.Unmount(dir, 0)) })
	l := Open(Options{Dir: t.TempDir(), Events: dir})
	for range os.Getpagesize() {
		if err := l.events.append([]event{{Event: "prepared"}}); err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("error %v", err)
			}
			return
		}
	}
	t.Error("the disk is never full")
}
