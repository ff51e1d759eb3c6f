package imagemount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// Serve is a holder: it mounts the image and gives copies of the mount to its user's processes, until they have ended and idle has
// passed. [Client] has started this process with offset, the place of the squashfs in the image, and the path of the socket.
func Serve(ctx context.Context, offset int64, socket string, idle time.Duration) error {
	if err := closeInherited(readyFD + 1); err != nil {
		return err
	}
	ready := os.NewFile(readyFD, "ready")
	h, err := openHolder(offset)
	if err != nil {
		_, e := ready.WriteString(err.Error())
		return errors.Join(err, e, ready.Close())
	}
	_, err = ready.WriteString(readyMessage) // an error is a starter that was killed
	if err := errors.Join(err, ready.Close()); err != nil {
		return errors.Join(err, h.server.Process.Kill())
	}
	h.serveClients(idle)
	return removeSocket(ctx, socket)
}

// removeSocket removes this process's socket, which no process serves any more, unless another process has replaced it.
func removeSocket(ctx context.Context, socket string) (err error) {
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
	return os.Remove(lockOf(socket))
}

// closeInherited closes the files that this process has inherited from the one that has started it, but for its own, whose descriptors are below end: servers
// don't get these. All files of Go's runtime are closed on exec.
func closeInherited(end int) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < imageFD {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		switch {
		case err != nil || flags&unix.FD_CLOEXEC != 0: // closed meanwhile, or the runtime's
		case fd < end:
			unix.CloseOnExec(fd)
		default:
			_ = unix.Close(fd) // it is another process's
		}
	}
	return nil
}

// holder has the mount.
type holder struct {
	listener *net.UnixListener
	tree     *os.File
	server   *exec.Cmd

	mu      sync.Mutex
	clients int
	idle    *time.Timer
}

func openHolder(offset int64) (h *holder, err error) {
	h = &holder{}
	image := os.NewFile(imageFD, "image")
	defer image.Close() // only read
	socket := os.NewFile(socketFD, "socket")
	l, err := net.FileListener(socket)
	if err := errors.Join(err, socket.Close()); err != nil {
		return nil, err
	}
	h.listener, _ = l.(*net.UnixListener) // of its kind
	program := ociruntime.LookUp(Squashfuse)
	if program == "" {
		return nil, ErrNoServer
	}
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer fuse.Close() // the server has a copy
	if h.tree, err = mountFuse(fuse, serverUID(image)); err != nil {
		return nil, err
	}
	var said bytes.Buffer
	// Instead of a mount point, the last argument names the open /dev/fuse of an existing mount. Source: libfuse 3.3, fuse_session_mount.
	h.server = exec.Command(program, "-f", "-o", "offset="+strconv.FormatInt(offset, 10), "/proc/self/fd/3", "/dev/fd/4")
	h.server.ExtraFiles = []*os.File{image, fuse}
	h.server.Stderr, h.server.Env = &said, []string{"PATH=" + ociruntime.Programs}
	if !userns.IsInside() {
		h.server.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: serverUID(image), Gid: serverUID(image)}}
	}
	if err := h.server.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = h.server.Wait() // its text says more
		close(ended)
	}()
	opened := make(chan error, 1)
	go func() {
		var st unix.Stat_t
		opened <- unix.Fstatat(int(h.tree.Fd()), "bin", &st, unix.AT_SYMLINK_NOFOLLOW)
	}()
	select {
	case <-ended:
		return nil, fmt.Errorf("squashfuse_ll: %s", strings.TrimSpace(strings.ReplaceAll(said.String(), "\n", "; ")))
	case err := <-opened:
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, errors.Join(err, h.server.Process.Kill())
		}
	case <-time.After(startTime):
		return nil, errors.Join(errors.New("squashfuse_ll doesn't answer"), h.server.Process.Kill())
	}
	go func() {
		<-ended
		_ = h.listener.Close() // the mount is dead; serveClients returns
	}()
	return h, nil
}

