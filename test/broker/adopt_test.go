package broker

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// job is a process without a lease.
type job struct {
	n     node
	pid   int
	lines io.Writer
	out   *bufio.Reader
}

// startJob starts a user's shell that prints the GPUs it can open for each line that it reads. A child of it sleeps.
func (n node) startJob(uid int, words ...string) job {
	n.t.Helper()
	words = as(uid, append(words, "sh", "-c", `sleep 1000 & child=$!; trap 'kill $child' EXIT; trap exit INT; echo; while read line; do `+opening+`; done`)...)
	cmd := n.Command(words[0], words[1:]...)
	in, err := cmd.StdinPipe()
	rig.Must(n.t, err)
	p, out := rig.StartReading(n.t, cmd)
	n.t.Cleanup(func() { _ = in.Close() }) // before the process has to end
	j := job{n, p.Cmd.Process.Pid, in, out}
	j.readLine()
	return j
}

func (j job) readLine() string {
	j.n.t.Helper()
	line, err := j.out.ReadString('\n')
	rig.Must(j.n.t, err)
	return strings.TrimSpace(line)
}

// opens returns the GPUs that the job can open.
func (j job) opens() string {
	j.n.t.Helper()
	_, err := fmt.Fprintln(j.lines, "go")
	rig.Must(j.n.t, err)
	return j.readLine()
}

func (j job) end() {
	j.n.t.Helper()
	rig.Must(j.n.t, j.lines.(io.Closer).Close())
}

func (n node) adopt(uid int, words ...string) rig.Said {
	n.t.Helper()
	return n.run(uid, append([]string{n.Berth, "adopt"}, words...)...)
}

// TestAdopt: a running process of a user gets a lease with its children, and others don't get its devices.
func TestAdopt(t *testing.T) {
	n := start(t)
	n.broker()
	for _, who := range []int{alice, 0} { // root adopts for the user
		j := n.startJob(alice)
		if got := j.opens(); got != "" {
			t.Errorf("before, it opens %s", got)
		}
		got := n.adopt(who, strconv.Itoa(j.pid), "2")
		lease := n.waitForLeases(1)[0]
		const remark = "berth: CUDA_VISIBLE_DEVICES is as it was in the running processes; --export prints the commands that set it in a shell\n"
		n.wantSaid("adopt", got, rig.Said{Out: lease.ID + ": GPU 0,1 for 2 processes\n", Err: remark})
		if got := j.opens(); got != "01" {
			t.Errorf("with a lease, it opens %s", got)
		}
		n.wantSaid("others", n.run(bob, n.Berth, "alloc", "1", "--", "sh", "-c", opening), rig.Said{Out: "2\n"})
		if got := n.Do(t, n.Berth, "leases"); !strings.Contains(got, "alloc sh") || !strings.Contains(got, strconv.Itoa(alice)) {
			t.Errorf("leases: %s", got)
		}
		n.wantSaid("once more", n.adopt(who, "--json", strconv.Itoa(j.pid), "2"), rig.Said{Out: n.adopt(who, "--json", strconv.Itoa(j.pid), "2").Out})
		n.wantSaid("another request", n.adopt(who, strconv.Itoa(j.pid), "1"), rig.Said{
			Code: 1,
			Err:  fmt.Sprintf("berth: process %d has lease %s (2) already; a child of it can take another\n", j.pid, lease.ID),
		})
		n.wantSaid("release", n.run(alice, n.Berth, "release", "--force", lease.ID), rig.Said{Out: "released " + lease.ID + ": GPU 0,1\n"})
		n.waitForLeases(0)
	}
	j := n.startJob(alice)
	n.adopt(alice, strconv.Itoa(j.pid), "8")
	n.waitForLeases(1)
	j.end()
	n.waitForLeases(0) // by itself
	n.Do(t, n.Berth, "alloc", "8", "--", "true")
	if got := n.Do(t, "sh", "-c", "find /sys/fs/cgroup/berth -name 'alloc-*'"); got != "" {
		t.Errorf("left over: %s", got)
	}
}

// TestAdoptOwnShell: a shell adopts itself.
func TestAdoptOwnShell(t *testing.T) {
	n := start(t)
	n.broker()
	got := n.run(alice, "sh", "-c", `eval "$(`+n.Berth+` adopt --export $$ 2)"; echo $BERTH_DEVICES; echo $CUDA_VISIBLE_DEVICES; `+opening)
	lines := strings.Fields(got.Out)
	if got.Code != 0 || got.Err != "" || len(lines) != 3 || lines[0] != lines[1] || strings.Count(lines[0], "GPU-") != 2 || lines[2] != "01" {
		t.Errorf("%+v", got)
	}
	n.waitForLeases(0)
}

