package cgroup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// HasOOMKill reports whether the kernel has killed a process of the cgroup at path, or on
// version 2 below it, because memory ran out. It is false where that is unknown.
func (h Hierarchy) HasOOMKill(path string) bool {
	file := "memory.events"
	if h.Version == V1 {
		file = "memory.oom_control"
	}
	data, err := os.ReadFile(filepath.Join(h.controllerDir("memory", path), file))
	return err == nil && hasOOMKill(data)
}

// hasOOMKill reads the counter "oom_kill", which version 2 and version 1 (since Linux
// 4.13) both have.
func hasOOMKill(events []byte) bool {
	for line := range bytes.Lines(events) {
		name, count, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if name == "oom_kill" {
			return count != "0"
		}
	}
	return false
}

// OOMWatch finds out whether the kernel killed a process of a container because memory
// ran out, although a runtime may have removed the container's cgroup before its counters
// can be read.
//
// On version 2 the counter of the cgroup around it includes the container's. On version
// 1 each cgroup counts for itself. There an eventfd is signalled once for each time that
// memory runs out, and once when the cgroup is removed.
type OOMWatch struct {
	hierarchy Hierarchy
	path      string // the task's cgroup
	container string // the container's cgroup
	event     int    // version 1: the eventfd; -1 where the kernel has none
}

// WatchOOM must be called before the container is created. path is the task's cgroup,
// child the name of the container's cgroup below it, which on version 1 is created in
// the memory tree.
func (h Hierarchy) WatchOOM(path, child string) (*OOMWatch, error) {
	w := &OOMWatch{hierarchy: h, path: path, container: path + "/" + child, event: -1}
	if h.Version == V2 || !h.HasController("memory") {
		return w, nil
	}
	dir := filepath.Join(h.controllerDir("memory", path), child)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("watch memory: %w", err)
	}
	var err error
	if w.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("watch memory: %w", err)
	}
	if err := subscribeOOM(dir, w.event); err != nil {
		err = errors.Join(err, w.Close())
		if errors.Is(err, fs.ErrNotExist) {
			return w, nil // a kernel without memory.oom_control
		}
		return nil, fmt.Errorf("watch memory: %w", err)
	}
	return w, nil
}

// subscribeOOM has the kernel signal an eventfd when memory runs out in a cgroup of
// version 1.
func subscribeOOM(dir string, event int) error {
	control, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return err
	}
	err = writeControl(filepath.Join(dir, "cgroup.event_control"), strconv.Itoa(event)+" "+strconv.Itoa(int(control.Fd())))
	return errors.Join(err, control.Close())
}

// removalSignal is how long the kernel may take to signal that a cgroup was removed: a work
// queue does so, which a busy machine delays. Only a task with a memory limit that has failed waits
// for it.
const removalSignal = 250 * time.Millisecond

// Killed reports whether memory ran out. It is called when the container has ended, and is
// false for a nil watch.
func (w *OOMWatch) Killed() bool {
	if w == nil {
		return false
	}
	if w.hierarchy.Version == V2 {
		return w.hierarchy.HasOOMKill(w.path)
	}
	if w.event < 0 {
		return false
	}
	if _, err := os.Stat(w.hierarchy.controllerDir("memory", w.container)); err == nil {
		return w.hierarchy.HasOOMKill(w.container)
	}
	signals := uint64(0)
	for last := time.Now().Add(removalSignal); signals < 2 && time.Now().Before(last); time.Sleep(time.Millisecond) {
		signals += w.readSignals()
	}
	return signals > 1
}

// readSignals returns how often the eventfd was signalled since the last call.
func (w *OOMWatch) readSignals() uint64 {
	var count [8]byte
	if n, err := unix.Read(w.event, count[:]); err != nil || n != len(count) {
		return 0
	}
	return binary.NativeEndian.Uint64(count[:])
}

// Close ends the watch. A nil watch and a second call are no error.
func (w *OOMWatch) Close() error {
	if w == nil || w.event < 0 {
		return nil
	}
	err := unix.Close(w.event)
	w.event = -1
	return err
}
