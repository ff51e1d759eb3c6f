package cli

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestRelease: a holder that runs is ended only when that was wanted.
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
	for door, begin := range start {
		t.Run(door, func(t *testing.T) {
			n := n.as(t)
			p := begin(n)
			p.says("ready")
			l := n.holds(1)[0]
			ask := names[door] + " has held GPU 0,1 for AGE and still runs"
			n.berth("release", l.ID).fails(1, "berth: "+ask+"; --force ends its processes")
			n.onTerminal("berth release "+l.ID, "n\n").is(1, ask+". End its processes? [y/N] n\nberth: nothing was released\n", "")
			n.onTerminal("berth release "+l.ID, "\n").is(1, ask+". End its processes? [y/N] \nberth: nothing was released\n", "")
			n.holds(1)
			n.onTerminal("berth release "+l.ID[:5], "y\n").is(0, ask+". End its processes? [y/N] y\nreleased ID: GPU 0,1\n", "")
			if got := p.wait(); got.code != 137 {
				t.Errorf("the holder ended with %d: %s", got.code, got.stderr)
			}
			n.holds(0)
			n.isClean(t)
		})
		t.Run(door+", forced", func(t *testing.T) {
			n := n.as(t)
			p := begin(n)
			p.says("ready")
			n.berth("release", "--force", n.holds(1)[0].ID).is(0, "released ID: GPU 0,1\n", "")
			p.wait()
			n.isClean(t)
		})
		t.Run(door+", killed before", func(t *testing.T) {
			n := n.as(t)
			p := begin(n)
			p.says("ready")
			p.signal(syscall.SIGKILL)
			p.wait()
			n.berth("release", "-f", n.holds(1)[0].ID).is(0, "released ID: GPU 0,1\n", "")
			n.holds(0)
			n.berth("alloc", "all", "--", "true").ok()
			n.berth("run", image(), "true").ok()
			n.isClean(t)
		})
	}
}

// TestReleasePrefix: the beginning of an id will do if it fits one lease.
func TestReleasePrefix(t *testing.T) {
	t.Parallel()
	n := discovered(t, "dgx-h100")
	var holders []*process
	for range 8 {
		holders = append(holders, n.start("berth", "alloc", "1", "--", "sleep", "1000"))
	}
	first := map[byte][]lease{}
	for _, l := range n.holds(8) {
		first[l.ID[0]] = append(first[l.ID[0]], l)
	}
	for c, fits := range first {
		prefix := string(c)
		if len(fits) == 1 {
			n.berth("release", "--force", prefix).is(0, "released ID: GPU "+fits[0].Devices[0].Index+"\n", "")
			continue
		}
		n.berth("release", "--force", prefix).fails(1, fmt.Sprintf("berth: release %q: %d leases begin so; give more of the id", prefix, len(fits)))
	}
	for _, l := range n.leases().Leases {
		n.berth("release", "--force", l.ID).ok()
	}
	for _, h := range holders {
		h.wait()
	}
	n.isClean(t)
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
