package monitor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/attach"
)

// A task that doesn't read its input blocks the client that writes to it. A client that has gone is
// dropped all the same, and requests of other clients are answered.
func TestUnreadInput(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "stdin")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	stdin, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	s.setInput(stdin)
	t.Cleanup(func() { s.setInput(nil); stdin.Close(); s.shutDown(0) })
	var typists []*os.File
	for range 2 {
		c := connectClient(t, s)
		fillSocket(t, c)
		typists = append(typists, c)
	}
	other := connectClient(t, s)
	if err := attach.Write(other, attach.Signal, []byte{2}); err != nil {
		t.Fatal(err)
	}
	select {
	case sig := <-s.signals:
		if sig != unix.SIGINT {
			t.Errorf("signal %v", sig)
		}
	case <-time.After(time.Minute):
		t.Fatal("a signal waits for what is typed")
	}
	for _, c := range typists {
		c.Close()
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s.mu.Lock()
		n := len(s.clients)
		s.mu.Unlock()
		if n == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("there are %d clients, and two of three have gone", n)
		}
	}
}

func connectClient(t *testing.T, s *server) *os.File {
	t.Helper()
	c, err := attach.Dial(s.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// fillSocket writes input until the socket is full.
func fillSocket(t *testing.T, c *os.File) {
	t.Helper()
	for {
		if err := c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		err := attach.Write(c, attach.Stdin, make([]byte, 4096))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
