package verb

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestInput: neither a named pipe that nobody writes to, nor one whose writer does nothing, is waited for after the end of the
// context.
func TestInput(t *testing.T) {
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	testutil.Must(t, unix.Mkfifo(pipe, 0o600))
	testutil.Must(t, os.WriteFile(file, []byte("text"), 0o600))

	f, err := OpenInput(t.Context(), file)
	testutil.Must(t, err)
	text, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := OpenInput(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}

	interrupted := Interrupted{unix.SIGINT}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(interrupted)
	if _, err := OpenInput(ctx, pipe); !errors.Is(err, interrupted) {
		t.Errorf("nobody writes: %v", err)
	}

	writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
	testutil.Must(t, err)
	defer writer.Close()
	ctx, cancel = context.WithCancelCause(t.Context())
	f, err = OpenInput(ctx, pipe)
	testutil.Must(t, err)
	ended := make(chan error)
	go func() {
		_, err := io.ReadAll(f)
		ended <- err
	}()
	cancel(interrupted)
	if err := <-ended; !errors.Is(err, interrupted) {
		t.Errorf("the writer does nothing: %v", err)
	}
	if err := f.Close(); !errors.Is(err, interrupted) {
		t.Errorf("closed: %v", err)
	}
}
