package cli

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestRelease: a running holder is ended only on request.
func TestRelease(t *testing.T) {
	t.Parallel()
	t.Run("cgroup v2", func(t *testing.T) { testRelease(t, options{}) })
	t.Run("cgroup v1", func(t *testing.T) { testRelease(t, options{v1: true}) })
}

func testRelease(t *testing.T, o options) {
	n := newNode(t, "dgx-h100", o)
	start := map[string]func(*node) *process{
		"alloc": func(n *node) *process {
			return n.start("berth", "alloc", "2", "--", "sh", "-c", "trap '' TERM; echo ready; sleep 1000; sleep 1000")
		},
		"run": func(n *node) *process {
			return n.start("berth", "run", "--gpus", "2", "--name", "trainer", image(), "sh", "-c", "trap '' TERM; echo ready; sleep 1000; sleep 1000")
		},
	}
	names := map[string]string{"alloc": "alloc sh", "run": "run trainer"}
	for entryPoint, begin := range start {
		t.Run(entryPoint, func(t *testing.T) {
			n := n.as(t)
			p := begin(n)
			p.says("ready")
			l := n.waitForLeases(1)[0]
			ask := names[entryPoint] + " has held GPU 0,1 for AGE and still runs"
			n.berth("release", l.ID).fails(1, "berth: "+ask+"; --force ends its processes")
			n.onTerminal("berth release "+l.ID, "n\n").is(1, ask+". End its processes? [y/N] n\nberth: nothing was released\n", "")
			n.onTerminal("berth release "+l.ID, "\n").is(1, ask+". End its processes? [y/N] \nberth: nothing was released\n", "")
			n.waitForLeases(1)
			n.onTerminal("berth release "+l.ID[:5], "y\n").is(0, ask+". End its processes? [y/N] y\nreleased ID: GPU 0,1\n", "")
			if got := p.wait(); got.code != 137 {
				t.Errorf("the holder ended with %d: %s", got.code, got.stderr)
			}
			n.waitForLeases(0)
			n.checkClean(t)
		})
		t.Run(entryPoint+", forced", func(t *testing.T) {
			n := n.as(t)
			p := begin(n)
			p.says("ready")
			n.berth("release", "--force", n.waitForLeases(1)[0].ID).is(0, "released ID: GPU 0,1\n", "")
			p.wait()
			n.checkClean(t)
		})
		t.Run(entryPoint+", killed before", func(t *testing.T) {
			n := n.as(t)
			p := begin(n)
			p.says("ready")
			p.signal(syscall.SIGKILL)
			p.wait()
			n.berth("release", "-f", n.waitForLeases(1)[0].ID).is(0, "released ID: GPU 0,1\n", "")
			n.waitForLeases(0)
			n.berth("alloc", "all", "--", "true").ok()
			n.berth("run", image(), "true").ok()
			n.checkClean(t)
		})
	}
}

// TestReleasePrefix: the beginning of an id suffices if it fits one lease.
func TestReleasePrefix(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	var holders []*process
	for range 8 {
		holders = append(holders, n.start("berth", "alloc", "1", "--", "sleep", "1000"))
	}
	first := map[byte][]lease{}
	for _, l := range n.waitForLeases(8) {
		first[l.ID[0]] = append(first[l.ID[0]], l)
	}
	for c, fits := range first {
		prefix := string(c)
		if len(fits) == 1 {
			n.berth("release", "--force", prefix).is(0, "released ID: GPU "+fits[0].Devices[0].Index+"\n", "")
			continue
		}
		var all []string
		for _, l := range fits {
			all = append(all, "ID (alloc sleep, GPU "+l.Devices[0].Index+")")
		}
		n.berth("release", "--force", prefix).fails(1, fmt.Sprintf("berth: release %q: it matches %d leases: %s; give the id of one", prefix, len(fits), strings.Join(all, ", ")))
	}
	for _, l := range n.leases().Leases {
		n.berth("release", "--force", l.ID).ok()
	}
	for _, h := range holders {
		h.wait()
	}
	n.checkClean(t)
}

