package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// member is one cgroup in a walk: a name in its parent's directory. Its path can be longer than the kernel
// accepts.
type member struct {
	parent *os.File
	name   string
}

// readFile returns the content of a control file.
func (m member) readFile(file string) ([]byte, error) {
	f, err := m.openFile(file, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	return b, errors.Join(err, f.Close())
}

// writeFile writes a control file.
func (m member) writeFile(file, text string) error {
	f, err := m.openFile(file, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func (m member) openFile(file string, flags int) (*os.File, error) {
	return openAt(m.parent, filepath.Join(m.name, file), flags)
}

// removeIfEmpty removes the cgroup if it has no processes and no children.
func (m member) removeIfEmpty() error {
	if err := unix.Unlinkat(int(m.parent.Fd()), m.name, unix.AT_REMOVEDIR); err != nil {
		return &fs.PathError{Op: "rmdir", Path: m.name, Err: err}
	}
	return nil
}

// listProcesses lists the processes that are in just this cgroup. The list is empty if the cgroup is gone.
func (m member) listProcesses() ([]int, error) {
	b, err := m.readFile("cgroup.procs")
	if IsGone(err) || isThreaded(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, w := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(w)
		if err != nil {
			return nil, fmt.Errorf("read processes of %s: %w", m.name, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// walkCgroups calls f for the cgroup at path and for each below it, children first. Cgroups that go away
// meanwhile are left out.
func (h Hierarchy) walkCgroups(path string, f func(member) error) error {
	dir, err := h.Dir(path)
	if err != nil {
		return err
	}
	return walkDirectory(dir, f)
}

// level is one cgroup on the way from the top of a walk to its current cgroup.
type level struct {
	name     string
	children []string // children that are still to be walked
}

// walkDirectory is walkCgroups for a directory. A container that can mount cgroupfs decides how deep the
// tree is. So the walk goes down and up by one step at a time, holds one open directory, and uses no path
// of more than two names.
func walkDirectory(dir string, f func(member) error) (err error) {
	at, err := os.OpenFile(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer func() { _ = at.Close() }() // nothing is written through it
	move := func(name string, flags int) error {
		next, err := openAt(at, name, flags|unix.O_DIRECTORY)
		if err == nil {
			_ = at.Close()
			at = next
		}
		return err
	}
	var way []level
	down := func(name string) error {
		if err := move(name, unix.O_RDONLY); err != nil {
			return ignoreGone(err)
		}
		entries, err := at.ReadDir(-1)
		way = append(way, level{name: name})
		for _, e := range entries {
			if e.IsDir() {
				way[len(way)-1].children = append(way[len(way)-1].children, e.Name())
			}
		}
		return ignoreGone(err)
	}
	if err := down(filepath.Base(dir)); err != nil {
		return err
	}
	for len(way) > 0 {
		here := &way[len(way)-1]
		if n := len(here.children) - 1; n >= 0 {
			child := here.children[n]
			here.children = here.children[:n]
			if err := down(child); err != nil {
				return err
			}
			continue
		}
		if err := move("..", unix.O_PATH); err != nil {
			return err
		}
		name := here.name
		way = way[:len(way)-1]
		if err := f(member{at, name}); err != nil {
			return err
		}
	}
	return nil
}

func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func ignoreGone(err error) error {
	if IsGone(err) {
		return nil
	}
	return err
}
