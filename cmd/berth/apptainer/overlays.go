package apptainer

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/launcher/imagemount"
	"github.com/berth-gpu/berth/launcher/sif"
)

// stack is the mount of an image with overlays in files. The zero value has none.
type stack struct {
	ended *os.File // of [imagemount.Stack.Mount]
	tree  int      // the copy of the mount that programs inherit
}

// lastWrites is how long the launcher waits for the servers of a mount: the next command gets the overlay when they have ended. A process that was
// left in the background keeps them.
const lastWrites = 2 * time.Second

func (s stack) waitEnded() {
	if s.ended != nil {
		_ = unix.Close(s.tree) // a copy
		imagemount.WaitEnded(s.ended, lastWrites)
	}
}

// addOverlays adds overlays to an image's root file system, if there are some in files: those of --overlay, and the partitions of a SIF file, which are written to with
// --writable. For a user it replaces the root file system by a mount of all. For root it opens them for the process inside, whose own overlay has them: see
// [imagemount.MountExt3].
func (i image) addOverlays(c *cli.Context, conf berth.Config, root *openedRoot) (s stack, err error) {
	w, err := chooseWrites(c)
	if err != nil || !w.inFiles && len(i.sif.Overlays) == 0 {
		return s, err
	}
	switch {
	case w.inPlace && i.isDir:
		return s, errors.New("--writable: with overlays the image itself isn't written to")
	}
	var overlays []openedOverlay
	keepsChanges := false
	defer func() {
		for _, l := range overlays { // there are copies
			l.File.Close()
			l.Tree.Close()
		}
	}()
	add := func(l openedOverlay, writable bool) error {
		if writable && (keepsChanges || w.dir != "") {
			return errors.New("changes can be kept in one overlay; the others are FILE:ro")
		}
		if writable {
			overlays = append([]openedOverlay{l}, overlays...)
			keepsChanges = true
			return nil
		}
		overlays = append(overlays, l)
		return nil
	}
	for _, o := range w.above {
		l, writable, err := openOverlay(c, conf, o)
		if err == nil {
			err = add(l, writable)
		}
		if err != nil {
			return s, fmt.Errorf("--overlay %s: %w", o.path, err)
		}
	}
	for n := range i.sif.Overlays { // the last one hides the others
		p := i.sif.Overlays[len(i.sif.Overlays)-1-n]
		l, err := openPartition(c, conf, i.file, p, w.inPlace)
		if err == nil {
			err = add(l, w.inPlace && p.Filesystem == ext3)
		}
		if err != nil {
			return s, fmt.Errorf("%s: %w", i.file.Name(), err)
		}
	}
	if w.inPlace && !keepsChanges {
		return s, fmt.Errorf("--writable: %s has no overlay that can be written to", i.file.Name())
	}
	if root.use == nil {
		root.content.IsSIF = true
	}
	if os.Geteuid() == 0 {
		return s, root.passOverlays(overlays, keepsChanges)
	}
	return mountStack(c, conf, overlays, keepsChanges, root)
}

// openedOverlay is an open overlay.
type openedOverlay struct {
	imagemount.Layer
	dir    string // the directory of --overlay, "" for a file
	isExt3 bool
}

// passOverlays passes the root file system and its overlays on to the process inside.
func (r *openedRoot) passOverlays(overlays []openedOverlay, writable bool) (err error) {
	for i, o := range overlays {
		p := passedOverlay{Dir: o.dir, IsExt3: o.isExt3, Writable: writable && i == 0}
		if o.Tree != nil {
			if p.Tree, err = rootless.Inherit(o.Tree); err != nil {
				return err
			}
		}
		r.content.Overlays = append(r.content.Overlays, p)
	}
	if r.tree != nil {
		defer r.tree.Close() // a copy is passed on
		r.content.Tree, err = rootless.Inherit(r.tree)
	}
	r.content.Dir = r.dir
	r.tree, r.dir = nil, ""
	return err
}

// mountStack replaces a user's root file system by a mount of it and its overlays.
func mountStack(c *cli.Context, conf berth.Config, overlays []openedOverlay, writable bool, root *openedRoot) (s stack, err error) {
	all := imagemount.Stack{Writable: writable}
	for _, o := range overlays {
		all.Layers = append(all.Layers, o.Layer)
	}
	switch {
	case root.tree != nil:
		defer root.tree.Close() // the servers have a copy
		all.Layers = append(all.Layers, imagemount.Layer{Tree: root.tree})
	case root.dir != "":
		all.Layers = append(all.Layers, imagemount.Layer{Dir: root.dir})
	}
	for _, dir := range root.content.Layers {
		all.Layers = append(all.Layers, imagemount.Layer{Dir: dir})
	}
	dir := filepath.Join(conf.TaskState(), "session")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return s, err
	}
	tree, ended, err := all.Mount(c.Context, stackCommand(), dir)
	if err != nil {
		return s, cmp.Or(rootless.ExplainRefusal(conf, err), fmt.Errorf("mount overlays: %w", err))
	}
	defer tree.Close() // a copy is passed on
	if s.tree, err = rootless.Inherit(tree); err != nil {
		return s, err
	}
	s.ended = ended
	root.content.Tree, root.content.Writable, root.content.Layers = s.tree, all.Writable, nil
	root.tree, root.dir = nil, ""
	return s, nil
}

