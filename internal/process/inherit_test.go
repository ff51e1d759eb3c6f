package process

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCloseDescriptorsOnExec(t *testing.T) {
	for _, tt := range []struct {
		name string
		keep func() error
	}{
		{"all at once", CloseDescriptorsOnExec},
		{"each", func() error { return setCloseOnExec(3) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fd, err := unix.Open("/dev/zero", unix.O_RDONLY, 0) // not closed on exec
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			seen := func() bool {
				t.Helper()
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				defer w.Close()
				cmd := exec.Command("ls", "-l", "/proc/self/fd")
				cmd.ExtraFiles = []*os.File{w}
				out, err := cmd.Output()
				if err != nil || !strings.Contains(string(out), " 3 -> pipe:") {
					t.Fatalf("what is given isn't there: %v: %s", err, out)
				}
				return strings.Contains(string(out), "/dev/zero")
			}
			if !seen() {
				t.Fatal("the descriptor wasn't inherited before")
			}
			if err := tt.keep(); err != nil {
				t.Fatal(err)
			}
			if seen() {
				t.Error("the descriptor was inherited")
			}
		})
	}
}
