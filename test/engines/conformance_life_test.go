package engines

import (
	"bytes"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rig"
)

// taskRunner runs tasks on a containerd that is killed.
type taskRunner struct {
	server
	image string
}

// newTaskRunner starts a host that only the tests of one purpose share.
func newTaskRunner(t *testing.T, purpose, suite, cgroup string) *taskRunner {
	t.Helper()
	c := &taskRunner{server: server{startFor(t, purpose, suite, cgroup)}}
	c.image = "oci:" + filepath.Join(c.dir, "layout")
	c.once("tenant", func() {
		newConformingHost(t, c.host)
		c.up(t)
	})
	return c
}

func (c *taskRunner) up(t *testing.T) {
	t.Helper()
	c.startDaemon(t, "containerd")
	c.until(t, "ctr", "version")
}

// berth calls a verb that has to succeed.
func (c *taskRunner) berth(t *testing.T, words ...string) string {
	t.Helper()
	return strings.TrimSpace(c.do(t, c.line(words...)...))
}

func (c *taskRunner) line(words ...string) []string {
	return append([]string{"timeout", "60", shared.Berth, "--engine", "containerd"}, words...)
}

// says waits until a verb's output matches.
func (c *taskRunner) says(t *testing.T, pattern string, words ...string) {
	t.Helper()
	eventually(t, func() string {
		got := c.run(t, c.line(words...)...)
		if !regexp.MustCompile(pattern).MatchString(got.out + got.err) {
			return strings.Join(words, " ") + ": " + got.out + got.err + "\nwanted: " + pattern
		}
		return ""
	})
}

// inits are the first processes of the tasks, by name.
func (c *taskRunner) init(t *testing.T, name string) (pid string) {
	t.Helper()
	found := regexp.MustCompile(`"running": true,\s*"pid": (\d+)`).FindStringSubmatch(c.berth(t, "inspect", name))
	if found == nil {
		t.Fatalf("%s has no process: %s", name, c.berth(t, "inspect", name))
	}
	return found[1]
}

// Tasks of berth on a containerd outlive it, are shown with their true state, and are complete
// after a reboot.
func TestContainerdTasksLast(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on hosts of its own
	for _, on := range [][]string{{"forky", "v2"}, {"bookworm", "v1"}} {
		t.Run(strings.Join(on, "/"), func(t *testing.T) {
			c := newTaskRunner(t, "-tenant", on[0], on[1])
			for _, s := range []struct {
				name string
				tell func(*testing.T, *taskRunner)
			}{
				{"containerd killed", testKilledContainerd},
				{"the node starts anew", testReset},
				{"the log's program killed", testKilledLogger},
				{"images", imagesOfAll},
			} {
				t.Run(s.name, func(t *testing.T) {
					s.tell(t, c)
					c.run(t, "sh", "-c", shared.Berth+" --engine containerd ps -aq | xargs -r "+shared.Berth+" --engine containerd rm -f")
					c.waitForHeld(t, map[string]int{})
				})
			}
		})
	}
}

const chatty = `i=0; while :; do i=$((i+1)); echo line $i; sleep 0.1; done`

func testKilledContainerd(t *testing.T, c *taskRunner) {
	lives := c.berth(t, "run", "-d", "--name", "lives", "--gpus", "2", c.image, "sh", "-c", chatty)
	dies := c.berth(t, "run", "-d", "--name", "dies", "--gpus", "3", c.image, "sleep", "1000")
	again := c.berth(t, "run", "-d", "--name", "again", "--gpus", "1", "--restart", "always", c.image, "sleep", "1000")
	var waited bytes.Buffer
	wait := c.command(c.line("wait", "lives")...)
	wait.Stderr = &waited
	rig.Must(t, wait.Start())
	ends, restarts := c.init(t, "dies"), c.init(t, "again")
	c.killDaemon(t, "containerd")
	c.waitForHeld(t, map[string]int{lives: 2, dies: 3, again: 1})
	got := c.run(t, c.line("ps")...)
	if got.code != 1 || !matchesPattern("berth: no containerd: nothing listens at /run/containerd/containerd.sock.*", got.err) {
		t.Errorf("ps without containerd: exit code %d: %s%s", got.code, got.out, got.err)
	}
	c.kill(t, ends)
	c.kill(t, restarts)
	c.up(t)
	c.says(t, `up \S+ +0,1 +lives`, "ps")
	c.says(t, `(exited \(137\)|lost: containerd no longer has its task) .* dies`, "ps", "-a")
	c.says(t, `up \S+ .* again`, "ps", "-a") // by containerd's own monitor
	c.waitForHeld(t, map[string]int{lives: 2, again: 1})
	c.berth(t, "exec", "lives", "true")
	n := strings.Count(c.berth(t, "logs", "lives"), "\n")
	eventually(t, func() string {
		if strings.Count(c.berth(t, "logs", "lives"), "\n") <= n {
			return "the log doesn't go on"
		}
		return ""
	})
	c.berth(t, "stop", "-t", "1", "lives")
	c.says(t, `exited \(137\) .* lives`, "ps", "-a")
	if err := wait.Wait(); err != nil && !matchesPattern("berth: [^\n]*", waited.String()) {
		t.Errorf("wait: %v: %s", err, waited.String())
	}
}

