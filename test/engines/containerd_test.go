package engines

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// crate is a host with a containerd of its own.
type crate struct {
	server
	root string // of its containers
	// hook makes containers request GPUs by a CDI device, under a plain runtime.
	hook bool
}

// crateOn starts containerd on a host for this purpose alone.
func crateOn(t *testing.T, purpose, suite, cgroup string) *crate {
	t.Helper()
	c := &crate{server: server{startFor(t, purpose, suite, cgroup)}}
	c.root = filepath.Join(c.dir, "root")
	c.once("containerd", func() {
		rig.Must(t, os.CopyFS(c.root, os.DirFS(image)))
		c.up(t)
	})
	return c
}

func (c *crate) up(t *testing.T) {
	t.Helper()
	c.spawn(t, "containerd")
	c.until(t, "ctr", "version")
}

// words returns the arguments that start a task in the background.
func (c *crate) words(id, gpus string, more ...string) []string {
	words := []string{"ctr", "run", "--detach", "--cpu-shares", "0", "--mount", "type=bind,src=/dev,dst=/nodes,options=rbind:rw"}
	if c.hook {
		words = append(words, "--device", "berth/gpus="+gpus)
	} else {
		words = append(words, "--runc-binary", program("berth"), "--annotation", "berth.gpus="+gpus)
	}
	return append(append(words, more...), "--rootfs", c.root, id, "/wait")
}

func (c *crate) starts(t *testing.T, gpus string, more ...string) (id string) {
	t.Helper()
	id = newID()
	c.do(t, c.words(id, gpus, more...)...)
	return id
}

func (c *crate) ctr(t *testing.T, words ...string) {
	t.Helper()
	c.do(t, append([]string{"ctr"}, words...)...)
}

// agrees checks that a container opens exactly the devices of its lease.
func (c *crate) agrees(t *testing.T, id string) []string {
	t.Helper()
	own, all := c.looks(t, "ctr", "task", "exec", "--exec-id", newID(), id)
	held := c.held(t)[id]
	if !slices.Equal(own, held) || !slices.Equal(all, held) {
		t.Errorf("container %s has %v in /dev and opens %v, its lease has %v", id, own, all, held)
	}
	return held
}

// task returns a container's line of ctr tasks ls.
func (c *crate) task(t *testing.T, id string) (pid, status string) {
	t.Helper()
	for line := range strings.Lines(c.do(t, "ctr", "task", "ls")) {
		if words := strings.Fields(line); words[0] == id {
			return words[1], words[2]
		}
	}
	return "", ""
}

// becomes waits until a task has this status.
func (c *crate) becomes(t *testing.T, id, want string) {
	t.Helper()
	eventually(t, func() string {
		if _, got := c.task(t, id); got != want {
			return "task " + id + " is " + got + " and not " + want
		}
		return ""
	})
}

// removes ends a container and removes it.
func (c *crate) removes(t *testing.T, id string) {
	t.Helper()
	if _, status := c.task(t, id); status != "" {
		c.ctr(t, "task", "rm", "--force", id)
	}
	c.ctr(t, "container", "rm", id)
}

// A lease has the lifetime of its task, whatever containerd does with it.
func TestContainerdLife(t *testing.T) {
	wanted(t)
	t.Parallel() // on hosts of its own
	for _, on := range [][]string{{"forky", "v2", "berth"}, {"forky", "v2", "runc"}, {"bookworm", "v1", "berth"}} {
		t.Run(strings.Join(on, "/"), func(t *testing.T) {
			c := crateOn(t, "-containerd", on[0], on[1])
			c.hook = on[2] == "runc"
			c.removes(t, c.starts(t, "1")) // engines make some directories at the first use
			c.takes(t, 1)()
			before := c.footprint(t)
			for _, l := range containerdLives {
				t.Run(l.name, func(t *testing.T) {
					defer func() {
						for _, id := range strings.Fields(c.do(t, "ctr", "container", "ls", "--quiet")) {
							c.removes(t, id)
						}
						if c.hook {
							c.takes(t, 1)() // without the wrapper, the next acquire removes the leases of ended tasks
						}
						c.free(t, before)
					}()
					l.run(t, c)
				})
			}
		})
	}
}

