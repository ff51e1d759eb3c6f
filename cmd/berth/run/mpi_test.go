package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCheckOwnDirectory(t *testing.T) {
	dir := t.TempDir()
	link, file, odd := filepath.Join(dir, "link"), filepath.Join(dir, "file"), filepath.Join(dir, "a:ro")
	for _, err := range []error{os.Symlink(dir, link), os.WriteFile(file, nil, 0o600), os.Mkdir(odd, 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := checkOwnDirectory(dir); err != nil {
		t.Error(err)
	}
	for _, path := range []string{link, file, odd, filepath.Join(dir, "none")} {
		if checkOwnDirectory(path) == nil {
			t.Errorf("%s would be bound", path)
		}
	}
}

func TestCheckSocket(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := checkSocket(pair[0]); err != nil {
		t.Error(err)
	}
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := checkSocket(int(f.Fd())); err == nil || !strings.Contains(err.Error(), "socket") {
		t.Errorf("a directory would come in: %v", err)
	}
}
