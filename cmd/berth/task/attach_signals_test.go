package task

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/attach"
)

// pair returns the ends of a connection. Nothing reads far unless the test does.
func pair(t *testing.T) (near, far *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	near, far = os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// TestAttachSendsSignalsAtOnce: a signal isn't delayed by input that the task doesn't read.
func TestAttachSendsSignalsAtOnce(t *testing.T) {
	full, _ := pair(t)
	if err := full.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for attach.Write(full, attach.Stdin, make([]byte, attach.Max)) == nil {
	}
	if err := full.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	near, far := pair(t)
	a := attachment{conn: full, ended: make(chan error, 3), dial: func() (*os.File, error) { return near, nil }}
	stop := a.forwardSignals(true)
	defer stop()
	if err := unix.Kill(os.Getpid(), unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := far.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var got []attach.Kind
	buf := make([]byte, attach.Max)
	for range 2 {
		kind, _, err := attach.Read(far, buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, kind)
	}
	if got[0] != attach.Quiet || got[1] != attach.Signal {
		t.Errorf("%v", got)
	}
}

func TestInterruptCounter(t *testing.T) {
	for _, tt := range []struct {
		name    string
		seconds []float64
		enough  bool
	}{
		{"once", []float64{0}, false},
		{"twice", []float64{0, 0.1}, false},
		{"three times", []float64{0, 0.5, 1}, true},
		{"at leisure", []float64{0, 1, 2.5}, false},
		{"at last", []float64{0, 10, 11, 11.5}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var i verb.InterruptCounter
			enough := false
			for _, s := range tt.seconds {
				enough = i.IsThird(time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))))
			}
			if enough != tt.enough {
				t.Errorf("after %v: %v", tt.seconds, enough)
			}
		})
	}
}