// ext3 is the name that package sif has for the file system.
const ext3 = "ext3"

// openOverlay opens a word of --overlay. A squashfs is never written to.
func openOverlay(c *cli.Context, conf berth.Config, o overlayWord) (l openedOverlay, writable bool, err error) {
	if o.isDir {
		l.dir, l.Dir = o.path, filepath.Join(o.path, "upper")
		if st, err := os.Lstat(l.Dir); err != nil || !st.IsDir() {
			return l, false, errors.New("it has no directory upper")
		}
		return l, false, nil
	}
	f, st, err := openPath(o.path)
	if err != nil {
		return l, false, err
	}
	defer f.Close() // its server has a copy
	p := sif.Partition{Size: st.Size()}
	if sif.IsSIF(f) {
		file, err := sif.Read(f)
		if err != nil {
			return l, false, err
		}
		if len(file.Overlays) != 1 {
			return l, false, fmt.Errorf("it has %d overlays, not one", len(file.Overlays))
		}
		p = file.Overlays[0]
	} else if p.Filesystem, err = detectFilesystem(f); err != nil {
		return l, false, err
	}
	writable = !o.readOnly && p.Filesystem == ext3
	l, err = openPartition(c, conf, f, p, writable)
	return l, writable, err
}

// detectFilesystem returns the name of the file system in a file.
func detectFilesystem(f *os.File) (string, error) {
	// The magic number of struct ext2_super_block in Linux's fs/ext2/ext2.h.
	const superblock, magicAt, magic = 1024, 56, 0xef53
	var head [superblock + magicAt + 2]byte
	n, _ := f.ReadAt(head[:], 0) // a file that ends before has neither
	switch {
	case n >= 4 && string(head[:4]) == "hsqs":
		return "squashfs", nil
	case n == len(head) && binary.LittleEndian.Uint16(head[superblock+magicAt:]) == magic:
		return ext3, nil
	}
	return "", errors.New("it is no ext3 file system (apptainer overlay create makes one), no squashfs and no SIF file")
}

// openPartition opens an overlay in a part of a file that is open for reading. An ext3 file system is locked for one writer or for readers.
func openPartition(c *cli.Context, conf berth.Config, f *os.File, p sif.Partition, writable bool) (l openedOverlay, err error) {
	switch p.Filesystem {
	case "squashfs":
		st, err := f.Stat()
		if err == nil {
			err = checkForServer(st)
		}
		if err == nil {
			l.Tree, err = mountSquashfs(c, conf, f, p.Offset)
		}
		return l, err
	case ext3:
	default:
		return l, fmt.Errorf("its overlay is %s: there are ext3 and squashfs", p.Filesystem)
	}
	flags := os.O_RDONLY
	if writable {
		flags = os.O_RDWR
	}
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), flags, 0) // a lock belongs to one opening
	if err != nil {
		return l, &fs.PathError{Op: "open", Path: f.Name(), Err: errors.Unwrap(err)}
	}
	l = openedOverlay{Layer: imagemount.Layer{File: again, Offset: p.Offset}, isExt3: true}
	if err = imagemount.LockLayer(c.Context, again, p.Offset, p.Size, writable); err == nil && os.Geteuid() == 0 {
		if err = checkRootAlone(again); err == nil {
			l.Tree, err = imagemount.MountExt3(again, p.Offset, p.Size, writable)
		}
	}
	if err != nil {
		return l, errors.Join(err, again.Close())
	}
	return l, nil
}

// checkRootAlone returns an error unless root alone can change a file that the kernel is to mount, and the directories above it. A user who can change such a directory can
// have root mount another file of root's, such as the disk of a virtual machine. In a directory with the sticky bit users can't replace root's files.
func checkRootAlone(f *os.File) error {
	const remedy = "cp makes a copy of your own"
	server, found, err := findServer(f)
	if err != nil {
		return err
	}
	if found && server != 0 {
		return fmt.Errorf("the kernel mounts it for root, and user %d, who serves its file system, could change it meanwhile: %s", server, remedy)
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	for {
		const byOthers = 0o022
		switch {
		case st.Uid != 0:
			return fmt.Errorf("the kernel mounts it for root, and %s belongs to user %d, who could change it meanwhile: %s", path, st.Uid, remedy)
		case st.Mode&byOthers != 0 && (st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&unix.S_ISVTX == 0):
			return fmt.Errorf("the kernel mounts it for root, and others can write to %s: chmod go-w, or %s", path, remedy)
		case path == "/":
			return nil
		}
		path = filepath.Dir(path)
		if err := unix.Lstat(path, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
	}
}

// stackVerb is the hidden verb of [StackCommand].
const stackVerb = "mount-overlays"

// stackCommand returns the command of a process that mounts overlays in files. The user's terminal doesn't end its servers.
func stackCommand() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", stackVerb)
	cmd.Args[0] = "berth"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	userns.EnterAsSelf(cmd)
	return cmd
}

// StackCommand is the hidden verb of a process that mounts overlays in files for its user.
func StackCommand() *cli.Command {
	return &cli.Command{
		Name: stackVerb, Hidden: true, HideHelp: true,
		Action: func(c *cli.Context) error {
			if err := imagemount.ServeStack(c.Args().Slice()); err != nil {
				_, err := fmt.Println(err)
				return err
			}
			return nil
		},
	}
}
