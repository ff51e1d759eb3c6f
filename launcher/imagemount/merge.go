package imagemount

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/mounttree"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/overlay"
)

// Programs that serve the files of a [Stack].
const (
	ext3Server  = "fuse2fs"
	stackServer = "fuse-overlayfs"
)

// Stack is a file system of several layers, some of which are ext3 file systems in files. The kernel can't write to layers that FUSE serves.
type Stack struct {
	Layers []Layer // topmost first
	// Writable means that changes are written to the topmost layer, which has a File.
	Writable bool
}

// Layer is a layer of a [Stack]: one of the three.
type Layer struct {
	Dir  string   // a directory
	Tree *os.File // a detached mount
	// File has an ext3 file system at Offset. Its files are below "upper", as Apptainer has it.
	File   *os.File
	Offset int64
}

// passedLayer is a layer as the child of Mount gets it.
type passedLayer struct {
	Dir    string `json:"dir,omitempty"`
	FD     int    `json:"fd,omitempty"`
	IsExt3 bool   `json:"isExt3,omitempty"`
	Offset int64  `json:"offset,omitempty"`
}

// Mount mounts the stack and returns a detached mount, and a file that a reader finds at its end when the servers have ended: that is when the last copy of the mount
// was unmounted, and all changes are written. command is that of a process that calls [ServeStack] in a user namespace of its own in which it has its own id, and in a
// mount namespace. dir is an existing directory, which it hides.
func (s Stack) Mount(ctx context.Context, command *exec.Cmd, dir string) (tree, ended *os.File, err error) {
	programs := []string{stackServer}
	if slices.ContainsFunc(s.Layers, func(l Layer) bool { return l.File != nil }) {
		programs = append(programs, ext3Server)
	}
	for _, program := range programs {
		if ociruntime.LookUp(program) == "" {
			return nil, nil, fmt.Errorf("there is no %s, which overlays in files need: install %[1]s", program)
		}
	}
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	own, its := os.NewFile(uintptr(sockets[0]), "socket"), os.NewFile(uintptr(sockets[1]), "socket")
	defer own.Close() // only read
	ended, serving, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, its.Close())
	}
	command.ExtraFiles = []*os.File{its, serving}
	var passed []passedLayer
	for _, l := range s.Layers {
		p := passedLayer{Dir: l.Dir, IsExt3: l.File != nil, Offset: l.Offset}
		if f := l.Tree; f != nil || l.File != nil {
			if f == nil {
				f = l.File
			}
			p.FD = 3 + len(command.ExtraFiles)
			command.ExtraFiles = append(command.ExtraFiles, f)
		}
		passed = append(passed, p)
	}
	text, err := json.Marshal(passed)
	if err != nil {
		return nil, nil, err
	}
	command.Args = append(command.Args, strconv.FormatBool(s.Writable), dir, string(text))
	command.Dir, command.Env = "/", []string{"PATH=" + ociruntime.Programs}
	var said bytes.Buffer
	command.Stdout = &said
	err = command.Start()
	_, _ = its.Close(), serving.Close() // copies
	if err == nil {
		err = waitStack(ctx, command, &said)
	}
	if err == nil {
		tree, err = receiveTree(own)
	}
	if err != nil {
		return nil, nil, errors.Join(err, ended.Close())
	}
	return tree, ended, nil
}

// waitStack waits for the process that mounts a stack. It isn't killed at the end of ctx, because the servers would stay: it finds the socket closed, and ends them.
func waitStack(ctx context.Context, command *exec.Cmd, said *bytes.Buffer) error {
	done := make(chan error, 1)
	go func() { done <- command.Wait() }()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-done:
		if said.Len() > 0 {
			err = errors.New(strings.TrimSpace(said.String()))
		}
		return err
	}
}

func receiveTree(socket *os.File) (*os.File, error) {
	c, err := net.FileConn(socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }() // only read
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a socket")
	}
	return readTree(conn)
}

// WaitEnded waits for the end of the servers of a stack, but no longer than limit.
func WaitEnded(ended *os.File, limit time.Duration) {
	if ended.SetReadDeadline(time.Now().Add(limit)) == nil {
		_, _ = ended.Read(make([]byte, 1)) // nothing is written
	}
}

