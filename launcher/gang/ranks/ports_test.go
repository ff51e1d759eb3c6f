package ranks

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestCandidates(t *testing.T) {
	for _, tc := range []struct {
		name      string
		low, high int
		want      []span
	}{
		{"as kernels come", 32768, 60999, []span{{61000, 65535}, {10000, 29399}}},
		{"up to the end", 32768, 65535, []span{{10000, 29399}}},
		{"a servers' habit", 15000, 64999, []span{{65000, 65535}, {10000, 14999}}},
		{"inside", 20000, 25000, []span{{61000, 65535}, {25001, 29399}, {10000, 19999}}},
		{"everything", 1024, 65535, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, candidateSpans(tc.low, tc.high), cmp.AllowUnexported(span{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseRange(t *testing.T) {
	for _, text := range []string{"", "32768", "a\tb", "1\tb", "1 2 3"} {
		if _, _, err := parseRange(text); err == nil {
			t.Errorf("%q is taken for a range", text)
		}
	}
	if low, high, err := parseRange("32768\t60999\n"); low != 32768 || high != 60999 || err != nil {
		t.Error(low, high, err)
	}
}

// TestLeaseIsAlone: ports leased at the same time don't overlap, and none of them has a listener.
func TestLeaseIsAlone(t *testing.T) {
	dir := t.TempDir()
	taken := map[int]int{}
	for i := range 40 {
		l, err := Lease(dir, 5+i%3)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.File.Close() })
		for p := l.First; p < l.First+l.Count; p++ {
			if by, ok := taken[p]; ok {
				t.Fatalf("port %d was leased twice, first as number %d", p, by)
			}
			taken[p] = i
		}
		low, high, err := ephemeralRange()
		if err != nil {
			t.Fatal(err)
		}
		if l.First <= high && l.First+l.Count > low {
			t.Fatalf("%d to %d is in the range for connections", l.First, l.First+l.Count-1)
		}
	}
}

func TestLeaseMindsListeners(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			listener, err := net.Listen("tcp", address)
			if err != nil {
				t.Skip(err)
			}
			defer listener.Close()
			port := listener.Addr().(*net.TCPAddr).Port
			f, err := os.OpenFile(filepath.Join(t.TempDir(), "ports"), os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := pickPorts(f, []span{{port, port}}, 1); !errors.Is(err, ErrNoPorts) {
				t.Fatalf("port %d, which has a listener: %v", port, err)
			}
			own, err := Resume(filepath.Dir(f.Name()), port, 1)
			if err != nil {
				t.Fatalf("the listener's own gang can't have port %d: %v", port, err)
			}
			own.File.Close()
			listener.Close()
			if got, err := pickPorts(f, []span{{port, port}}, 1); got != port || err != nil {
				t.Fatalf("port %d, which is free again: %d, %v", port, got, err)
			}
		})
	}
}

// TestLeaseLives: a lease is its open file's: it survives the process that made it in one
// that inherited the descriptor, and ends with the last of them.
func TestLeaseLives(t *testing.T) {
	dir := t.TempDir()
	l, err := Lease(dir, 4)
	if err != nil {
		t.Fatal(err)
	}
	heir := exec.Command("cat")
	heir.ExtraFiles = []*os.File{l.File}
	stdin, err := heir.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := heir.Start(); err != nil {
		t.Fatal(err)
	}
	if err := l.File.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Resume(dir, l.First, l.Count); !errors.Is(err, unix.EAGAIN) || !strings.Contains(err.Error(), fmt.Sprint(l.First)) {
		t.Errorf("another lease of the ports of a process that lives: %v", err)
	}
	if err := errors.Join(stdin.Close(), heir.Wait()); err != nil {
		t.Fatal(err)
	}
	again, err := Resume(dir, l.First, l.Count)
	if err != nil {
		t.Fatalf("after the heir: %v", err)
	}
	again.File.Close()
}
