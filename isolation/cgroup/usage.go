package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage is what the processes in a cgroup use.
type Usage struct {
	// CPU time since the cgroup was created.
	CPU time.Duration
	// Memory in bytes, without the inactive page cache. MemoryLimit and PIDLimit are 0
	// where there is no limit.
	Memory, MemoryLimit uint64
	PIDs, PIDLimit      uint64
	// Read and Written are bytes of block devices, since the cgroup was created.
	Read, Written uint64
}

// ReadUsage reads the cgroup at path. Values without a controller stay zero. The error Is
// fs.ErrNotExist if there is no such cgroup.
func (h Hierarchy) ReadUsage(path string) (Usage, error) {
	if _, err := os.Stat(h.controllerDir("devices", path)); err != nil {
		return Usage{}, fmt.Errorf("read cgroup: %w", err)
	}
	c := counters{hierarchy: h, path: path}
	var usage Usage
	if h.Version == V1 {
		usage = c.readV1()
	} else {
		usage = c.readV2()
	}
	if c.err != nil {
		return Usage{}, fmt.Errorf("read cgroup: %w", c.err)
	}
	return usage, nil
}

// counters reads numbers of one cgroup, and keeps the first error that isn't a missing
// file.
type counters struct {
	hierarchy Hierarchy
	path      string
	err       error
}

func (c *counters) readV2() Usage {
	u := Usage{
		CPU:    time.Duration(c.readField("cpu", "cpu.stat", "usage_usec")) * time.Microsecond,
		Memory: c.readNumber("memory", "memory.current"), MemoryLimit: c.readNumber("memory", "memory.max"),
		PIDs: c.readNumber("pids", "pids.current"), PIDLimit: c.readNumber("pids", "pids.max"),
	}
	u.Memory -= min(u.Memory, c.readField("memory", "memory.stat", "inactive_file"))
	for line := range strings.Lines(c.readText("io", "io.stat")) {
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

func (c *counters) readV1() Usage {
	u := Usage{
		CPU:    time.Duration(min(c.readNumber("cpuacct", "cpuacct.usage"), math.MaxInt64)),
		Memory: c.readNumber("memory", "memory.usage_in_bytes"), MemoryLimit: c.readNumber("memory", "memory.limit_in_bytes"),
		PIDs: c.readNumber("pids", "pids.current"), PIDLimit: c.readNumber("pids", "pids.max"),
	}
	u.Memory -= min(u.Memory, c.readField("memory", "memory.stat", "total_inactive_file"))
	if u.MemoryLimit > math.MaxInt64-1<<20 { // "no limit" on version 1
		u.MemoryLimit = 0
	}
	for line := range strings.Lines(c.readText("blkio", "blkio.throttle.io_service_bytes")) {
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

// readText returns a control file, "" where there is no such controller.
func (c *counters) readText(controller, name string) string {
	data, err := os.ReadFile(filepath.Join(c.hierarchy.controllerDir(controller, c.path), name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && c.err == nil {
		c.err = err
	}
	return string(data)
}

// readNumber reads a file that holds one number; "max" is 0.
func (c *counters) readNumber(controller, name string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSpace(c.readText(controller, name)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// readField reads a file of lines with a key and a number each.
func (c *counters) readField(controller, name, key string) uint64 {
	for line := range strings.Lines(c.readText(controller, name)) {
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
