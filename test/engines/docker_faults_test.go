package engines

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// dockerFaults are lives of containers in which other programs than Docker fail, too.
var dockerFaults = []dockerLife{
	{"containerd killed", func(t *testing.T, d *dockerHost) {
		stays, dies := d.startContainer(t, "2"), d.startContainer(t, "6")
		had, pid := d.checkLease(t, stays), d.inspect(t, dies, "State.Pid")
		d.killDaemon(t, "containerd")
		d.waitForHeld(t, map[string]int{stays: 2, dies: 6})
		d.kill(t, pid)
		d.takeGPUs(t, 6)() // although the container wasn't deleted
		d.startContainerd(t)
		d.waitForHeld(t, map[string]int{stays: 2})
		if diff := cmp.Diff(had, d.checkLease(t, stays)); diff != "" {
			t.Errorf("GPUs (-before +after):\n%s", diff)
		}
		d.docker(t, "rm", "--force", dies) // Docker believes that it is running
		other := d.startContainer(t, "6")
		d.waitForHeld(t, map[string]int{stays: 2, other: 6})
		d.checkLease(t, other)
	}},
	{"dockerd, containerd and all shims killed", func(t *testing.T, d *dockerHost) {
		stays, again := d.startContainer(t, "5"), d.startContainer(t, "3", "--restart", "always")
		var shims []string
		for _, id := range []string{stays, again} {
			shims = append(shims, d.shim(t, id))
		}
		d.down(t)
		d.killDaemon(t, "containerd")
		for _, shim := range shims {
			d.kill(t, shim)
		}
		d.waitForHeld(t, map[string]int{stays: 5, again: 3}) // they weren't ended
		d.startDaemon(t, "containerd")
		d.until(t, "ctr", "version")
		d.up(t)
		d.waitForState(t, stays, "State.Running", "false")
		d.waitForState(t, again, "State.Running", "true")
		d.waitForHeld(t, map[string]int{again: 3})
		d.checkLease(t, again)
		d.takeGPUs(t, 5)()
	}},
	{"live-restore: dockerd, containerd and one shim killed", func(t *testing.T, d *dockerHost) {
		d.down(t)
		d.up(t, "--live-restore")
		defer func() {
			d.removeAll(t)
			d.down(t)
			d.up(t)
		}()
		stays, lost := d.startContainer(t, "3"), d.startContainer(t, "5")
		had, shim := d.checkLease(t, stays), d.shim(t, lost)
		d.down(t)
		d.killDaemon(t, "containerd")
		d.kill(t, shim)
		d.startDaemon(t, "containerd")
		d.until(t, "ctr", "version")
		d.up(t, "--live-restore")
		d.waitForState(t, lost, "State.Running", "false")
		d.waitForState(t, stays, "State.Running", "true")
		d.waitForHeld(t, map[string]int{stays: 3})
		if diff := cmp.Diff(had, d.checkLease(t, stays)); diff != "" {
			t.Errorf("GPUs (-before +after):\n%s", diff)
		}
		d.takeGPUs(t, 5)()
	}},
	{"a full /run", func(t *testing.T, d *dockerHost) {
		stays, dies := d.startContainer(t, "2"), d.startContainer(t, "5")
		had := d.checkLease(t, stays)
		used := strings.Fields(d.do(t, "df", "--output=used", "/run"))[1]
		d.do(t, "busybox", "mount", "-t", "tmpfs", "-o", "remount,size="+used+"k", "tmpfs", "/run")
		room := func() { d.do(t, "busybox", "mount", "-t", "tmpfs", "-o", "remount,size=50%", "tmpfs", "/run") }
		defer room()
		name := newID()
		got := d.run(t, d.words("run --detach", name, "1")...)
		if got.code == 0 || !strings.Contains(got.out+got.err, "no space left on device") {
			t.Errorf("docker run with a full /run: exit code %d: %s%s", got.code, got.out, got.err)
		}
		d.killInit(t, dies)
		d.waitForState(t, dies, "State.Running", "false")
		d.waitForHeld(t, map[string]int{stays: 2})
		room()
		d.takeGPUs(t, 6)()
		if diff := cmp.Diff(had, d.checkLease(t, stays)); diff != "" {
			t.Errorf("GPUs (-before +after):\n%s", diff)
		}
		d.docker(t, "start", dies)
		d.waitForHeld(t, map[string]int{stays: 2, dies: 5})
		d.checkLease(t, dies)
	}},
	{"docker compose killed", func(t *testing.T, d *dockerHost) {
		if d.runtime != "berth" {
			return // its file names the runtime berth
		}
		file := d.dir + "/killed.yaml"
		d.do(t, "docker", "tag", "test", "cuda")
		d.write(t, file, "services:\n"+composed("a", "    annotations: {berth.gpus: \"2\"}\n")+composed("b", "    annotations: {berth.gpus: \"3\"}\n    depends_on: [a]\n")+composed("c", "    annotations: {berth.gpus: \"2\"}\n    depends_on: [b]\n"))
		compose := func(words ...string) []string {
			return append([]string{"docker", "compose", "--project-name", "killed", "--file", file}, words...)
		}
		project := func() (ids []string) {
			return strings.Fields(d.do(t, compose("ps", "--quiet", "--no-trunc")...))
		}
		for leases := range 3 {
			d.killsAt(t, leases, "docker-compose", compose("up", "--detach")...)
			d.do(t, compose("up", "--detach")...)
			held := d.heldGPUs(t)
			ids := project()
			if len(held) != 3 || len(ids) != 3 {
				t.Errorf("after up was killed at %d leases and run again, %v run and hold %v", leases, ids, held)
			}
			for _, id := range ids {
				d.checkLease(t, id)
			}
			d.killsAt(t, 2-leases, "docker-compose", compose("down")...)
			d.do(t, compose("down")...)
			d.waitForHeld(t, map[string]int{})
		}
	}},
}

// shim returns the process id of a container's shim.
func (d *dockerHost) shim(t *testing.T, id string) string {
	t.Helper()
	return strings.Fields(d.do(t, "grep", "PPid:", "/proc/"+d.inspect(t, id, "State.Pid")+"/status"))[1]
}

// startContainerd starts containerd again, and waits until dockerd has found it.
func (d *dockerHost) startContainerd(t *testing.T) {
	t.Helper()
	d.startDaemon(t, "containerd")
	d.until(t, "ctr", "version")
	d.until(t, "docker", "run", "--rm", "--network", "none", "--runtime", "runc", "test", "/probe", "/look")
}

// killsAt starts a command, and kills its process of this name with SIGKILL as soon as there are so
// many leases. A command that has ended before isn't killed.
func (s server) killsAt(t *testing.T, leases int, name string, words ...string) {
	t.Helper()
	cmd := s.command(words...)
	done := make(chan struct{})
	rig.Must(t, cmd.Start())
	go func() {
		defer close(done)
		_ = cmd.Wait() // it is killed
	}()
	for {
		select {
		case <-done:
			return
		case <-time.After(5 * time.Millisecond):
		}
		found := s.processes(t, name)
		if len(found) > 0 && len(s.live(t)) == leases {
			for _, dir := range slices.Backward(found) {
				_ = kill(dir) // it may have ended
			}
			<-done
			return
		}
	}
}
