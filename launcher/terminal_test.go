package launcher

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal: the test has the master, the program the slave.
type terminal struct{ master, slave *os.File }

func newTerminal(t *testing.T, rows, columns uint16) terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	tty := terminal{master, slave}
	tty.resize(t, rows, columns)
	return tty
}

func (tty terminal) resize(t *testing.T, rows, columns uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(tty.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		t.Fatal(err)
	}
}

// press presses a key together with control.
func (tty terminal) press(t *testing.T, key byte) {
	t.Helper()
	if _, err := tty.master.Write([]byte{key &^ 0x40}); err != nil {
		t.Fatal(err)
	}
}

// A task that isn't given a terminal doesn't get ours: it could read what is typed.
func TestNoTerminal(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		tty := newTerminal(t, 33, 77)
		cmd := r.command(r.job(func(j *job) {
			j.Command = []string{"sh", "-c", `for n in 0 1 2; do test -t $n && echo "$n is a terminal"; done; for i in 1 2 3; do echo out; echo err >&2; done; head -c 300000 /dev/zero; echo; exit 7`}
		}))
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty.slave, tty.slave, tty.slave
		cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		const zeros = 300000
		read := make(chan string)
		go func() { // a runtime with a pipe for each stream mixes them anywhere
			text, buf := "", make([]byte, 1<<16)
			for err := error(nil); err == nil && (strings.Count(text, "\x00") < zeros || strings.Count(text, "\n") < 7); {
				var n int
				n, err = tty.master.Read(buf)
				text += string(buf[:n])
			}
			read <- text
		}()
		text := <-read
		got := strings.Split(strings.ReplaceAll(text, "\x00", ""), "\r\n")
		want := []string{"out", "err", "out", "err", "out", "err", "", ""}
		if r.base.Runtime == "runc" {
			slices.Sort(got)
			slices.Sort(want)
		}
		if !slices.Equal(got, want) || strings.Count(text, "\x00") != zeros {
			t.Errorf("%d lines, beginning with %.60q", len(got), got)
		}
		if code := exitStatus(t, cmd.Wait()); code != 7 {
			t.Errorf("code %d, want 7", code)
		}
	})
}

func TestTerminal(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		tty := newTerminal(t, 33, 77)
		before, err := unix.IoctlGetTermios(int(tty.slave.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		cmd := r.command(r.job(func(j *job) {
			j.Terminal = true
			j.Command = []string{"sh", "-c", `tty; stty size; trap 'stty size' WINCH; trap 'exit 9' QUIT; trap 'echo interrupted' INT; echo "ready $TERM"; while :; do sleep 0.01; done`}
		}))
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty.slave, tty.slave, tty.slave
		cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(tty.master)
		expect := func(want string) {
			t.Helper()
			for {
				got, err := lines.ReadString('\n')
				got = strings.TrimSpace(got)
				if strings.HasSuffix(got, want) {
					return
				}
				// The echo of ^C comes in between, and so does the old size, which crun sets once more.
				if err != nil || (got != "" && got != "^C" && got != "33 77") {
					t.Fatalf("terminal says %q, %v, want %q", got, err, want)
				}
			}
		}
		expect("/dev/pts/0")
		expect("33 77")
		expect("ready xterm")
		tty.press(t, 'C')
		expect("interrupted")
		tty.resize(t, 44, 88)
		expect("44 88")
		tty.press(t, '\\')
		if code := exitStatus(t, cmd.Wait()); code != 9 {
			t.Errorf("code %d, want 9", code)
		}
		after, err := unix.IoctlGetTermios(int(tty.slave.Fd()), unix.TCGETS)
		if err != nil || *after != *before {
			t.Errorf("the terminal was left changed: %+v, %v, was %+v", after, err, before)
		}
	})
}

