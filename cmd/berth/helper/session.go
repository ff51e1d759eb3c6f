package helper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/cmd/berth/verb"
)

// ErrGone means that the process outside has ended, as it does when a detached task was started.
var ErrGone = errors.New("the process outside of the user namespace has ended")

// Session is the child's connection to the process outside. It isn't safe for concurrent use.
type Session struct {
	conn   *net.UnixConn
	socket string
}

// Open returns the connection to the process outside. ok is false if this process is not a child of package rootless.
func Open(conf berth.Config) (s *Session, ok bool, err error) {
	if !verb.IsHelped() {
		return nil, false, nil
	}
	fd, err := strconv.Atoi(os.Getenv(verb.HelperVariable)) // set by package rootless or Share
	if err != nil {
		return nil, false, fmt.Errorf("environment variable %s: %w", verb.HelperVariable, err)
	}
	unix.CloseOnExec(fd)
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) // it can be opened again
	if err != nil {
		return nil, false, fmt.Errorf("open the socket to the process outside: %w", err)
	}
	conn, err := openSocket(os.NewFile(uintptr(own), "helper"))
	return &Session{conn, protocol.SocketPath(conf.State)}, err == nil, err
}

// Close closes the connection.
func (s *Session) Close() error { return s.conn.Close() }

// Share returns a copy of the session's socket for a child of this process, and the environment variable by which it finds the
// socket as the file descriptor fd.
func (s *Session) Share(fd int) (*os.File, string, error) {
	f, err := s.conn.File()
	return f, verb.HelperVariable + "=" + strconv.Itoa(fd), err
}

// Client returns a client of the broker, for requests with Descendant.
func (s *Session) Client() client.Client {
	return client.Client{Socket: s.socket, Connect: s.receiveConnection}
}

// receiveConnection returns a connection to the broker. Its caller is the process outside.
func (s *Session) receiveConnection(context.Context) (net.Conn, error) {
	file, err := s.receive(connectMessage)
	if err != nil {
		return nil, err
	}
	return openSocket(file)
}

// ReceiveFile returns the file that the process outside has for this one. It waits until that process has opened it.
func (s *Session) ReceiveFile() (*os.File, error) { return s.receive(fileMessage) }

// receive requests a file from the process outside.
func (s *Session) receive(message string) (*os.File, error) {
	if _, err := s.conn.Write([]byte(message)); errors.Is(err, unix.EPIPE) {
		return nil, ErrGone
	} else if err != nil {
		return nil, fmt.Errorf("ask the process outside of the user namespace: %w", err)
	}
	text, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := s.conn.ReadMsgUnix(text, rights)
	switch {
	case err == nil && n == 0, errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return nil, ErrGone
	case err != nil:
		return nil, fmt.Errorf("ask the process outside of the user namespace: %w", err)
	case m == 0 && string(text[:n]) == noBroker:
		return nil, unix.ECONNREFUSED
	case m == 0:
		return nil, errors.New(string(text[:n]))
	}
	file := receivedFile(rights[:m])
	if file == nil {
		return nil, errors.New("the process outside sent no file")
	}
	return file, nil
}

// SendSignal has the process outside send a signal to the process of a pidfd. The error is a unix.Errno of pidfd_send_signal(2), or says
// that the process outside is gone.
func (s *Session) SendSignal(pidfd int, sig syscall.Signal) error {
	answer := make([]byte, maxMessage)
	n := 0
	_, _, err := s.conn.WriteMsgUnix([]byte(signalMessage+strconv.Itoa(int(sig))), unix.UnixRights(pidfd), nil)
	if err == nil {
		n, err = s.conn.Read(answer)
	}
	errno := 0
	if err == nil {
		errno, err = strconv.Atoi(string(answer[:n]))
	}
	if err != nil {
		return fmt.Errorf("ask the process outside of the user namespace: %w", err)
	}
	if errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

// KeepCgroup has the process outside remove a cgroup after this process has ended.
func (s *Session) KeepCgroup(group string) error { return s.KeepLease("", group, "") }

// KeepLease has the process outside end a lease after this process has ended. devices are the words for its devices.
func (s *Session) KeepLease(id, group, devices string) error {
	if _, err := fmt.Fprintf(s.conn, leaseMessage+"%q %q %q", id, group, devices); err != nil {
		return fmt.Errorf("tell the process outside of lease %s: %w", id, err)
	}
	return nil
}