// ServeStack is the process that [Stack.Mount] starts with these arguments. It ends when the servers run. Its errors are for its standard output.
func ServeStack(args []string) error {
	const words = 3
	if len(args) != words {
		return errors.New("only berth starts this process")
	}
	var layers []passedLayer
	if err := json.Unmarshal([]byte(args[2]), &layers); err != nil {
		return err
	}
	if err := closeInherited(firstLayerFD + len(layers)); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	dir := args[1]
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"); err != nil {
		return fmt.Errorf("mount on %s: %w", dir, err)
	}
	writable := args[0] == "true"
	err := mountStack(dir, layers, writable)
	// The servers have what they need open. As they are in this mount namespace, they would keep its mounts, and these the servers.
	return errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
}

// Descriptors of the process that calls ServeStack.
const (
	stackSocketFD = iota + 3
	servingFD
	firstLayerFD
)

func mountStack(dir string, layers []passedLayer, writable bool) error {
	// The servers don't look at the attribute of a layer's root.
	if i := slices.IndexFunc(layers, func(l passedLayer) bool { return l.Dir != "" && overlay.IsOpaque(l.Dir) }); i >= 0 {
		layers = layers[:i+1]
	}
	serving := os.NewFile(servingFD, "serving") // each server keeps it open
	var lower []string
	options := ""
	for i, l := range layers {
		at := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		err := error(nil)
		switch {
		case l.IsExt3:
			err = startExt3(at, l, writable && i == 0, serving)
			at = filepath.Join(at, "upper")
		case l.FD != 0:
			err = attachTree(l.FD, at)
		default:
			err = overlay.BindMount(at, l.Dir)
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, at) // dir may have characters that separate options
		switch {
		case err != nil:
			return err
		case writable && i == 0:
			options = ",upperdir=" + name + ",workdir=" + filepath.Join(filepath.Dir(name), "work")
		default:
			lower = append(lower, name)
		}
	}
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}
	if err := startServer(dir, stackServer, []*os.File{serving}, "-o", "lowerdir="+strings.Join(lower, ":")+options, "root"); err != nil {
		return err
	}
	tree, err := mounttree.Clone(root, false)
	if err != nil {
		return err
	}
	defer tree.Close() // the other process has a copy
	return unix.Sendmsg(stackSocketFD, []byte{0}, unix.UnixRights(int(tree.Fd())), nil, 0)
}

// startExt3 mounts an ext3 file system, whose directories upper and work are made if they are missing.
func startExt3(at string, l passedLayer, writable bool, serving *os.File) error {
	mode := "ro"
	if writable {
		mode = "rw"
	}
	files := []*os.File{os.NewFile(uintptr(l.FD), "overlay"), serving} //nolint:gosec // not negative
	// The files belong to this user, whatever their owners are. Without default options FUSE shows the mount to this user alone.
	err := startServer("/", ext3Server, files, "-o", fmt.Sprintf("%s,no_default_opts,default_permissions,fakeroot,offset=%d", mode, l.Offset), "/proc/self/fd/3", at)
	if err != nil {
		return err
	}
	for _, name := range []string{"upper", "work"} {
		path := filepath.Join(at, name)
		if writable {
			if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		} else if name == "work" {
			break
		}
		// A link would lead to a directory of the host.
		if st, err := os.Lstat(path); err != nil || !st.IsDir() {
			return fmt.Errorf("an overlay has no directory %s: apptainer overlay create makes one that has", name)
		}
	}
	return nil
}

// startServer starts a program of FUSE in a directory, which returns when the mount is there, and a process of which stays.
func startServer(dir, name string, files []*os.File, words ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, ociruntime.LookUp(name), words...)
	cmd.Dir, cmd.ExtraFiles, cmd.Env = dir, files, []string{"PATH=" + ociruntime.Programs}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = time.Second // the process that stays may have the output open
	err := cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("%s doesn't answer", name)
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%s: %s (%w)", name, strings.ReplaceAll(strings.TrimSpace(said.String()), "\n", "; "), err)
	}
	return nil
}

func attachTree(fd int, at string) error {
	tree := os.NewFile(uintptr(fd), "tree") //nolint:gosec // not negative
	defer tree.Close()                      // attached by then
	dir, err := os.OpenFile(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer dir.Close() // an O_PATH descriptor
	return mounttree.Attach(tree, dir)
}

// LockLayer locks a part of a file, as Apptainer does, for one writer or for readers, and waits a little for a server that is about to end. The lock lasts until the last
// process has closed the file.
func LockLayer(ctx context.Context, f *os.File, offset, size int64, writable bool) error {
	lock := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart, Start: offset, Len: size}
	if writable {
		lock.Type = unix.F_WRLCK
	}
	const tries, pause = 40, 50 * time.Millisecond
	for range tries {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
	return errors.New("another command uses it: an overlay that is written to has one user")
}