// mountFuse returns a detached FUSE mount that the other end of fuse serves. Source: the kernel's Documentation/filesystems/fuse.rst.
func mountFuse(fuse *os.File, uid uint32) (*os.File, error) {
	fsfd, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("mount an image: %w", err)
	}
	defer func() { _ = unix.Close(fsfd) }() // nothing was written
	for _, o := range [][2]string{
		{"source", "image"},
		{"subtype", "squashfuse_ll"},
		{"fd", strconv.Itoa(int(fuse.Fd()))},
		{"rootmode", "40000"},
		{"user_id", strconv.FormatUint(uint64(uid), 10)},
		{"group_id", strconv.FormatUint(uint64(uid), 10)},
	} {
		if err := unix.FsconfigSetString(fsfd, o[0], o[1]); err != nil {
			return nil, fmt.Errorf("mount an image with %s: %w", o[0], err)
		}
	}
	options := []string{"ro", "default_permissions"}
	if !userns.IsInside() {
		options = append(options, "allow_other") // in a user namespace it is allowed to the processes of this namespace alone
	}
	for _, o := range options {
		if err := unix.FsconfigSetFlag(fsfd, o); err != nil {
			return nil, fmt.Errorf("mount an image with %s: %w", o, err)
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return nil, fmt.Errorf("mount an image: %w", err)
	}
	fd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return nil, fmt.Errorf("mount an image: %w", err)
	}
	return os.NewFile(uintptr(fd), "image"), nil
}

// serverUID returns the user and the group of the server: this process's, which is root of the user's namespace. For root of the machine it is an id
// that no account has, another one for each image, because the server reads what strangers have written.
func serverUID(image *os.File) uint32 {
	var st unix.Stat_t
	if userns.IsInside() || unix.Fstat(int(image.Fd()), &st) != nil {
		return uint32(os.Geteuid()) //nolint:gosec // not negative
	}
	const first, count = 4_290_000_000, 1 << 20
	return first + uint32((st.Dev*31+st.Ino)%count) //nolint:gosec // below count
}

// firstWait is how long a holder waits for the process that has started it.
const firstWait = 10 * time.Second

// serveClients answers processes until idle has passed without one.
func (h *holder) serveClients(idle time.Duration) {
	h.idle = time.AfterFunc(max(idle, firstWait), h.endIfUnused)
	for {
		conn, err := h.listener.AcceptUnix()
		if err != nil {
			return // endIfUnused has closed it
		}
		if err := h.answerClient(conn, idle); err != nil { // the process has ended
			_ = conn.Close() // nothing is written
		}
	}
}

func (h *holder) answerClient(conn *net.UnixConn, idle time.Duration) error {
	defer func() { _ = conn.Close() }() // nothing is written
	if err := checkPeer(conn); err != nil {
		return nil //nolint:nilerr // another user gets no mount
	}
	pidfd, err := peerPidfd(conn)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.clients++
	h.idle.Stop()
	h.mu.Unlock()
	go func() {
		waitEnd(pidfd)
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.clients--; h.clients == 0 {
			h.idle.Reset(idle)
		}
	}()
	fd, err := unix.OpenTree(int(h.tree.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // the process has a copy
	_, _, err = conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
	return err
}

// endIfUnused lets this process end if no client is left. A process that has connected and isn't answered starts another holder.
func (h *holder) endIfUnused() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.clients == 0 {
		_ = h.listener.Close() // serveClients returns
	}
}

// peerPidfd returns a pidfd of the process at the other end of a connection.
func peerPidfd(conn *net.UnixConn) (f *os.File, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	pidfd := -1
	e := raw.Control(func(fd uintptr) {
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pidfd, err = unix.PidfdOpen(int(peer.Pid), unix.PIDFD_NONBLOCK)
		}
	})
	if err := errors.Join(err, e); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(pidfd), "pidfd"), nil
}

// waitEnd waits for the end of the process of a pidfd, which it closes.
func waitEnd(pidfd *os.File) {
	defer pidfd.Close() // nothing was written
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool { // a closed pidfd means the end, too
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}
