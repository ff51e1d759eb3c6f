package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/lock"
)

// TestUnpackingIsReported: a slow first use of a layout reports that it unpacks, and every later
// one is silent.
func TestUnpackingIsReported(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.berth("run", image(), "true").ok()
	n.berth("run", image(), "true").is(0, "", "")
	store := "/var/lib/berth/images/sha256/"
	layers := n.list(store)
	if len(layers) != 1 {
		t.Fatalf("layers in the store: %v", layers)
	}
	layer := layers[0]
	for range 10 {
		check(t, os.RemoveAll(n.path(store+layer)))
		if n.unpacksSlowly(store+layer, layer[:12]) {
			n.berth("run", image(), "echo", "again").is(0, "again\n", "")
			n.checkClean(t)
			return
		}
	}
	t.Error("berth was never stopped between two looks at the layer's lock")
}

// unpacksSlowly runs a task whose layer another process seems to unpack, and then gives up. It is
// false if berth was stopped just before it would have printed the message once more: then the rest
// comes too early.
func (n *node) unpacksSlowly(home, id string) bool {
	n.t.Helper()
	unlock := n.lockLayer(home)
	p := n.start("berth", "run", image(), "echo", "unpacked")
	waits := "berth: another task is unpacking layer " + id + "; waiting for it\n"
	p.warns(waits)
	p.signal(syscall.SIGSTOP)
	eventually(n.t, "berth stands still", func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.Process.Pid), "stat"))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	said := p.stderr.String()
	unlock()
	time.Sleep(1100 * time.Millisecond) // berth prints a message once a second: the next one is due
	p.signal(syscall.SIGCONT)
	r := p.wait()
	after := strings.TrimPrefix(r.stderr, said)
	if r.ok() != "unpacked\n" {
		n.t.Errorf("the task printed %q", r.stdout)
	}
	if strings.HasPrefix(after, waits) {
		return false
	}
	if !regexp.MustCompile(`^berth: unpacking layer ` + id + `: \d+ of [1-9]\d* MB\n$`).MatchString(firstLine(after)) {
		n.t.Errorf("after it waited, berth said %q, and all in all\n%s", after, r.stderr)
	}
	return true
}

// lockLayer locks the layer as a berth that unpacks it.
func (n *node) lockLayer(home string) (unlock func()) {
	n.t.Helper()
	check(n.t, os.MkdirAll(n.path(home), 0o700))
	f, err := os.Open(n.path(home))
	check(n.t, err)
	n.t.Cleanup(func() { _ = f.Close() })
	check(n.t, lock.TryAcquire(int(f.Fd()), lock.Exclusive))
	return func() { check(n.t, f.Close()) }
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line + "\n"
}

// TestWaitingIsReported: a waiting request prints the holders of its devices at most once a minute,
// and nothing else.
func TestWaitingIsReported(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "l40s-pcie")
	run := n.start("berth", "run", "--name", "trainer", "--gpus", "0,1", image(), "sleep", "1000")
	n.waitForLeases(1)
	alloc := n.start("berth", "alloc", "device=3", "--", "sleep", "1000")
	n.waitForLeases(2)
	waiter := n.start("berth", "run", "--wait", "--gpus", "4", image(), "echo", "four")
	waiter.warns("\n")
	run.signal(syscall.SIGTERM)
	run.wait()
	n.waitForLeases(1)
	alloc.signal(syscall.SIGTERM)
	alloc.wait()
	r := waiter.wait()
	r.is(0, "four\n", "berth: waiting for 4: 1 of 4 free; run trainer has GPU 0,1, alloc sleep has GPU 3\n")
	n.checkClean(t)
}
