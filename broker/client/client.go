// Package client asks berth-broker for leases. A caller needs no rights of its own: the broker takes its
// user and its process from the kernel.
package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// ErrNoBroker means that no broker listens at the socket.
var ErrNoBroker = errors.New("no broker answers")

// ErrLost means that the broker ended before it had answered. It may have done what was asked.
var ErrLost = errors.New("the broker ended before it answered")

// Client speaks with the broker at a socket. It is safe for concurrent use.
type Client struct {
	Socket string
	// Connect connects to the broker for a process that the broker wouldn't answer itself. The process that connects is
	// the caller. nil connects to Socket.
	Connect func(ctx context.Context) (net.Conn, error)
}

// New returns a client of the broker of a state directory.
func New(state string) Client { return Client{Socket: protocol.SocketPath(state)} }

// restartTime is how long Acquire waits for another broker after one was killed, and maxLosses how many that are killed one
// after the other it asks: the request itself could be what ends them.
const (
	restartTime = 5 * time.Second
	maxLosses   = 50
)

// Acquire takes a lease for the calling process, which is in the lease's cgroup afterwards: threads and
// children that it starts later, too. waiting, which may be nil, is called when the request has to wait,
// and when what it waits for changes. If the broker is killed, Acquire asks the next one, and the request keeps
// its place in the queue. The errors are those of [berth.Node.Acquire], ErrNoBroker, ErrLost, and *protocol.Error.
func (c Client) Acquire(ctx context.Context, a protocol.Acquire, waiting func(ledger.BusyError)) (granted protocol.Granted, err error) {
	return c.askForLease(ctx, a.WaitSeconds, func(wait float64) protocol.Request {
		a.WaitSeconds = wait
		return protocol.Request{Acquire: &a}
	}, waiting)
}

// Adopt is Acquire for a running process of the caller's user.
func (c Client) Adopt(ctx context.Context, a protocol.Adopt, waiting func(ledger.BusyError)) (granted protocol.Granted, err error) {
	return c.askForLease(ctx, a.WaitSeconds, func(wait float64) protocol.Request {
		a.WaitSeconds = wait
		return protocol.Request{Adopt: &a}
	}, waiting)
}

// askForLease sends the request that ask returns, until a broker has answered it. wait is how many seconds the request waits
// altogether; ask gets what is left of it.
func (c Client) askForLease(ctx context.Context, wait float64, ask func(wait float64) protocol.Request, waiting func(ledger.BusyError)) (granted protocol.Granted, err error) {
	started, lost, losses := time.Now(), time.Time{}, 0
	for {
		left := wait
		if left > 0 {
			left = max(left-time.Since(started).Seconds(), 0.001)
		}
		err := c.exchange(ctx, ask(left), func(r protocol.Reply) bool {
			switch {
			case r.Waiting != nil:
				lost, losses = time.Time{}, 0
				if waiting != nil {
					waiting(r.Waiting.Err())
				}
				return false
			case r.Granted != nil:
				granted = *r.Granted
			}
			return true
		})
		switch {
		case errors.Is(err, ErrLost) && losses < maxLosses:
			lost = time.Now()
			losses++
		case !lost.IsZero() && errors.Is(err, ErrNoBroker) && time.Since(lost) < restartTime:
		default:
			return granted, err
		}
		select {
		case <-ctx.Done():
			return granted, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Release ends a lease of this user's. If processes of it run, they are killed with force; without it
// the error Is ledger.ErrLive.
func (c Client) Release(ctx context.Context, lease string, force bool) error {
	return c.exchange(ctx, protocol.Request{Release: &protocol.Release{Lease: lease, Force: force}}, func(protocol.Reply) bool { return true })
}

// Place moves the calling process, or its descendant, into a cgroup without a lease, and returns its path. See [protocol.Cgroup].
func (c Client) Place(ctx context.Context, r protocol.Cgroup) (group string, err error) {
	err = c.exchange(ctx, protocol.Request{Cgroup: &r}, func(r protocol.Reply) bool {
		if r.Placed != nil {
			group = r.Placed.Cgroup
		}
		return true
	})
	return group, err
}

// View returns the leases and the queue, of others as far as the admin shows them.
func (c Client) View(ctx context.Context) (view ledger.View, err error) {
	err = c.exchange(ctx, protocol.Request{List: &protocol.List{}}, func(r protocol.Reply) bool {
		if r.View != nil {
			view = *r.View
		}
		return true
	})
	return view, err
}

// exchange sends a request, and passes the replies to receive until that is true. An error of the broker's is returned.
func (c Client) exchange(ctx context.Context, r protocol.Request, receive func(protocol.Reply) bool) error {
	conn, err := c.dialBroker(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w at %s", ErrNoBroker, c.Socket)
	case err != nil:
		return fmt.Errorf("ask the broker: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(0, 1)) }) // ends reads and writes
	defer stop()
	// A broker that refuses the connection has written its reply before it reads, so an error of the write may be followed by it.
	r.Version = protocol.Version
	sent := protocol.WriteLine(conn, r)
	for from := bufio.NewReader(conn); ; {
		reply, err := readReply(from)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("ask the broker: %w", ctx.Err())
		case isLost(err):
			return fmt.Errorf("ask the broker at %s: %w", c.Socket, ErrLost)
		case err != nil:
			return fmt.Errorf("ask the broker: %w", errors.Join(err, sent))
		case reply.Error != nil:
			return reply.Error
		case receive(reply):
			return nil
		}
	}
}

func (c Client) dialBroker(ctx context.Context) (net.Conn, error) {
	if c.Connect != nil {
		return c.Connect(ctx)
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", c.Socket)
}

func isLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET)
}

func readReply(from *bufio.Reader) (r protocol.Reply, err error) {
	line, err := protocol.ReadLine(from, protocol.MaxReply)
	if err != nil {
		return r, err
	}
	return protocol.ParseReply(line)
}