// TestAdoptRefused: what can't be adopted, and why.
func TestAdoptRefused(t *testing.T) {
	n := start(t)
	n.broker()
	own, bobs, roots := n.startJob(alice), n.startJob(bob), n.startJob(0)
	effective := n.start(0, "setpriv", "--euid", "4711", "sleep", "1000").Cmd.Process.Pid
	spaced := n.start(alice, "unshare", "--user", "--map-root-user", "sleep", "1000").Cmd.Process.Pid
	for _, pid := range []int{effective, spaced} {
		rig.WaitUntil(t, "it sleeps", func() bool {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			return string(name) == "sleep\n"
		})
	}
	for _, c := range []struct {
		name  string
		words []string
		code  int
		want  string
	}{
		{"another user's", []string{strconv.Itoa(bobs.pid), "1"}, 1, fmt.Sprintf("there is no process %d of user 4711", bobs.pid)},
		{"root's", []string{strconv.Itoa(roots.pid), "1"}, 1, fmt.Sprintf("there is no process %d of user 4711", roots.pid)},
		{"a setuid program", []string{strconv.Itoa(effective), "1"}, 1, fmt.Sprintf("process %d runs as users [0 4711]: leases of user 4711 are for processes of that user alone", effective)},
		{"in a user namespace", []string{strconv.Itoa(spaced), "1"}, 1, fmt.Sprintf("process %d is in a user namespace of its own: leases are for processes of the host", spaced)},
		{"pid 1", []string{"1", "1"}, 1, "process 1 is the init of this host: everything descends from it"},
		{"none", []string{"999999999", "1"}, 1, "there is no process 999999999"},
		{"too many", []string{strconv.Itoa(own.pid), "9"}, 1, "request 9: node has 8 GPUs, 9 asked; berth gpus lists the node's devices"},
		{"a word", []string{"train"}, 2, `"train" is not the number of a process: berth adopt PID [REQUEST]`},
		{"zero", []string{"0"}, 2, `"0" is not the number of a process: berth adopt PID [REQUEST]`},
		{"nothing", nil, 2, "adopt takes the number of a process, and at most one request: berth adopt 4711 2"},
		{"no request", []string{strconv.Itoa(own.pid)}, 1, fmt.Sprintf("process %d and its descendants use no GPU that can be seen here: name a request, such as berth adopt %d 1", own.pid, own.pid)},
		{"no such request", []string{strconv.Itoa(own.pid), "x:y"}, 1, ""},
	} {
		got := n.adopt(alice, c.words...)
		if !strings.HasPrefix(got.Err, "berth: "+c.want) || got.Code != c.code || got.Out != "" {
			t.Errorf("%s: %+v, want %d and %s", c.name, got, c.code, c.want)
		}
	}
	for _, pid := range []string{"1", strconv.Itoa(n.kernelThread())} {
		if got := n.adopt(0, pid, "1"); got.Code != 1 || !strings.Contains(got.Err, "process "+pid+" is ") {
			t.Errorf("root adopts %s: %+v", pid, got)
		}
	}
	n.waitForLeases(0)
	if got := n.Do(t, "sh", "-c", "find /sys/fs/cgroup/berth -name 'alloc-*'"); got != "" {
		t.Errorf("left over: %s", got)
	}
}

// kernelThread returns the pid of a kernel thread, 1 if none is visible.
func (n node) kernelThread() int {
	if name, err := os.ReadFile("/proc/2/comm"); err == nil && string(name) == "kthreadd\n" {
		return 2
	}
	return 1
}

// TestAdoptInLease: a process of a lease takes another one below it, so that it leaves no lease whose devices it has open.
func TestAdoptInLease(t *testing.T) {
	n := start(t)
	n.broker()
	j := n.startJob(alice, n.Berth, "alloc", "1", "--", "sh", "-c", `"$@"; true`, "sh")
	inner := n.holdOf(n.holdOf(j.pid)) // the child of the shell that has asked the broker
	if got := n.adopt(alice, strconv.Itoa(inner), "2"); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := j.opens(); got != "23" { // near each other
		t.Errorf("it opens %s", got)
	}
	outer := n.waitForLeases(2)[0]
	if got := n.run(alice, n.Berth, "release", "--force", outer.ID); got.Code != 0 {
		t.Errorf("%+v", got)
	}
	n.waitForLeases(0) // both: the inner one's cgroup is below
}

