package engines

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// ctrHost is a host with a containerd of its own.
type ctrHost struct {
	server
	root string // of its containers
	// hook makes containers request GPUs by a CDI device, under a plain runtime.
	hook bool
}

// newCtrHost starts containerd on a host for this purpose alone.
func newCtrHost(t *testing.T, purpose, suite, cgroup string) *ctrHost {
	t.Helper()
	c := &ctrHost{server: server{startFor(t, purpose, suite, cgroup)}}
	c.root = filepath.Join(c.dir, "root")
	c.once("containerd", func() {
		rig.Must(t, os.CopyFS(c.root, os.DirFS(image)))
		c.up(t)
	})
	return c
}

func (c *ctrHost) up(t *testing.T) {
	t.Helper()
	c.startDaemon(t, "containerd")
	c.until(t, "ctr", "version")
}

// words returns the arguments that start a task in the background.
func (c *ctrHost) words(id, gpus string, more ...string) []string {
	words := []string{"ctr", "run", "--detach", "--cpu-shares", "0", "--mount", "type=bind,src=/dev,dst=/nodes,options=rbind:rw"}
	if c.hook {
		words = append(words, "--device", "berth/gpus="+gpus)
	} else {
		words = append(words, "--runc-binary", program("berth"), "--annotation", "berth.gpus="+gpus)
	}
	return append(append(words, more...), "--rootfs", c.root, id, "/wait")
}

func (c *ctrHost) startTask(t *testing.T, gpus string, more ...string) (id string) {
	t.Helper()
	id = newID()
	c.do(t, c.words(id, gpus, more...)...)
	return id
}

func (c *ctrHost) ctr(t *testing.T, words ...string) {
	t.Helper()
	c.do(t, append([]string{"ctr"}, words...)...)
}

// checkLease checks that a container opens exactly the devices of its lease.
func (c *ctrHost) checkLease(t *testing.T, id string) []string {
	t.Helper()
	own, all := c.runProbe(t, "ctr", "task", "exec", "--exec-id", newID(), id)
	held := c.heldGPUs(t)[id]
	if !slices.Equal(own, held) || !slices.Equal(all, held) {
		t.Errorf("container %s has %v in /dev and opens %v, its lease has %v", id, own, all, held)
	}
	return held
}

// task returns a container's line of ctr tasks ls.
func (c *ctrHost) task(t *testing.T, id string) (pid, status string) {
	t.Helper()
	for line := range strings.Lines(c.do(t, "ctr", "task", "ls")) {
		if words := strings.Fields(line); words[0] == id {
			return words[1], words[2]
		}
	}
	return "", ""
}

// waitForStatus waits until a task has this status.
func (c *ctrHost) waitForStatus(t *testing.T, id, want string) {
	t.Helper()
	eventually(t, func() string {
		if _, got := c.task(t, id); got != want {
			return "task " + id + " is " + got + " and not " + want
		}
		return ""
	})
}

// removeTask ends a container and removes it.
func (c *ctrHost) removeTask(t *testing.T, id string) {
	t.Helper()
	if _, status := c.task(t, id); status != "" {
		c.ctr(t, "task", "rm", "--force", id)
	}
	c.ctr(t, "container", "rm", id)
}

// A lease has the lifetime of its task, whatever containerd does with it.
func TestContainerdLife(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on hosts of its own
	for _, on := range [][]string{{"forky", "v2", "berth"}, {"forky", "v2", "runc"}, {"bookworm", "v1", "berth"}} {
		t.Run(strings.Join(on, "/"), func(t *testing.T) {
			c := newCtrHost(t, "-containerd", on[0], on[1])
			c.hook = on[2] == "runc"
			c.removeTask(t, c.startTask(t, "1")) // engines make some directories at the first use
			c.takeGPUs(t, 1)()
			before := c.footprint(t)
			for _, l := range containerdLives {
				t.Run(l.name, func(t *testing.T) {
					defer func() {
						for _, id := range strings.Fields(c.do(t, "ctr", "container", "ls", "--quiet")) {
							c.removeTask(t, id)
						}
						if c.hook {
							c.takeGPUs(t, 1)() // without the wrapper, the next acquire removes the leases of ended tasks
						}
						c.waitUntilFree(t, before)
					}()
					l.run(t, c)
				})
			}
		})
	}
}

