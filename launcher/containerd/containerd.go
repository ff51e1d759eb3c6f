// Package containerd runs tasks on containerd, with the same options and records as package launcher.
//
// The containers are in a containerd namespace of their own. Their OCI runtime is berth-runtime, which
// gets the request as an annotation and takes the lease from the same ledger. Images and snapshots are
// containerd's. What containerd doesn't store is in a task's directory, as for package launcher:
//
//	DATA/containerd/SOCKET/tasks/ID/   task.json, exit.json, stopped (package tasks), its
//	                                   /etc/hosts and the like, and the log of a detached one
//	DATA/containerd/SOCKET/names/NAME  a link to the id of the task that has the name
//
// containerd is asked each time whether a task runs. A directory without a container was left by a
// client that was killed; the next run removes it.
//
// The package neither starts nor configures containerd. Networks are the host's or none.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Namespace holds berth's containers and images.
const Namespace = "berth"

// Options of Connect.
type Options struct {
	Address string // "" means engine.Address
	Config  berth.Config
	Access  registry.Access
	// Runtime, Logger and Self are the paths of berth-runtime, berth-monitor and the calling program.
	Runtime, Logger, Self string
}

// Engine is a connection to containerd.
type Engine struct {
	Options
	c     *client.Client
	store tasks.Store
}

// answerTimeout is how long containerd may take to answer.
const answerTimeout = 10 * time.Second

// Connect connects to containerd.
func Connect(ctx context.Context, o Options) (*Engine, error) {
	if o.Address == "" {
		o.Address = engine.Address
	}
	if err := checkSocket(ctx, o.Address); err != nil {
		return nil, err
	}
	c, err := client.New(o.Address, client.WithDefaultNamespace(Namespace), client.WithTimeout(answerTimeout))
	if err != nil {
		return nil, fmt.Errorf("connect with containerd at %s: %w", o.Address, simplifyError(err))
	}
	return &Engine{Options: o, c: c, store: engine.Store(tasks.Store{Data: o.Config.Data, State: o.Config.State, Proc: o.Config.Host.Proc}, o.Address)}, nil
}

// checkSocket returns an error if no containerd listens at the address. containerd's client would try
// for ten seconds and return a long message.
func checkSocket(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: answerTimeout}).DialContext(ctx, "unix", address)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no containerd: there is no socket %s", address)
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("no containerd: nothing listens at %s", address)
	case err != nil:
		return fmt.Errorf("connect with containerd at %s: %w", address, errors.Unwrap(err))
	}
	return conn.Close()
}

// Close closes the connection.
func (e *Engine) Close() error { return e.c.Close() }

// simplifyError removes the prefixes and suffixes that containerd's client and gRPC add to an error.
func simplifyError(err error) error {
	if err == nil {
		return nil
	}
	if strings.HasPrefix(err.Error(), "rpc error: ") {
		err = errgrpc.ToNative(err)
	}
	text := err.Error()
	if _, after, ok := strings.Cut(text, "OCI runtime create failed: "); ok {
		text = after
	}
	if _, after, ok := strings.Cut(text, "OCI runtime start failed: "); ok {
		text = after
	}
	for _, end := range []string{": unknown", ": unavailable", ": failed precondition", ": invalid argument"} {
		text = strings.TrimSuffix(text, end)
	}
	if text == err.Error() {
		return err
	}
	return rewordedError{text, err}
}

// rewordedError is an error with another text.
type rewordedError struct {
	text string
	err  error
}

func (s rewordedError) Error() string { return s.text }

func (s rewordedError) Unwrap() error { return s.err }

// withNamespace returns a context for requests in Namespace.
func withNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, Namespace)
}

// removeIfExists removes a path. A missing path is not an error.
func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
