package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// OOM learns whether the kernel kills in a container for want of memory, although the
// container's own cgroup is removed before anybody can ask it.
//
// On v2 the cgroup around it counts, too. On v1 each counts for itself, and tells who has
// asked: once for each time that the memory runs out, and once when it is removed.
type OOM struct {
	tree  Tree
	path  string
	event int // v1: an eventfd; -1 where nobody tells
}

// WatchOOM has to be called before the container is made. path is all of the task's
// cgroup, child the name of the container's below it, which on v1 is made for the memory
// alone.
func (t Tree) WatchOOM(path, child string) (*OOM, error) {
	o := &OOM{tree: t, path: path, event: -1}
	if t.Unified || !t.Has("memory") {
		return o, nil
	}
	dir := filepath.Join(t.dir("memory", path), child)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("watch memory: %w", err)
	}
	var err error
	if o.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("watch memory: %w", err)
	}
	if err := subscribe(dir, o.event); err != nil {
		err = errors.Join(err, o.Close())
		if errors.Is(err, fs.ErrNotExist) {
			return o, nil // a kernel without it
		}
		return nil, fmt.Errorf("watch memory: %w", err)
	}
	return o, nil
}

// subscribe has the kernel tell an eventfd of a cgroup's want of memory.
func subscribe(dir string, event int) error {
	control, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return err
	}
	err = writeTo(filepath.Join(dir, "cgroup.event_control"), strconv.Itoa(event)+" "+strconv.Itoa(int(control.Fd())))
	return errors.Join(err, control.Close())
}

// removal is how long the kernel takes to tell that a cgroup was removed.
const removal = 50 * time.Millisecond

// Killed says whether it has happened. The container's cgroup has to be gone. It is false
// of a nil watch.
func (o *OOM) Killed() bool {
	if o == nil {
		return false
	}
	if o.tree.Unified {
		return o.tree.OOMKilled(o.path)
	}
	if o.event < 0 {
		return false
	}
	told := uint64(0)
	for last := time.Now().Add(removal); told < 2 && time.Now().Before(last); time.Sleep(time.Millisecond) {
		told += o.take()
	}
	return told > 1
}

// take reads how often it was told since the last time.
func (o *OOM) take() uint64 {
	var count [8]byte
	if n, err := unix.Read(o.event, count[:]); err != nil || n != len(count) {
		return 0
	}
	return binary.NativeEndian.Uint64(count[:])
}

// Close ends the watch, which may be nil.
func (o *OOM) Close() error {
	if o == nil || o.event < 0 {
		return nil
	}
	err := unix.Close(o.event)
	o.event = -1
	return err
}
