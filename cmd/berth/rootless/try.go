package rootless

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/userns"
)

// nobody is a user and a group without any right. Source: the uid and gid of nobody and nogroup in all distributions.
const nobody = 65534

// tryVerb is the hidden verb of [TryCommand].
const tryVerb = "try-user-namespace"

// Try makes a user namespace as an ordinary user's process does, in a child that ends at once, and returns why that is refused. The
// refusal is empty if it isn't. If this process is root, the user is nobody. proc is the directory where procfs is mounted.
func Try(ctx context.Context, proc string) (r userns.Refusal, err error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", tryVerb, proc)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		cmd.Dir = "/"
		out, err := cmd.Output()
		if errors.Is(err, unix.EACCES) {
			return r, fmt.Errorf("ordinary users can't execute %s", programPath())
		}
		return decodeRefusal(out, err)
	}
	userns.Enter(cmd)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		if r, ok := userns.Explain(proc, programPath(), err); ok {
			return r, nil
		}
	}
	return decodeRefusal(out, err)
}

// decodeRefusal returns what a child has printed.
func decodeRefusal(out []byte, err error) (r userns.Refusal, _ error) {
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		return r, fmt.Errorf("try to make a user namespace: %w", err)
	}
	return r, nil
}

// TryCommand is a child of [Try]: in the user namespace it tries what needs its rights, and outside it makes one.
func TryCommand() *cli.Command {
	return &cli.Command{
		Name:   tryVerb,
		Hidden: true,
		Action: func(c *cli.Context) (err error) {
			proc, r := c.Args().First(), userns.Refusal{}
			if os.Geteuid() != 0 {
				if r, err = Try(c.Context, proc); err != nil {
					return err
				}
			} else if err := userns.CheckRights(); err != nil {
				r, _ = userns.Explain(proc, programPath(), err) // it knows all errors of CheckRights
			}
			return output.PrintJSON(os.Stdout, r)
		},
	}
}

// programPath returns the path of this program, "berth" if it is unknown.
func programPath() string {
	if self, err := os.Executable(); err == nil {
		return self
	}
	return "berth"
}

// ExplainRefusal returns an error that says why a user namespace could not be made, and what root does about it; nil if err has another cause.
func ExplainRefusal(conf berth.Config, err error) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return explainRefusal(conf.GPUHost().ProcPath(), err)
}

// explainRefusal returns an error that says why users can't make user namespaces, or have no rights in them, and what root does
// about it; nil if err is nil or has another cause. proc is where procfs is mounted.
func explainRefusal(proc string, err error) error {
	r, ok := userns.Explain(proc, programPath(), err)
	if !ok {
		return nil
	}
	// The cause isn't wrapped: more rights for this process are no advice.
	return verb.WithBerthCode(fmt.Errorf("users of this machine can't make user namespaces, which tasks without root need: %s; fix: %s", r.Reason, r.Fix))
}
