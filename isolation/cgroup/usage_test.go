package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		name    string
		version Version
		files   map[string]string
		want    Usage
	}{
		{"v2", V2, map[string]string{
			"t/cpu.stat": "usage_usec 1500000\nuser_usec 1\n", "t/memory.current": "5000\n", "t/memory.max": "1000000\n",
			"t/memory.stat": "anon 1\ninactive_file 1000\n", "t/pids.current": "3\n", "t/pids.max": "max\n",
			"t/io.stat": "8:0 rbytes=10 wbytes=20 rios=1\n8:16 rbytes=1 wbytes=2\n",
		}, Usage{CPU: 1500 * time.Millisecond, Memory: 4000, MemoryLimit: 1000000, PIDs: 3, Read: 11, Written: 22}},
		{"v2 without controllers", V2, map[string]string{"t/cgroup.procs": ""}, Usage{}},
		{"more to drop than there is", V2, map[string]string{"t/memory.current": "5\n", "t/memory.stat": "inactive_file 9\n"}, Usage{}},
		{"v1", V1, map[string]string{
			"devices/t/tasks": "", "cpu,cpuacct/t/cpuacct.usage": "2000000000\n", "memory/t/memory.usage_in_bytes": "5000\n",
			"memory/t/memory.limit_in_bytes": "9223372036854771712\n", "memory/t/memory.stat": "inactive_file 1\ntotal_inactive_file 2000\n",
			"pids/t/pids.current": "4\n", "pids/t/pids.max": "100\n",
			"blkio/t/blkio.throttle.io_service_bytes": "8:0 Read 7\n8:0 Write 8\n8:0 Total 15\nTotal 15\n",
		}, Usage{CPU: 2 * time.Second, Memory: 3000, PIDs: 4, PIDLimit: 100, Read: 7, Written: 8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				path := filepath.Join(dir, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			h := Hierarchy{Version: c.version, Root: dir, Mount: dir}
			got, err := h.ReadUsage("/t")
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
			if _, err := h.ReadUsage("/none"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("of none: %v", err)
			}
		})
	}
}

// TestUsageOfTheMachine: the machine's own cgroups count what a process uses.
func TestUsageOfTheMachine(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, _ string) {
		if _, err := h.ReadUsage("/"); err != nil {
			t.Error(err)
		}
	})
}