// TestAdoptLeavesNoLease: a process that came into a lease while it waited for another one doesn't leave it, and neither does a
// descendant that has a lease of its own.
func TestAdoptLeavesNoLease(t *testing.T) {
	n := start(t)
	n.broker()
	holder := n.start(bob, n.Berth, "alloc", "device=0", "--", "sleep", "1000")
	n.waitForLeases(1)
	words := as(alice, "sh", "-c", n.Berth+` alloc --wait device=0 -- sleep 1000; echo code $?; while read line; do :; done`)
	cmd := n.Command(words[0], words[1:]...)
	in, err := cmd.StdinPipe()
	rig.Must(t, err)
	said := &strings.Builder{}
	cmd.Stderr = said
	p, out := rig.StartReading(t, cmd)
	n.waitForQueue(1)
	if got := n.adopt(alice, strconv.Itoa(p.Cmd.Process.Pid), "device=7"); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	rig.Must(t, holder.Cmd.Process.Signal(unix.SIGTERM))
	if line, _ := out.ReadString('\n'); line != "code 125\n" {
		t.Errorf("the waiting process ends with %s", line)
	}
	n.waitForLeases(1)
	rig.Must(t, in.Close())
	p.Wait(t)
	if !strings.Contains(said.String(), "belongs to another lease") {
		t.Errorf("%s", said)
	}
	n.waitForLeases(0)

	j := n.startJob(alice, "sh", "-c", n.Berth+` alloc device=3 -- sleep 1000 & "$@"; kill $!`, "sh")
	inner := n.waitForLeases(1)[0]
	got := n.adopt(alice, strconv.Itoa(j.pid), "device=5")
	if got.Code != 0 || !strings.Contains(got.Err, "a child process stays outside of the lease: process ") || !strings.Contains(got.Err, " belongs to another lease") {
		t.Errorf("%+v", got)
	}
	if got := j.opens(); got != "5" {
		t.Errorf("it opens %s", got)
	}
	n.Do(t, n.Berth, "release", "--force", inner.ID)
	n.waitForLeases(1)
	j.end()
	n.waitForLeases(0)
}

// TestAdoptForeignChild: a GPU that another user's process uses isn't granted because that process is a child of the adopted one.
func TestAdoptForeignChild(t *testing.T) {
	n := start(t)
	n.broker()
	node, err := os.OpenFile(n.Path("/dev/nvidia3"), unix.O_PATH, 0) // no driver is behind it
	rig.Must(t, err)
	defer node.Close()
	user := func(uid int) string { return strings.Join(as(uid), " ") }
	cmd := n.Command("sh", "-c", user(bob)+` sleep 1000 & echo $!; exec `+user(alice)+` sh -c 'read line'`)
	cmd.ExtraFiles = []*os.File{node}
	in, err := cmd.StdinPipe()
	rig.Must(t, err)
	p, out := rig.StartReading(t, cmd)
	defer in.Close()
	line, _ := out.ReadString('\n')
	child, err := strconv.Atoi(strings.TrimSpace(line))
	rig.Must(t, err)
	t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
	for pid, name := range map[int]string{child: "sleep\n", p.Cmd.Process.Pid: "sh\n"} {
		rig.WaitUntil(t, "the programs run as their users", func() bool {
			got, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
			return err == nil && string(got) == name && info.Sys().(*syscall.Stat_t).Uid != 0
		})
	}
	rig.Must(t, sim.ControlNode(n.State.ID, "process", "3", strconv.Itoa(child), "40G"))
	t.Cleanup(func() { rig.Must(t, sim.ControlNode(n.State.ID, "process", "3", strconv.Itoa(child), "0")) })
	n.Do(t, n.Berth, "discover", "--if-stale", "--processes")
	if got := n.run(alice, n.Berth, "alloc", "device=3", "--", "true"); got.Code != 75 {
		t.Fatalf("alloc: %+v", got)
	}
	parent := strconv.Itoa(p.Cmd.Process.Pid)
	if got := n.adopt(alice, parent, "device=3"); got.Code != 75 || !strings.Contains(got.Err, "GPU 3 in use by sleep") {
		t.Errorf("adopt: %+v", got)
	}
	n.waitForLeases(0)
	if got := n.adopt(0, parent, "device=3"); got.Code != 0 || !strings.HasSuffix(got.Out, ": GPU 3 for 2 processes\n") {
		t.Errorf("root adopts both: %+v", got)
	}
}

