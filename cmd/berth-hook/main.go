// Command berth-hook is berth's OCI hook: "berth-hook poststop", with the
// container's state on standard input. Package hook says what it does.
//
// It works from / and hands no environment on: a runtime may have started it with
// the image's.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/hook"
	"github.com/berth-gpu/berth/isolation/ledger"
)

const usage = "usage: berth-hook [--config FILE] poststop <STATE.json"

func main() {
	os.Clearenv()
	err := os.Chdir("/")
	if err == nil {
		err = run(context.Background(), os.Args[min(1, len(os.Args)):], os.Stdin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-hook:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, state io.Reader) error {
	path := berth.ConfigPath
	if len(args) >= 2 && args[0] == "--config" {
		path, args = args[1], args[2:]
	}
	switch {
	case len(args) != 1:
		return errors.New(usage)
	case args[0] != "poststop":
		return fmt.Errorf("unknown stage %q: %s", args[0], usage)
	}
	c, err := berth.LoadConfig(path)
	if err != nil {
		return err
	}
	return hook.Poststop(ctx, state, leases{ledger.Open(ledger.Options{
		Dir: c.State, Events: c.Data, Proc: c.Host.Proc, Cgroup: c.Host.Cgroup,
	})})
}

// leases is the ledger for the hook.
type leases struct{ *ledger.Ledger }

// Leases implements hook.Leases.
func (l leases) Leases() ([]ledger.Status, error) {
	view, err := l.View()
	return view.Leases, err
}
