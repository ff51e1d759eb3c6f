package monitor

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestOpenTerminalOf: a task that exchanges its standard input all the time has nothing opened but its terminal.
func TestOpenTerminalOf(t *testing.T) {
	trap := filepath.Join(t.TempDir(), "trap")
	testutil.Must(t, os.WriteFile(trap, nil, 0o600))
	other, err := os.Open(trap)
	testutil.Must(t, err)
	defer other.Close() // only read from
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	testutil.Must(t, err)
	defer master.Close() // nothing is kept there
	testutil.Must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
	if errno != 0 {
		t.Fatal(errno)
	}
	tty := os.NewFile(peer, "tty")
	defer tty.Close() // nothing is kept there
	input, err := unix.Dup(int(tty.Fd()))
	testutil.Must(t, err)
	defer func() { _ = unix.Close(input) }() // only a duplicate
	link := "/proc/self/fd/" + strconv.Itoa(input)
	if f := openTerminalOf(link); f == nil {
		t.Fatal("the terminal isn't opened")
	} else {
		testutil.Must(t, f.Close())
	}

	opens, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	testutil.Must(t, err)
	defer func() { _ = unix.Close(opens) }() // only read from
	_, err = unix.InotifyAddWatch(opens, trap, unix.IN_OPEN)
	testutil.Must(t, err)
	var exchanging sync.WaitGroup
	done := make(chan struct{})
	exchanging.Go(func() {
		for {
			for _, f := range []*os.File{other, tty} {
				select {
				case <-done:
					return
				default:
					_ = unix.Dup3(int(f.Fd()), input, 0) // both are open
				}
			}
		}
	})
	opened := 0
	for range 20_000 {
		if f := openTerminalOf(link); f != nil {
			opened++
			testutil.Must(t, f.Close())
		}
	}
	close(done)
	exchanging.Wait()
	if n, err := unix.Read(opens, make([]byte, 4096)); n > 0 || err != unix.EAGAIN {
		t.Errorf("another file was opened: %d bytes, %v", n, err)
	}
	if opened == 0 {
		t.Error("the terminal was never opened")
	}
}