var containerdLives = []struct {
	name string
	run  func(*testing.T, *crate)
}{
	{"exec", func(t *testing.T, c *crate) {
		a, b := c.starts(t, "2"), c.starts(t, "3")
		c.holds(t, map[string]int{a: 2, b: 3})
		c.agrees(t, a)
		c.agrees(t, b)
	}},
	{"kill, and a new task of the container", func(t *testing.T, c *crate) {
		id := c.starts(t, "8")
		c.ctr(t, "task", "kill", id)
		c.becomes(t, id, "STOPPED")
		c.holds(t, map[string]int{}) // although the container wasn't deleted
		c.takes(t, 8)()
		c.ctr(t, "task", "rm", id)
		c.ctr(t, "task", "start", "--detach", id)
		c.holds(t, map[string]int{id: 8})
		c.agrees(t, id)
	}},
	{"pause", func(t *testing.T, c *crate) {
		id := c.starts(t, "8")
		c.ctr(t, "task", "pause", id)
		c.holds(t, map[string]int{id: 8})
		c.busy(t, "1", "request 1: 1 asked, 0 of 8 free")
		c.ctr(t, "task", "resume", id)
		c.agrees(t, id)
	}},
	{"a full host", func(t *testing.T, c *crate) {
		id := c.starts(t, "6")
		held := c.footprint(t)
		for range 3 {
			c.busy(t, "3", "request 3: 3 asked, 2 of 8 free")
		}
		c.holds(t, map[string]int{id: 6})
		eventually(t, func() string { return diffOf("left on the host (-before +after):\n", held, c.footprint(t)) })
	}},
	{"another cgroup", func(t *testing.T, c *crate) {
		id := c.starts(t, "2", "--cgroup", "/tenants/one")
		c.holds(t, map[string]int{id: 2})
		c.agrees(t, id)
		c.removes(t, id)
		c.do(t, "sh", "-c", `for dir in /sys/fs/cgroup/tenants /sys/fs/cgroup/*/tenants; do [ ! -e "$dir" ] || rmdir "$dir"; done`) // runc leaves it
	}},
	{"shim killed", func(t *testing.T, c *crate) {
		id, other := c.starts(t, "7"), c.starts(t, "1")
		pid, _ := c.task(t, id)
		shim := strings.Fields(c.do(t, "grep", "PPid:", "/proc/"+pid+"/status"))[1]
		c.kill(t, shim)
		c.holds(t, map[string]int{other: 1})
		c.takes(t, 7)()
		c.agrees(t, other)
	}},
	{"shim and containerd killed", func(t *testing.T, c *crate) {
		id := c.starts(t, "8")
		pid, _ := c.task(t, id)
		shim := strings.Fields(c.do(t, "grep", "PPid:", "/proc/"+pid+"/status"))[1]
		c.slay(t, "containerd")
		c.kill(t, shim)
		c.holds(t, map[string]int{id: 8}) // the task wasn't ended
		c.up(t)
		c.becomes(t, id, "") // containerd ends the tasks that it has lost
		c.holds(t, map[string]int{})
		c.takes(t, 8)()
	}},
	{"containerd killed", func(t *testing.T, c *crate) {
		id, dies := c.starts(t, "2"), c.starts(t, "6")
		had := c.agrees(t, id)
		pid, _ := c.task(t, dies)
		c.slay(t, "containerd")
		c.holds(t, map[string]int{id: 2, dies: 6})
		c.kill(t, pid)
		release := c.takes(t, 6)
		c.up(t)
		c.holds(t, map[string]int{id: 2, "": 6}) // other leases aren't released with it
		if got := c.agrees(t, id); !slices.Equal(got, had) {
			t.Errorf("it had %v, and has %v", had, got)
		}
		release()
		if _, status := c.task(t, dies); status != "" { // newer ones have removed it as they started
			c.ctr(t, "task", "rm", dies)
		}
		c.ctr(t, "task", "start", "--detach", dies)
		c.holds(t, map[string]int{id: 2, dies: 6})
		c.agrees(t, dies)
	}},
}

// busy checks that ctr says in one line that too few GPUs are free.
func (c *crate) busy(t *testing.T, gpus, reason string) {
	t.Helper()
	id := newID()
	got := c.run(t, c.words(id, gpus)...)
	lines := slices.DeleteFunc(strings.Split(got.out+got.err, "\n"), func(l string) bool { return !strings.Contains(l, reason) })
	if got.code == 0 || len(lines) != 1 {
		t.Errorf("exit code %d: %s%s", got.code, got.out, got.err)
	}
	c.run(t, "ctr", "container", "rm", id) // older ones leave it
}
