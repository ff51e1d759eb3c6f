package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// hang starts a process of a user's that hangs in a system call, by the words in front, and returns a function that lets it end. See
// testdata/hang.c.
func (n node) hang(how string, words ...string) (end func()) {
	n.t.Helper()
	program, err := shared.Compile("hang", "testdata/hang.c", "-static")
	rig.Must(n.t, err)
	dir, err := os.MkdirTemp("", "berth-hang-")
	rig.Must(n.t, err)
	rig.Must(n.t, os.Chmod(dir, 0o777))
	n.Do(n.t, "mknod", "-m", "666", dir+"/fuse", "c", "10", "229") // as udev makes it
	words = as(alice, append(words, program, how, dir+"/mount", dir+"/fuse")...)
	p, out := rig.StartReading(n.t, n.Command(words[0], words[1:]...))
	var server, mapper int
	for line := ""; line != "waits\n" && mapper == 0; {
		line, err = out.ReadString('\n')
		rig.Must(n.t, err)
		_, _ = fmt.Sscanf(line, "server %d", &server) // one of the two
		_, _ = fmt.Sscanf(line, "maps %d", &mapper)
	}
	if mapper != 0 {
		rig.WaitUntil(n.t, "the process waits in mmap(2)", func() bool {
			function, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", mapper))
			return err == nil && string(function) != "0"
		})
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			rig.Must(n.t, unix.Kill(server, unix.SIGKILL))
			p.Wait(n.t)
			rig.Must(n.t, os.RemoveAll(dir))
		}
	}
	n.t.Cleanup(end)
	return end
}

// ends runs a command of berth that has to end soon, as a user, 0 for root.
func (n node) ends(uid int, words ...string) rig.Said {
	n.t.Helper()
	cmd := n.Command("setpriv", append([]string{"--reuid", fmt.Sprint(uid), "--regid", fmt.Sprint(uid), "--clear-groups", "timeout", "--signal=KILL", "18", n.Berth}, words...)...)
	began := time.Now()
	said := n.Run(n.t, cmd)
	if took := time.Since(began); took > 15*time.Second {
		n.t.Errorf("berth %s took %v: %+v", strings.Join(words, " "), took, said)
	}
	return said
}

// TestStuckProcess: a process of a user's that hangs in a system call, so that the kernel answers no questions about it, holds
// nothing up. It counts as if it had every GPU open, because nobody knows what it has, until it goes on.
func TestStuckProcess(t *testing.T) {
	for _, how := range []string{"exec", "map"} {
		t.Run(how, func(t *testing.T) {
			n := start(t)
			n.broker()
			end := n.hang(how)
			n.ends(0, "alloc", "device=7", "--", "true") // its end searches
			for _, uid := range []int{0, bob} {
				if said := n.ends(uid, "alloc", "1", "--", "true"); said.Code != 75 || !strings.Contains(said.Err, "in use by hang (") {
					t.Errorf("a request of user %d: %+v", uid, said)
				}
			}
			for _, words := range [][]string{{"leases"}, {"gpus"}, {"discover", "--if-stale", "--processes"}, {"guard", "status"}} {
				if said := n.ends(0, words...); said.Code != 0 {
					t.Errorf("berth %s: %+v", strings.Join(words, " "), said)
				}
			}
			end()
			n.wantSaid("afterwards", n.ends(bob, "alloc", "--wait=30s", "8", "--", "true"), rig.Said{})
		})
	}
}

// TestStuckHolder: a holder that hangs in a system call keeps its lease, and holds nothing up.
func TestStuckHolder(t *testing.T) {
	n := start(t)
	n.broker()
	end := n.hang("exec", filepath.Join(filepath.Dir(n.Berth), "berth"), "alloc", "device=7", "--")
	n.wantSaid("another GPU", n.ends(0, "alloc", "1", "--", "true"), rig.Said{})
	for _, uid := range []int{0, bob} { // the end of that has searched
		if said := n.ends(uid, "alloc", "device=7", "--", "true"); said.Code != 75 {
			t.Errorf("the GPU of the stuck holder, for user %d: %+v", uid, said)
		}
		if said := n.ends(uid, "alloc", "1", "--", "true"); said.Code != 75 || !strings.Contains(said.Err, "in use by hang (") {
			t.Errorf("a request of user %d: %+v", uid, said)
		}
	}
	for range 2 {
		if leases := n.Leases(t); len(leases) != 1 || !leases[0].Live {
			t.Errorf("leases: %+v", leases)
		}
	}
	end()
	n.wantSaid("afterwards", n.ends(bob, "alloc", "--wait=30s", "8", "--", "true"), rig.Said{})
}
