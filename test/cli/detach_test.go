package cli

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestDetach: a detached task runs with its GPU, its output can be read, and its end releases
// everything.
func TestDetach(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	id := strings.TrimSpace(n.berth("run", "-d", "--gpus", "1", "--name", "train", image(), "sh", "-c",
		`ls /dev/nvidia0; echo oops >&2; trap 'echo bye; exit 3' TERM; while :; do sleep 0.05; done`).ok())
	eventually(t, "the task has written", func() bool { return strings.Contains(n.berth("logs", id).stdout, "/dev/nvidia0\n") })
	n.berth("run", "--gpus", "1", image(), "true").busy()
	n.berth("run", "-d", "--name", "train", image(), "true").is(125, "",
		"berth: task ID is called train already: the name is taken; berth rm -f train ends that task and makes it free\n")
	n.berth("stop", "train").is(0, "train\n", "")
	n.berth("wait", id).is(0, "3\n", "")
	r := n.berth("logs", "train")
	if r.stdout != "/dev/nvidia0\nbye\n" || !strings.HasSuffix(r.stderr, "oops\n") {
		t.Errorf("logs: %q, %q", r.stdout, r.stderr)
	}
	n.berth("logs", "-n", "1", "train").is(0, "bye\n", "")
	n.berth("logs", "--since", "0s", "train").is(0, "", "")
	n.berth("logs", "--until", "2001-01-01", "train").is(0, "", "")
	n.berth("logs", "tarin").fails(1, `berth: task "tarin": there is no such task (did you mean train?); berth ps -a lists all`)
	n.berth("logs", "-n", "few", "train").fails(2, `berth: --tail "few" is neither a number of lines nor all; berth logs --help shows the usage`)
	n.berth("run", "--gpus", "1", "--rm", image(), "true").is(0, "", "")
	n.berth("rm", "train").is(0, "train\n", "")
	n.berth("run", "-d", "--rm", "--gpus", "1", image(), "frobnicate").fails(127, `berth: command not found: "frobnicate" is nowhere in PATH (/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)`)
	n.checkClean(t)
}

// TestDetachWaits: a detached task that waits for its GPU returns the prompt, outlives its
// terminal, is known to all verbs, and starts in its turn.
func TestDetachWaits(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.berth("run", "-d", "--rm", "--gpus", "1", "--name", "holder", image(), "sleep", "1000").ok()
	term := openTerminal(t)
	p := n.startWith(term.attach, "sh", "-c", "berth run -d --wait --gpus 1 --name later "+image()+" sh -c 'echo begun; exit 7'; echo code $?; read x")
	term.shows("berth: waiting for 1: 0 of 1 free; run holder has GPU 0")
	term.shows("code 0\n")
	p.signal(syscall.SIGHUP)
	_ = p.wait()
	check(t, term.slave.Close())
	check(t, term.master.Close())
	n.berth("ps", "--format", "{{.Names}} {{.State}}").is(0, "later waiting\nholder running\n", "")
	n.berth("ps", "-q", "--filter", "status=waiting", "--filter", "name=later").is(0, "ID\n", "")
	n.berth("inspect", "-f", "{{.State.Status}} {{.State.Running}} {{.State.Pid}} {{.Config.Cmd}}", "later").is(0, "waiting false 0 [sh -c echo begun; exit 7]\n", "")
	n.berth("logs", "later").is(0, "", "")
	n.berth("exec", "later", "true").fails(125, "berth: task later: it isn't running: waiting")
	n.berth("attach", "later").fails(1, "berth: task later doesn't run (waiting); berth logs later shows its output")
	n.berth("rm", "later").fails(1, "berth: task later: it still runs (waiting); berth stop ends it, or --force kills it")
	n.berth("run", "-d", "--name", "later", image(), "true").fails(125, "berth: task ID is called later already: the name is taken; berth rm -f later ends that task and makes it free")
	// Errors are reported before the prompt returns.
	n.berth("run", "-d", "--wait", "--gpus", "1", image(), "frobnicate").fails(127, `berth: command not found: "frobnicate" is nowhere in PATH (/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)`)
	n.berth("run", "-d", "--wait", "--gpus", "2", image(), "true").fails(125, "berth: request 2: node has 1 GPU, 2 asked; berth gpus lists the node's devices")
	follow, waiting := n.start("berth", "logs", "-f", "later"), n.start("berth", "wait", "later")
	for _, verb := range [][]string{{"stop"}, {"kill"}, {"kill", "-s", "TERM"}, {"rm", "-f"}} {
		n.berth("run", "-d", "--wait", "--gpus", "1", "--name", "other", image(), "true").ok()
		n.berth(append(verb, "other")...).is(0, "other\n", "")
		if verb[0] != "rm" {
			n.berth("wait", "other").is(0, "143\n", "")
			n.berth("rm", "other").ok()
		}
	}
	if line := n.berth("leases", "--format", "{{.State}}").stdout; !strings.Contains(line, "1st in the queue") || strings.Contains(line, "2nd") {
		t.Errorf("leases: %s", line)
	}
	n.berth("rm", "-f", "holder").ok()
	follow.wait().is(0, "begun\n", "")
	waiting.wait().is(0, "7\n", "")
	n.berth("rm", "later").ok()
	n.checkClean(t)
}

