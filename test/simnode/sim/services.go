package sim

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// servicesName is the name of a program that listens for a node.
const servicesName = "simnode-services"

// sockets lists the sockets of the driver's services: real ones, at which a connection is accepted
// and closed.
func (p Profile) sockets() []string {
	all := []string{"/run/nvidia-persistenced/socket"}
	if len(p.Switches) > 0 {
		all = append(all, "/run/nvidia-fabricmanager/socket")
	}
	return all
}

// startServices starts a process that will listen for the node which the caller makes of itself, as
// long as the caller lives, and returns the connection for the sockets. The process stays outside
// of the node's namespaces and is no child of the node, so that a node still consists of its own
// processes only.
func startServices() (control *os.File, err error) {
	if filepath.Base(os.Args[0]) == servicesName {
		return nil, errors.New("start services: this program never asked Loader")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket pair: %w", err)
	}
	control, theirs := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "services")
	defer func() { err = errors.Join(err, theirs.Close()) }()
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open own process: %w", err), control.Close())
	}
	node := os.NewFile(uintptr(fd), "node")
	defer func() { err = errors.Join(err, node.Close()) }()
	if out, err := rerunAsServices(theirs, node).CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("start services: %w: %s", err, out), control.Close())
	}
	return control, nil
}

// rerunAsServices runs this program under the services' name.
func rerunAsServices(control, node *os.File, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = servicesName
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.ExtraFiles = []*os.File{control, node}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// services is the process: the first starts the second, which is then init's, and
// the second listens.
func services(args []string) error {
	control, node := os.NewFile(3, "control"), os.NewFile(4, "node")
	if len(args) == 0 {
		return rerunAsServices(control, node, "listen").Start()
	}
	listeners, err := receive(control)
	if err != nil || listeners == nil {
		return err
	}
	for _, l := range listeners {
		go accept(l)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(node.Fd()), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// receive waits for the sockets; there are none if the node was never made.
func receive(control *os.File) (all []net.Listener, err error) {
	rights := make([]byte, unix.CmsgSpace(4*8))
	n, rightsLen, _, _, err := unix.Recvmsg(int(control.Fd()), make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n == 0 {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rightsLen])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("receive sockets: %d messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, fmt.Errorf("receive sockets: %w", err)
	}
	for _, fd := range fds {
		l, err := net.FileListener(os.NewFile(uintptr(fd), "socket"))
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		all = append(all, l)
	}
	return all, nil
}

func accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c.Close() // nothing was written
	}
}

// listen makes the profile's sockets in the node and hands them over.
func (p Profile) listen(control *os.File) (err error) {
	var fds []int
	for _, path := range p.sockets() {
		if err := makeDirs(filepath.Dir(path)); err != nil {
			return err
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		f, err := l.File()
		if err != nil {
			return fmt.Errorf("listen on %s: %w", path, err)
		}
		defer func() { err = errors.Join(err, f.Close(), l.Close()) }()
		if err := os.Chmod(path, 0o777); err != nil {
			return fmt.Errorf("set mode of %s: %w", path, err)
		}
		fds = append(fds, int(f.Fd()))
	}
	if err := unix.Sendmsg(int(control.Fd()), []byte{0}, unix.UnixRights(fds...), nil, 0); err != nil {
		return fmt.Errorf("hand over sockets: %w", err)
	}
	return control.Close()
}
