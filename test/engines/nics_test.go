package engines

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestNCCL: a container to which an engine gives GPUs and RDMA devices has what NCCL needs. The
// hook comes too late for the filter, /dev/shm and the environment, which stay the engine's.
func TestNCCL(t *testing.T) {
	eachEngine(t, []string{"runc", "berth"}, func(t *testing.T, p place) {
		c := p.start(t, containerOptions{devices: []string{"berth/gpus=2", "berth/with=nics:mlx5_0", "berth/with=nics:mlx5_9"}})
		for command, want := range map[string]string{
			"open /dev/infiniband/uverbs0": "ENXIO ENXIO ENXIO", "open /nodes/infiniband/uverbs1": "EPERM EPERM EPERM",
		} {
			if got := strings.Join(c.ask(command), " "); got != want {
				t.Errorf("%s: %q, want %q", command, got, want)
			}
		}
		if got := c.list("/sys/class/infiniband"); got != "mlx5_0 mlx5_9" {
			t.Errorf("adapters: %s", got)
		}
		if got := c.list("/dev/infiniband"); got != "rdma_cm uverbs0 uverbs7" {
			t.Errorf("nodes: %s", got)
		}
		size, err := strconv.Atoi(c.ask("size /dev/shm")[0])
		if err != nil {
			t.Error(err)
		}
		policy, environment := c.ask("memory")[0], c.ask("cat /proc/self/environ")
		if p.runtime == "berth" {
			if policy != "ok" || !slices.Contains(environment, "NCCL_IB_HCA==mlx5_0:1,mlx5_9:1") {
				t.Errorf("NUMA policy %s, environment %q", policy, environment)
			}
			if p.name != "podman" && size < 128 { // podman mounts /dev/shm itself, on the host
				t.Errorf("/dev/shm has %d MiB", size)
			}
		}
		t.Logf("/dev/shm has %d MiB, NUMA policy is %s", size, policy)
		c.end()
		p.waitForLeases(t, nil, 0)

		c = p.start(t, containerOptions{devices: []string{"berth/gpus=1"}})
		if got := c.list("/sys/class/infiniband") + c.list("/dev/infiniband"); got != "" {
			t.Errorf("without NICs there are %s", got)
		}
		c.end()
		p.waitForLeases(t, nil, 0)
	})
}

// list names what is in a directory.
func (c *container) list(dir string) string {
	c.t.Helper()
	var names []string
	for _, line := range c.ask("tree " + dir) {
		path, _, _ := strings.Cut(line, " ")
		if name, ok := strings.CutPrefix(path, dir+"/"); ok && !strings.Contains(name, "/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
