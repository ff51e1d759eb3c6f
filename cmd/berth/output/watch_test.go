package output

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/verbtest"
)

func TestWatchInterval(t *testing.T) {
	flags := []cli.Flag{&cli.GenericFlag{Name: "watch", Value: new(Interval)}}
	for _, c := range []struct {
		typed string
		want  time.Duration
		fails string
	}{
		{"", 0, ""},
		{"--watch", 2 * time.Second, ""},
		{"--watch=5", 5 * time.Second, ""},
		{"--watch=0.5s", 500 * time.Millisecond, ""},
		{"--watch=false", 0, ""},
		{"--watch=0", 0, "give seconds from 0.1, as in --watch=5, or --watch alone"},
		{"--watch=soon", 0, "give seconds from 0.1, as in --watch=5, or --watch alone"},
		{"--watch=NaN", 0, "give seconds from 0.1, as in --watch=5, or --watch alone"},
		{"--watch 5", 2 * time.Second, "the seconds of --watch are attached with =: --watch=5"},
	} {
		t.Run(c.typed, func(t *testing.T) {
			ctx, err := verbtest.ParseFlags(t, flags, strings.Fields(c.typed)...)
			if err == nil {
				if got := readInterval(ctx); got != c.want {
					t.Errorf("each %v, want %v", got, c.want)
				}
				err = CheckWatch(ctx)
			}
			if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v, want %q", err, c.fails)
			}
		})
	}
}

// TestRepeatFrames: frames replace each other on a terminal and follow each other elsewhere. A signal
// ends them without a message.
func TestRepeatFrames(t *testing.T) {
	for _, c := range []struct {
		name     string
		terminal bool
		want     string
	}{
		{"terminal", true, "\x1b[H\x1b[Jframe 1 of t\r\n… and 2 more\r\n\x1b[H\x1b[Jframe 2 of t\r\n… and 2 more\r\n"},
		{"pipe", false, "frame 1 of two\na\nb\nframe 2 of two\na\nb\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, in := openPipe(t)
			if c.terminal {
				out, in = openTerminal(t, 12, 3)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			frames := 0
			err := repeatFrames(ctx, in, time.Millisecond, func(w io.Writer, _ int) error {
				if frames++; frames == 2 {
					cancel(verb.Interrupted{Signal: syscall.SIGINT})
				}
				_, err := fmt.Fprintf(w, "frame %d of two\na\nb\n", frames)
				return err
			})
			var exit verb.ExitError
			if !errors.As(err, &exit) || exit.Code != 130 || exit.Err != nil {
				t.Errorf("ends with %v", err)
			}
			if err := in.Close(); err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(out) // a terminal that is closed is an error at its end
			if string(got) != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func openPipe(t *testing.T) (out, in *os.File) {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close(); in.Close() })
	return out, in
}

// openTerminal makes a pseudoterminal of that size.
func openTerminal(t *testing.T, width, height uint16) (out, in *os.File) {
	t.Helper()
	out, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	fd := int(out.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err := errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})); err != nil {
		t.Fatal(err)
	}
	if in, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	return out, in
}
