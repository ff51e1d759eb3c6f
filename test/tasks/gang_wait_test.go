package tasks

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestGangWaits: a detached gang that waits for its GPUs is in the background at once, can be ended there, and
// begins when it has them.
func TestGangWaits(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		words := func(name string, more ...string) []string {
			return append(append([]string{"run", "-d", "--wait", "--name", name}, more...),
				"-n", "2", "--gpus-per-rank", "1", rig.ImagePath(t, "busybox"), "sh", "-c",
				"echo begun; touch /dev/shm/$RANK; until [ -e /dev/shm/0 ] && [ -e /dev/shm/1 ]; do sleep 0.05; done; exit 7") // the first end ends the other rank
		}
		state := func(name string) string {
			return strings.TrimSpace(s.RunBerth(t, "ps", "-a", "--filter", "name=^"+name+"$", "--format", "{{.State}}").Out)
		}
		start := func(words ...string) (id string) {
			got := s.RunBerth(t, words...)
			if got.Code != 0 {
				t.Fatalf("berth %q: %+v", words, got)
			}
			return strings.TrimSpace(got.Out)
		}
		start("run", "-d", "--rm", "--name", "holder", "--gpus", "all", rig.ImagePath(t, "busybox"), "sleep", "1000")
		t.Cleanup(func() { s.RunBerth(t, "rm", "-f", "holder", "later", "other") }) // what a failed test leaves
		start(words("later")...)
		if got := state("later"); got != "waiting" {
			t.Errorf("it is %q", got)
		}
		id := start(words("other")...)
		s.prints(t, "other\n", "stop", "other")
		s.prints(t, "143\n", "wait", "other")
		s.prints(t, "other\n", "rm", "other")
		s.expectNothingLeft(t, id)
		id = start(words("other", "--rm")...)
		s.prints(t, "other\n", "kill", "other")
		rig.WaitUntil(t, "it is gone", func() bool { return state("other") == "" })
		s.expectNothingLeft(t, id)
		s.prints(t, "holder\n", "rm", "-f", "holder")
		s.prints(t, "7\n", "wait", "later")
		if got := sortLines(s.RunBerth(t, "logs", "later").Out); len(got) != 2 || !strings.HasSuffix(got[0], "begun") {
			t.Errorf("logs: %q", got)
		}
		s.prints(t, "later\n", "rm", "later")
	})
}
