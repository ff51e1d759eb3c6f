// Package imagemount mounts the squashfs of an image for a user without root, once for all tasks that use it at a time.
//
// A holder process is root of a user namespace of the user's. It starts squashfuse_ll, which serves the files, and gives a copy of
// the mount to each client, a process of the user that connects to its socket. A copy is a detached mount: the client attaches it in a mount
// namespace, and it lasts until the last process in that namespace has ended. The holder ends when all clients have ended and no new one has
// connected for some seconds. squashfuse_ll ends with the last copy. Files that belong to root in the image belong to the user, and files of other
// users to the overflow user.
//
// After a holder was killed, the next client replaces its socket. Nothing else is left to clean up.
package imagemount

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// Squashfuse is the program that serves the files of an image.
const Squashfuse = "squashfuse_ll"

// ErrNoServer means that there is no squashfuse_ll.
var ErrNoServer = errors.New("there is no squashfuse_ll: install squashfuse")

// Source is a squashfs in a file.
type Source struct {
	File   *os.File
	Offset int64 // of the squashfs in the file, in bytes
}

// hashSource returns a name of the source among those of a user's processes in one cgroup: the end of a job, or its limits, don't affect the mounts of other jobs. A file
// that was changed or replaced is another source.
func (s Source) hashSource(cgroup string) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.File.Fd()), &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: s.File.Name(), Err: err}
	}
	// The kernel shows a mount to processes of the holder's user and group alone (FUSE).
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %d %d.%d %d.%d %d %d %s", st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec,
		s.Offset, os.Getegid(), cgroup))
	return hex.EncodeToString(sum[:16]), nil
}

// Client asks for mounts. Its methods may be called by many processes at once.
type Client struct {
	// Dir is a directory of this user's, for sockets.
	Dir string
	// Holder returns the command of a new holder, without descriptors: it calls [Serve] as root of a new user namespace.
	Holder func() *exec.Cmd
	// Cgroup is the content of /proc/self/cgroup.
	Cgroup string
}

// Mount returns a detached read-only mount of the source. The holder knows from this process whether the mount is in use.
func (c Client) Mount(ctx context.Context, s Source) (*os.File, error) {
	key, err := s.hashSource(c.Cgroup)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	socket := filepath.Join(c.Dir, key)
	// A holder may end while it is asked.
	const tries = 5
	for range tries {
		var tree *os.File
		if tree, err = askHolder(ctx, socket); err == nil {
			return tree, nil
		}
		if errors.Is(err, errForeign) {
			return nil, fmt.Errorf("mount %s: %w (%s)", s.File.Name(), err, c.Dir)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fmt.Errorf("mount %s: the process that holds its mount doesn't answer (pgrep -f %s shows it)", s.File.Name(), key)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := c.startHolder(ctx, socket, s); err != nil {
			return nil, fmt.Errorf("mount %s: %w", s.File.Name(), err)
		}
	}
	return nil, fmt.Errorf("mount %s: %w", s.File.Name(), err)
}

// askHolder asks the holder at the socket.
func askHolder(ctx context.Context, socket string) (*os.File, error) {
	conn, err := dialSocket(socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing is written
	if err := checkPeer(conn); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // it ends the read
	if err := conn.SetReadDeadline(time.Now().Add(answerTime)); err != nil {
		return nil, err
	}
	return readTree(conn)
}

// readTree reads a message with a mount.
func readTree(conn *net.UnixConn) (*os.File, error) {
	text, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := conn.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, err
	}
	if n == 0 || m == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, io.ErrUnexpectedEOF
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "image"), nil
}

func dialSocket(socket string) (conn *net.UnixConn, err error) {
	err = withAddress(socket, func(a *net.UnixAddr) (err error) {
		conn, err = net.DialUnix("unix", nil, a)
		return err
	})
	return conn, err
}

// errForeign means that a socket is another user's.
var errForeign = errors.New("the process that holds its mount is another user's: the directory of the socket must be writable only to its owner")

// checkPeer returns an error unless the process at the other end of a connection belongs to this user. The directory of the socket doesn't ensure that:
// XDG_RUNTIME_DIR can name a directory that other users write to.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	e := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, e); err != nil {
		return err
	}
	if int(peer.Uid) != os.Geteuid() {
		return errForeign
	}
	return nil
}

// withAddress calls use with the address of a socket, whose path may be longer than the 107 bytes of an address (unix(7)).
func withAddress(socket string, use func(*net.UnixAddr) error) error {
	dir, err := os.OpenFile(filepath.Dir(socket), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer dir.Close() // an O_PATH descriptor
	return use(&net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket)), Net: "unix"})
}

// answerTime is how long a holder may take to answer: it does nothing else. startTime is how long the server may take to read the image's beginning.
const (
	answerTime = 10 * time.Second
	startTime  = time.Minute
)

// startHolder starts a holder unless another process has done so meanwhile.
func (c Client) startHolder(ctx context.Context, socket string, s Source) (err error) {
	l, err := lockSocket(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if conn, err := dialSocket(socket); err == nil {
		return conn.Close()
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var listener *net.UnixListener
	err = withAddress(socket, func(a *net.UnixAddr) (err error) {
		listener, err = net.ListenUnix("unix", a)
		return err
	})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false)
	socketFile, err := listener.File()
	if err := errors.Join(err, listener.Close()); err != nil {
		return err
	}
	defer socketFile.Close() // a copy
	ready, readyEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := c.Holder()
	cmd.ExtraFiles = []*os.File{s.File, socketFile, readyEnd}
	cmd.Args = append(cmd.Args, strconv.FormatInt(s.Offset, 10), socket)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + ociruntime.Programs}
	err = cmd.Start()
	_ = readyEnd.Close() // a copy
	if err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // it has told what went wrong, or lives longer than this process
	if err := ready.SetReadDeadline(time.Now().Add(startTime)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })
	said, err := io.ReadAll(io.LimitReader(ready, maxError))
	stop()
	switch {
	case err != nil:
		_ = cmd.Process.Kill() // it may have ended
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return errors.New("squashfuse_ll doesn't answer")
	case string(said) == readyMessage:
		return nil
	case len(said) == 0:
		return errors.New("the process that holds the mount was killed")
	}
	return errors.New(string(said))
}

// lockSocket takes the lock under which a socket is created and removed. The process that removes the socket removes the file of the lock, too.
func lockSocket(ctx context.Context, socket string) (*lock.Lock, error) {
	path := lockOf(socket)
	for {
		l, err := lock.Create(ctx, path, 0o600, lock.Exclusive)
		if err != nil || lock.IsAt(int(l.File().Fd()), path) {
			return l, err
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
}

func lockOf(socket string) string { return socket + ".lock" }

const (
	readyMessage = "ready"
	maxError     = 4096 // bytes
)

// Descriptors of a holder, behind the first three.
const (
	imageFD = iota + 3
	socketFD
	readyFD
)
