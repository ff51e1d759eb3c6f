// Package rootless runs verbs for users without root: in a child that is root of a user namespace of its own. The child
// can't ask the broker itself, which doesn't answer processes in user namespaces: the process outside connects to the
// broker for it, and ends its lease.
package rootless

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// Messages of the child, and answers. Each is one packet.
const (
	connectMessage = "connect" // asks for a connection to the broker, which comes with an empty packet, or for an error
	leaseMessage   = "lease "  // before the words of a lease to end after the child
	noBroker       = "none"    // the error of a broker that doesn't run
)

// maxMessage bounds a message, in bytes.
const maxMessage = 4096

// Wrap returns an action that runs in a user namespace if this process is not root.
func Wrap(action cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if os.Geteuid() == 0 {
			return action(c)
		}
		conf, err := verb.LoadConfig(c)
		if err != nil {
			return err
		}
		return Run(c, conf)
	}
}

// Run runs this process's command line in a child that is root of a new user namespace, and returns an error with its exit code.
func Run(c *cli.Context, conf berth.Config) error {
	cmd := exec.Cmd{Args: os.Args}
	userns.Enter(&cmd)
	return runChild(c, conf, cmd)
}

// RunInside is Run in an existing user namespace of this user's.
func RunInside(c *cli.Context, conf berth.Config, namespace *os.File) error {
	// No thread of a process with several can enter a user namespace: see setns(2).
	nsenter := ociruntime.LookUp("nsenter")
	if nsenter == "" {
		return verb.WithBerthCode(fmt.Errorf("there is no nsenter in %s: install util-linux", ociruntime.Programs))
	}
	self, err := os.Executable()
	if err != nil {
		return verb.WithBerthCode(err)
	}
	const fd = helperFD + 1
	args := []string{"nsenter", fmt.Sprintf("--user=/proc/self/fd/%d", fd), "--preserve-credentials", "--", self}
	return runChild(c, conf, exec.Cmd{Path: nsenter, Args: append(args, os.Args[1:]...)}, namespace)
}

// helperFD is the child's file descriptor of its socket.
const helperFD = 3

// runChild runs a child in a user namespace. files are more file descriptors for it.
func runChild(c *cli.Context, conf berth.Config, cmd exec.Cmd, files ...*os.File) error {
	// Nobody else may execute files of images, which keep their set-uid bits.
	err := os.MkdirAll(conf.TaskData(), 0o700)
	if err == nil {
		err = os.Chmod(conf.TaskData(), 0o700)
	}
	if err != nil {
		// Not wrapped: more rights are no advice.
		return verb.WithBerthCode(fmt.Errorf("there is no place for this user's tasks and images: %v; set XDG_DATA_HOME to a directory of this user's", err)) //nolint:errorlint // see above
	}
	own, theirs, err := socketPair()
	if err != nil {
		return verb.WithBerthCode(err)
	}
	defer func() { _ = own.Close() }() // all messages were read
	cmd.Env = append(os.Environ(), verb.HelperVariable+"="+strconv.Itoa(helperFD))
	cmd.ExtraFiles = append([]*os.File{theirs}, files...)
	h := helper{conn: own, broker: protocol.SocketPath(conf.State), leases: make(chan heldLease, 1), served: make(chan bool)}
	go h.serveChild()
	err = verb.RunSelf(c.Context, cmd, unix.SIGTERM) // which ends the task
	_ = theirs.Close()                               // a copy
	// The socket ends with the child, unless a detached task has it, which sends nothing more.
	_ = own.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	<-h.served
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
		return verb.WithBerthCode(fmt.Errorf("%w: users of this machine can't make user namespaces: see user.max_user_namespaces, kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns (sysctl)", err))
	}
	select {
	case l := <-h.leases:
		node, e := berth.Open(conf)
		switch {
		case e != nil:
		case l.id == "":
			e = node.RemoveCommandCgroup(context.WithoutCancel(c.Context), l.group)
		default:
			e = backend.EndLease(context.WithoutCancel(c.Context), node, l.id, l.group, l.devices)
		}
		return errors.Join(err, e)
	default:
		return err
	}
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
		return nil, errors.Join(errors.New("the socket to the process outside is none"), conn.Close())
	}
	return unixConn, nil
}

// heldLease is a lease of the child, or with the id "" a cgroup without one.
type heldLease struct{ id, group, devices string }

// helper serves the child, outside of its user namespace.
type helper struct {
	conn   *net.UnixConn
	broker string         // the broker's socket
	leases chan heldLease // gets the child's lease
	served chan bool      // closed at the end of serveChild
}

// serveChild answers the child until the connection is closed.
func (h helper) serveChild() {
	defer close(h.served)
	for buffer := make([]byte, maxMessage); ; {
		n, err := h.conn.Read(buffer)
		if err != nil || n == 0 {
			return
		}
		message := string(buffer[:n])
		if message == connectMessage {
			if err := h.sendConnection(); err != nil {
				return // the child is gone
			}
			continue
		}
		var l heldLease
		if _, err := fmt.Sscanf(message, leaseMessage+"%q %q %q", &l.id, &l.group, &l.devices); err == nil {
			select {
			case h.leases <- l:
			default: // a child has one lease
			}
		}
	}
}

// sendConnection connects to the broker, and sends the connection to the child.
func (h helper) sendConnection() error {
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
	if err != nil {
		return err
	}
	defer f.Close() // the child has a copy
	_, _, err = h.conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(f.Fd())), nil)
	return err
}

// Session is the child's connection to the process outside. It isn't safe for concurrent use.
type Session struct {
	conn   *net.UnixConn
	socket string
}

// Open returns the connection to the process outside. ok is false if this process is not a child of [Run].
func Open(conf berth.Config) (s *Session, ok bool, err error) {
	if !verb.IsHelped() {
		return nil, false, nil
	}
	fd, err := strconv.Atoi(os.Getenv(verb.HelperVariable)) // set by Run or Share
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
	if _, err := s.conn.Write([]byte(connectMessage)); err != nil {
		return nil, fmt.Errorf("ask the process outside of the user namespace: %w", err)
	}
	text, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := s.conn.ReadMsgUnix(text, rights)
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask the process outside of the user namespace: %w", err)
	case m == 0 && string(text[:n]) == noBroker:
		return nil, unix.ECONNREFUSED
	case m == 0:
		return nil, errors.New(string(text[:n]))
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("the process outside sent no connection"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("the process outside sent no connection"), err)
	}
	unix.CloseOnExec(fds[0])
	return openSocket(os.NewFile(uintptr(fds[0]), "broker"))
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
