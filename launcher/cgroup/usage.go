package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Usage is what the processes in a cgroup use.
type Usage struct {
	// CPU time since the cgroup was made.
	CPU time.Duration
	// Memory in bytes, without what the kernel only keeps of files and could drop at
	// once. MemoryLimit and PIDLimit are 0 where there is none.
	Memory, MemoryLimit uint64
	PIDs, PIDLimit      uint64
	// Read and Written are bytes of block devices, since the cgroup was made.
	Read, Written uint64
}

// Usage reads the cgroup at path. What no controller counts stays zero; a cgroup that
// isn't there is an error that Is fs.ErrNotExist.
func (t Tree) Usage(path string) (Usage, error) {
	if _, err := os.Stat(t.dir("devices", path)); err != nil {
		return Usage{}, fmt.Errorf("read cgroup: %w", err)
	}
	r := reading{tree: t, path: path}
	if t.Unified {
		return r.unified(), r.failure()
	}
	return r.hierarchies(), r.failure()
}

// dir of a cgroup, in the hierarchy of a controller where there are several.
func (t Tree) dir(controller, path string) string {
	if t.Unified {
		return filepath.Join(t.root, path)
	}
	at := filepath.Join(t.root, controller)
	if _, err := os.Stat(at); err == nil {
		return filepath.Join(at, path)
	}
	entries, err := os.ReadDir(t.root)
	if err != nil {
		return filepath.Join(at, path) // which isn't there
	}
	for _, e := range entries { // joint hierarchies have joint names
		if slices.Contains(strings.Split(e.Name(), ","), controller) {
			return filepath.Join(t.root, e.Name(), path)
		}
	}
	return filepath.Join(at, path)
}

// reading collects numbers of one cgroup. The first real error stays.
type reading struct {
	tree Tree
	path string
	err  error
}

func (r *reading) failure() error {
	if r.err != nil {
		return fmt.Errorf("read cgroup: %w", r.err)
	}
	return nil
}

func (r *reading) unified() Usage {
	u := Usage{
		CPU:    time.Duration(r.field("cpu", "cpu.stat", "usage_usec")) * time.Microsecond,
		Memory: r.number("memory", "memory.current"), MemoryLimit: r.number("memory", "memory.max"),
		PIDs: r.number("pids", "pids.current"), PIDLimit: r.number("pids", "pids.max"),
	}
	u.Memory -= min(u.Memory, r.field("memory", "memory.stat", "inactive_file"))
	for line := range strings.Lines(r.text("io", "io.stat")) {
		for _, word := range strings.Fields(line) {
			key, value, _ := strings.Cut(word, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			switch {
			case err != nil:
			case key == "rbytes":
				u.Read += n
			case key == "wbytes":
				u.Written += n
			}
		}
	}
	return u
}

func (r *reading) hierarchies() Usage {
	u := Usage{
		CPU:    time.Duration(min(r.number("cpuacct", "cpuacct.usage"), math.MaxInt64)),
		Memory: r.number("memory", "memory.usage_in_bytes"), MemoryLimit: r.number("memory", "memory.limit_in_bytes"),
		PIDs: r.number("pids", "pids.current"), PIDLimit: r.number("pids", "pids.max"),
	}
	u.Memory -= min(u.Memory, r.field("memory", "memory.stat", "total_inactive_file"))
	if u.MemoryLimit > math.MaxInt64-1<<20 { // how version 1 says that there is none
		u.MemoryLimit = 0
	}
	for line := range strings.Lines(r.text("blkio", "blkio.throttle.io_service_bytes")) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		n, err := strconv.ParseUint(f[2], 10, 64)
		switch {
		case err != nil:
		case f[1] == "Read":
			u.Read += n
		case f[1] == "Write":
			u.Written += n
		}
	}
	return u
}

// text of a control file; "" where there is no such controller.
func (r *reading) text(controller, name string) string {
	data, err := os.ReadFile(filepath.Join(r.tree.dir(controller, r.path), name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && r.err == nil {
		r.err = err
	}
	return string(data)
}

// number in a file of one; "max" is 0.
func (r *reading) number(controller, name string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSpace(r.text(controller, name)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// field of a file with a key and a number in each line.
func (r *reading) field(controller, name, key string) uint64 {
	for line := range strings.Lines(r.text(controller, name)) {
		f := strings.Fields(line)
		if len(f) != 2 || f[0] != key {
			continue
		}
		if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
			return n
		}
	}
	return 0
}