// TestReleaseNames: a lease can also be named by its holder's name or id.
func TestReleaseNames(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	run := func(words ...string) string {
		return strings.TrimSpace(n.berth(append(append([]string{"run", "-d"}, words...), image(), "sleep", "1000")...).ok())
	}
	for _, word := range []func(id string) string{
		func(string) string { return "trainer" },
		func(id string) string { return id },
		func(id string) string { return id[:8] },
	} {
		id := run("--gpus", "2", "--name", "trainer")
		n.berth("release", "--force", word(id)).is(0, "released ID: GPU 0,1\n", "")
		n.waitForLeases(0)
		n.berth("rm", "-f", id).ok()
	}
	holders := []*process{n.start("berth", "alloc", "1", "--", "sleep", "1000"), n.start("berth", "alloc", "1", "--", "sleep", "1000")}
	both := n.waitForRunning(2)
	n.berth("release", "--force", "sleep").fails(1, fmt.Sprintf("berth: release %q: it matches 2 leases: ID (alloc sleep, GPU %s), ID (alloc sleep, GPU %s); give the id of one",
		"sleep", both[0].Devices[0].Index, both[1].Devices[0].Index))
	n.berth("release", "--force", both[0].ID).ok()
	n.berth("release", "--force", "sleep").ok() // there is one now
	for _, h := range holders {
		h.wait()
	}
	bare := run("--name", "bare")
	for _, word := range []string{"bare", bare} {
		n.berth("release", word).fails(1, fmt.Sprintf("berth: release %q: task bare holds no lease; berth stop bare ends it", word))
	}
	n.berth("rm", "-f", "bare").ok()
	run("--gpus", "all", "--name", "all")
	run("--gpus", "1", "--wait", "--name", "later")
	n.berth("release", "-f", "later").fails(1, `berth: release "later": it waits, and holds no lease; berth stop later takes it out of the queue`)
	n.berth("rm", "-f", "later", "all").ok()
	run("--gpus", "1", "--name", "trainer", "--timeout", "10m")
	n.waitForRunning(1)
	n.berth("leases").is(0, `LEASE         GPU  REQUEST  HOLDER       USER  FOR  STATE
ID  0    1        run trainer  root  AGE   running, ends in AGE
`, "")
	n.berth("release", "trianer").fails(1, `berth: release "trianer": no such lease (did you mean trainer?); berth leases lists all leases`)
	n.berth("rm", "-f", "trainer").ok()
	n.checkClean(t)
}

// onTerminal runs a command on a terminal of its own, types the input, and returns
// what the terminal showed as standard output.
func (n *node) onTerminal(command, input string) result {
	n.t.Helper()
	term := openTerminal(n.t)
	p := n.startWith(func(cmd *exec.Cmd) { term.attach(cmd) }, "sh", "-c", "exec "+command)
	check(n.t, term.slave.Close())
	if input != "" {
		eventually(n.t, "a question", func() bool { return term.String() != "" })
		_, err := term.master.WriteString(input)
		check(n.t, err)
	}
	r := p.wait()
	r.stdout = strings.ReplaceAll(term.rest(), "\r\n", "\n")
	return r
}

// TestReleaseRestarted: a task whose lease was released isn't restarted, neither while it runs nor
// between two starts, and release says so before and after.
func TestReleaseRestarted(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	for name, command := range map[string]string{"in a life": "sleep 1000", "between two": "exit 1"} {
		t.Run(name, func(t *testing.T) {
			n := n.as(t)
			n.berth("run", "-d", "--gpus", "2", "--restart", "always", "--name", "trainer", image(), "sh", "-c", command).ok()
			const keeps = "; it won't be restarted, in spite of --restart always"
			if command == "exit 1" {
				eventually(t, "the task ends again and again", func() bool { return n.berth("ps", "-q", "--filter", "status=restarting").stdout != "" })
			} else {
				n.waitForRunning(1)
				n.berth("release", "trainer").fails(1, "berth: run trainer has held GPU 0,1 for AGE and still runs"+keeps+"; --force ends its processes")
			}
			n.berth("release", "--force", "trainer").is(0, "released ID: GPU 0,1\n",
				"berth: task trainer isn't restarted, in spite of --restart always; berth rm trainer removes it\n")
			n.waitForLeases(0)
			n.berth("wait", "trainer").ok()
			n.berth("ps", "-a", "--format", "{{.Names}} {{.State}}").is(0, "trainer exited\n", "")
			n.berth("rm", "trainer").ok()
			n.checkClean(t)
		})
	}
}
