// Package netlink asks the kernel by netlink sockets: requests with their answers and
// verdicts, lists, and the batches of nfnetlink. What is said in them is the callers'.
//
// Source of all formats: netlink(7), linux/netlink.h, linux/netfilter/nfnetlink.h.
package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a socket. It speaks of the network namespace that it was opened in, and is
// for one goroutine.
type Conn struct {
	fd       int
	sequence uint32
	changed  bool // what is being listed
}

// Dial opens a socket of a family (unix.NETLINK_ROUTE) in the namespace of the calling
// thread.
func Dial(family int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	c := &Conn{fd: fd}
	// With reasons in words, and errors without the request in them.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK} {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1); err != nil {
			return nil, errors.Join(fmt.Errorf("set up a netlink socket: %w", err), c.Close())
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind a netlink socket: %w", err), c.Close())
	}
	return c, nil
}

// Close gives the socket back.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Message is one request or answer: its type, and what follows the header.
type Message struct {
	Kind  uint16
	Flags uint16
	Body  []byte
}

// Ask sends a request and collects the answers up to the kernel's verdict.
func (c *Conn) Ask(kind, flags uint16, body []byte) ([]Message, error) {
	c.sequence++
	c.changed = false
	request := c.append(nil, Message{kind, flags | unix.NLM_F_REQUEST | unix.NLM_F_ACK, body}, c.sequence)
	if err := c.send(request); err != nil {
		return nil, err
	}
	var answers []Message
	buf := make([]byte, 1<<16)
	for {
		data, err := c.receive(buf)
		if err != nil {
			return nil, err
		}
		more, done, err := c.sort(data)
		answers = append(answers, more...)
		if done || err != nil {
			return answers, err
		}
	}
}

// List asks for all there is of a kind, once more when that changes meanwhile.
func (c *Conn) List(kind uint16, body []byte) (answers []Message, err error) {
	const attempts, pause = 100, time.Millisecond
	for i := range attempts {
		answers, err = c.Ask(kind, unix.NLM_F_DUMP, body)
		if !errors.Is(err, errChanged) {
			break
		}
		time.Sleep(time.Duration(i) * pause / 10)
	}
	return answers, err
}

func (c *Conn) append(data []byte, m Message, sequence uint32) []byte {
	data = binary.NativeEndian.AppendUint32(data, uint32(unix.SizeofNlMsghdr+len(m.Body)))
	data = binary.NativeEndian.AppendUint16(data, m.Kind)
	data = binary.NativeEndian.AppendUint16(data, m.Flags)
	data = binary.NativeEndian.AppendUint32(data, sequence)
	data = binary.NativeEndian.AppendUint32(data, 0)
	return append(data, append(m.Body, make([]byte, align(len(m.Body))-len(m.Body))...)...)
}

func (c *Conn) send(request []byte) error {
	err := unix.Sendto(c.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	return os.NewSyscallError("sendto", err)
}

// receive returns what the kernel says next.
func (c *Conn) receive(buf []byte) ([]byte, error) {
	for {
		n, _, flags, from, err := unix.Recvmsg(c.fd, buf, nil, 0)
		switch sender, _ := from.(*unix.SockaddrNetlink); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, os.NewSyscallError("recvmsg", err)
		case flags&unix.MSG_TRUNC != 0:
			return nil, fmt.Errorf("read netlink: an answer of more than %d bytes", len(buf))
		case sender == nil || sender.Pid != 0: // not the kernel's
		default:
			return buf[:n], nil
		}
	}
}

// errChanged: a list changed while the kernel was telling it.
var errChanged = errors.New("the list changes while it is read")

// sort takes one datagram apart. done is set by the verdict.
func (c *Conn) sort(data []byte) (answers []Message, done bool, err error) {
	for len(data) >= unix.SizeofNlMsghdr {
		m, sequence, rest, err := next(data)
		if err != nil {
			return nil, true, err
		}
		data = rest
		switch {
		case sequence != c.sequence: // of a request before, which was given up
		case m.Kind == unix.NLMSG_ERROR || m.Kind == unix.NLMSG_DONE:
			err := verdict(m)
			if err == nil && (c.changed || m.Flags&unix.NLM_F_DUMP_INTR != 0) {
				err = errChanged
			}
			return answers, true, err
		case m.Flags&unix.NLM_F_DUMP_INTR != 0:
			c.changed = true // and the kernel goes on to the end
		default:
			m.Body = append([]byte(nil), m.Body...)
			answers = append(answers, m)
		}
	}
	return answers, false, nil
}

// next takes the first message off; data has a header.
func next(data []byte) (m Message, sequence uint32, rest []byte, err error) {
	length := int(binary.NativeEndian.Uint32(data))
	if length < unix.SizeofNlMsghdr || length > len(data) {
		return m, 0, nil, errors.New("read netlink: a message ends too early")
	}
	m.Kind, m.Flags = binary.NativeEndian.Uint16(data[4:]), binary.NativeEndian.Uint16(data[6:])
	m.Body = data[unix.SizeofNlMsghdr:length]
	return m, binary.NativeEndian.Uint32(data[8:]), data[min(align(length), len(data)):], nil
}

// verdict reads the end of a request: 0, or an error's number and perhaps words.
func verdict(m Message) error {
	if len(m.Body) < 4 {
		return errors.New("read netlink: a verdict without a number")
	}
	number := -int32(binary.NativeEndian.Uint32(m.Body))
	if number == 0 {
		return nil
	}
	err := unix.Errno(number)
	const echo = 4 + unix.SizeofNlMsghdr
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 || len(m.Body) < echo {
		return err
	}
	if text := Text(Attributes(m.Body[echo:])[unix.NLMSGERR_ATTR_MSG]); text != "" {
		return fmt.Errorf("%w (%s)", err, text)
	}
	return err
}
