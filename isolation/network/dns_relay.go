package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netdev"
)

// Limits of a relay. Queries and connections beyond them are dropped; resolvers ask again.
const (
	maxQueries     = 64
	maxConnections = 16
	maxMessage     = 8 << 10         // bytes of a query, and of an answer by UDP; longer answers come by TCP
	maxStream      = 1 << 20         // bytes of one direction of a connection
	answerTime     = 2 * time.Second // for each server
	streamTime     = 20 * time.Second
	dnsHeaderSize  = 12 // RFC 1035, 4.1.1
	dnsPort        = 53
)

// RelayDNS passes DNS queries on that come to port 53 of an address of the host, which is a
// gang's gateway, to servers of the host that the gang can't reach: to the first that
// answers, in their order. It accepts queries by UDP and TCP from the interface that has
// the address alone. It runs until ctx ends, then it returns nil, and what is under way
// ends within seconds. The whole process has to be in the host's network namespace.
//
// Of a message it reads the header alone, by which it recognises an answer. That is why it
// needs no DNS library: one would parse, and have to print again without loss, what
// containers write.
//
// If the host's own resolver listens on all addresses, the error Is unix.EADDRINUSE, and
// the relay isn't needed: that resolver answers the gang.
func RelayDNS(ctx context.Context, listen netip.Addr, upstream ...netip.Addr) error {
	if err := runRelay(ctx, listen, upstream); err != nil {
		return fmt.Errorf("relay names at %s: %w", listen, err)
	}
	return nil
}

func runRelay(ctx context.Context, listen netip.Addr, upstream []netip.Addr) error {
	if len(upstream) == 0 {
		return errors.New("there is no server to ask")
	}
	device, err := interfaceWith(listen)
	if err != nil {
		return err
	}
	r := &relay{upstream: upstream}
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error { return bindToDevice(socket, device) }}
	address := netip.AddrPortFrom(listen, dnsPort).String()
	if r.queries, err = config.ListenPacket(ctx, "udp", address); err != nil {
		return err
	}
	defer r.queries.Close()
	if r.streams, err = config.Listen(ctx, "tcp", address); err != nil {
		return err
	}
	defer r.streams.Close()
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

// interfaceWith finds the interface that has an address.
func interfaceWith(a netip.Addr) (string, error) {
	kernel, err := netdev.OpenRoutes()
	if err != nil {
		return "", err
	}
	defer kernel.Close()
	addresses, err := netdev.RetryDump(func() ([]netlink.Addr, error) { return kernel.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return "", fmt.Errorf("list addresses: %w", err)
	}
	for _, owned := range addresses {
		if prefixOf(owned.IPNet).Addr() != a {
			continue
		}
		l, err := kernel.LinkByIndex(owned.LinkIndex)
		if err != nil {
			return "", fmt.Errorf("look for the interface of %s: %w", a, err)
		}
		return l.Attrs().Name, nil
	}
	return "", errors.New("no interface has this address")
}

// bindToDevice restricts a socket to packets from one interface.
func bindToDevice(socket syscall.RawConn, device string) error {
	var err error
	controlErr := socket.Control(func(fd uintptr) {
		if err = unix.BindToDevice(int(fd), device); err != nil {
			err = fmt.Errorf("bind to interface %s: %w", device, err)
			return
		}
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	return errors.Join(err, controlErr)
}

type relay struct {
	upstream []netip.Addr
	queries  net.PacketConn
	streams  net.Listener
}

func (r *relay) close() {
	_ = r.queries.Close() // a second time, perhaps
	_ = r.streams.Close()
}

// serveQueries answers queries by UDP until the socket is closed.
func (r *relay) serveQueries() error {
	slots := make(chan struct{}, maxQueries)
	buf := make([]byte, maxMessage)
	for {
		n, from, err := r.queries.ReadFrom(buf)
		if err != nil {
			return err
		}
		if n < dnsHeaderSize {
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			continue
		}
		query := bytes.Clone(buf[:n])
		go func() {
			defer func() { <-slots }()
			_, _ = r.queries.WriteTo(r.answer(query), from) // an error counts as a lost packet
		}()
	}
}

// answer asks the servers, one after another.
func (r *relay) answer(query []byte) []byte {
	for _, server := range r.upstream {
		if answer, err := askServer(server, query); err == nil {
			return answer
		}
	}
	return failureAnswer(query)
}

// Bits of the third and fourth byte of a message.
const (
	isAnswer      = 1 << 7
	isTruncated   = 1 << 1
	serverFailure = 2
)

// failureAnswer returns a SERVFAIL answer, for queries that no server has answered.
func failureAnswer(query []byte) []byte {
	answer := bytes.Clone(query)
	answer[2] |= isAnswer
	answer[3] = answer[3]&^0xf | serverFailure
	return answer
}

// truncatedAnswer returns an answer with the TC bit, after which the resolver asks by TCP.
func truncatedAnswer(query []byte) []byte {
	answer := bytes.Clone(query)
	answer[2] |= isAnswer | isTruncated
	return answer
}

// askServer asks one server by UDP. Each query has a socket of its own, which is connected
// to the server; so a message with the query's number is its answer.
func askServer(server netip.Addr, query []byte) ([]byte, error) {
	c, err := net.DialTimeout("udp", netip.AddrPortFrom(server, dnsPort).String(), answerTime)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return nil, err
	}
	if _, err := c.Write(query); err != nil {
		return nil, err
	}
	buf := make([]byte, maxMessage+1)
	for {
		n, err := c.Read(buf)
		switch {
		case err != nil:
			return nil, err
		case n < dnsHeaderSize || buf[0] != query[0] || buf[1] != query[1] || buf[2]&isAnswer == 0:
		case n > maxMessage:
			return truncatedAnswer(query), nil
		default:
			return buf[:n], nil
		}
	}
}

// serveStreams accepts connections until the socket is closed.
func (r *relay) serveStreams() error {
	slots := make(chan struct{}, maxConnections)
	for {
		client, err := r.streams.Accept()
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // for instance: the process has no file descriptor left
			continue
		}
		select {
		case slots <- struct{}{}:
			go func() {
				defer func() { <-slots }()
				r.relayStream(client)
			}()
		default:
			client.Close()
		}
	}
}

// relayStream copies both ways between a client and the first server that accepts the
// connection, for a limited time.
func (r *relay) relayStream(client net.Conn) {
	defer client.Close()
	for _, address := range r.upstream {
		server, err := net.DialTimeout("tcp", netip.AddrPortFrom(address, dnsPort).String(), answerTime)
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
			copyStream(server, client)
			close(done)
		}()
		copyStream(client, server)
		<-done
		return
	}
}

// copyStream copies up to the end of one direction, and closes that direction.
func copyStream(to, from net.Conn) {
	_, _ = io.Copy(to, io.LimitReader(from, maxStream)) // either side may close the connection first
	if c, ok := to.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
}
