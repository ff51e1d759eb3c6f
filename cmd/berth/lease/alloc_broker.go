package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu/request"
)

// holdBrokersLease is holdLease for a user without root. A child asks the broker for the lease, because the
// broker moves the process that asks into the lease's cgroup, and then becomes the command.
func holdBrokersLease(c *cli.Context, node *berth.Node, wanted request.Request, name, command string, argv []string) error {
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	defer from.Close()
	seconds := waiting.Limit(c).Seconds()
	runErr := verb.RunSelf(c.Context, exec.Cmd{
		Args: append([]string{"berth", "hold", conf.State, strconv.FormatFloat(seconds, 'f', -1, 64), wanted.String(), name, command}, argv...),
		Env:  os.Environ(), ExtraFiles: []*os.File{to},
	}, unix.SIGKILL)
	var lease heldLease
	if err := errors.Join(to.Close(), json.NewDecoder(from).Decode(&lease)); err != nil {
		return runErr // the child had no lease, and has printed why
	}
	return errors.Join(runErr, backend.EndLease(c.Context, node, lease.ID, lease.Cgroup, lease.Devices))
}

// heldLease is what the child tells its parent of the lease, by a pipe. It is shorter than the pipe's buffer.
type heldLease struct {
	ID, Cgroup, Devices string
}

// heldLeasePipe is the child's file descriptor of the pipe.
const heldLeasePipe = 3

// HoldCommand is the hidden verb that berth alloc starts for a user without root: it takes the lease from
// the broker, which moves it into the lease's cgroup, and execs the command.
func HoldCommand() *cli.Command {
	return &cli.Command{
		Name: "hold", Hidden: true, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			a := c.Args().Slice()
			if len(a) < 6 {
				return verb.UsageError{Err: errors.New("only berth alloc starts berth hold")}
			}
			unix.CloseOnExec(heldLeasePipe)
			seconds, err := strconv.ParseFloat(a[1], 64)
			if err != nil {
				return verb.UsageError{Err: err}
			}
			granted, err := client.New(a[0]).Acquire(c.Context, protocol.Acquire{
				Request: a[2], WaitSeconds: seconds, Name: a[3], Command: shortenCommand(strings.Join(a[5:], " ")),
			}, waiting.NewWaitPrinter(time.Now()))
			if err != nil {
				return verb.WithBerthCode(verb.NameRequest(backend.AdviseBroker(err)))
			}
			for _, remark := range granted.Remarks {
				verb.PrintError(remark)
			}
			l := granted.Lease
			pipe := os.NewFile(heldLeasePipe, "pipe")
			if err := tellLease(pipe, heldLease{l.ID, l.Owner.Cgroup, output.JoinIndexes(l.Devices)}); err != nil {
				return verb.WithCode(verb.ExitBerth, err)
			}
			for _, variable := range granted.Environment {
				name, value, _ := strings.Cut(variable, "=")
				if err := os.Setenv(name, value); err != nil { // replaces one of an outer lease
					return verb.WithCode(verb.ExitBerth, err)
				}
			}
			return becomeCommand(c, a[4], a[5:], os.Environ())
		},
	}
}

func tellLease(to io.WriteCloser, l heldLease) error {
	if err := errors.Join(json.NewEncoder(to).Encode(l), to.Close()); err != nil {
		return fmt.Errorf("report lease %s: %w", l.ID, err)
	}
	return nil
}

// shortenCommand returns the beginning of a command line that is only shown.
func shortenCommand(text string) string { return text[:min(len(text), 1000)] }