// A task gets a terminal also where berth itself has none: it writes as to a terminal, and there is
// no input.
func TestUnattendedTerminal(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		const script = `for n in 0 1 2; do test -t $n && tty <&$n; done; echo "TERM=$TERM"; stty size; echo err >&2; exit 9`
		for _, tc := range []struct {
			name string
			set  func(*testing.T, *exec.Cmd) (read func() string)
			want string
		}{
			{"nor at its output", func(_ *testing.T, cmd *exec.Cmd) func() string {
				var out strings.Builder
				cmd.Stdin, cmd.Stdout = strings.NewReader("not for the task\n"), &out
				return out.String
			}, "stty: standard input"}, // which has no size
			{"but at its output", func(t *testing.T, cmd *exec.Cmd) func() string {
				tty := newTerminal(t, 33, 77)
				cmd.Stdout, cmd.Stderr = tty.slave, tty.slave
				cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = true, true, 1
				return func() string { return tty.all(t) }
			}, "33 77"},
		} {
			t.Run(tc.name, func(t *testing.T) {
				cmd := r.command(r.job(func(j *job) { j.Terminal, j.Command = true, []string{"sh", "-c", script} }))
				read := tc.set(t, cmd)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if code := exitStatus(t, cmd.Wait()); code != 9 {
					t.Errorf("code %d, want 9", code)
				}
				got := strings.Join(strings.Fields(read()), " ")
				if want := strings.Repeat("/dev/pts/0 ", 3) + "TERM=xterm " + tc.want + " err"; got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		}
	})
}

// all is what was written, after everybody else has let go of the terminal.
func (tty terminal) all(t *testing.T) string {
	t.Helper()
	if err := tty.slave.Close(); err != nil {
		t.Fatal(err)
	}
	text, buf := "", make([]byte, 4096)
	for {
		n, err := tty.master.Read(buf)
		text += string(buf[:n])
		if err != nil { // EIO: nobody has it any more
			return text
		}
	}
}

// All that a command writes to its terminal comes out, however short it lives, and
// whatever stays behind it.
func TestLastBytesOfATerminal(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("sleep 1000", nil)
		defer d.killAndRemove()
		for _, entryPoint := range []struct{ name, inside string }{{"run", ""}, {"exec", d.id}} {
			for _, c := range []struct{ name, script, want string }{
				{"a word", "printf last", "last"},
				{"a line", "stty -onlcr; echo last", "last\n"}, // which ends as runtimes will have it
				{"more than fits", "head -c 20000 /dev/zero; printf last", strings.Repeat("\x00", 20000) + "last"},
				{"others hold the terminal", "sleep 1000 & trap '' HUP; printf last", "last"},
			} {
				t.Run(entryPoint.name+", "+c.name, func(t *testing.T) {
					lost := 0
					for range lastBytes {
						got := r.sh(c.script, func(j *job) { j.Terminal, j.Exec = true, entryPoint.inside })
						if got.code != 0 || got.stdout != c.want {
							if lost++; lost == 1 {
								t.Errorf("code %d: %s; %d bytes, ending with %.20q", got.code, got.stderr, len(got.stdout), got.stdout[max(0, len(got.stdout)-20):])
							}
						}
					}
					if lost > 0 {
						t.Errorf("%d of %d times", lost, lastBytes)
					}
				})
			}
		}
	})
}

// A task is hung up (SIGHUP) when the reader of its terminal's output is gone.
func TestTerminalOutputUnread(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		if r.base.Runtime == "runc" {
			t.Skip("runc is itself who writes to it, and doesn't mind")
		}
		cmd := r.command(r.job(func(j *job) { j.Terminal, j.Command = true, []string{"sh", "-c", "while echo x; do :; done; exit 7"} }))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		if code := exitStatus(t, cmd.Wait()); code != 7 { // writing has failed
			t.Errorf("code %d, want 7", code)
		}
	})
}

// lastBytes is how often each is tried. crun by itself loses some every now and then.
const lastBytes = 4
