package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// lookScript defines look, which prints the nodes of GPUs and slices that can be opened. Simulated
// nodes have no driver: an open that the device rules allow fails with ENXIO.
const lookScript = `look() {
	for n in /host/dev/nvidia[0-9]* /host/dev/nvidia-caps/*; do
		case $( (: <$n) 2>&1) in *"not permitted"*) ;; *) echo ${n#/host/dev/};; esac
	done
}
`

// startLook runs a container that prints what it can open.
func (n *node) startLook(args ...string) *process {
	n.t.Helper()
	words := append([]string{"berth", "run", "-v", "/dev:/host/dev", "-v", "/run:/out"}, args...)
	return n.start(append(words, image(), "sh", "-c",
		lookScript+`look; echo looked; until test -e /out/$0-look; do sleep 0.05; done; look; echo looked again; until test -e /out/$0-end; do sleep 0.05; done`, n.taskName(args))...)
}

// taskName returns the task's name of a container.
func (n *node) taskName(args []string) string { return args[slices.Index(args, "--name")+1] }

// letContinue lets a container continue.
func (n *node) letContinue(name, what string) {
	n.t.Helper()
	check(n.t, os.WriteFile(n.path("/run/"+name+"-"+what), nil, 0o600))
}

// slice returns the UUID and the nodes of one of the node's slices.
func (n *node) slice(gpu, i int) (uuid string, nodes []string) {
	n.t.Helper()
	s := n.state()
	p := s.Blueprint()
	one := s.Slices(gpu)[i]
	gi, ci := one.Minors(p.GPUs[gpu].Minor)
	return p.SliceUUID(gpu, one), []string{
		fmt.Sprint("nvidia", p.GPUs[gpu].Minor), fmt.Sprint("nvidia-caps/nvidia-cap", gi), fmt.Sprint("nvidia-caps/nvidia-cap", ci),
	}
}

// wantOpened compares the nodes that a container could open with the expected ones.
func wantOpened(t *testing.T, what, said string, want []string) {
	t.Helper()
	got := strings.Fields(said)
	slices.Sort(got)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s could open %v, want %v", what, got, want)
	}
}

// TestSliceInThePlaceOfAGoneOne: a new slice from the hardware of a leased, destroyed one has the
// same nodes, which the old container can still open. So neither this slice nor any other of that
// GPU can be leased before the old container has ended.
func TestSliceInThePlaceOfAGoneOne(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-a100-mig")
	was, nodes := n.slice(1, 0)
	old := n.startLook("--name", "old", "--gpus", "device=1:0")
	old.says("looked")

	n.control("mig", "1", "1g.10gb+me,2g.20gb")
	is, now := n.slice(1, 0)
	if was == is || !slices.Equal(nodes, now) {
		t.Fatalf("slice %s with nodes %v, and then %s with %v: the node is not as this test needs it", was, nodes, is, now)
	}
	n.berth("leases").is(0, "LEASE         GPU  REQUEST     HOLDER   USER  FOR  STATE\n"+
		"ID  1:0  device=1:0  run old  root  AGE   running\n\nID: MIG slice 1:0 ("+was+") is gone\n", "")
	beside, _ := n.slice(1, 1)
	for _, uuid := range []string{is, beside} {
		n.berth("alloc", uuid, "--", "true").fails(75, "berth: request device="+uuid+
			": 1 asked, 0 of 1 free; held: GPU 1:0 by run old (ID) since TIME; wait for them with --wait, or see berth leases")
	}
	waiter := n.startLook("--name", "new", "--wait", "--gpus", is)
	waiter.warns("berth: waiting for device=" + is + ": 0 of 1 free; run old has GPU 1:0\n")

	elsewhere := n.startLook("--name", "elsewhere", "--gpus", "device=2:0")
	elsewhere.says("looked")
	_, others := n.slice(2, 0)
	wantOpened(t, "a container with a slice of another GPU", firstGPUs(elsewhere.stdout.String(), "looked"), others)

	n.letContinue("old", "look")
	old.says("looked again")
	before, after, _ := strings.Cut(firstGPUs(old.stdout.String(), "looked again"), "looked\n")
	wantOpened(t, "the old container", before, nodes)
	wantOpened(t, "the old container, with its slice gone,", after, nodes)
	if len(n.waitForLeases(2)) != 2 || waiter.ended() {
		t.Errorf("the waiter didn't wait: %s%s", waiter.stdout.String(), waiter.stderr.String())
	}

	n.letContinue("old", "end")
	old.wait().ok()
	waiter.says("looked")
	wantOpened(t, "the new container", firstGPUs(waiter.stdout.String(), "looked"), now)
	for _, name := range []string{"new", "elsewhere"} {
		n.letContinue(name, "look")
		n.letContinue(name, "end")
	}
	waiter.wait().ok()
	elsewhere.wait().ok()
	n.forget("old", "new", "elsewhere")
	n.checkClean(t)
}

func firstGPUs(text, end string) string {
	before, _, _ := strings.Cut(text, end+"\n")
	return before
}

// forget removes what tell wrote.
func (n *node) forget(names ...string) {
	n.t.Helper()
	for _, name := range names {
		for _, what := range []string{"look", "end"} {
			if err := os.Remove(n.path("/run/" + name + "-" + what)); err != nil && !os.IsNotExist(err) {
				n.t.Error(err)
			}
		}
	}
}

// TestWaiterGetsANewSlice: a waiting request gets a slice that was created meanwhile.
func TestWaiterGetsANewSlice(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-a100-mig")
	holder := n.start("berth", "alloc", "3g.40gb:2", "--", "sleep", "1000")
	n.waitForLeases(1)
	waiter := n.startLook("--name", "waiter", "--wait", "--gpus", "3g.40gb")
	waiter.warns("berth: waiting for 3g.40gb: 0 of 2 free; alloc sleep has GPU 2:0,4:2\n")
	n.control("mig", "5", "3g.40gb")
	waiter.says("looked")
	uuid, nodes := n.slice(5, 0)
	wantOpened(t, "the waiter", firstGPUs(waiter.stdout.String(), "looked"), nodes)
	held := n.waitForLeases(2)
	if got := held[1].Devices[0].UUID; got != uuid {
		t.Errorf("the waiter's lease is of %s, want %s", got, uuid)
	}
	if holder.ended() {
		t.Error("the holder has ended")
	}
	n.letContinue("waiter", "look")
	n.letContinue("waiter", "end")
	waiter.wait().ok()
	holder.signal(15)
	holder.wait()
	n.forget("waiter")
	n.checkClean(t)
}
