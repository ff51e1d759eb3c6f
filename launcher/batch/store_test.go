package batch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestCreateFails: a batch that can't be written leaves no directory that has its name.
func TestCreateFails(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	b := &Batch{Name: "b", Tasks: newTasks(2000)}
	var limit unix.Rlimit
	testutil.Must(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &limit))
	testutil.Must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: limit.Max}))
	_, err := s.Create(b)
	testutil.Must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &limit))
	if !errors.Is(err, unix.EFBIG) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Lstat(filepath.Join(s.Dir, "b")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
	j, err := s.Create(b)
	testutil.Must(t, err)
	testutil.Must(t, j.Close())
}

// TestTaskDir: a relative directory begins at the batch's, wherever the batch is resumed.
func TestTaskDir(t *testing.T) {
	b := Batch{Dir: "/home/x"}
	for dir, want := range map[string]string{"": "/home/x", "a/../b": "/home/x/b", "/c": "/c"} {
		if got := b.TaskDir(Task{Dir: dir}); got != want {
			t.Errorf("%q: %s, want %s", dir, got, want)
		}
	}
}

// TestNegativeNumbers: numbers below 0 are refused, and don't end a batch before its first task.
func TestNegativeNumbers(t *testing.T) {
	tasks := newTasks(1)
	retries := newTasks(1)
	retries[0].Retries = -1
	for _, b := range []Batch{{Slots: -1, Tasks: tasks}, {MaxFails: -1, Tasks: tasks}, {Tasks: retries}} {
		if b.Check() == nil {
			t.Errorf("%+v is allowed", b)
		}
	}
}
