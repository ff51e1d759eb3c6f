package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// stdio has the standard files of a process.
type stdio struct {
	creator  cio.Creator
	terminal bool
	input    *input
	// closeInput means that the command is detached, and its input is closed once it has started.
	closeInput bool
	raw        *term.State // state of the terminal before raw mode
	// pipes are those of the process that is being created; nil for a detached one.
	pipes *foregroundPipes
	relay supervise.Relay
	// incomplete means that finishOutput has not seen the end of the output.
	incomplete bool
}

func makePipes(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for pipes: %w", err)
	}
	return nil
}

// newForegroundIO connects a process to from, which may be nil, and to this process's outputs, by pipes
// in a directory.
func newForegroundIO(pipes string, terminal bool, from io.Reader) (*stdio, error) {
	if err := makePipes(pipes); err != nil {
		return nil, err
	}
	s := &stdio{terminal: terminal}
	var in io.Reader
	if from != nil {
		s.input = newInput(from)
		in = s.input
	}
	s.creator = func(id string) (_ cio.IO, err error) {
		s.pipes, err = openForegroundPipes(pipes, id, in, terminal)
		return s.pipes, err
	}
	return s, nil
}

// foregroundPipes is the cio.IO of a process whose output stdio.relay copies. cio's own copies end only when
// no process at all has the output open.
type foregroundPipes struct {
	cio.IO         // has the input
	config         cio.Config
	dir            string
	stdout, stderr *os.File // stderr is nil with a terminal
}

// openForegroundPipes makes the pipes of a process in a directory.
func openForegroundPipes(parent, id string, in io.Reader, terminal bool) (p *foregroundPipes, err error) {
	opts := []cio.Opt{cio.WithFIFODir(parent), cio.WithStreams(in, nil, nil)}
	if terminal {
		opts = append(opts, cio.WithTerminal)
	}
	p = &foregroundPipes{}
	if p.IO, err = cio.NewCreator(opts...)(id); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.Cancel()
			err = errors.Join(err, p.Close())
		}
	}()
	p.config = p.IO.Config()
	if p.dir, err = os.MkdirTemp(parent, "output"); err != nil {
		return p, fmt.Errorf("make directory for pipes: %w", err)
	}
	p.config.Stdout = filepath.Join(p.dir, "stdout")
	if p.stdout, err = openOutputPipe(p.config.Stdout); err != nil || terminal {
		return p, err
	}
	p.config.Stderr = filepath.Join(p.dir, "stderr")
	p.stderr, err = openOutputPipe(p.config.Stderr)
	return p, err
}

// openOutputPipe makes a named pipe and opens it for reading.
func openOutputPipe(path string) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make a pipe for output: %w", err)
	}
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

func (p *foregroundPipes) Config() cio.Config { return p.config }

// Wait doesn't wait for the output: stdio.finishOutput does.
func (p *foregroundPipes) Wait() {}

