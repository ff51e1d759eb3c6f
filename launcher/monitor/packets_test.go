package monitor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/logs"
)

// A task can have its pipes keep apart what it writes. Each line stays in its stream, and
// none is lost, whatever their lengths.
func TestCopierOfPackets(t *testing.T) {
	for _, length := range []int{10, 100, 3000, 4096} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			dir := t.TempDir()
			log, err := logs.Open(filepath.Join(dir, "log"), 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			c, err := newCopier(log, func(logs.Stream, []byte) {})
			if err != nil {
				t.Fatal(err)
			}
			want := map[logs.Stream]string{}
			for stream, name := range map[logs.Stream]string{logs.Stdout: "stdout", logs.Stderr: "stderr"} {
				want[stream] = readPackets(t, filepath.Join(dir, name), length)
				if err := c.addPipe(stream, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			c.copyRest()
			got := map[logs.Stream]string{}
			err = logs.Read(context.Background(), filepath.Join(dir, "log"), logs.Query{Tail: -1}, func(e logs.Entry) error {
				got[e.Stream] += string(e.Text)
				if !e.Partial {
					got[e.Stream] += "\n"
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			for stream, text := range want {
				if got[stream] != text {
					t.Errorf("stream %v: %d bytes, want %d", stream, len(got[stream]), len(text))
				}
			}
		})
	}
}

// readPackets makes a pipe with ten lines in it, of which each is a packet of its own.
func readPackets(t *testing.T, path string, length int) (all string) {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	task, err := os.OpenFile(path, os.O_RDWR, 0) // both ends, as a container has them
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(task.Fd(), unix.F_SETFL, unix.O_RDWR|unix.O_DIRECT); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { task.Close() })
	for n := range 10 {
		line := fmt.Sprintf("%s %d", filepath.Base(path), n)
		line += strings.Repeat("x", max(0, length-1-len(line))) + "\n"
		if _, err := task.WriteString(line); err != nil {
			t.Fatal(err)
		}
		all += line
	}
	return all
}
