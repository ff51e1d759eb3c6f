package tasks

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Size is a task's disk usage: the size of the allocated blocks in bytes.
type Size struct {
	// Written is what the task has written to its root, and Logs its log files.
	Written int64 `json:"written"`
	Logs    int64 `json:"logs"`
	// Partial means that something couldn't be counted, or that ctx has ended.
	Partial bool `json:"partial,omitempty"`
}

// Size returns a task's disk usage. The task may be running: changes that it makes meanwhile can't
// lead the count out of its directory. The size of a missing task is zero.
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

// blockSize is the unit of st_blocks, on all file systems.
const blockSize = 512

// maxDepth bounds the directories that are open at once.
const maxDepth = 200

// counter sums the blocks of an untrusted tree. Names are resolved relative to open directories, and
// links aren't followed.
type counter struct {
	ctx     context.Context //nolint:containedctx // a counter is used for one call
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
		return // removed meanwhile
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
