package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a relay. What is over them is dropped; who asks asks again.
const (
	mostQueries     = 64
	mostConnections = 16
	longestMessage  = 8 << 10 // of a query, and of an answer by UDP; longer ones come by TCP
	longestStream   = 1 << 20
	answerTime      = 2 * time.Second // for each server
	streamTime      = 20 * time.Second
	headerSize      = 12 // of a DNS message (RFC 1035, 4.1.1)
)

// Relay passes DNS queries on that come to port 53 of an address of the host, which is a
// gang's gateway, to servers of the host that the gang doesn't reach: the first that
// answers, in their order. It takes queries from the gang's interface alone, by UDP and
// TCP, and runs until ctx ends; then it returns nil, and what is under way ends within
// seconds. The whole process is in the host's
// network namespace.
//
// It reads of messages only what it needs to know an answer by. A host whose own
// resolver listens on all addresses leaves no room for it; the error Is unix.EADDRINUSE,
// and there is no need for it.
func Relay(ctx context.Context, listen netip.Addr, upstream ...netip.Addr) error {
	if err := relayed(ctx, listen, upstream); err != nil {
		return fmt.Errorf("relay names at %s: %w", listen, err)
	}
	return nil
}

func relayed(ctx context.Context, listen netip.Addr, upstream []netip.Addr) error {
	if len(upstream) == 0 {
		return errors.New("there is no server to ask")
	}
	device, err := deviceOf(listen)
	if err != nil {
		return err
	}
	queries, err := bound(unix.SOCK_DGRAM, device, listen)
	if err != nil {
		return err
	}
	defer queries.Close()
	streams, err := bound(unix.SOCK_STREAM, device, listen)
	if err != nil {
		return err
	}
	defer streams.Close()
	r := &relay{upstream: upstream, queries: queries, streams: streams}
	stop := context.AfterFunc(ctx, r.close)
	defer stop()
	failed := make(chan error, 2)
	go func() { failed <- r.serveQueries() }()
	go func() { failed <- r.serveStreams() }()
	err = <-failed
	r.close()
	err = errors.Join(err, <-failed)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// deviceOf is the interface that has the address.
func deviceOf(a netip.Addr) (string, error) {
	kernel, err := openRoutes()
	if err != nil {
		return "", err
	}
	defer kernel.Close()
	host, err := readHostNetwork(kernel)
	if err != nil {
		return "", err
	}
	for _, owned := range host.addresses {
		if l := host.link(owned.LinkIndex); l != nil && prefixOf(owned.IPNet).Addr() == a {
			return l.Attrs().Name, nil
		}
	}
	return "", errors.New("no interface has this address")
}

type relay struct {
	upstream         []netip.Addr
	queries, streams *os.File
}

func (r *relay) close() {
	_ = r.queries.Close() // a second time, perhaps
	_ = r.streams.Close()
}

// serveQueries takes queries by UDP until the socket is closed.
func (r *relay) serveQueries() error {
	raw, err := r.queries.SyscallConn()
	if err != nil {
		return err
	}
	room := make(chan struct{}, mostQueries)
	buf := make([]byte, longestMessage)
	for {
		var n int
		var from unix.Sockaddr
		err := raw.Read(func(fd uintptr) bool {
			n, from, err = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(err, unix.EAGAIN)
		})
		if err != nil {
			return err // it is closed
		}
		if n < headerSize || from == nil {
			continue
		}
		select {
		case room <- struct{}{}:
		default:
			continue
		}
		query := append([]byte(nil), buf[:n]...)
		go func() {
			defer func() { <-room }()
			answer := r.answer(query)
			_ = raw.Control(func(fd uintptr) { _ = unix.Sendto(int(fd), answer, unix.MSG_DONTWAIT, from) }) // as a lost packet
		}()
	}
}

// answer asks the servers, one after another.
func (r *relay) answer(query []byte) []byte {
	for _, server := range r.upstream {
		if answer, err := ask53(server, query); err == nil {
			return answer
		}
	}
	return refused(query)
}

// Bits of the third and fourth byte of a message.
const (
	isAnswer      = 1 << 7
	isTruncated   = 1 << 1
	serverFailure = 2
)

// refused tells whoever asked that no server has answered.
func refused(query []byte) []byte {
	answer := append([]byte(nil), query...)
	answer[2] |= isAnswer
	answer[3] = answer[3]&^0xf | serverFailure
	return answer
}

// truncated tells whoever asked to ask by TCP.
func truncated(query []byte) []byte {
	answer := append([]byte(nil), query...)
	answer[2] |= isAnswer | isTruncated
	return answer
}

// ask53 asks one server. Each query has a port of its own, so what comes from the server
// and has the query's number is its answer.
func ask53(server netip.Addr, query []byte) ([]byte, error) {
	f, err := connected(unix.SOCK_DGRAM, server)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return nil, err
	}
	if _, err := f.Write(query); err != nil {
		return nil, err
	}
	buf := make([]byte, longestMessage+1)
	for {
		n, err := f.Read(buf)
		switch {
		case err != nil:
			return nil, err
		case n < headerSize || buf[0] != query[0] || buf[1] != query[1] || buf[2]&isAnswer == 0:
		case n > longestMessage:
			return truncated(query), nil
		default:
			return buf[:n], nil
		}
	}
}

// serveStreams takes connections until the socket is closed.
func (r *relay) serveStreams() error {
	raw, err := r.streams.SyscallConn()
	if err != nil {
		return err
	}
	room := make(chan struct{}, mostConnections)
	for {
		var fd int
		var acceptErr error
		err := raw.Read(func(listener uintptr) bool {
			fd, _, acceptErr = unix.Accept4(int(listener), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return !errors.Is(acceptErr, unix.EAGAIN)
		})
		if err != nil {
			return err // it is closed
		}
		if acceptErr != nil {
			time.Sleep(10 * time.Millisecond) // no descriptor is left, perhaps
			continue
		}
		client := os.NewFile(uintptr(fd), "client")
		select {
		case room <- struct{}{}:
			go func() {
				defer func() { <-room }()
				r.stream(client)
			}()
		default:
			client.Close()
		}
	}
}

// stream copies both ways between a client and the first server that takes the
// connection, for a limited time.
func (r *relay) stream(client *os.File) {
	defer client.Close()
	for _, address := range r.upstream {
		server, err := connected(unix.SOCK_STREAM, address)
		if err != nil {
			continue
		}
		defer server.Close()
		end := time.Now().Add(streamTime)
		if client.SetDeadline(end) != nil || server.SetDeadline(end) != nil {
			return
		}
		done := make(chan struct{})
		go func() {
			pass(server, client)
			close(done)
		}()
		pass(client, server)
		<-done
		return
	}
}

// pass copies up to the end of one direction, and says so to the other side.
func pass(to, from *os.File) {
	_, _ = io.Copy(struct{ io.Writer }{to}, io.LimitReader(from, longestStream)) // either side may go
	if raw, err := to.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}
