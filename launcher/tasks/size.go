package tasks

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Size is what a task has on the disk, in bytes of blocks.
type Size struct {
	// Written is what the task has written to its root, and Logs its log files.
	Written int64 `json:"written"`
	Logs    int64 `json:"logs"`
	// Partial: something couldn't be counted, or ctx ended, and there may be more.
	Partial bool `json:"partial,omitempty"`
}

// Size counts what a task has on the disk. The task may be running: names that it changes
// meanwhile lead to nothing else. A task that isn't there has no size.
func (s Store) Size(ctx context.Context, id string) (size Size, err error) {
	entries, err := os.ReadDir(s.Dir(id))
	if errors.Is(err, fs.ErrNotExist) {
		return size, nil
	}
	if err != nil {
		return size, err
	}
	for _, e := range entries {
		if e.Name() != "log" && !strings.HasPrefix(e.Name(), "log.") {
			continue
		}
		var st unix.Stat_t
		if unix.Lstat(s.Path(id, e.Name()), &st) == nil {
			size.Logs += st.Blocks * blockSize
		}
	}
	c := counter{ctx: ctx, seen: map[[2]uint64]bool{}}
	for _, name := range []string{"upper", "work"} {
		c.countDir(unix.AT_FDCWD, s.Path(id, name), 0)
	}
	size.Written, size.Partial = c.sum, c.partial
	return size, nil
}

// blockSize is the unit of st_blocks, whatever the file system.
const blockSize = 512

// maxDepth bounds the directories that are open at once.
const maxDepth = 200

// counter sums the blocks of a tree that strangers write to. Names are resolved from open
// directories and never through links.
type counter struct {
	ctx     context.Context //nolint:containedctx // of one count
	seen    map[[2]uint64]bool
	sum     int64
	partial bool
}

func (c *counter) countDir(at int, name string, depth int) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		c.partial = c.partial || !errors.Is(err, unix.ENOENT)
		return
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			c.countEntry(int(dir.Fd()), name, depth)
		}
		if err != nil { // io.EOF at the end
			return
		}
		if c.ctx.Err() != nil {
			c.partial = true
			return
		}
	}
}

func (c *counter) countEntry(dir int, name string, depth int) {
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return // it was removed
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if !isDir && st.Nlink > 1 {
		inode := [2]uint64{st.Dev, st.Ino}
		if c.seen[inode] {
			return
		}
		c.seen[inode] = true
	}
	c.sum += st.Blocks * blockSize
	switch {
	case !isDir:
	case depth == maxDepth:
		c.partial = true
	default:
		c.countDir(dir, name, depth+1)
	}
}
