package broker

import (
	"flag"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

var callKills = flag.Int("broker.callkills", 15, "`processes` that TestKilledAtCalls kills")

// TestKilledAtCalls: brokers, commands that take and end leases, and the command that turns the guard on are killed at any
// of their system calls, their children too. No process without a lease opens a device then, the next commands get all
// devices, and nothing is left.
func TestKilledAtCalls(t *testing.T) {
	n := start(t)
	h := n.home(alice)
	draw := rand.New(rand.NewPCG(*killSeed, 1))
	run := h.words("run", "--wait=1m", "--gpus", "2", rig.ImagePath(t, "busybox"), "true")
	ways := []struct {
		name  string
		uid   int
		words []string
		calls int // about so many make its busiest thread's
	}{
		{"broker", 0, confined(t, filepath.Dir(n.Berth)+"/berth-broker"), 1500},
		{"a user's alloc", alice, []string{n.Berth, "alloc", "--wait=1m", "3", "--", "true"}, 400},
		{"a user's run", alice, run, 800},
		{"root's alloc", 0, []string{n.Berth, "alloc", "--wait=1m", "3", "--", "true"}, 1500},
		{"the guard's start", 0, []string{n.Berth, "guard", "on"}, 800},
	}
	inject := func(call int, words ...string) []string {
		return append([]string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=all:signal=KILL:when=" + strconv.Itoa(call)}, words...)
	}
	if code := n.start(alice, inject(3, "true")...).Wait(t); code != -1 { // strace ends by the signal that ended what it traces
		t.Fatalf("strace kills nothing: exit code %d", code)
	}
	killed := map[string]int{}
	for i := range *callKills {
		way := ways[i%len(ways)]
		call := 1 + int(float64(way.calls)*draw.Float64()*draw.Float64()) // most threads make few calls
		traced := inject(call, way.words...)
		var code int
		if way.name == "broker" {
			p := n.start(way.uid, traced...)
			rig.WaitUntil(t, "the broker listens or has ended", func() bool { return p.HasEnded() || n.listens() })
			for range 3 {
				n.run(alice, n.Berth, "alloc", "3", "--", "true") // fails if the broker ends
			}
			for _, pid := range listChildren(p.Cmd.Process.Pid) { // no thread may have made so many calls
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
			code = p.Wait(t)
		} else {
			broker := n.broker()
			code = n.start(way.uid, traced...).Wait(t)
			_ = broker.Cmd.Process.Kill() // it lives until then
			broker.Wait(t)
		}
		if code != 0 {
			killed[way.name]++
		}
		if got := n.run(bob, "sh", "-c", opening); got.Out != "\n" {
			t.Errorf("after %s at call %d a user without a lease opens %+v", way.name, call, got)
		}
	}
	t.Logf("killed: %v", killed)
	n.broker()
	n.wantSaid("all afterwards", n.run(bob, n.Berth, "alloc", "--wait=1m", "all", "--", "sh", "-c", opening), rig.Said{Out: "01234567\n"})
	n.waitForLeases(0)
	h.berth("prune", "-f")
	rig.WaitUntil(t, "all tasks are removed", func() bool { return h.berth("ps", "-aq") == rig.Said{} })
	h.wantClean()
}
