package launcher

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// secretDir is a directory of the host with a file that no task may read.
func secretDir(t *testing.T) *os.File {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return openFile(t, dir, os.O_RDONLY)
}

func openFile(t *testing.T, path string, how int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, how, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// What the caller has open is no way out of a container: a runtime that has it, too,
// would go there where the working directory is a link of procfs.
func TestCallersDescriptorsStayOutside(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		secret, volume := secretDir(t), t.TempDir()
		for fd := 3; fd < 8; fd++ {
			link := strconv.Itoa(fd)
			if err := os.Symlink("/proc/self/fd/"+link, filepath.Join(volume, link)); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			cmd := r.command(r.job(func(j *job) {
				// A volume is where the launcher doesn't look.
				j.Volumes, j.Dir = []string{volume + ":/v"}, "/v/"+link
				j.Command = []string{"cat", "secret"}
			}))
			cmd.ExtraFiles = []*os.File{secret, secret, secret, secret, secret}
			cmd.Stdout, cmd.Stderr = &out, &out
			if exitStatus(t, cmd.Run()) == 0 || strings.Contains(out.String(), "of the host") {
				t.Errorf("descriptor %d: %s", fd, out.String())
			}
		}
	})
}

// A detached task keeps no descriptor of the process that started it: a lock would stay held, and
// a pipe would have no end.
func TestDetachedTaskKeepsNoDescriptors(t *testing.T) {
	r := newAnyRig(t)
	reader, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	d := r.detach("sleep 1000", nil, w)
	defer d.killAndRemove()
	w.Close()
	if err := reader.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the pipe is open still: %v", err)
	}
}

// killAndRemove ends a task and removes it.
func (d *detached) killAndRemove() {
	d.rig.t.Helper()
	killPID(d.rig.t, strconv.Itoa(d.task().Life.Init.PID))
	d.end()
	d.remove()
}
