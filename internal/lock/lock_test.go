package lock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestModes(t *testing.T) {
	for _, tt := range []struct {
		name        string
		first, next Mode
		want        error
	}{
		{"exclusive, exclusive", Exclusive, Exclusive, ErrBusy},
		{"exclusive, shared", Exclusive, Shared, ErrBusy},
		{"shared, exclusive", Shared, Exclusive, ErrBusy},
		{"shared, shared", Shared, Shared, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "lock")
			first, err := Create(t.Context(), path, 0o600, tt.first)
			if err != nil {
				t.Fatal(err)
			}
			next, err := TryOpen(path, tt.next)
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			var pathErr *fs.PathError
			if err != nil && (!errors.As(err, &pathErr) || pathErr.Path != path) {
				t.Errorf("%v does not name the file", err)
			}
			first.Close()
			next.Close()
			if next, err = TryOpen(path, Exclusive); err != nil {
				t.Errorf("after both were closed: %v", err)
			}
			next.Close()
		})
	}
}

func TestWaitEnds(t *testing.T) {
	dir := t.TempDir()
	held, err := Open(t.Context(), dir, Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("with the context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if _, err := Open(ctx, dir, Shared); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	for name, ctx := range map[string]context.Context{
		"with the lock, in the kernel's queue": context.Background(),
		"with the lock, polling":               t.Context(),
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan error)
			go func() {
				f, err := Open(ctx, dir, Shared)
				f.Close()
				got <- err
			}()
			if err := Release(int(held.file.Fd())); err != nil {
				t.Fatal(err)
			}
			if err := <-got; err != nil {
				t.Error(err)
			}
			if err := Acquire(t.Context(), int(held.file.Fd()), Exclusive); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLockFollowsOpenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, err := Create(t.Context(), path, 0o600, Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	again, err := unix.Dup(int(f.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := TryOpen(path, Exclusive); !errors.Is(err, ErrBusy) {
		t.Errorf("a duplicate is open: got %v", err)
	}
	if !IsAt(again, path) {
		t.Error("the file is not at its path")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := TryOpen(path, Exclusive); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("TryOpen created a file: %v", err)
	}
	other, err := Create(t.Context(), path, 0o600, Exclusive)
	if err != nil {
		t.Errorf("a new file is locked: %v", err)
	}
	defer other.Close()
	if IsAt(again, path) || !IsAt(int(other.file.Fd()), path) {
		t.Error("IsAt takes the removed file for the new one")
	}
	if err := unix.Close(again); err != nil {
		t.Error(err)
	}
}

func TestSymbolicLinksAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("target", path); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(t.Context(), path, 0o600, Exclusive); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Create: %v", err)
	}
	if _, err := Open(t.Context(), path, Exclusive); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Open: %v", err)
	}
}

// TestIrregularFilesAreRefused: what is neither a file nor a directory isn't locked, and no call waits for the writer of a FIFO.
func TestIrregularFilesAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() error{
		"Create":     func() error { _, err := Create(t.Context(), path, 0o600, Exclusive); return err },
		"Open":       func() error { _, err := Open(t.Context(), path, Exclusive); return err },
		"OpenShared": func() error { _, err := OpenShared(t.Context(), path); return err },
		"TryOpen":    func() error { _, err := TryOpen(path, Exclusive); return err },
		"Break":      func() error { _, err := Break(path, time.Second, func(string) bool { return false }); return err },
	} {
		got := make(chan error, 1)
		go func() { got <- open() }()
		select {
		case err := <-got:
			if want := "lock " + path + ": it is neither a regular file nor a directory"; err == nil || err.Error() != want {
				t.Errorf("%s: %v, want %s", name, err, want)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s waits for a FIFO", name)
		}
	}
}

func TestFindHoldersSeesThisProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, err := Create(t.Context(), path, 0o600, Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := FindHolders(int(f.file.Fd()))[0]; len(got) != 1 || got[0].PID != os.Getpid() || got[0].State != Running {
		t.Errorf("got %v", got)
	}
}

// TestGiveUp: many processes that each hold a lock briefly do not end the wait of another.
func TestGiveUp(t *testing.T) {
	a, b, stopped := Holder{PID: 7, Start: 1, State: Running}, Holder{PID: 7, Start: 2, State: Running}, Holder{PID: 9, State: Stopped}
	for _, tt := range []struct {
		name        string
		before, now Holder
		waited      time.Duration
		hasDeadline bool
		want        bool
	}{
		{"the same", a, a, maxWait, false, true},
		{"the same, and there is time", a, a, time.Hour, true, false},
		{"another", a, b, maxWait, false, false},
		{"others, for too long", a, b, maxQueueWait, false, true},
		{"others, and there is time", a, b, maxQueueWait, true, false},
		{"stopped", a, stopped, maxWait, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := HeldError{Holders: []Holder{tt.now}, Waited: tt.waited}
			if got := e.isStuck([]Holder{tt.before}, tt.hasDeadline); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
