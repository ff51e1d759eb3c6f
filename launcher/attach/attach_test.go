package attach

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFramesRoundTrip(t *testing.T) {
	var b bytes.Buffer
	long := bytes.Repeat([]byte("x"), Max+3)
	for _, data := range [][]byte{nil, []byte("a\x00b"), long} {
		if err := Write(&b, Stderr, data); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, Max)
	for _, want := range []string{"", "a\x00b", string(long[:Max]), "xxx"} {
		k, data, err := Read(&b, buf)
		if k != Stderr || string(data) != want || err != nil {
			t.Fatalf("%d, %d bytes, %v, want %d bytes", k, len(data), err, len(want))
		}
	}
	if _, _, err := Read(&b, buf); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(Append(nil, Stdout, []byte("x")))
	f.Add([]byte{1, 255, 255, 255, 255, 0})
	f.Add([]byte{1, 0, 0, 0, 9, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		r, buf := bytes.NewReader(data), make([]byte, Max)
		for {
			k, got, err := Read(r, buf)
			if err != nil {
				return
			}
			if again := Append(nil, k, got); !bytes.HasPrefix(data, again) {
				t.Fatalf("%x comes back as %x", data, again)
			}
			data = data[header+len(got):]
		}
	})
}

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("long", 40), "x.sock")
	if _, err := Dial(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a socket: %v", err)
	}
	dead, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	if _, err := Dial(path); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("nothing listens: %v", err)
	}
	l, err := Listen(path) // in the place of the dead one
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	go func() {
		c, err := Accept(l)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		k, data, err := Read(c, make([]byte, Max))
		if err != nil || k != Stdin {
			t.Errorf("%d, %v", k, err)
		}
		if err := Write(c, Stdout, data); err != nil {
			t.Error(err)
		}
	}()
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := Write(c, Stdin, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if k, data, err := Read(c, make([]byte, Max)); k != Stdout || string(data) != "hello" || err != nil {
		t.Errorf("%d, %q, %v", k, data, err)
	}
}
