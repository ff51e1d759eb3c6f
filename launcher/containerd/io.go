package containerd

import (
	"context"
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
)

// stdio is what a process reads and writes.
type stdio struct {
	creator  cio.Creator
	terminal bool
	input    *input
	// unheard: it is detached, and its input is to be closed once it has begun.
	unheard bool
	raw     *term.State // what the terminal was before
}

func makePipes(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for pipes: %w", err)
	}
	return nil
}

// foreground connects a process with from, which may be nil, and this one's outputs, by
// pipes in a directory.
func foreground(pipes string, terminal bool, from io.Reader) (*stdio, error) {
	if err := makePipes(pipes); err != nil {
		return nil, err
	}
	s := &stdio{terminal: terminal}
	var in io.Reader
	if from != nil {
		s.input = newInput(from)
		in = s.input
	}
	opts := []cio.Opt{cio.WithFIFODir(pipes), cio.WithStreams(in, os.Stdout, os.Stderr)}
	if terminal {
		opts = []cio.Opt{cio.WithFIFODir(pipes), cio.WithStreams(in, os.Stdout, nil), cio.WithTerminal}
	}
	s.creator = cio.NewCreator(opts...)
	return s, nil
}

// io is that of a launch.
func (l *launch) io() (*stdio, error) {
	if !l.run.Detach {
		var in io.Reader // which runtimes make the container's null
		if l.rec.Interactive {
			in = os.Stdin
		}
		return foreground(l.store.Path(l.rec.ID, "io"), l.rec.Terminal, in)
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
	return &stdio{creator: func(string) (cio.IO, error) { return logged{cfg}, nil }}, nil
}

// atTerminal says whether somebody sits at this process's input.
func atTerminal() bool { return term.IsTerminal(int(os.Stdin.Fd())) }

// typed says whether something may come to the task's input: with a terminal, if
// somebody sits here, or might later.
func (l *launch) typed() bool {
	o := l.run.Options
	return o.Interactive || o.Terminal && (l.run.Detach || atTerminal())
}

// silent is for a command that is detached and yet has a terminal, whose output nobody
// reads.
func silent(string) (cio.IO, error) {
	return logged{cio.Config{Terminal: true, Stdout: os.DevNull}}, nil
}

// inputOf is what a command in a container reads. Without any it gets an end of input: a
// shim gives it the host's /dev/null otherwise, and no runtime changes that.
func inputOf(in control.ExecOptions) io.Reader {
	switch {
	case in.Interactive, in.Terminal && atTerminal():
		return os.Stdin
	case in.Terminal:
		return nil
	}
	return strings.NewReader("")
}

// unheard is for a command that is detached, which gets pipes for the same reason: the
// shim reads what it writes, and writes that to the host's null. gone is called when the
// shim has them.
func unheard(pipes string) (s *stdio, gone func(), err error) {
	if err := makePipes(pipes); err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp(pipes, "unheard")
	if err != nil {
		return nil, nil, fmt.Errorf("make directory for pipes: %w", err)
	}
	gone = func() { _ = os.RemoveAll(dir) } // it goes with its task otherwise
	const nowhere = "file://" + os.DevNull
	cfg := cio.Config{Stdin: filepath.Join(dir, "stdin"), Stdout: nowhere, Stderr: nowhere}
	if err := unix.Mkfifo(cfg.Stdin, 0o600); err != nil {
		gone()
		return nil, nil, fmt.Errorf("make a pipe for standard input: %w", err)
	}
	return &stdio{creator: func(string) (cio.IO, error) { return logged{cfg}, nil }, unheard: true}, gone, nil
}

// logURI has the shim start a program that reads the task's output.
func (l *launch) logURI() string {
	u := url.URL{Scheme: "binary", Path: l.Logger, RawQuery: url.Values{
		"data": {l.store.Data}, "state": {l.store.State}, "id": {l.rec.ID},
		"program": {l.Self}, "address": {l.Address}, "config": {berth.ConfigPath},
	}.Encode()}
	return u.String()
}

// logged is the output of a task that a program of the shim's reads: nothing of it comes
// here.
type logged struct{ cfg cio.Config }

func (l logged) Config() cio.Config { return l.cfg }
func (l logged) Cancel()            {}
func (l logged) Wait()              {}
func (l logged) Close() error       { return nil }

// input tells when it has come to its end.
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

// attach gives a process that has begun the terminal, and the end of its input when it
// comes.
func (s *stdio) attach(ctx context.Context, p client.Process) {
	if s.input != nil {
		go func() {
			<-s.input.ended
			_ = p.CloseIO(ctx, client.WithStdinCloser) // it may have ended itself
		}()
	}
	if s.terminal && s.input != nil {
		s.raw, _ = term.MakeRaw(int(os.Stdin.Fd())) // one that can't be is as it is
	}
	s.resize(ctx, p)
}

// resize gives the process's terminal the size of ours.
func (s *stdio) resize(ctx context.Context, p client.Process) {
	if !s.terminal {
		return
	}
	seen := os.Stdin
	if s.input == nil { // nobody types, and it is seen there
		seen = os.Stdout
	}
	if width, height, err := term.GetSize(int(seen.Fd())); err == nil {
		_ = p.Resize(ctx, uint32(width), uint32(height)) // it may have ended meanwhile
	}
}

// restore puts the terminal back.
func (s *stdio) restore() {
	if s.raw != nil {
		_ = term.Restore(int(os.Stdin.Fd()), s.raw) // it may be gone by now
		s.raw = nil
	}
}
