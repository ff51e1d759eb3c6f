// Package server is the body of berth-broker, which takes and ends leases for users without root.
//
// It keeps no state of its own that a later broker would need: leases and queue are in the ledger, and the proof that a lease's holder
// lives is a cgroup of root's. It may be killed at any moment. A lease that was granted and not
// reported yet is the caller's: the next request of the same process gets it.
//
// What it defends: a user gets no lease, no place in a cgroup and no knowledge that the same commands
// would not give, and can't keep others from being served. So every user has a limit of connections and of
// waiting requests, every read and write a deadline, and every message a limit of its length.
package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/isolation/hostprocess"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Limits on the connections and the waiting requests of one user, on the connections of all, and on the
// time for one message.
const (
	maxConnections = 64
	maxWaiting     = 32
	maxAll         = 1024
	messageTimeout = 5 * time.Second
)

// Limits on what one user puts into the ledger, whose size is limited: the leases that hold nothing but NICs, of which there
// may be any number as long as NICs are shared, and the length of a request in bytes.
const (
	maxNICLeases = 32
	maxRequest   = 2048
)

// maxPlaced limits the cgroups without a lease of one user.
const maxPlaced = 1000

// Server answers requests. Its methods may be called at once.
type Server struct {
	node *berth.Node
	show string // policy.show
	log  *slog.Logger
	// unusable is why every connection is refused, nil if none is.
	unusable error

	mu          sync.Mutex // of what follows
	all         int        // connections
	connections map[int]int
	waiting     map[int]int
	placed      map[int]int             // cgroups without a lease
	asking      map[ledger.Process]bool // processes for which a lease is being taken
	watched     map[string]bool         // cgroups whose end is awaited
}

// New returns a server for the machine that the configuration describes.
func New(c berth.Config, log *slog.Logger) (*Server, error) {
	node, err := berth.Open(c)
	if err != nil {
		return nil, err
	}
	return &Server{
		node: node, show: c.Policy.Show, log: log,
		connections: map[int]int{}, waiting: map[int]int{}, placed: map[int]int{}, asking: map[ledger.Process]bool{}, watched: map[string]bool{},
	}, nil
}

// Refuse returns a server that answers every connection with an error.
func Refuse(why error, log *slog.Logger) *Server { return &Server{unusable: why, log: log} }

// Serve answers the connections of a listener until it is closed.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	s.watchLeases()
	for {
		conn, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil: // too many open files: some will be closed
			s.log.Warn("accept", "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		refusal := s.unusable
		if refusal == nil && !s.enter(&s.all, maxAll) {
			refusal = protocol.Errorf(protocol.CodeLimit, "the broker has %d connections, the most that are allowed", maxAll)
		}
		if refusal != nil {
			// It fits into the socket's buffer, and doesn't wait for the caller.
			_ = sendReply(conn, protocol.Reply{Error: errorMessage(refusal)})
			_ = conn.Close()
			continue
		}
		go func() {
			defer s.leave(&s.all)
			defer func() { _ = conn.Close() }() // replies were sent
			if err := s.answer(ctx, conn); err != nil {
				s.log.Info("connection", "error", err)
			}
		}()
	}
}

// enter counts one more unless there are limit already.
func (s *Server) enter(count *int, limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *count >= limit {
		return false
	}
	*count++
	return true
}

func (s *Server) leave(count *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*count--
}

// enterOf is enter for a count of one user, and returns the function that leaves.
func (s *Server) enterOf(counts map[int]int, uid, limit int) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if counts[uid] >= limit {
		return nil, false
	}
	counts[uid]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if counts[uid]--; counts[uid] == 0 {
			delete(counts, uid)
		}
	}, true
}

