package apptainer

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/internal/userns"
	store "github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/imagemount"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/sif"
	"github.com/berth-gpu/berth/launcher/squashfs"
)

// image is an open SIF file, an image that is a directory, or a reference.
type image struct {
	reference string
	file      *os.File
	isDir     bool
	sif       sif.Image
	offset    int64 // of the squashfs
}

// isFile reports whether the image is a SIF file.
func (i image) isFile() bool { return i.reference == "" && !i.isDir }

func (i image) closeFile() { _ = i.file.Close() } // only read; nil for a reference

// openImage opens an image by Apptainer's words for one.
func openImage(name string) (image, error) {
	if err := checkReference(name); err != nil {
		return image{}, err
	}
	if isReference(name) {
		return image{reference: name}, nil
	}
	if isRemoteSIF(name) {
		return image{}, fmt.Errorf("%s: berth apptainer pull writes a file of it", name)
	}
	f, st, err := openPath(name)
	if errors.Is(err, fs.ErrNotExist) {
		return image{}, fmt.Errorf("image %q: there is no such file or directory; docker://NAME is an image of a registry", name)
	}
	if err != nil {
		return image{}, err
	}
	i := image{file: f, isDir: st.IsDir()}
	if i.isDir {
		if hint := suggestScheme(name, true); hint != "" {
			return image{}, errors.Join(fmt.Errorf("%s: %s", name, hint), f.Close())
		}
		if name, err := filepath.EvalSymlinks(name); err == nil && filepath.Clean(name) == "/" {
			err = errors.New("the host's root directory is no image")
			return image{}, errors.Join(err, f.Close())
		}
		return i, nil
	}
	file, err := sif.Read(f)
	if err == nil {
		err = file.CheckArch(runtime.GOARCH)
	}
	if hint := suggestScheme(name, false); err != nil && hint != "" {
		err = fmt.Errorf("%w; %s", err, hint)
	}
	if err != nil {
		return image{}, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	if err := checkForServer(st); err != nil {
		return image{}, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	i.sif, i.offset = file, file.Root.Offset
	return i, nil
}

// checkForServer returns an error for a squashfs of root's that its server may not read.
func checkForServer(st os.FileInfo) error {
	if os.Geteuid() == 0 && st.Mode().Perm()&0o004 == 0 {
		return errors.New("root's images are read by a process without rights, which may not read this one: chmod o+r")
	}
	return nil
}

// openPath opens a file for reading, or a directory. Anything else isn't opened: its path may lead to another file at any time.
func openPath(name string) (*os.File, os.FileInfo, error) {
	at, err := os.OpenFile(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := at.Stat()
	if err == nil && st.IsDir() {
		return at, st, nil
	}
	defer at.Close() // an O_PATH descriptor
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("it is neither a file nor a directory")}
	}
	if err != nil {
		return nil, nil, err
	}
	f, err := inroot.Reopen(at)
	return f, st, err
}

// openedRoot is the root file system of an image: a mount, layers of the store, or a directory.
type openedRoot struct {
	tree    *os.File
	content content  // with layers
	use     *os.File // keeps them
	dir     string
}

// openRoot opens the root file system of an image. wanted are the devices of the command: what this machine hasn't is an error before an image is pulled or
// unpacked.
func (i image) openRoot(c *cli.Context, conf berth.Config, wanted request.Request) (root openedRoot, err error) {
	unpacks := isOn(c, "unsquash")
	switch {
	case i.isDir:
		root.dir, err = filepath.Abs(i.file.Name())
		return root, err
	case i.reference != "":
		if err = checkDevices(c, conf, wanted); err == nil {
			root.content, root.use, err = unpackReference(c, conf, i.reference, store.Missing)
		}
		return root, err
	case unpacks && os.Geteuid() == 0:
		return root, errors.New("--unsquash: SIF files are unpacked for users alone; for root a process without rights reads them")
	case unpacks, os.Geteuid() != 0 && !canMount():
		if err = checkDevices(c, conf, wanted); err == nil {
			root.content, root.use, err = i.unpackImage(c, conf, unpacks)
		}
		return root, err
	}
	root.tree, err = mountSquashfs(c, conf, i.file, i.offset)
	return root, err
}

// mountSquashfs mounts a squashfs in a file.
func mountSquashfs(c *cli.Context, conf berth.Config, f *os.File, offset int64) (*os.File, error) {
	client := imagemount.Client{Dir: filepath.Join(conf.TaskState(), "images"), Cgroup: readCgroup(), Holder: holderCommand}
	tree, err := client.Mount(c.Context, imagemount.Source{File: f, Offset: offset})
	if err != nil {
		return nil, cmp.Or(rootless.ExplainRefusal(conf, err), err)
	}
	return tree, nil
}

// passDescriptors returns the value of imageVariable for the process inside. For a mount it is the number of a file descriptor, which the programs that this
// process starts inherit.
func (r openedRoot) passDescriptors() (string, error) {
	switch {
	case r.dir != "":
		return directoryImage, nil
	case r.use != nil, r.content.Tree != 0, r.content.Dir != "":
		return passContent(r.content, r.use)
	}
	defer r.tree.Close() // a copy
	passed, err := rootless.Inherit(r.tree)
	return strconv.Itoa(passed), err
}

// isMounted reports whether the root file system of a user's container is the mount of a SIF file, and nothing else.
func (i image) isMounted(c *cli.Context) bool {
	w, err := chooseWrites(c)
	return err == nil && !w.inFiles && i.isFile() && len(i.sif.Overlays) == 0 && !isOn(c, "unsquash") && canMount()
}

// startMount begins to mount a SIF file's root file system, and returns a function that waits for the mount.
func (i image) startMount(c *cli.Context, conf berth.Config) func() (*os.File, error) {
	mount := sync.OnceValues(func() (*os.File, error) { return mountSquashfs(c, conf, i.file, i.offset) })
	go func() { _, _ = mount() }() // the other call returns the error
	return mount
}

// checkDevices returns an error if this machine never has the devices of a request. All other errors come when they are leased.
func checkDevices(c *cli.Context, conf berth.Config, wanted request.Request) error {
	if wanted.IsZero() || os.Getenv("BERTH_LEASE") != "" {
		return nil
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	err = node.CheckGrantable(c.Context, wanted)
	if errors.Is(err, match.ErrUnknown) || errors.Is(err, match.ErrTooMany) {
		return verb.NameRequest(err)
	}
	return nil
}

// canMount reports whether this user can mount SIF files.
func canMount() bool {
	if ociruntime.LookUp(imagemount.Squashfuse) == "" {
		return false
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		f.Close() // nothing was mounted by it
	}
	return err == nil
}

// unpackImage unpacks a SIF file into this user's store. A process of root would have to read what strangers have written, and so doesn't.
// wanted says that the command line asks for it.
func (i image) unpackImage(c *cli.Context, conf berth.Config, wanted bool) (got content, use *os.File, err error) {
	if err := squashfs.CheckCompressor(io.NewSectionReader(i.file, i.offset, i.sif.Root.Size)); err != nil {
		if !wanted && errors.Is(err, squashfs.ErrCompressor) {
			err = fmt.Errorf("%w; with squashfuse and a /dev/fuse that is open to users, all are mounted", err)
		}
		return got, nil, fmt.Errorf("%s: %w", i.file.Name(), err)
	}
	path, err := filepath.Abs(i.file.Name())
	if err != nil {
		return got, nil, err
	}
	fd, err := rootless.Inherit(i.file)
	if err != nil {
		return got, nil, err
	}
	defer func() { _ = unix.Close(fd) }() // a copy
	return unpackReference(c, conf, fmt.Sprintf("%s%d:%s", sifScheme, fd, path), store.Never)
}

// sifScheme begins the reference of an open SIF file for the process that unpacks it. The number of a file descriptor follows, and the path, which is only shown: it
// can lead to another file by then, with signatures that aren't verified.
const sifScheme = "sif:"

// openPassed opens a SIF file again by what follows sifScheme.
func openPassed(passed string) (i image, err error) {
	number, path, _ := strings.Cut(passed, ":")
	fd, err := strconv.Atoi(number)
	if err == nil {
		fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) //nolint:gosec // a descriptor
	}
	if err != nil {
		return i, fmt.Errorf("%s: %w", path, err)
	}
	i.file = os.NewFile(uintptr(fd), path) //nolint:gosec // not negative
	if i.sif, err = sif.Read(i.file); err != nil {
		return i, errors.Join(fmt.Errorf("%s: %w", path, err), i.file.Close())
	}
	i.offset = i.sif.Root.Offset
	return i, nil
}

// openSIF opens a SIF file as an image of the store, by what follows sifScheme. closeFile closes the file after the image.
func openSIF(c *cli.Context, at store.Store, passed string) (img *store.Image, closeFile func(), err error) {
	i, err := openPassed(passed)
	if err != nil {
		return nil, nil, err
	}
	path := i.file.Name()
	last := time.Now()
	img, err = at.OpenSquashfs(c.Context, i.file, i.offset, i.sif.Root.Size, path, func(done, total int64) {
		if time.Since(last) >= time.Second {
			last = time.Now()
			fmt.Fprintf(os.Stderr, "berth: reading %s: %d of %d MB\n", path, done>>20, total>>20)
		}
	})
	if err != nil {
		i.closeFile()
	}
	return img, i.closeFile, err
}

// readCgroup returns the cgroups of this process, "" if they can't be read.
func readCgroup() string {
	text, _ := smallfile.String("/proc/self/cgroup") // only to tell processes apart
	return text
}

// holdVerb is the hidden verb of [HoldCommand].
const holdVerb = "hold-image"

// holderCommand returns the command of a process that holds a mount. It has a session of its own: the user's terminal doesn't end it.
func holderCommand() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", holdVerb)
	cmd.Args[0] = "berth"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() != 0 {
		userns.Enter(cmd)
	}
	return cmd
}

// idle is how long a mount is kept that no process uses.
const idle = 10 * time.Second

// HoldCommand is the hidden verb of a process that holds a mount for the processes of its user.
func HoldCommand() *cli.Command {
	return &cli.Command{
		Name: holdVerb, Hidden: true, HideHelp: true,
		Action: func(c *cli.Context) error {
			var offset int64
			if _, err := fmt.Sscan(c.Args().First(), &offset); err != nil {
				return verb.UsageError{Err: errors.New("only berth apptainer starts berth hold-image")}
			}
			pause := idle
			if strings.Contains(readCgroup(), "/berth/") { // this process keeps a lease from ending
				pause = 0
			}
			return imagemount.Serve(c.Context, offset, c.Args().Get(1), pause)
		},
	}
}
