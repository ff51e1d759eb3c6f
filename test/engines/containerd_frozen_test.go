package engines

import (
	"strings"
	"testing"
	"time"
)

// TestContainerdFrozenTask: a task that has frozen itself in a cgroup below its container's (cgroup version 1) is
// ended by stop, rm -f, kill and its timeout. A frozen command of exec is ended by the second signal.
func TestContainerdFrozenTask(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on a host of its own
	c := newTaskRunner(t, "-frozen", "bookworm", "v1")
	const freeze = "mkdir -p /tmp/c && mount -t cgroup -o freezer none /tmp/c && mkdir /tmp/c/below && echo $$ >/tmp/c/below/cgroup.procs && " +
		"echo FROZEN >/tmp/c/below/freezer.state; exec sleep 1000"
	task := func(words ...string) []string {
		return append(append([]string{"run", "--name", "frozen", "--cap-add", "SYS_ADMIN", "--gpus", "1"}, words...), c.image, "sh", "-c", freeze)
	}
	untilFrozen := func(t *testing.T) {
		t.Helper()
		eventually(t, func() string {
			if got := c.run(t, "sh", "-c", "cat $(find /sys/fs/cgroup/freezer/ -path '*/below/freezer.state')"); strings.TrimSpace(got.out) != "FROZEN" {
				return "the task isn't frozen: " + got.out + got.err
			}
			return ""
		})
	}
	ends := func(t *testing.T, do func()) {
		t.Helper()
		began := time.Now()
		do()
		c.waitForHeld(t, map[string]int{})
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
		c.run(t, c.line("rm", "-f", "frozen")...)
	}
	for _, verb := range [][]string{{"stop", "-t", "1"}, {"rm", "-f"}, {"kill"}} {
		t.Run(verb[0], func(t *testing.T) {
			c.berth(t, task("-d")...)
			untilFrozen(t)
			ends(t, func() { c.berth(t, append(verb, "frozen")...) })
		})
	}
	t.Run("exec", func(t *testing.T) {
		c.berth(t, "run", "-d", "--name", "frozen", "--cap-add", "SYS_ADMIN", "--gpus", "1", c.image, "sh", "-c",
			"mkdir -p /tmp/c && mount -t cgroup -o freezer none /tmp/c && mkdir /tmp/c/below && exec sleep 1000")
		const twice = `"$@" & until cat $(find /sys/fs/cgroup/freezer/ -path '*/below/freezer.state') | grep -q FROZEN; do sleep 0.1; done
			kill -TERM $!; sleep 0.5; kill -TERM $!; wait $!`
		// The command freezes itself only once containerd has started it.
		words := c.line("exec", "frozen", "sh", "-c", "until echo $$ >/tmp/c/below/cgroup.procs; do sleep 0.1; done; sleep 2; echo FROZEN >/tmp/c/below/freezer.state; exec sleep 1000")
		if got := c.run(t, append([]string{"timeout", "20", "sh", "-c", twice, "sh"}, words[2:]...)...); got.code != 143 {
			t.Errorf("%+v", got)
		}
		ends(t, func() { c.berth(t, "rm", "-f", "frozen") })
	})
	limits := []string{"--timeout", "3", "--stop-timeout", "1"}
	t.Run("timeout", func(t *testing.T) {
		c.berth(t, task(append(limits, "-d")...)...)
		untilFrozen(t)
		ends(t, func() {})
	})
	t.Run("timeout in the foreground", func(t *testing.T) {
		ends(t, func() {
			if got := c.run(t, c.line(task(limits...)...)...); got.code != 143 {
				t.Errorf("%+v", got)
			}
		})
	})
}
