package batches

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/batch"
)

// TestMain is also the worker of these tests, which says that it is ready, and ends.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "map-worker") {
		fmt.Println(`{"ready": true, "devices": "GPU-1"}`)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestTaskForEndedWorker: a worker may end just before the runner gives it a task.
func TestTaskForEndedWorker(t *testing.T) {
	s := starter{store: batch.Store{Dir: t.TempDir()}, batch: &batch.Batch{Name: "b"}, index: func(uuids string) string { return uuids }}
	events := make(chan batch.Event)
	w, err := s.startWorker("", 1, events)
	testutil.Must(t, err)
	if e := <-events; !e.Ready {
		t.Fatalf("%+v", e)
	}
	pid := w.(*workerProcess).cmd.Process.Pid
	for last := time.Now().Add(10 * time.Second); unix.Kill(pid, 0) == nil && time.Now().Before(last); time.Sleep(time.Millisecond) {
		continue // until the worker has been reaped
	}
	time.Sleep(10 * time.Millisecond)
	w.Run(batch.Job{Number: 1, Task: batch.Task{Argv: []string{"true"}}})
	if e := <-events; !e.Gone {
		t.Errorf("%+v", e)
	}
}

// TestFindIndexes: workers that are ready at the same time all get indexes.
func TestFindIndexes(t *testing.T) {
	l := leaseWatch{named: sync.OnceValue(func() map[string]string {
		time.Sleep(10 * time.Millisecond)
		return map[string]string{"GPU-a": "0", "GPU-b": "1"}
	})}
	var done sync.WaitGroup
	for range 8 {
		done.Go(func() {
			if got := l.findIndexes("GPU-b,GPU-a,GPU-c"); got != "1,0,GPU-c" {
				t.Error(got)
			}
		})
	}
	done.Wait()
}

// TestOwnWorkers: a batch doesn't take the workers of another batch for its own.
func TestOwnWorkers(t *testing.T) {
	store := batch.Store{Dir: "/data/batches"}
	l := leaseWatch{own: strings.Join(workerWords(store, "a"), " ")}
	for name, want := range map[string]bool{"a": true, "a1": false, "b": false, "b a": false} {
		command := "/usr/bin/berth --config /etc/berth/config.toml " + strings.Join(workerWords(store, name), " ")
		if got := l.isOwnWorker(ledger.Owner{Command: command}); got != want {
			t.Errorf("%s: %v", command, got)
		}
	}
}
