// Package backend opens the objects that verbs act on: tasks and images, of berth itself or, with --engine, of
// containerd through berth-containerd; leases by the id or name on the command line; and berth-nvml. It also
// completes the names of tasks, images and leases for shells.
package backend

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
)

// EngineFlags returns the flags that choose the engine of tasks.
func EngineFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "engine", Usage: "have tasks run by `ENGINE`: native (berth itself, the default) or containerd", EnvVars: []string{"BERTH_ENGINE"}},
		&cli.StringFlag{Name: "containerd-address", Usage: "reach containerd at the socket `FILE` (default: /run/containerd/containerd.sock)", EnvVars: []string{"CONTAINERD_ADDRESS"}, TakesFile: true},
	}
}

// Engine is a container engine that berth reaches through a program of its own.
type Engine struct {
	program string
	Request engine.Request // the part that the requests of all verbs have
	file    *os.File       // for engine.FileFD, nil for none
}

// ChooseEngine returns the engine that the command line, the environment or the
// configuration names, nil for berth itself.
func ChooseEngine(c *cli.Context, conf berth.Config) (*Engine, error) {
	switch name := cmp.Or(c.String("engine"), conf.Run.Engine, "native"); name {
	case "native":
		return nil, nil
	case "containerd":
	default:
		return nil, verb.UsageError{Err: fmt.Errorf("--engine %q is not known%s: there are native and containerd", name, spell.Suggestion(name, "native", "containerd"))}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	program, err := control.FindProgram(containerdProgram)
	if err != nil {
		return nil, fmt.Errorf("--engine containerd: %w, or leave out --engine", err)
	}
	return &Engine{program: program, Request: engine.Request{
		Address: cmp.Or(c.String("containerd-address"), conf.Run.ContainerdAddress), Config: c.String("config"), Berth: self, Access: registryAccess(conf, c.App.Version),
	}}, nil
}

// containerdProgram is the program that links containerd's libraries, which slow its start down.
const containerdProgram = "berth-containerd"

// Become replaces this process by the engine's program (exec). It returns only on error.
func (e Engine) Become(req engine.Request) error {
	f, err := req.Write()
	if err != nil {
		return err
	}
	if fd := int(f.Fd()); fd == engine.RequestFD { // dup would leave it close-on-exec
		_, err = unix.FcntlInt(engine.RequestFD, unix.F_SETFD, 0)
	} else {
		err = unix.Dup2(fd, engine.RequestFD)
	}
	if err != nil {
		return fmt.Errorf("tell %s: %w", e.program, err)
	}
	return fmt.Errorf("become %s: %w", e.program, unix.Exec(e.program, []string{filepath.Base(e.program)}, os.Environ()))
}

// Call runs the engine's program as a child with a request, and decodes the reply into value,
// which may be nil.
func (e Engine) Call(ctx context.Context, req engine.Request, value any, progress func(image.Progress)) (err error) {
	f, err := req.Write()
	if err != nil {
		return err
	}
	defer f.Close() // all of it was read
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("call %s: %w", e.program, err)
	}
	defer r.Close() // only read from
	cmd := exec.CommandContext(ctx, e.program)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{f, w} // 3 and 4
	if e.file != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, e.file)
	}
	// The call is cancelled when this process is killed, for the pipe then ends.
	if _, err := cmd.StdinPipe(); err != nil {
		return errors.Join(fmt.Errorf("call %s: %w", e.program, err), w.Close())
	}
	err = errors.Join(cmd.Start(), w.Close())
	if err != nil {
		return fmt.Errorf("call %s: %w", e.program, err)
	}
	data, err := engine.Receive(bufio.NewReader(r), progress)
	if _, e := io.Copy(io.Discard, r); e != nil {
		err = errors.Join(err, e)
	}
	ended := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case ended != nil: // it has crashed or was killed: a reply doesn't count
		return fmt.Errorf("%s ended early: %w", filepath.Base(e.program), ended)
	case len(data) > 0 && value != nil:
		err = errors.Join(err, json.Unmarshal(data, value))
	}
	return err
}

// EngineFailedCommand prints an error of an engine's program with its advice. The engine's
// program replaces itself by it.
func EngineFailedCommand() *cli.Command {
	return &cli.Command{
		Name:   "engine-failed",
		Hidden: true,
		Action: func(c *cli.Context) error {
			var f engine.Failure
			if err := json.NewDecoder(strings.NewReader(c.Args().First())).Decode(&f); err != nil {
				return fmt.Errorf("read an engine's error: %w", err)
			}
			return verb.WithCode(f.Code, &f)
		},
	}
}
