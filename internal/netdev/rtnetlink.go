package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// conn is a socket of rtnetlink, which speaks of the network namespace that it was
// opened in, and is for one goroutine. Source of all formats: netlink(7), rtnetlink(7).
type conn struct {
	fd       int
	sequence uint32
}

func dial() (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	c := &conn{fd: fd}
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
func (c *conn) Close() error { return unix.Close(c.fd) }

// message is one answer: its type, and what follows the header.
type message struct {
	kind uint16
	body []byte
}

// ask sends a request and collects the answers up to the kernel's verdict.
func (c *conn) ask(kind uint16, flags uint16, body []byte) (answers []message, err error) {
	c.sequence++
	request := make([]byte, 0, unix.SizeofNlMsghdr+len(body))
	request = binary.NativeEndian.AppendUint32(request, uint32(unix.SizeofNlMsghdr+len(body)))
	request = binary.NativeEndian.AppendUint16(request, kind)
	request = binary.NativeEndian.AppendUint16(request, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	request = binary.NativeEndian.AppendUint32(request, c.sequence)
	request = binary.NativeEndian.AppendUint32(request, 0)
	request = append(request, body...)
	if err := unix.Sendto(c.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 1<<16)
	for {
		n, _, flags, from, err := unix.Recvmsg(c.fd, buf, nil, 0)
		switch sender, _ := from.(*unix.SockaddrNetlink); {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, os.NewSyscallError("recvmsg", err)
		case flags&unix.MSG_TRUNC != 0:
			return nil, fmt.Errorf("read netlink: an answer of more than %d bytes", len(buf))
		case sender == nil || sender.Pid != 0:
			continue // not the kernel's
		}
		more, done, err := c.sort(buf[:n])
		answers = append(answers, more...)
		if done || err != nil {
			return answers, err
		}
	}
}

// errChanged: a list changed while the kernel was telling it.
var errChanged = errors.New("the list of addresses changes while it is read")

// sort takes one datagram apart. done is set by the verdict.
func (c *conn) sort(data []byte) (answers []message, done bool, err error) {
	for len(data) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(data))
		if length < unix.SizeofNlMsghdr || length > len(data) {
			return nil, true, errors.New("read netlink: a message ends too early")
		}
		kind, flags := binary.NativeEndian.Uint16(data[4:]), binary.NativeEndian.Uint16(data[6:])
		sequence, body := binary.NativeEndian.Uint32(data[8:]), data[unix.SizeofNlMsghdr:length]
		data = data[min(align(length), len(data)):]
		switch {
		case sequence != c.sequence: // of a request before, which was given up
		case flags&unix.NLM_F_DUMP_INTR != 0:
			return nil, true, errChanged
		case kind == unix.NLMSG_ERROR || kind == unix.NLMSG_DONE:
			return answers, true, verdict(body, flags)
		default:
			answers = append(answers, message{kind, append([]byte(nil), body...)})
		}
	}
	return answers, false, nil
}

// verdict reads the end of a request: 0, or an error's number and perhaps words.
func verdict(body []byte, flags uint16) error {
	if len(body) < 4 {
		return errors.New("read netlink: a verdict without a number")
	}
	number := -int32(binary.NativeEndian.Uint32(body))
	if number == 0 {
		return nil
	}
	err := unix.Errno(number)
	const echo = 4 + unix.SizeofNlMsghdr
	if flags&unix.NLM_F_ACK_TLVS == 0 || len(body) < echo {
		return err
	}
	if text := text(attributes(body[echo:])[unix.NLMSGERR_ATTR_MSG]); text != "" {
		return fmt.Errorf("%w (%s)", err, text)
	}
	return err
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// attributes reads type, length and value of each. What doesn't fit ends the list.
func attributes(data []byte) map[uint16][]byte {
	all := map[uint16][]byte{}
	for len(data) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofRtAttr || length > len(data) {
			break
		}
		all[binary.NativeEndian.Uint16(data[2:])&^unix.NLA_F_NESTED] = data[unix.SizeofRtAttr:length]
		data = data[min(align(length), len(data)):]
	}
	return all
}

// attribute appends one.
func attribute(data []byte, kind uint16, value []byte) []byte {
	length := unix.SizeofRtAttr + len(value)
	data = binary.NativeEndian.AppendUint16(data, uint16(length))
	data = binary.NativeEndian.AppendUint16(data, kind)
	data = append(data, value...)
	return append(data, make([]byte, align(length)-length)...)
}

// text is a value that ends with NUL.
func text(value []byte) string {
	for i, b := range value {
		if b == 0 {
			return string(value[:i])
		}
	}
	return string(value)
}
