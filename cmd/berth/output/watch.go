package output

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/berth-gpu/berth/cmd/berth/verb"
)

// WatchFlag returns --watch, see [CheckWatch] and [ShowOrWatch].
func WatchFlag() cli.Flag {
	return &cli.GenericFlag{Name: "watch", Usage: "repeat every `SECONDS`, 2 if left out, until interrupted", Value: new(Interval)}
}

// Interval is the value of --watch, a flag with an optional number of seconds.
type Interval time.Duration

// IsBoolFlag makes the value optional for package flag.
func (i *Interval) IsBoolFlag() bool { return true }

func (i *Interval) String() string {
	if i == nil || *i == 0 {
		return ""
	}
	return time.Duration(*i).String()
}

// Set parses a number of seconds. "true" is the value of --watch alone.
func (i *Interval) Set(s string) error {
	const usual, longest = 2, 86400
	switch s {
	case "true":
		s = strconv.Itoa(usual)
	case "false":
		*i = 0
		return nil
	}
	seconds, err := strconv.ParseFloat(strings.TrimSuffix(s, "s"), 64)
	if err != nil || !(seconds >= 0.1 && seconds <= longest) {
		return errors.New("give seconds from 0.1, as in --watch=5, or --watch alone")
	}
	*i = Interval(seconds * float64(time.Second))
	return nil
}

// readInterval returns the interval of --watch, 0 without the flag.
func readInterval(c *cli.Context) time.Duration {
	if i, ok := c.Generic("watch").(*Interval); ok {
		return time.Duration(*i)
	}
	return 0
}

// CheckWatch refuses an argument that is a number of seconds: --watch takes its value only after "=".
func CheckWatch(c *cli.Context) error {
	first := c.Args().First()
	if readInterval(c) > 0 && new(Interval).Set(first) == nil {
		return verb.WrongCommandLine(c, fmt.Sprintf("the seconds of --watch are attached with =: --watch=%s", first))
	}
	return nil
}

// ClearScreen moves a terminal's cursor to the top left corner and clears the screen (ECMA-48: CUP, ED).
const ClearScreen = "\x1b[H\x1b[J"

// ShowOrWatch prints the output of show to standard output: once, or repeatedly with --watch. width is that of the
// terminal, 0 without one.
func ShowOrWatch(c *cli.Context, show func(w io.Writer, width int) error) error {
	if every := readInterval(c); every > 0 {
		return repeatFrames(c.Context, os.Stdout, every, show)
	}
	return show(os.Stdout, NewStyledWriter(os.Stdout).Width)
}

// repeatFrames calls show at each interval and prints its output to f, until ctx ends. On a terminal each frame replaces
// the previous one and is cut to the size of the terminal; elsewhere frames follow each other. The error is that of EndWatch.
func repeatFrames(ctx context.Context, f *os.File, every time.Duration, show func(w io.Writer, width int) error) error {
	for {
		var frame bytes.Buffer
		width, height, err := term.GetSize(int(f.Fd()))
		isTerminal := err == nil
		if err := show(&frame, width); err != nil {
			return EndWatch(ctx, err)
		}
		text := frame.String()
		if isTerminal {
			text = ClearScreen + cutToFit(text, width, height-1)
		}
		if _, err := io.WriteString(f, text); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return EndWatch(ctx, context.Cause(ctx))
		case <-time.After(every):
		}
	}
}

// EndWatch returns the error with which a repeating verb ends: after a signal only the exit code, 128 and the signal's
// number, without a message; otherwise err.
func EndWatch(ctx context.Context, err error) error {
	var signal verb.Interrupted
	if errors.As(context.Cause(ctx), &signal) {
		return verb.WithCode(128+int(signal.Signal), nil)
	}
	return err
}

// cutToFit cuts a text to the columns and lines of a terminal. The last line then says how many lines were cut.
func cutToFit(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if height > 1 && len(lines) > height {
		lines = append(lines[:height-1], fmt.Sprintf("… and %d more lines", len(lines)-height+1))
	}
	for i, line := range lines {
		if runes := []rune(line); width > 0 && len(runes) > width {
			lines[i] = string(runes[:width])
		}
	}
	return strings.Join(lines, "\n") + "\n"
}
