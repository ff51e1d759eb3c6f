package apptainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	if os.Geteuid() == 0 && st.Mode().Perm()&0o004 == 0 {
		return image{}, errors.Join(fmt.Errorf("%s: root's images are read by a process without rights, which may not read this one: chmod o+r", name), f.Close())
	}
	i.sif, i.offset = file, file.Root.Offset
	return i, nil
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

// passOn returns the value of imageVariable for the process inside. For a SIF file it is the number of a file descriptor of a mount of its root file
// system, which the programs that this process starts inherit.
func (i image) passOn(c *cli.Context, conf berth.Config) (string, error) {
	if i.isDir {
		return directoryImage, nil
	}
	if i.reference != "" {
		got, use, err := unpackReference(c, conf, i.reference, store.Missing)
		if err != nil {
			return "", err
		}
		return passLayers(got, use)
	}
	if i.isUnpacked(c) {
		if os.Geteuid() == 0 {
			return "", errors.New("--unsquash: SIF files are unpacked for users alone; for root a process without rights reads them")
		}
		return i.passUnpacked(c, conf, isOn(c, "unsquash"))
	}
	tree, err := i.mount(c.Context, conf)
	if err != nil {
		return "", err
	}
	defer tree.Close() // a copy
	passed, err := rootless.Inherit(tree)
	if err != nil {
		return "", err
	}
	return strconv.Itoa(passed), nil
}

// runAsSelf runs this process's command line in a child with this user's id in a user namespace. The child starts while a SIF file is mounted.
func (i image) runAsSelf(c *cli.Context, conf berth.Config) error {
	groups := groupsVariable + "=" + formatGroups()
	if i.isFile() && !i.isUnpacked(c) {
		return rootless.RunAsSelf(c, conf, i.startMount(c.Context, conf), imageVariable+"="+helperImage, groups)
	}
	passed, err := i.passOn(c, conf)
	if err != nil {
		return err
	}
	return rootless.RunAsSelf(c, conf, nil, imageVariable+"="+passed, groups)
}

// mount returns a mount of a SIF file's root file system.
func (i image) mount(ctx context.Context, conf berth.Config) (*os.File, error) {
	client := imagemount.Client{Dir: filepath.Join(conf.TaskState(), "images"), Cgroup: readCgroup(), Holder: holderCommand}
	tree, err := client.Mount(ctx, imagemount.Source{File: i.file, Offset: i.offset})
	if err != nil {
		return nil, cmp.Or(rootless.ExplainRefusal(conf, err), err)
	}
	return tree, nil
}

// startMount begins to mount a SIF file's root file system, and returns a function that waits for the mount.
func (i image) startMount(ctx context.Context, conf berth.Config) func() (*os.File, error) {
	mount := sync.OnceValues(func() (*os.File, error) { return i.mount(ctx, conf) })
	go func() { _, _ = mount() }() // the other call returns the error
	return mount
}

// isUnpacked reports whether the image is a SIF file that is unpacked into the store.
func (i image) isUnpacked(c *cli.Context) bool {
	return i.isFile() && (isOn(c, "unsquash") || os.Geteuid() != 0 && !canMount())
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

// passUnpacked is passOn for a SIF file that is unpacked into this user's store. A process of root would have to read what strangers have written, and so doesn't.
// wanted says that the command line asks for it.
func (i image) passUnpacked(c *cli.Context, conf berth.Config, wanted bool) (string, error) {
	if err := squashfs.CheckCompressor(i.sif.Root.Compressor); err != nil {
		if !wanted {
			err = fmt.Errorf("%w; with squashfuse and a /dev/fuse that is open to users, all are mounted", err)
		}
		return "", fmt.Errorf("%s: %w", i.file.Name(), err)
	}
	path, err := filepath.Abs(i.file.Name())
	if err != nil {
		return "", err
	}
	got, use, err := unpackReference(c, conf, sifScheme+path, store.Never)
	if err != nil {
		return "", err
	}
	return passLayers(got, use)
}

// sifScheme begins a SIF file's reference in the command line of the process that unpacks it.
const sifScheme = "sif:"

// openSIF opens a SIF file as an image of the store. closeFile closes the file after the image.
func openSIF(c *cli.Context, at store.Store, path string) (img *store.Image, closeFile func(), err error) {
	i, err := openImage(path)
	if err != nil {
		return nil, nil, err
	}
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
