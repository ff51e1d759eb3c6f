// Package helper connects a process in a user namespace to the process outside that has started it, its helper. The
// broker grants nothing to a process in a user namespace: the helper connects to the broker in its place. A process in one of the user's
// namespaces has no rights over processes in the others, and the user, who owns them all, has: so the helper sends signals.
package helper

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Messages of the child, and answers. Each is one packet.
const (
	connectMessage = "connect" // requests a connection to the broker; the answer has its file descriptor, or the text of an error
	leaseMessage   = "lease "  // before the words of a lease to end after the child
	fileMessage    = "file"    // requests the file of Start; the answer has its file descriptor, or the text of an error
	signalMessage  = "signal " // before the number of a signal to send to the pidfd that comes with it; the answer is the errno
	noBroker       = "none"    // the error of a broker that doesn't run
)

// maxMessage bounds a message, in bytes.
const maxMessage = 4096

// HeldLease is a lease of the child, or with the id "" a cgroup without one.
type HeldLease struct{ ID, Group, Devices string }

// Helper serves the child, outside of its user namespace.
type Helper struct {
	conn   *net.UnixConn
	broker string // the broker's socket
	file   func() (*os.File, error)
	lease  chan HeldLease // gets the child's lease
	served chan bool      // closed at the end of serveChild
}

// Start starts to serve a child. The returned file is the child's end of the socket, whose number is the value of the child's
// environment variable [verb.HelperVariable]. The caller closes it when the child has ended. broker is the path of the broker's socket. file returns
// the file that the child gets by [Session.ReceiveFile]; it may be nil for a child that asks for none.
func Start(broker string, file func() (*os.File, error)) (*Helper, *os.File, error) {
	own, theirs, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	h := &Helper{conn: own, broker: broker, file: file, lease: make(chan HeldLease, 1), served: make(chan bool)}
	go h.serveChild()
	return h, theirs, nil
}

// Stop stops to serve the child, which has ended, and returns the lease that it has left.
func (h *Helper) Stop() (l HeldLease, found bool) {
	// The child's end closes the socket. A detached task may keep it open, and sends nothing more.
	_ = h.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	<-h.served
	_ = h.conn.Close() // all messages were read
	select {
	case l = <-h.lease:
		return l, true
	default:
		return l, false
	}
}

// serveChild answers the child until the connection is closed.
func (h *Helper) serveChild() {
	defer close(h.served)
	for buffer, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4)); ; {
		n, m, _, _, err := h.conn.ReadMsgUnix(buffer, rights)
		if err != nil || n == 0 {
			return
		}
		message, file := string(buffer[:n]), receivedFile(rights[:m])
		err = h.answerMessage(message, file)
		if file != nil {
			_ = file.Close() // a pidfd
		}
		if err != nil {
			return // the child is gone
		}
	}
}

// answerMessage answers a message. file is what came with it, or nil.
func (h *Helper) answerMessage(message string, file *os.File) error {
	var l HeldLease
	switch {
	case message == connectMessage:
		return h.sendConnection()
	case message == fileMessage && h.file != nil:
		return h.sendFile(h.file())
	}
	if number, ok := strings.CutPrefix(message, signalMessage); ok && file != nil {
		sig, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		var errno unix.Errno // 0 for success
		if err := unix.PidfdSendSignal(int(file.Fd()), unix.Signal(sig), nil, 0); err != nil && !errors.As(err, &errno) {
			errno = unix.EIO // can't happen: the error is an errno
		}
		_, err = h.conn.Write([]byte(strconv.Itoa(int(errno))))
		return err
	}
	if _, err := fmt.Sscanf(message, leaseMessage+"%q %q %q", &l.ID, &l.Group, &l.Devices); err == nil {
		select {
		case h.lease <- l:
		default: // a child has one lease
		}
	}
	return nil
}

// receivedFile returns the file that came with a packet, nil if there was none.
func receivedFile(rights []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		for _, fd := range fds {
			_ = unix.Close(fd) // there is no use for it
		}
		return nil
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "received")
}

// sendConnection connects to the broker, and sends the connection to the child.
func (h *Helper) sendConnection() error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: h.broker, Net: "unix"})
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		_, err = h.conn.Write([]byte(noBroker))
		return err
	case err != nil:
		_, err = h.conn.Write([]byte(err.Error()))
		return err
	}
	f, err := conn.File()
	_ = conn.Close() // f is a copy
	return h.sendFile(f, err)
}

// sendFile sends a file to the child and closes it, or sends the text of an error.
func (h *Helper) sendFile(f *os.File, err error) error {
	if err != nil {
		text := err.Error()
		_, err = h.conn.Write([]byte(text[:min(len(text), maxMessage)]))
		return err
	}
	defer f.Close() // the child has a copy
	_, _, err = h.conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(f.Fd())), nil)
	return err
}

// socketPair returns the ends of a socket, of which the second is for another process.
func socketPair() (*net.UnixConn, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "helper")
	own, err := openSocket(os.NewFile(uintptr(pair[0]), "helper"))
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return own, theirs, nil
}

// openSocket returns the socket of a file, which it closes.
func openSocket(f *os.File) (*net.UnixConn, error) {
	defer f.Close() // the connection has a copy
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("open the socket to the process outside: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("the socket to the process outside is no Unix socket"), conn.Close())
	}
	return unixConn, nil
}