func (p *foregroundPipes) Close() error {
	err := p.IO.Close()
	for _, f := range []*os.File{p.stdout, p.stderr} {
		if f != nil {
			_ = f.Close() // only read, and Close may be called twice
		}
	}
	if p.dir == "" {
		return err
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

// openIO returns the standard files of the launch.
func (l *launch) openIO() (*stdio, error) {
	if !l.run.Detach {
		var in io.Reader // nil: the container's /dev/null
		if l.rec.Interactive {
			in = os.Stdin
		}
		return newForegroundIO(l.store.Path(l.rec.ID, "io"), l.rec.Terminal, in)
	}
	cfg := cio.Config{Terminal: l.rec.Terminal, Stdout: l.logURI()}
	if !l.rec.Terminal {
		cfg.Stderr = cfg.Stdout
	} else {
		cfg.Stdin = l.store.Path(l.rec.ID, "stdin")
		if err := unix.Mkfifo(cfg.Stdin, 0o600); err != nil {
			return nil, fmt.Errorf("make a pipe for standard input: %w", err)
		}
	}
	return &stdio{creator: func(string) (cio.IO, error) { return shimIO{cfg}, nil }}, nil
}

// wantsInput reports whether the task needs an open input: with -i, or with a terminal that this
// process or a later berth attach can use.
func (l *launch) wantsInput() bool {
	o := l.run.Options
	return o.Interactive || o.Terminal && (l.run.Detach || supervise.IsTerminal(os.Stdin))
}

// discardTerminal is the cio.Creator of a detached command with a terminal: its output is discarded.
func discardTerminal(string) (cio.IO, error) {
	return shimIO{cio.Config{Terminal: true, Stdout: os.DevNull}}, nil
}

// execInput returns the standard input of a command. Without -i it is an empty stream; otherwise the
// shim would give the command the host's /dev/null.
func execInput(in control.ExecOptions) io.Reader {
	switch {
	case in.Interactive, in.Terminal && supervise.IsTerminal(os.Stdin):
		return os.Stdin
	case in.Terminal:
		return nil
	}
	return strings.NewReader("")
}

// newDetachedIO returns pipes for a detached command, for the same reason as execInput. The shim reads
// its output and discards it. The caller calls remove once the shim has opened the pipes.
func newDetachedIO(pipes string) (s *stdio, remove func(), err error) {
	if err := makePipes(pipes); err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp(pipes, "unheard")
	if err != nil {
		return nil, nil, fmt.Errorf("make directory for pipes: %w", err)
	}
	remove = func() { _ = os.RemoveAll(dir) } // on an error it is removed with the task
	const nowhere = "file://" + os.DevNull
	cfg := cio.Config{Stdin: filepath.Join(dir, "stdin"), Stdout: nowhere, Stderr: nowhere}
	if err := unix.Mkfifo(cfg.Stdin, 0o600); err != nil {
		remove()
		return nil, nil, fmt.Errorf("make a pipe for standard input: %w", err)
	}
	return &stdio{creator: func(string) (cio.IO, error) { return shimIO{cfg}, nil }, closeInput: true}, remove, nil
}

// logURI returns the URI that makes the shim start berth-monitor, which reads the task's output.
func (l *launch) logURI() string {
	u := url.URL{Scheme: "binary", Path: l.Logger, RawQuery: url.Values{
		"data": {l.store.Data}, "state": {l.store.State}, "id": {l.rec.ID},
		"program": {l.Self}, "address": {l.Address}, "config": {berth.ConfigPath},
	}.Encode()}
	return u.String()
}

// shimIO is the cio.IO of a task whose output berth-monitor reads, which the shim starts.
type shimIO struct{ cfg cio.Config }

func (l shimIO) Config() cio.Config { return l.cfg }
func (l shimIO) Cancel()            {}
func (l shimIO) Wait()              {}
func (l shimIO) Close() error       { return nil }

// input is a reader that closes ended at its end.
type input struct {
	from  io.Reader
	ended chan struct{}
	over  bool
}

func newInput(from io.Reader) *input { return &input{from: from, ended: make(chan struct{})} }

func (i *input) Read(b []byte) (int, error) {
	n, err := i.from.Read(b)
	if err != nil && !i.over {
		i.over = true
		close(i.ended)
	}
	return n, err
}

// attach makes the terminal raw, sends its size to the started process, copies the process's output, and
// closes the process's input when the input ends.
func (s *stdio) attach(ctx context.Context, p client.Process) {
	if s.pipes != nil {
		s.relay.Start(s.pipes.stdout, os.Stdout)
		if s.pipes.stderr != nil {
			s.relay.Start(s.pipes.stderr, os.Stderr)
		}
	}
	if s.input != nil {
		go func() {
			<-s.input.ended
			_ = p.CloseIO(ctx, client.WithStdinCloser) // the process may have ended
		}()
	}
	if s.terminal && s.input != nil {
		s.raw, _ = term.MakeRaw(int(os.Stdin.Fd())) // a terminal without raw mode stays as it is
	}
	s.resizeTerminal(ctx, p)
}

// finishOutput waits until the output of a process that has ended was copied. asked is that of
// supervise.Relay.Finish.
func (s *stdio) finishOutput(signals *supervise.Signals, asked bool) {
	s.incomplete = !s.relay.Finish(signals, asked)
}

// resizeTerminal sets the size of the process's terminal to that of this process's.
func (s *stdio) resizeTerminal(ctx context.Context, p client.Process) {
	if !s.terminal {
		return
	}
	seen := os.Stdin
	if s.input == nil { // a terminal without input
		seen = os.Stdout
	}
	if width, height, err := term.GetSize(int(seen.Fd())); err == nil {
		_ = p.Resize(ctx, uint32(width), uint32(height)) // the process may have ended
	}
}

// restoreTerminal ends the raw mode of this process's terminal.
func (s *stdio) restoreTerminal() {
	if s.raw != nil {
		_ = term.Restore(int(os.Stdin.Fd()), s.raw) // the terminal may have hung up
		s.raw = nil
	}
}
