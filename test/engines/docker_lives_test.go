package engines

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// dockerLife is one thing that Docker does with containers.
type dockerLife struct {
	name string
	run  func(*testing.T, *dockerHost)
}

var dockerLives = []dockerLife{
	{"exec", func(t *testing.T, d *dockerHost) {
		a, b := d.startContainer(t, "2"), d.startContainer(t, "3")
		d.waitForHeld(t, map[string]int{a: 2, b: 3})
		d.checkLease(t, a)
		d.checkLease(t, b)
		// A later process in it has no more devices.
		if own, all := d.runProbe(t, "docker", "exec", "--user", "1000:1000", a); !slices.Equal(own, all) || len(own) != 2 {
			t.Errorf("a user has %v in /dev and opens %v", own, all)
		}
		d.docker(t, "rm", "--force", a)
		d.waitForHeld(t, map[string]int{b: 3})
		d.checkLease(t, b)
	}},
	{"stop and start", func(t *testing.T, d *dockerHost) {
		id := d.startContainer(t, "2")
		d.docker(t, "stop", id)
		d.waitForHeld(t, map[string]int{})
		// Others take the GPUs that it had: it restarts with other ones.
		other := d.startContainer(t, "5")
		d.docker(t, "start", id)
		d.waitForHeld(t, map[string]int{id: 2, other: 5})
		d.checkLease(t, id)
		d.checkLease(t, other)
	}},
	{"restart", func(t *testing.T, d *dockerHost) {
		id := d.startContainer(t, "4")
		for range 3 {
			d.docker(t, "restart", "--timeout", "1", id)
			d.waitForHeld(t, map[string]int{id: 4})
			d.checkLease(t, id)
		}
	}},
	{"kill", func(t *testing.T, d *dockerHost) {
		id := d.startContainer(t, "8")
		d.docker(t, "kill", id)
		d.waitForHeld(t, map[string]int{})
		d.docker(t, "start", id)
		d.waitForHeld(t, map[string]int{id: 8})
		d.checkLease(t, id)
	}},
	{"pause", func(t *testing.T, d *dockerHost) {
		id := d.startContainer(t, "8")
		d.docker(t, "pause", id)
		d.checkBusy(t, d.words("run --detach", newID(), "1"), "request 1: 1 asked, 0 of 8 free")
		d.waitForHeld(t, map[string]int{id: 8})
		d.docker(t, "unpause", id)
		d.checkLease(t, id)
	}},
	{"dies and is restarted", func(t *testing.T, d *dockerHost) {
		always, failure := d.startContainer(t, "2", "--restart", "always"), d.startContainer(t, "3", "--restart", "on-failure")
		for range 2 {
			for _, id := range []string{always, failure} {
				count, err := strconv.Atoi(d.inspect(t, id, "RestartCount"))
				if err != nil {
					t.Fatal(err)
				}
				d.killInit(t, id)
				d.waitForState(t, id, "RestartCount", strconv.Itoa(count+1))
				d.waitForState(t, id, "State.Status", "running")
				d.waitForHeld(t, map[string]int{always: 2, failure: 3})
				d.checkLease(t, id)
			}
		}
		d.docker(t, "stop", failure)
		d.waitForHeld(t, map[string]int{always: 2})
	}},
	{"update", func(t *testing.T, d *dockerHost) {
		changes, limits := [][]string{{"--restart", "no"}}, []string(nil)
		id := d.startContainer(t, "2")
		// Not every machine has these controllers for cgroup v2.
		if d.cgroup == "v1" {
			limits = []string{"cat /sys/fs/cgroup/memory/memory.limit_in_bytes", "cat /sys/fs/cgroup/cpu/cpu.shares", "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us"}
			changes = append(changes, []string{"--cpus", "1.5"}, []string{"--memory", "512m", "--memory-swap", "1g"}, []string{"--cpu-shares", "512"})
		}
		had := d.checkLease(t, id)
		for _, change := range changes {
			d.docker(t, append(append([]string{"update"}, change...), id)...)
			if diff := cmp.Diff(had, d.checkLease(t, id)); diff != "" {
				t.Errorf("after update %v (-before +after):\n%s", change, diff)
			}
		}
		if limits == nil {
			return
		}
		got := d.askProbe(t, limits, "docker", "exec", "--interactive", id, "/probe")
		if diff := cmp.Diff([]string{strconv.Itoa(512 << 20), "512", "150000"}, got); diff != "" {
			t.Errorf("the update (-want +got):\n%s", diff)
		}
	}},
	{"daemon killed", func(t *testing.T, d *dockerHost) {
		stays, again := d.startContainer(t, "2"), d.startContainer(t, "3", "--restart", "always")
		d.down(t)
		d.waitForHeld(t, map[string]int{stays: 2, again: 3}) // they still run
		d.up(t)
		// Docker ends them at its start, and restarts those with a restart policy.
		d.waitForState(t, stays, "State.Running", "false")
		d.waitForState(t, again, "State.Running", "true")
		d.waitForHeld(t, map[string]int{again: 3})
		d.checkLease(t, again)
	}},
	{"daemon killed, live-restore", func(t *testing.T, d *dockerHost) {
		d.down(t)
		d.up(t, "--live-restore")
		id, dies := d.startContainer(t, "2"), d.startContainer(t, "6")
		had, pid := d.checkLease(t, id), d.inspect(t, dies, "State.Pid")
		d.down(t)
		d.waitForHeld(t, map[string]int{id: 2, dies: 6})
		d.kill(t, pid)
		d.takeGPUs(t, 6) // although the container wasn't deleted
		d.up(t, "--live-restore")
		d.waitForHeld(t, map[string]int{id: 2})
		if diff := cmp.Diff(had, d.checkLease(t, id)); diff != "" {
			t.Errorf("GPUs (-before +after):\n%s", diff)
		}
		d.docker(t, "start", dies)
		d.waitForHeld(t, map[string]int{id: 2, dies: 6})
		d.checkLease(t, dies)
		d.docker(t, "rm", "--force", dies, id)
		d.down(t)
		d.up(t)
	}},
	{"dies while the daemon is down, and others take its GPUs", func(t *testing.T, d *dockerHost) {
		dies := d.startContainer(t, "8", "--restart", "always")
		pid := d.inspect(t, dies, "State.Pid")
		d.down(t)
		d.kill(t, pid)
		release := d.takeGPUs(t, 8)
		d.up(t)
		eventually(t, func() string {
			if text := d.inspect(t, dies, "State.Error"); !strings.Contains(text, "request 8: 8 asked, 0 of 8 free") {
				return "docker says of what it can't restart: " + text
			}
			return ""
		})
		release()
		d.docker(t, "start", dies)
		d.waitForHeld(t, map[string]int{dies: 8})
		d.checkLease(t, dies)
	}},
	{"dies while somebody waits for its GPUs", func(t *testing.T, d *dockerHost) {
		dies := d.startContainer(t, "8", "--restart", "always")
		granted := d.startAlloc(t, 8, "--wait=1m")
		eventually(t, func() string {
			if text := d.do(t, shared.Berth, "leases"); !strings.Contains(text, "alloc") {
				return "nobody waits: " + text
			}
			return ""
		})
		d.killInit(t, dies)
		release := granted(t)
		// Docker's attempt fails with the holder's name, and Docker doesn't try again.
		d.waitForState(t, dies, "State.Status", "exited")
		if text := d.inspect(t, dies, "State.Error"); !strings.Contains(text, "request 8: 8 asked, 0 of 8 free") {
			t.Errorf("docker says %q", text)
		}
		release()
		d.docker(t, "start", dies)
		d.waitForHeld(t, map[string]int{dies: 8})
		d.checkLease(t, dies)
	}},
	{"created, and never started", func(t *testing.T, d *dockerHost) {
		name := newID()
		d.do(t, d.words("create", name, "8")...)
		d.waitForHeld(t, map[string]int{})
		if left := d.leases(t); len(left) > 0 {
			t.Errorf("leases: %+v", left)
		}
		d.docker(t, "rm", name)
	}},
	{"a full host", func(t *testing.T, d *dockerHost) {
		name := newID()
		d.do(t, d.words("create", name, "3")...)
		all := d.startContainer(t, "6")
		held := d.footprint(t)
		for range 3 {
			d.checkBusy(t, []string{"docker", "start", name}, "request 3: 3 asked, 2 of 8 free")
		}
		d.waitForHeld(t, map[string]int{all: 6})
		eventually(t, func() string { return diffOf("left on the host (-before +after):\n", held, d.footprint(t)) })
		d.docker(t, "rm", "--force", all)
		d.docker(t, "start", name)
		d.waitForHeld(t, map[string]int{d.inspect(t, name, "Id"): 3})
		d.checkLease(t, d.inspect(t, name, "Id"))
	}},
	{"shim killed", func(t *testing.T, d *dockerHost) {
		id, other := d.startContainer(t, "7"), d.startContainer(t, "1")
		shim := strings.Fields(d.do(t, "grep", "PPid:", "/proc/"+d.inspect(t, id, "State.Pid")+"/status"))[1]
		d.kill(t, shim)
		d.waitForState(t, id, "State.Running", "false")
		d.waitForHeld(t, map[string]int{other: 1})
		d.docker(t, "start", id)
		d.waitForHeld(t, map[string]int{id: 7, other: 1})
		d.checkLease(t, id)
	}},
	{"shim and daemon killed", func(t *testing.T, d *dockerHost) {
		id, again := d.startContainer(t, "5"), d.startContainer(t, "3", "--restart", "always")
		pid := d.inspect(t, id, "State.Pid")
		shim := strings.Fields(d.do(t, "grep", "PPid:", "/proc/"+pid+"/status"))[1]
		d.down(t)
		d.kill(t, shim)
		d.up(t)
		d.waitForState(t, id, "State.Running", "false")
		d.waitForState(t, again, "State.Running", "true")
		d.waitForHeld(t, map[string]int{again: 3})
		d.checkLease(t, again)
		d.takeGPUs(t, 5)()
	}},
	{"other namespaces and cgroups", func(t *testing.T, d *dockerHost) {
		for _, words := range [][]string{
			{"--init"},
			{"--pid", "host"},
			{"--cgroupns", "host"},
			{"--cgroup-parent", "/tenants"},
			{"--init", "--pid", "host", "--cgroupns", "host", "--cgroup-parent", "/tenants", "--ipc", "host", "--uts", "host"},
			{"--read-only"},
			{"--user", "1000:1000"},
		} {
			id := d.startContainer(t, "2", words...)
			d.waitForHeld(t, map[string]int{id: 2})
			d.checkLease(t, id)
			d.docker(t, "restart", "--timeout", "1", id)
			d.waitForHeld(t, map[string]int{id: 2})
			d.checkLease(t, id)
			d.docker(t, "rm", "--force", id)
			d.waitForHeld(t, map[string]int{})
		}
		d.do(t, "sh", "-c", "[ ! -e /sys/fs/cgroup/tenants ] || rmdir /sys/fs/cgroup/tenants") // Docker leaves it
	}},
	{"commit", func(t *testing.T, d *dockerHost) {
		// An image with a loader, whose cache berth writes to.
		d.do(t, "sh", "-c", `mkdir -p /tmp/loader/lib /tmp/loader/lib64
			echo loader | tee /tmp/loader/lib/ld-linux-aarch64.so.1 >/tmp/loader/lib64/ld-linux-x86-64.so.2
			cp -a "$0"/. /tmp/loader && tar -C /tmp/loader -c . | docker import - loader && rm -r /tmp/loader`, image)
		defer d.docker(t, "rmi", "--force", "loader", "committed")
		had := d.files(t, "loader")
		words := d.words("run --detach", newID(), "2")
		words[slices.Index(words, "test")] = "loader"
		id := strings.TrimSpace(d.do(t, words...))
		d.docker(t, "commit", id, "committed")
		added := slices.DeleteFunc(d.files(t, "committed"), func(f string) bool { return slices.Contains(had, f) })
		if diff := cmp.Diff([]string{"etc/ld.so.cache", "etc/ld.so.conf.d/00-berth.conf"}, added); diff != "" {
			t.Errorf("files that the image has more (-want +got):\n%s", diff)
		}
		d.docker(t, "rm", "--force", id)
		// The image is like any other.
		for _, gpus := range []string{"", "3"} {
			words := d.words("run --detach", newID(), gpus)
			words[slices.Index(words, "test")] = "committed"
			d.checkLease(t, strings.TrimSpace(d.do(t, words...)))
		}
	}},
}

// files returns the files of an image that aren't empty.
func (d *dockerHost) files(t *testing.T, image string) (files []string) {
	t.Helper()
	list := d.do(t, "sh", "-c", `id=$(docker create --network none "$0" /wait) && docker export $id | tar -t --verbose && docker rm $id >/dev/null`, image)
	for line := range strings.Lines(list) {
		if words := strings.Fields(line); strings.HasPrefix(line, "-") && words[2] != "0" {
			files = append(files, words[len(words)-1])
		}
	}
	slices.Sort(files)
	return files
}