// answer reads the request of a connection and answers it. Its error is one of the connection; errors
// of the request are sent.
func (s *Server) answer(ctx context.Context, conn *net.UnixConn) error {
	c, err := identifyCaller(conn)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := s.node.ProcessHost().CheckNamespaceOwner(c.Process); err != nil {
		return sendReply(conn, protocol.Reply{Error: errorMessage(err)})
	}
	leave, ok := s.enterOf(s.connections, c.UID, maxConnections)
	if !ok {
		return sendReply(conn, protocol.Reply{Error: errorMessage(protocol.Errorf(protocol.CodeLimit, "user %d has %d connections to the broker, the most that are allowed", c.UID, maxConnections))})
	}
	defer leave()
	if err := conn.SetReadDeadline(time.Now().Add(messageTimeout)); err != nil {
		return err
	}
	from := bufio.NewReader(conn)
	line, err := protocol.ReadLine(from, protocol.MaxRequest)
	var r protocol.Request
	switch {
	case errors.Is(err, protocol.ErrTooLong):
		err = protocol.Errorf(protocol.CodeMessage, "the request has more than %d bytes", protocol.MaxRequest)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil // the caller is gone
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = protocol.Errorf(protocol.CodeMessage, "no whole request came within %v", messageTimeout)
	case err == nil:
		r, err = protocol.ParseRequest(line)
	}
	if err == nil && r.List == nil { // a process in a user namespace may only ask
		err = s.node.ProcessHost().CheckUserNamespace(c.Process)
	}
	var reply protocol.Reply
	if err == nil {
		limited, hungUp := watchConnection(ctx, conn, from)
		reply, err = s.serveRequest(limited, c, r)
		hungUp(nil)
	}
	if err != nil {
		reply = protocol.Reply{Error: errorMessage(err)}
	}
	err = sendReply(conn, reply)
	if err != nil && reply.Granted != nil {
		return errors.Join(err, s.node.WithdrawLease(context.WithoutCancel(ctx), reply.Granted.Lease))
	}
	return err
}

// errHungUp ends a request whose connection was closed.
var errHungUp = errors.New("the caller has closed the connection")

// watchConnection returns a context that ends when the connection is closed, or when the caller sends
// more than its request.
func watchConnection(ctx context.Context, conn *net.UnixConn, from io.Reader) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	_ = conn.SetReadDeadline(time.Time{}) // a connection that is closed fails at the read
	go func() {
		var more [1]byte
		if n, _ := from.Read(more[:]); n > 0 {
			cancel(protocol.Errorf(protocol.CodeMessage, "a connection carries one request"))
		}
		cancel(errHungUp)
	}()
	return ctx, cancel
}

func (s *Server) serveRequest(ctx context.Context, c *caller, r protocol.Request) (reply protocol.Reply, err error) {
	switch {
	case r.Acquire != nil:
		reply.Granted, err = s.acquire(ctx, c, *r.Acquire)
	case r.Adopt != nil:
		reply.Granted, err = s.adopt(ctx, c, *r.Adopt)
	case r.Cgroup != nil:
		reply.Placed, err = s.placeProcess(ctx, c, *r.Cgroup)
	case r.Release != nil:
		reply.Released, err = &protocol.Released{}, s.releaseLease(ctx, c.UID, *r.Release)
	default:
		view, verr := s.node.View()
		view = s.newViewer(c.UID).hideOthers(view)
		reply.View, err = &view, verr
	}
	var sent *protocol.Error
	if err != nil && errors.As(context.Cause(ctx), &sent) {
		err = sent
	}
	return reply, hideLost(err, s.show)
}

// sendReply writes a message within messageTimeout.
func sendReply(conn *net.UnixConn, r protocol.Reply) error {
	r.Version = protocol.Version
	if err := conn.SetWriteDeadline(time.Now().Add(messageTimeout)); err != nil {
		return err
	}
	return protocol.WriteLine(conn, r)
}

// errorMessage returns the message for an error, on one line.
func errorMessage(err error) *protocol.Error {
	m := &protocol.Error{Code: protocol.CodeOf(err), Message: strings.Join(strings.Fields(err.Error()), " ")}
	switch {
	case errors.Is(err, berth.ErrForbidden):
		m.Code = protocol.CodeForbidden
	case errors.Is(err, hostprocess.ErrRefused), errors.Is(err, berth.ErrTooDeep):
		m.Code = protocol.CodeCaller
	}
	var busy *ledger.BusyError
	if errors.As(err, &busy) {
		b := protocol.NewBusy(*busy)
		m.Busy = &b
	}
	return m
}
