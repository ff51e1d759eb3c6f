package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/supervise"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// execDir holds what a runtime needs for one command. Its lock says that somebody
// needs it still; the next command removes what was left behind.
type execDir struct {
	path string
	lock *os.File
}

func newExecDir(state string) (execDir, error) {
	all := filepath.Join(state, "exec")
	if err := os.MkdirAll(all, 0o700); err != nil {
		return execDir{}, fmt.Errorf("make directory for the command: %w", err)
	}
	gate, err := lock.Open(context.Background(), all, lock.Exclusive)
	if err != nil {
		return execDir{}, err
	}
	defer gate.Close() // nothing was written
	entries, err := os.ReadDir(all)
	if err != nil {
		return execDir{}, fmt.Errorf("make directory for the command: %w", err)
	}
	for _, e := range entries {
		old := filepath.Join(all, e.Name())
		held, busy := lock.TryOpen(old, lock.Exclusive)
		if busy != nil {
			continue
		}
		if err := errors.Join(os.RemoveAll(old), held.Close()); err != nil {
			return execDir{}, err
		}
	}
	d := execDir{path: filepath.Join(all, newID())}
	if err := os.Mkdir(d.path, 0o700); err != nil {
		return execDir{}, fmt.Errorf("make directory for the command: %w", err)
	}
	d.lock, err = lock.Open(context.Background(), d.path, lock.Exclusive)
	return d, err
}

func (d execDir) in(name string) string { return filepath.Join(d.path, name) }

func (d execDir) write(p *specs.Process) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("describe the command: %w", err)
	}
	if err := os.WriteFile(d.in("process.json"), data, 0o600); err != nil {
		return fmt.Errorf("describe the command: %w", err)
	}
	return nil
}

func (d execDir) remove() error { return errors.Join(os.RemoveAll(d.path), d.lock.Close()) }

// streams are what the command reads and writes.
func (in Inside) streams() supervise.Streams {
	return supervise.Streams{
		Stdin: in.Stdin, Stdout: in.Stdout, Stderr: in.Stderr,
		Terminal: in.Terminal, Interactive: !in.Detach && (in.Interactive || in.Terminal && supervise.IsTerminal(in.Stdin)),
	}
}

// run runs the command that the directory describes, to its end unless it is detached.
func (in Inside) run(ctx context.Context, s *supervise.Signals, t tasks.Task, dir execDir, null supervise.Null) (int, error) {
	c := supervise.Command{
		Streams: in.streams(), Null: null,
		Runtime: ociruntime.Runtime{Path: t.Runtime, Root: t.RuntimeRoot, Log: dir.in("log")},
		Args:    []string{"exec", "--process", dir.in("process.json"), "--pid-file", dir.in("pid")},
		ID:      t.ID, PIDFile: dir.in("pid"), Cgroup: t.Cgroup, Dir: dir.path, Detached: in.Detach,
	}
	if in.Detach && !in.Terminal {
		c.Args = append(c.Args, "--detach")
	}
	program := ociruntime.Seal(t.Runtime)
	defer program.Close()
	if err := c.Start(ctx, s, program, (*exec.Cmd).Start); err != nil {
		return 0, errors.Join(err, c.Drain(s, true))
	}
	if in.Detach && in.Terminal {
		return c.Leave(ctx, s)
	}
	r, err := c.Wait(ctx, s, supervise.Terms{StopSignal: unix.SIGKILL})
	// Processes that the command has left may hold its outputs.
	if lost := c.Drain(s, false); lost != nil {
		return 0, lost
	}
	return r.Code, err
}