// testReset has the effect of a reset: no process and nothing in /run is left.
func testReset(t *testing.T, c *taskRunner) {
	c.berth(t, "run", "-d", "--name", "ended", c.image, "sh", "-c", "echo before; exit 3")
	c.berth(t, "wait", "ended")
	c.berth(t, "run", "-d", "--name", "ran", "--gpus", "2", c.image, "sh", "-c", chatty)
	kept := c.berth(t, "run", "-d", "--name", "kept", "--gpus", "1", "--restart", "unless-stopped", c.image, "sleep", "1000")
	c.killDaemon(t, "containerd")
	c.do(t, "sh", "-c", `for p in /proc/[0-9]*; do
		case $(readlink "$p/exe") in */containerd-shim*|*/berth-monitor*) kill -9 "${p#/proc/}" ;; esac
	done`)
	for _, l := range c.live(t) {
		c.do(t, "sh", "-c", `for f in $(find /sys/fs/cgroup -path "*$0*" -name cgroup.procs); do for p in $(cat "$f"); do kill -9 "$p"; done; done; true`, l.Owner.Container)
	}
	time.Sleep(300 * time.Millisecond)
	c.do(t, "sh", "-c", `grep ' /run/' /proc/self/mountinfo | cut -d ' ' -f 5 | sort -r | while read -r at; do case $at in /run/containerd/*|/run/berth/*) busybox umount -l "$at" ;; esac; done
		rm -rf /run/containerd /run/berth
		cat /proc/sys/kernel/random/uuid >/boot_id && busybox mount -o bind /boot_id /proc/sys/kernel/random/boot_id`)
	t.Cleanup(func() { c.do(t, "busybox", "umount", "/proc/sys/kernel/random/boot_id") })
	c.do(t, shared.Berth, "discover", "--quiet")
	c.up(t)
	c.says(t, `exited \(3\) .* ended`, "ps", "-a")
	c.says(t, `lost.* ran`, "ps", "-a")
	c.says(t, `up \S+ .* kept`, "ps", "-a")
	c.waitForHeld(t, map[string]int{kept: 1})
	if got := c.berth(t, "logs", "ended"); got != "before" {
		t.Errorf("logs: %q", got)
	}
}

// testKilledLogger: killing the logger costs the log and not the task.
func testKilledLogger(t *testing.T, c *taskRunner) {
	id := c.berth(t, "run", "-d", "--name", "talks", "--gpus", "2", c.image, "sh", "-c", chatty)
	c.says(t, "line 2", "logs", "talks")
	c.do(t, "sh", "-c", `for p in /proc/[0-9]*; do case $(readlink "$p/exe") in */berth-monitor*) kill -9 "${p#/proc/}" ;; esac; done`)
	time.Sleep(time.Second)
	c.says(t, `up \S+ .* talks`, "ps")
	c.waitForHeld(t, map[string]int{id: 2})
	c.berth(t, "stop", "-t", "1", "talks")
	c.says(t, `exited \(\d+\) .* talks`, "ps", "-a")
	c.berth(t, "rm", "talks")
}

func imagesOfAll(t *testing.T, c *taskRunner) {
	name := c.registryWith(t, filepath.Join(c.dir, "layout"), func(r *fake.Registry) { r.User, r.Password = "me", "secret" })
	for _, engine := range []string{"native", "containerd"} {
		berth := func(words ...string) said {
			return c.run(t, append([]string{"timeout", "60", shared.Berth, "--engine", engine}, words...)...)
		}
		refused := berth("pull", name+"/private")
		if want := `berth: .*` + regexp.QuoteMeta(name) + `.*(login|credentials|password|unauthorized).*`; refused.code == 0 || !matchesPattern(want, refused.err) {
			t.Errorf("%s: without credentials: exit code %d: %s", engine, refused.code, refused.err)
		}
		c.write(t, "/root/.docker/config.json", `{"auths":{"`+name+`":{"auth":"bWU6c2VjcmV0"}}}`)
		if got := berth("pull", "-q", name+"/private"); got.code != 0 {
			t.Errorf("%s: with credentials: %s", engine, got.err)
		}
		if got := berth("run", name+"/private", "echo", "hi"); got.code != 0 || got.out != "hi\n" {
			t.Errorf("%s: run: exit code %d: %s%s", engine, got.code, got.out, got.err)
		}
		if got := berth("pull", "--platform", "linux/s390x", name+"/private"); got.code == 0 || !strings.Contains(got.err, "s390x") {
			t.Errorf("%s: a platform that isn't there: exit code %d: %s%s", engine, got.code, got.out, got.err)
		}
		if got := berth("pull", "-q", "--platform", "linux/amd64", name+"/private"); got.code != 0 {
			t.Errorf("%s: the platform that is there: %s", engine, got.err)
		}
		if got := berth("rmi", name+"/private"); got.code != 0 {
			t.Errorf("%s: rmi: %s", engine, got.err)
		}
		c.do(t, "rm", "-f", "/root/.docker/config.json")
	}
}
