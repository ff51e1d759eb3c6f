package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestKilledRun: at whatever moment berth run is killed, its container either continues with its
// lease or doesn't exist, and the next run finds no leftovers.
func TestKilledRun(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.berth("run", image(), "true").ok() // unpacked
	full := n.measureShortRun(image())
	for i := range 30 {
		p := n.start("berth", "run", "--gpus", "1", image(), "sh", "-c", "echo started; exec sleep 1000")
		time.Sleep(time.Duration(i) * full / 20)
		p.signal(syscall.SIGKILL)
		p.wait()
		n.waitUntilSettled(p)
		n.berth("run", "--gpus", "1", image(), "true").is(0, "", "")
		for _, l := range n.leftovers() {
			t.Errorf("killed after %v: left behind: %s", time.Duration(i)*full/20, l)
		}
	}
}

// measureShortRun measures how long a short run takes here.
func (n *node) measureShortRun(image string) time.Duration {
	n.t.Helper()
	start := time.Now()
	n.berth("run", "--gpus", "1", image, "true").ok()
	return time.Since(start)
}

// waitUntilSettled waits until the container of a killed launcher runs with its lease, or nothing of it is
// left; then it ends the container.
func (n *node) waitUntilSettled(p *process) {
	n.t.Helper()
	eventually(n.t, "a container with a lease, or none", func() bool {
		v := n.leases()
		if strings.Contains(p.stdout.String(), "started") {
			if len(v.Leases) != 1 || !v.Leases[0].Live {
				n.t.Fatalf("the container runs, and the leases are %+v", v.Leases)
			}
			return true
		}
		// The launcher, which is gone, has copied its output into the file.
		return len(v.Leases) == 0 || !v.Leases[0].Live || n.commandRuns(v.Leases[0])
	})
	for _, l := range n.leases().Leases {
		if l.Live {
			n.berth("release", "--force", l.ID).ok()
		}
	}
}

// commandRuns reports whether the command of the lease's container runs.
func (n *node) commandRuns(l lease) bool {
	n.t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	check(n.t, err)
	return slices.ContainsFunc(all, func(dir string) bool {
		command, _ := os.ReadFile(dir + "/cmdline") // it may have ended meanwhile
		groups, _ := os.ReadFile(dir + "/cgroup")
		return string(command) == "sleep\x001000\x00" && strings.Contains(string(groups), l.Owner.Container)
	})
}

// TestKilledUnpacking: the next run unpacks an image whose unpacking was killed.
func TestKilledUnpacking(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	for _, after := range []time.Duration{100, 400, 800} {
		n.sh("rm -rf /var/lib/berth/images").ok()
		p := n.start("berth", "run", "--gpus", "1", debian(), "sh", "-c", "echo started; exec sleep 1000")
		time.Sleep(after * time.Millisecond)
		p.signal(syscall.SIGKILL)
		p.wait()
		n.waitUntilSettled(p)
		n.berth("run", "--gpus", "1", debian(), "dpkg", "--audit").ok()
		n.checkClean(t)
	}
	partial := n.sh("find /var/lib/berth/images -maxdepth 2 -mindepth 2 | wc -l").ok()
	if strings.TrimSpace(partial) != "1" {
		t.Errorf("unpacked are %s layers instead of one", partial)
	}
}

// TestManyAtOnce: twenty tasks share eight GPUs, and no GPU has two tasks at a time.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	const script = `d=$(ls /dev | grep -x 'nvidia[0-9]'); mkdir /held/$d || exit 9; sleep 0.1; rmdir /held/$d; echo $d`
	n.sh("mkdir /run/held").ok()
	var tasks []*process
	for range 20 {
		tasks = append(tasks, n.start("berth", "run", "--wait", "--gpus", "1", "-v", "/run/held:/held", image(), "sh", "-c", script))
	}
	for _, p := range tasks {
		if r := p.wait(); r.code != 0 || !strings.HasPrefix(r.stdout, "nvidia") {
			t.Errorf("code %d: %s%s", r.code, r.stdout, r.stderr)
		}
	}
	n.checkClean(t)
}

// TestKilledCrowd: tasks are killed at random while others wait.
func TestKilledCrowd(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "l40s-pcie")
	n.berth("run", image(), "true").ok()
	var crowd sync.WaitGroup
	for i := range 16 {
		p := n.start("berth", "run", "--wait", "--gpus", fmt.Sprint(1+i%3), image(), "sleep", "0.05")
		if i%3 == 0 {
			time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
			p.signal(syscall.SIGKILL)
		}
		crowd.Go(func() { <-p.done })
		if i%3 != 0 {
			defer func() { p.wait().is(0, "", p.stderr.String()) }()
		}
	}
	done := make(chan struct{})
	go func() { crowd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("still waiting: %s", n.berth("leases").stdout)
	}
	n.waitForLeases(0)
	n.berth("run", "--gpus", "all", image(), "true").is(0, "", "")
	n.checkClean(t)
}
