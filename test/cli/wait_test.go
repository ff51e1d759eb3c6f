package cli

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// TestQueue: first come, first served.
func TestQueue(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	holder := n.start("berth", "alloc", "1", "--", "sleep", "1000")
	n.waitForRunning(1)
	var waiters []*process
	for i := range 4 {
		w := n.start("berth", "run", "--wait", "-v", "/run:/out", "--gpus", "1", "--name", fmt.Sprint("w", i), image(), "sh", "-c", fmt.Sprintf("echo %d >> /out/order", i))
		waiters = append(waiters, w)
		eventually(t, "a place in the line", func() bool { return len(n.leases().Line) == i+1 })
	}
	waiters[0].warns("berth: waiting for 1: 0 of 1 free; alloc sleep has GPU 0\n")
	waiters[2].warns("berth: waiting for 1: 0 of 1 free, 2 ahead in the queue; alloc sleep has GPU 0\n")
	n.berth("leases").is(0, strings.Join([]string{
		"LEASE         GPU  REQUEST  HOLDER       USER  FOR  STATE",
		"ID  0    1        alloc sleep  root  AGE   running",
		"ID  -    1        run w0       root  AGE   waiting, 1st in the queue",
		"ID  -    1        run w1       root  AGE   waiting, 2nd in the queue",
		"ID  -    1        run w2       root  AGE   waiting, 3rd in the queue",
		"ID  -    1        run w3       root  AGE   waiting, 4th in the queue", "",
	}, "\n"), "")
	// A request that doesn't wait can't overtake, and one that gives up leaves nothing in the
	// queue.
	n.berth("alloc", "1", "--", "true").fails(75, "berth: request 1: 1 asked, 0 of 1 free; held: GPU 0 by alloc sleep since TIME; 4 ahead in the queue; wait for them with --wait, or see berth leases")
	waiters[1].signal(syscall.SIGKILL)
	waiters[1].wait()
	holder.signal(syscall.SIGTERM)
	holder.wait()
	for i, w := range waiters {
		if i != 1 {
			w.wait().ok()
		}
	}
	if got := n.read("/run/order"); got != "0\n2\n3\n" {
		t.Errorf("the order was %q", got)
	}
	n.berth("run", image(), "true").ok() // removes what the killed request left
	n.checkClean(t)
}

// TestLimitedWait: the error at the end of a limited wait is that of busy devices.
func TestLimitedWait(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	holder := n.start("berth", "alloc", "1", "--", "sleep", "1000")
	n.waitForLeases(1)
	const waiting = "berth: waiting for 1: 0 of 1 free; alloc sleep has GPU 0\n"
	const held = "berth: request 1: 1 asked, 0 of 1 free; held: GPU 0 by alloc sleep since TIME"
	for _, args := range [][]string{
		{"alloc", "--wait=200ms", "1", "--", "true"},
		{"run", "--wait=200ms", "--gpus", "1", image(), "true"},
	} {
		n.berth(args...).is(75, "", waiting+held+"; waited AGE; see berth leases\n")
	}
	for _, args := range [][]string{
		{"alloc", "--no-wait", "1", "--", "true"},
		{"run", "--no-wait", "--gpus", "1", image(), "true"},
		{"run", "--no-wait", "--wait=0s", "--gpus", "1", image(), "true"},
		{"run", "--wait=0s", "--gpus", "1", image(), "true"},
		{"run", "--wait=false", "--gpus", "1", image(), "true"},
	} {
		n.berth(args...).fails(75, held+"; wait for them with --wait, or see berth leases")
	}
	const contradiction = "berth: --wait and --no-wait contradict each other; berth "
	n.berth("alloc", "--wait", "--no-wait", "1", "--", "true").fails(125, contradiction+"alloc --help shows the usage")
	n.berth("run", "--no-wait", "--wait=1h", "--gpus", "1", image(), "true").fails(125, contradiction+"run --help shows the usage")
	if line := n.leases().Line; len(line) > 0 {
		t.Errorf("still in line: %v", line)
	}
	holder.signal(syscall.SIGTERM)
	holder.wait()
	n.checkClean(t)
}

// TestLargeRequest: small requests don't overtake a large one for ever.
func TestLargeRequest(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "l40s-pcie")
	small := n.start("berth", "alloc", "1", "--", "sleep", "1000")
	n.waitForLeases(1)
	large := n.start("berth", "alloc", "--wait", "4", "--", "echo", "four")
	large.warns("waiting for 4: 3 of 4 free; alloc sleep has GPU 0\n")
	n.berth("alloc", "1", "--", "true").fails(75, "berth: request 1: 1 asked, 0 of 4 free; held: GPU 0 by alloc sleep since TIME; 1 ahead in the queue; wait for them with --wait, or see berth leases")
	small.signal(syscall.SIGTERM)
	small.wait()
	large.wait().is(0, "four\n", "berth: waiting for 4: 3 of 4 free; alloc sleep has GPU 0\n")
	n.checkClean(t)
}