var containerdLives = []struct {
	name string
	run  func(*testing.T, *ctrHost)
}{
	{"exec", func(t *testing.T, c *ctrHost) {
		a, b := c.startTask(t, "2"), c.startTask(t, "3")
		c.waitForHeld(t, map[string]int{a: 2, b: 3})
		c.checkLease(t, a)
		c.checkLease(t, b)
	}},
	{"kill, and a new task of the container", func(t *testing.T, c *ctrHost) {
		id := c.startTask(t, "8")
		c.ctr(t, "task", "kill", id)
		c.waitForStatus(t, id, "STOPPED")
		c.waitForHeld(t, map[string]int{}) // although the container wasn't deleted
		c.takeGPUs(t, 8)()
		c.ctr(t, "task", "rm", id)
		c.ctr(t, "task", "start", "--detach", id)
		c.waitForHeld(t, map[string]int{id: 8})
		c.checkLease(t, id)
	}},
	{"pause", func(t *testing.T, c *ctrHost) {
		id := c.startTask(t, "8")
		c.ctr(t, "task", "pause", id)
		c.waitForHeld(t, map[string]int{id: 8})
		c.checkBusy(t, "1", "request 1: 1 asked, 0 of 8 free")
		c.ctr(t, "task", "resume", id)
		c.checkLease(t, id)
	}},
	{"a full host", func(t *testing.T, c *ctrHost) {
		id := c.startTask(t, "6")
		held := c.footprint(t)
		for range 3 {
			c.checkBusy(t, "3", "request 3: 3 asked, 2 of 8 free")
		}
		c.waitForHeld(t, map[string]int{id: 6})
		eventually(t, func() string { return diffOf("left on the host (-before +after):\n", held, c.footprint(t)) })
	}},
	{"another cgroup", func(t *testing.T, c *ctrHost) {
		id := c.startTask(t, "2", "--cgroup", "/tenants/one")
		c.waitForHeld(t, map[string]int{id: 2})
		c.checkLease(t, id)
		c.removeTask(t, id)
		c.do(t, "sh", "-c", `for dir in /sys/fs/cgroup/tenants /sys/fs/cgroup/*/tenants; do [ ! -e "$dir" ] || rmdir "$dir"; done`) // runc leaves it
	}},
	{"shim killed", func(t *testing.T, c *ctrHost) {
		id, other := c.startTask(t, "7"), c.startTask(t, "1")
		pid, _ := c.task(t, id)
		shim := strings.Fields(c.do(t, "grep", "PPid:", "/proc/"+pid+"/status"))[1]
		c.kill(t, shim)
		c.waitForHeld(t, map[string]int{other: 1})
		c.takeGPUs(t, 7)()
		c.checkLease(t, other)
	}},
	{"shim and containerd killed", func(t *testing.T, c *ctrHost) {
		id := c.startTask(t, "8")
		pid, _ := c.task(t, id)
		shim := strings.Fields(c.do(t, "grep", "PPid:", "/proc/"+pid+"/status"))[1]
		c.killDaemon(t, "containerd")
		c.kill(t, shim)
		c.waitForHeld(t, map[string]int{id: 8}) // the task wasn't ended
		c.up(t)
		c.waitForStatus(t, id, "") // containerd ends the tasks that it has lost
		c.waitForHeld(t, map[string]int{})
		c.takeGPUs(t, 8)()
	}},
	{"containerd killed", func(t *testing.T, c *ctrHost) {
		id, dies := c.startTask(t, "2"), c.startTask(t, "6")
		had := c.checkLease(t, id)
		pid, _ := c.task(t, dies)
		c.killDaemon(t, "containerd")
		c.waitForHeld(t, map[string]int{id: 2, dies: 6})
		c.kill(t, pid)
		release := c.takeGPUs(t, 6)
		c.up(t)
		c.waitForHeld(t, map[string]int{id: 2, "": 6}) // other leases aren't released with it
		if got := c.checkLease(t, id); !slices.Equal(got, had) {
			t.Errorf("it had %v, and has %v", had, got)
		}
		release()
		if _, status := c.task(t, dies); status != "" { // newer ones have removed it as they started
			c.ctr(t, "task", "rm", dies)
		}
		c.ctr(t, "task", "start", "--detach", dies)
		c.waitForHeld(t, map[string]int{id: 2, dies: 6})
		c.checkLease(t, dies)
	}},
}

// checkBusy checks that ctr says in one line that too few GPUs are free.
func (c *ctrHost) checkBusy(t *testing.T, gpus, reason string) {
	t.Helper()
	id := newID()
	got := c.run(t, c.words(id, gpus)...)
	lines := slices.DeleteFunc(strings.Split(got.out+got.err, "\n"), func(l string) bool { return !strings.Contains(l, reason) })
	if got.code == 0 || len(lines) != 1 {
		t.Errorf("exit code %d: %s%s", got.code, got.out, got.err)
	}
	c.run(t, "ctr", "container", "rm", id) // older ones leave it
}
