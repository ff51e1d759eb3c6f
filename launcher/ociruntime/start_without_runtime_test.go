package ociruntime

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStartWithoutRuntime(t *testing.T) {
	const plain = `{"ociVersion":"1.0.2"}`
	for _, tt := range []struct {
		name, program, spec string
		// made are the files beside the state; "exec.fifo" is a pipe, with a reader if waits.
		made         []string
		waits        bool
		begun, again bool
	}{
		{"one that crun has made", "crun", plain, []string{"status", "exec.fifo"}, true, true, false},
		{"one that has died, or was begun by who was killed", "crun", plain, []string{"status", "exec.fifo"}, false, true, false},
		{"one that runs", "crun", plain, []string{"status"}, false, false, false},
		{"a container of runc's", "runc", plain, []string{"state.json", "exec.fifo"}, true, false, true},
		{"runc by another name", "crun", plain, []string{"state.json", "exec.fifo"}, true, false, true},
		{"hooks at the start", "crun", `{"hooks":{"poststart":[]}}`, []string{"status", "exec.fifo"}, true, false, true},
		{"no spec", "crun", "", []string{"status", "exec.fifo"}, true, false, true},
		{"nothing", "crun", plain, nil, false, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, spec := Runtime{Path: "/usr/bin/" + tt.program, Root: t.TempDir()}, filepath.Join(t.TempDir(), "config.json")
			reader := makeState(t, filepath.Join(r.Root, "id"), tt.made, tt.waits)
			if tt.spec != "" {
				if err := os.WriteFile(spec, []byte(tt.spec), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			begun, err := r.StartWithoutRuntime("id", spec)
			if err != nil || begun != tt.begun {
				t.Fatalf("begun: %v, %v, want %v", begun, err, tt.begun)
			}
			if _, err := os.Lstat(filepath.Join(r.Root, "id", "exec.fifo")); (err == nil) != tt.again {
				t.Errorf("the pipe is there: %v, want %v", err == nil, tt.again)
			}
			if !tt.waits {
				return
			}
			n, err := unix.Read(reader, make([]byte, 8))
			if told := err == nil && n == 1; told != tt.begun {
				t.Errorf("who waits was told: %d bytes, %v, want it: %v", n, err, tt.begun)
			}
		})
	}
}

// makeState makes a container's, and returns a reader of its pipe.
func makeState(t *testing.T, dir string, files []string, waits bool) (reader int) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		path := filepath.Join(dir, name)
		if name != "exec.fifo" {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if !waits {
			continue
		}
		var err error
		if reader, err = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(reader) })
	}
	return reader
}
