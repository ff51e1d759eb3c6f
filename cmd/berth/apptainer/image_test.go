package apptainer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/sif"
)

// TestSwappedImage: an image that others replace by a FIFO or a device while it is opened is not opened as such: that would wait for ever, or act on the device.
func TestSwappedImage(t *testing.T) {
	dir := t.TempDir()
	name, other := filepath.Join(dir, "image.sif"), filepath.Join(dir, "other")
	if err := errors.Join(os.WriteFile(name, make([]byte, 1000), 0o644), unix.Mkfifo(other, 0o644)); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE); err != nil {
				done <- err
				return
			}
		}
	}()
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		found := map[bool]int{}
		for range 20_000 {
			img, err := openImage(name)
			if err == nil {
				img.closeFile()
				t.Error("a file that is none is taken for an image")
			}
			found[errors.Is(err, sif.ErrNotSIF)]++
		}
		if found[true] == 0 || found[false] == 0 {
			t.Errorf("there was no race: %v", found)
		}
	}()
	select {
	case <-opened:
	case <-time.After(time.Minute):
		t.Error("the FIFO was opened")
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