// TestDetachWaitIsOver: a detached task that got no GPU in time ends with the code of a busy node.
func TestDetachWaitIsOver(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.berth("run", "-d", "--rm", "--gpus", "1", "--name", "holder", image(), "sleep", "1000").ok()
	n.berth("run", "-d", "--gpus", "1", image(), "true").busy()
	id := strings.TrimSpace(n.berth("run", "-d", "--gpus", "1", "--wait=100ms", image(), "true").ok())
	n.berth("wait", id).is(0, "75\n", "")
	if why := n.berth("inspect", "-f", "{{.State.Error}}", id).stdout; !strings.Contains(why, "0 of 1 free") {
		t.Errorf("it ended with %q", why)
	}
	n.berth("rm", id).ok()
	n.berth("rm", "-f", "holder").ok()
	n.checkClean(t)
}

// TestDetachLease: no detached task on the lease of a berth alloc, which ends before it.
func TestDetachLease(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.berth("alloc", "1", "--", "berth", "run", "-d", image(), "true").is(125, "", "berth: a detached task would outlive the lease ID of the berth alloc around this process; unset BERTH_LEASE to take one of its own\n")
	n.checkClean(t)
}

// TestFollow: a follower gets all output, to the end of the task.
func TestFollow(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.berth("run", "-d", "-i", "--name", "train", image(), "sh", "-c", "echo one; read x; echo $x; exit 5").ok()
	follow := n.start("berth", "logs", "-f", "train")
	follow.says("one\n")
	n.sh("echo two | berth attach train").is(5, "two\n", "")
	follow.wait().is(0, "one\ntwo\n", "")
	n.sh("berth logs -t train | grep -c '^20..-..-..T.*Z [a-z]*$'").is(0, "2\n", "")
	n.berth("attach", "train").fails(1, "berth: task train doesn't run (exited (5)); berth logs train shows its output")
	n.berth("rm", "train").ok()
	n.checkClean(t)
}

// TestAttachKeys: a user types to a task's terminal, detaches, and attaches again.
func TestAttachKeys(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.berth("run", "-d", "-it", "--name", "train", image(), "sh", "-c",
		`while read -r line; do stty size; echo "read $line"; [ "$line" = end ] && exit 4; done`).ok()
	term := openTerminal(t)
	term.size(30, 90)
	first := n.startWith(term.attach, "berth", "attach", "train")
	term.types("one\n")
	term.shows("30 90\nread one\n")
	term.types("\x10\x11")
	first.wait().is(0, "", "")
	check(t, term.slave.Close())
	again := openTerminal(t)
	again.size(31, 91)
	second := n.startWith(again.attach, "berth", "attach", "train")
	again.types("two\n")
	again.shows("31 91\nread two\n")
	again.types("end\n")
	second.wait().is(4, "", "")
	check(t, again.slave.Close())
	n.berth("rm", "train").ok()
	n.checkClean(t)
}

// TestMonitorIsKilled: any verb starts a new monitor for a task whose monitor was killed; the task
// keeps its GPU meanwhile, and its exit code is known.
func TestMonitorIsKilled(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.berth("run", "-d", "--gpus", "1", "-i", "--name", "train", image(), "sh", "-c", "read x; echo $x; exit 6").ok()
	kill := `pid=$(sed 's/.*"monitor":{"pid":\([0-9]*\).*/\1/' /var/lib/berth/tasks/*/run.json); kill -9 $pid; while kill -0 $pid 2>/dev/null; do sleep 0.01; done`
	n.sh(kill).ok()
	n.berth("run", "--gpus", "1", image(), "true").busy()
	n.sh("echo hello | berth attach train").is(6, "hello\n", "")
	n.berth("wait", "train").is(0, "6\n", "")
	n.berth("logs", "train").is(0, "hello\n", "")
	n.berth("run", "--gpus", "1", image(), "true").is(0, "", "")
	n.berth("rm", "train").ok()
	n.checkClean(t)
}

// TestDetachOutlivesItsTerminal: the task continues after the end of the session that started it.
func TestDetachOutlivesItsTerminal(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	term := openTerminal(t)
	p := n.startWith(term.attach, "sh", "-c", "berth run -d --name train "+image()+" sh -c 'trap \"exit 7\" TERM; echo ready; while :; do sleep 0.05; done'; echo done; read x")
	term.shows("done\n")
	p.signal(syscall.SIGHUP)
	_ = p.wait()
	check(t, term.slave.Close())
	check(t, term.master.Close())
	eventually(t, "the task has written", func() bool { return n.berth("logs", "train").stdout == "ready\n" })
	n.berth("stop", "train").ok()
	n.berth("wait", "train").is(0, "7\n", "")
	n.berth("rm", "train").ok()
	if _, err := os.Stat(n.path("/run/berth/attach")); err != nil {
		t.Error(err)
	}
	n.checkClean(t)
}

func (r result) busy() {
	r.t.Helper()
	if r.code != 75 || !strings.Contains(r.stderr, "0 of 1 free") {
		r.t.Errorf("%s: code %d, want 75: %s", strings.Join(r.args, " "), r.code, r.stderr)
	}
}
