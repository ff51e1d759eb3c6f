package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-gpu/berth/internal/lock"
	procfs "github.com/berth-gpu/berth/internal/process"
)

// TestExitCodes: the command's own code, or 128 and the signal; the same for a
// lease around a command and for a container.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	for _, c := range []struct {
		name, script string
		alloc, run   int
	}{
		{"success", "exit 0", 0, 0},
		{"failure", "exit 1", 1, 1},
		{"a code of berth's own", "exit 125", 125, 125},
		{"the largest code", "exit 255", 255, 255},
		{"passed on", "sh -c 'kill -TERM $$' 2>/dev/null; exit $?", 143, 143},
		{"ends by a signal", "kill -ABRT $$; sleep 1; exit 9", 134, 9}, // pid 1 of a container is immune
	} {
		t.Run(c.name, func(t *testing.T) {
			n := n.as(t)
			n.berth("alloc", "1", "--", "sh", "-c", c.script).is(c.alloc, "", "")
			n.berth("run", "--gpus", "1", image(), "sh", "-c", c.script).is(c.run, "", "")
		})
	}
	t.Run("after two dashes", func(t *testing.T) {
		n := n.as(t)
		n.berth("alloc", "1", "--", "echo", "-n", "--", "hi").is(0, "-- hi", "")
		n.berth("run", "--gpus", "1", image(), "--", "echo", "-n", "--", "hi").is(0, "-- hi", "")
		n.berth("run", "--gpus", "1", image(), "echo", "-n", "--", "hi").is(0, "-- hi", "")
	})
	t.Run("not executable", func(t *testing.T) {
		n := n.as(t)
		n.berth("alloc", "1", "--", "/etc/passwd").fails(126, "berth: /etc/passwd is not executable")
		n.berth("alloc", "1", "--", "/etc").fails(126, "berth: /etc is a directory, not a command")
	})
	t.Run("not there", func(t *testing.T) {
		n := n.as(t)
		n.berth("alloc", "1", "--", "frobnicate").fails(127, `berth: there is no command "frobnicate" in PATH`)
		n.berth("alloc", "1", "--", "/frobnicate").fails(127, "berth: there is no command /frobnicate")
	})
	t.Run("a format that can't be executed", func(t *testing.T) {
		path := t.TempDir() + "/program"
		n.as(t).sh("echo nonsense > "+path+"; chmod 755 "+path+"; berth alloc 1 -- "+path).
			fails(126, "berth: execute "+path+": exec format error")
	})
	n.checkClean(t)
}

// TestSignals: signals that users and job runners send reach the command, once, and berth runs
// until the command has ended.
func TestSignals(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	const script = `n=0
for s in TERM INT HUP USR1 USR2 QUIT; do trap "echo got $s; n=\$((n+1))" $s; done
echo ready
while [ $n -lt 6 ]; do sleep 0.05; done
exit 42`
	entryPoints := []struct {
		name string
		args []string
	}{
		{"alloc", []string{"berth", "alloc", "1", "--", "sh", "-c", script}},
		{"run", []string{"berth", "run", "--gpus", "1", image(), "sh", "-c", script}},
	}
	for _, d := range entryPoints {
		t.Run(d.name, func(t *testing.T) {
			p := n.as(t).start(d.args...)
			p.says("ready")
			want := "ready\n"
			for _, s := range []struct {
				name   string
				signal syscall.Signal
			}{{"HUP", syscall.SIGHUP}, {"USR1", syscall.SIGUSR1}, {"INT", syscall.SIGINT}, {"USR2", syscall.SIGUSR2}, {"QUIT", syscall.SIGQUIT}, {"TERM", syscall.SIGTERM}} {
				p.signal(s.signal)
				want += "got " + s.name + "\n"
				p.says(want)
			}
			p.wait().is(42, want, "")
		})
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1} {
		t.Run(fmt.Sprintf("unhandled %v", s), func(t *testing.T) {
			n := n.as(t)
			alloc := n.start("berth", "alloc", "1", "--", "sh", "-c", "echo ready; exec sleep 1000")
			run := n.start("berth", "run", "--gpus", "1", image(), "sh", "-c", "echo ready; exec sleep 1000")
			alloc.says("ready")
			run.says("ready")
			alloc.signal(s)
			run.signal(s)
			alloc.wait().is(128+int(s), "ready\n", "")
			run.wait().is(128+int(s), "ready\n", "")
		})
	}
	n.checkClean(t)
}

