package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/rootfs"
)

func TestFailure(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{errors.New("x"), "failed 125 x"},
		{fmt.Errorf("y: %w", rootfs.ErrNotFound), "failed 127 y: " + rootfs.ErrNotFound.Error()},
		{fmt.Errorf("z: %w", rootfs.ErrCantInvoke), "failed 126 z: " + rootfs.ErrCantInvoke.Error()},
	} {
		if got := failureLine(tt.err); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// What was written to a pipe while no copier reads is copied by the next one, and drain copies all
// that there is.
func TestCopier(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "stdout")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	task, err := os.OpenFile(path, os.O_RDWR, 0) // both ends, as a container has them
	if err != nil {
		t.Fatal(err)
	}
	defer task.Close()
	var want strings.Builder
	for n := range 3 {
		for i := range 100 {
			line := fmt.Sprintf("copier %d, line %d\n", n, i)
			if _, err := task.WriteString(line); err != nil {
				t.Fatal(err)
			}
			want.WriteString(line)
		}
		log, err := logs.Open(filepath.Join(dir, "log"), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var sent strings.Builder
		c, err := newCopier(log, func(s logs.Stream, data []byte) {
			mu.Lock()
			defer mu.Unlock()
			sent.Write(data)
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.addPipe(logs.Stdout, path); err != nil {
			t.Fatal(err)
		}
		c.copyRest()
		mu.Lock()
		if got := sent.String(); !strings.HasPrefix(got, fmt.Sprintf("copier %d, line 0\n", n)) || !strings.HasSuffix(got, "line 99\n") {
			t.Errorf("copier %d sends %q", n, got)
		}
		mu.Unlock()
		c.call(func() { c.sources = nil }) // it reads no more, as if it were killed
	}
	var got strings.Builder
	err = logs.Read(context.Background(), filepath.Join(dir, "log"), logs.Query{Tail: -1}, func(e logs.Entry) error {
		got.WriteString(string(e.Text) + "\n")
		return nil
	})
	if err != nil || got.String() != want.String() {
		t.Errorf("log %q, %v", got.String(), err)
	}
}
