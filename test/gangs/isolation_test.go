package gangs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// reach is what a process can reach of another one.
type reach struct {
	TCP, Loopback, UDP, Abstract, Shm, SysV, Process bool
	HCAs, Verbs, GPUs                                []string
}

// TestWalls: what one rank opens, the other ranks of its gang reach in every way, and
// no other gang in any.
func TestGangIsolation(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		dir := makeMeetingDir(t)
		opened := n.startRun(t, "-n", "2", "--gpus-per-rank", "1", "--nics", "auto", "--name", "owner",
			"-v", dir+":/meet", "-v", scripts+":/mnt:ro", torch,
			"sh", "-c", `[ $RANK = 0 ] && exec python3 /mnt/reach.py open
				until [ -e /meet/address ]; do sleep 0.05; done
				python3 /mnt/reach.py look $(cat /meet/address) 60 > /meet/.inside && mv /meet/.inside /meet/inside
				until [ -e /meet/done ]; do sleep 0.05; done`)
		inside := parseReach(t, opened.awaitFile(t, dir, "inside"))
		address := opened.awaitFile(t, dir, "address")
		said := n.mustRun(t, "run", "-n", "1", "--gpus-per-rank", "1", "--nics", "auto",
			"-v", scripts+":/mnt:ro", torch, "python3", "/mnt/reach.py", "look", address, "2")
		outside := parseReach(t, said)
		rig.Must(t, os.WriteFile(filepath.Join(dir, "done"), nil, 0o600))
		if code := opened.Wait(t); code != 0 {
			t.Errorf("the owner ended with %d\n%s", code, opened.readOutput(t))
		}

		devices := func(r *reach) [3][]string {
			d := [3][]string{r.HCAs, r.Verbs, r.GPUs}
			r.HCAs, r.Verbs, r.GPUs = nil, nil, nil
			return d
		}
		ours, theirs := devices(&inside), devices(&outside)
		if diff := cmp.Diff(reach{TCP: true, Loopback: true, UDP: true, Abstract: true, Shm: true, SysV: true, Process: true}, inside); diff != "" {
			t.Errorf("what a rank reaches of its own gang (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(reach{}, outside); diff != "" {
			t.Errorf("what another gang reaches (-want +got):\n%s", diff)
		}
		for i, what := range []string{"HCAs", "verbs", "GPUs"} {
			if len(ours[i]) == 0 || len(theirs[i]) == 0 {
				t.Errorf("%s: %q and %q", what, ours[i], theirs[i])
			}
			for _, one := range theirs[i] {
				if slices.Contains(ours[i], one) {
					t.Errorf("%s: both gangs have %s", what, one)
				}
			}
		}
		n.expectNothingLeft(t)
	})
}

func parseReach(t *testing.T, said string) (r reach) {
	t.Helper()
	i := strings.IndexByte(said, '{')
	if i < 0 {
		t.Fatalf("it says %q", said)
	}
	rig.Decode(t, strings.TrimSpace(said[i:]), &r)
	return r
}
