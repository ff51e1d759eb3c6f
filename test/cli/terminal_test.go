package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo terminal; what is written to the slave is collected.
type terminal struct {
	t             *testing.T
	master, slave *os.File
	closed        chan struct{}

	mu   sync.Mutex
	seen strings.Builder
}

func openTerminal(t *testing.T) *terminal {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	check(t, err)
	master := os.NewFile(uintptr(fd), "/dev/ptmx")
	t.Cleanup(func() { _ = master.Close() })
	check(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	check(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	check(t, err)
	term := &terminal{t: t, master: master, slave: slave, closed: make(chan struct{})}
	go term.collect()
	return term
}

// attach makes the terminal the command's controlling terminal, and the command its foreground
// process.
func (term *terminal) attach(cmd *exec.Cmd) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.slave, term.slave, term.slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = true, true, 0
}

func (term *terminal) collect() {
	defer close(term.closed)
	buf := make([]byte, 4096)
	for {
		n, err := term.master.Read(buf)
		term.mu.Lock()
		term.seen.Write(buf[:n])
		term.mu.Unlock()
		if err != nil { // EIO: the slave is closed everywhere
			return
		}
	}
}

func (term *terminal) String() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.seen.String()
}

// rest is all that was written, after the last process has closed the slave.
func (term *terminal) rest() string {
	<-term.closed
	return term.String()
}

func (term *terminal) shows(text string) {
	term.t.Helper()
	eventually(term.t, fmt.Sprintf("terminal shows %q", text), func() bool {
		return strings.Contains(strings.ReplaceAll(term.String(), "\r", ""), text)
	})
}

func (term *terminal) types(text string) {
	term.t.Helper()
	_, err := term.master.WriteString(text)
	check(term.t, err)
}

func (term *terminal) size(rows, columns uint16) {
	term.t.Helper()
	check(term.t, unix.IoctlSetWinsize(int(term.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}))
}

// TestTerminal: a container with a terminal has one of the size of the caller's, also after a
// change, and ^C becomes SIGINT inside.
func TestTerminal(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	term := openTerminal(t)
	term.size(30, 90)
	const script = `tty; stty size; trap 'echo got INT' INT; trap 'stty size' WINCH; echo ready
while :; do read -r line || continue; echo "read $line"; [ "$line" = end ] && exit 5; done`
	p := n.startWith(term.attach, "berth", "run", "-t", "--gpus", "1", image(), "sh", "-c", script)
	check(t, term.slave.Close())
	term.shows("/dev/pts/0\n30 90\nready\n")
	term.size(40, 100)
	// A shell runs a trap only when what it waits for is done.
	term.types("one\n")
	term.shows("read one\n")
	term.types("stop\n")
	term.shows("40 100\n")
	term.types("\x03\n") // a signal just before read waits for its line runs the trap after that line
	term.shows("got INT\n")
	term.types("end\n")
	p.wait().is(5, "", "")
	if got := strings.Count(term.rest(), "got INT"); got != 1 {
		t.Errorf("^C came %d times", got)
	}
	n.checkClean(t)
}

// TestInterruptKey: ^C reaches the command of an alloc, and a container without a terminal, once;
// typed input reaches a container that reads it.
func TestInterruptKey(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	script := filepath.Join(t.TempDir(), "script")
	check(t, os.WriteFile(script, []byte("trap 'echo got INT' INT; echo ready; for i in 1 2 3 4 5 6; do sleep 0.1; done; exit 7"), 0o755))
	for _, args := range [][]string{
		{"berth", "alloc", "1", "--", "sh", script},
		{"berth", "run", "-v", script + ":/script", "--gpus", "1", image(), "sh", "/script"},
		{"berth", "run", "-i", "-v", script + ":/script", "--gpus", "1", image(), "sh", "/script"},
	} {
		t.Run(strings.Join(args[1:3], " "), func(t *testing.T) {
			term := openTerminal(t)
			p := n.as(t).startWith(term.attach, args...)
			check(t, term.slave.Close())
			term.shows("ready\n")
			term.types("\x03")
			p.wait().is(7, "", "")
			if got := strings.Count(term.rest(), "got INT"); got != 1 {
				t.Errorf("^C came %d times:\n%s", got, term.String())
			}
		})
	}
	t.Run("input", func(t *testing.T) {
		term := openTerminal(t)
		p := n.as(t).startWith(term.attach, "berth", "run", "-i", "--gpus", "1", image(), "cat")
		check(t, term.slave.Close())
		term.types("typed\n\x04")
		p.wait().is(0, "", "")
		if got := term.rest(); got != "typed\r\ntyped\r\n" {
			t.Errorf("the terminal shows %q", got)
		}
	})
	n.checkClean(t)
}

// TestStopKey: ^Z stops berth with its command, so that a shell has its prompt.
func TestStopKey(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	term := openTerminal(t)
	// An interactive shell starts each command in a group of its own.
	p := n.startWith(term.attach, "sh", "-im")
	check(t, term.slave.Close())
	term.types("berth alloc 1 -- sh -c 'echo re''ady; sleep 1000'; echo co''de $?\n")
	term.shows("ready\n")
	term.types("\x1a")
	term.shows("code " + fmt.Sprint(128+int(syscall.SIGSTOP))) // see internal/lock
	n.waitForLeases(1)
	term.types("kill %1; fg; echo ag''ain $?\n")
	term.shows("again 143")
	term.types("exit\n")
	p.wait()
	n.checkClean(t)
}