// TestAdoptByTwo: root and the user adopt a process at the same time. It gets one lease, whichever command is killed.
func TestAdoptByTwo(t *testing.T) {
	n := start(t)
	n.broker()
	for i := range 15 {
		j := n.startJob(alice)
		pid := strconv.Itoa(j.pid)
		var calls []rig.Process
		for _, who := range []int{0, alice, 0, alice} {
			calls = append(calls, n.start(who, n.Berth, "adopt", pid, "1"))
		}
		time.Sleep(rand.N(60 * time.Millisecond))
		_ = calls[i%4].Cmd.Process.Kill() // it may have ended
		for _, c := range calls {
			c.Wait(t)
		}
		var got rig.Said
		rig.WaitUntil(t, "the request of a killed command has ended", func() bool {
			got = n.adopt(alice, pid, "1")
			return !strings.Contains(got.Err, "is getting a lease already")
		})
		leases := n.waitForLeases(1)
		if got.Code != 0 || !strings.HasPrefix(got.Out, leases[0].ID+": ") || j.opens() == "" {
			t.Errorf("round %d: %+v, %+v", i, got, leases)
		}
		j.end()
		n.Do(t, n.Berth, "alloc", "--wait=1m", "8", "--", "true")
	}
}

// TestAdoptWaits: a request waits for devices, and ends when the process does.
func TestAdoptWaits(t *testing.T) {
	n := start(t)
	n.broker()
	holder := n.start(bob, n.Berth, "alloc", "8", "--", "sleep", "1000")
	n.waitForLeases(1)
	j := n.startJob(alice)
	n.wantSaid("busy", rig.Said{Code: n.adopt(alice, strconv.Itoa(j.pid), "1").Code}, rig.Said{Code: 75})
	waiter := n.start(alice, n.Berth, "adopt", "--wait", strconv.Itoa(j.pid), "1")
	n.waitForQueue(1)
	gone := n.startJob(alice)
	vain := n.start(alice, n.Berth, "adopt", "--wait", strconv.Itoa(gone.pid), "1")
	n.waitForQueue(2)
	gone.end()
	if code := vain.Wait(t); code != 1 {
		t.Errorf("the process has ended, and adopt ends with %d", code)
	}
	n.waitForQueue(1)
	rig.Must(t, holder.Cmd.Process.Signal(unix.SIGTERM))
	if code := waiter.Wait(t); code != 0 {
		t.Errorf("adopt ends with %d", code)
	}
	if got := j.opens(); got != "0" {
		t.Errorf("it opens %s", got)
	}
}

// TestAdoptKilled: brokers and commands that are killed lose nothing: the same command finishes what was begun.
func TestAdoptKilled(t *testing.T) {
	n := start(t)
	rounds := 12
	for i := range rounds {
		broker := n.broker()
		j := n.startJob(alice)
		for range 3 {
			first := n.start(alice, n.Berth, "adopt", strconv.Itoa(j.pid), "1")
			time.Sleep(rand.N(40 * time.Millisecond))
			if i%2 == 0 {
				_ = broker.Cmd.Process.Kill()
				broker.Wait(t)
				broker = n.broker()
			} else {
				_ = first.Cmd.Process.Kill()
			}
			first.Wait(t)
		}
		var got rig.Said
		rig.WaitUntil(t, "the request of a killed command has ended", func() bool {
			got = n.adopt(alice, strconv.Itoa(j.pid), "1")
			return !strings.Contains(got.Err, "is getting a lease already")
		})
		if got.Code != 0 || !strings.HasSuffix(got.Out, ": GPU 0 for 2 processes\n") {
			t.Errorf("round %d: %+v: %s", i, got, n.Do(t, n.Berth, "leases", "--json"))
		}
		n.waitForLeases(1)
		if got := j.opens(); got != "0" {
			t.Errorf("round %d: it opens %s", i, got)
		}
		j.end()
		n.Do(t, n.Berth, "alloc", "--wait=1m", "8", "--", "true")
		_ = broker.Cmd.Process.Kill()
		broker.Wait(t)
	}
}
