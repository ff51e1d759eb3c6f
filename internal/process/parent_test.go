package process

import (
	"errors"
	"io/fs"
	"os"
	"testing"
)

func TestParent(t *testing.T) {
	if got, err := Parent("/proc", os.Getpid()); err != nil || got != os.Getppid() {
		t.Errorf("%d, %v; want %d", got, err, os.Getppid())
	}
	if _, err := Parent("/proc", 1<<22+1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of none: %v", err)
	}
}