// TestSignalDuringDiscovery: a signal ends a command that waits for the node's inventory, with its own code.
func TestSignalDuringDiscovery(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	check(t, os.Remove(n.path("/run/berth/inventory.json")))
	discovery, err := os.Open(n.path("/run/berth/discover.lock"))
	check(t, err)
	defer discovery.Close()
	check(t, lock.TryAcquire(int(discovery.Fd()), lock.Exclusive))
	for _, args := range [][]string{{"berth", "alloc", "1", "true"}, {"berth", "run", "--gpus", "1", image(), "true"}} {
		p := n.start(args...)
		eventually(t, "it discovers", func() bool { return len(procfs.Children("/proc", p.Process.Pid)) > 0 || p.ended() })
		p.signal(syscall.SIGTERM)
		p.wait().is(143, "", "berth: interrupted (terminated)\n")
	}
	check(t, discovery.Close())
	n.berth("run", "--gpus", "1", image(), "true").is(0, "", "")
	n.checkClean(t)
}

// TestIgnoredHangup: nohup also protects the command.
func TestIgnoredHangup(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	const script = "echo ready; while ! [ -e /tmp/go ]; do sleep 0.05; done; echo done"
	for _, args := range [][]string{
		{"alloc", "1", "--", "sh", "-c", strings.ReplaceAll(script, "/tmp/go", "/run/go")},
		{"run", "-v", "/run:/tmp", "--gpus", "1", image(), "sh", "-c", script},
	} {
		t.Run(args[0], func(t *testing.T) {
			n := n.as(t)
			p := n.start(append([]string{"nohup", "berth"}, args...)...)
			p.says("ready")
			p.signal(syscall.SIGHUP)
			n.sh("touch /run/go").ok()
			p.wait().is(0, "ready\ndone\n", "")
			n.sh("rm /run/go").ok()
		})
	}
	n.checkClean(t)
}

// TestInterruptedWait: a waiting command can be stopped, and leaves the queue.
func TestInterruptedWait(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	holder := n.start("berth", "alloc", "1", "--", "sleep", "1000")
	n.waitForLeases(1)
	const waiting = "berth: waiting for 1: 0 of 1 free; alloc sleep has GPU 0\n"
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"alloc", []string{"berth", "alloc", "--wait", "1", "--", "true"}, "berth: interrupted (%s)\n"},
		{"run", []string{"berth", "run", "--wait", "--gpus", "1", image(), "true"}, "berth: interrupted (%s) before the task ran\n"},
	} {
		for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			t.Run(c.name+" "+s.String(), func(t *testing.T) {
				n := n.as(t)
				p := n.start(c.args...)
				p.warns(waiting)
				p.signal(s)
				p.wait().is(128+int(s), "", waiting+fmt.Sprintf(c.says, s))
				if line := n.leases().Line; len(line) > 0 {
					t.Errorf("still in line: %v", line)
				}
			})
		}
	}
	holder.signal(syscall.SIGTERM)
	holder.wait()
	n.checkClean(t)
}

// TestStreams: input reaches the command, and binary output isn't changed.
func TestStreams(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	type stream struct {
		name string
		args []string
		want string
	}
	for _, c := range []stream{
		{"alloc", []string{"berth", "alloc", "1", "--", "cat"}, "one\x00two\r\n"},
		{"run -i", []string{"berth", "run", "-i", "--gpus", "1", image(), "cat"}, "one\x00two\r\n"},
		{"run", []string{"berth", "run", "--gpus", "1", image(), "cat"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := n.as(t).startWith(func(cmd *exec.Cmd) { cmd.Stdin = strings.NewReader("one\x00two\r\n") }, c.args...)
			if got := p.wait(); got.ok() != c.want {
				t.Errorf("got %q, want %q", got.stdout, c.want)
			}
		})
	}
	n.checkClean(t)
}
