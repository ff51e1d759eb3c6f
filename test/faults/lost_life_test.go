package faults

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestLostLife: a task whose run.json is lost or empty while it runs is ended by stop and by rm -f.
func TestLostLife(t *testing.T) {
	t.Parallel()
	n, err := shared.Start("one-gpu", "v2")
	rig.Must(t, err)
	for _, verb := range []string{"stop -t 0", "rm -f"} {
		for _, damage := range []string{"rm", "truncate -s 0"} {
			t.Run(verb+" after "+damage, func(t *testing.T) {
				id := strings.TrimSpace(n.Do(t, n.Berth, "run", "-d", "--gpus", "1", rig.ImagePath(t, "busybox"), "sleep", "1000"))
				n.Do(t, "sh", "-c", damage+" /var/lib/berth/tasks/"+id+"/run.json")
				n.Do(t, n.Berth, append(strings.Fields(verb), id)...)
				if leases := n.Leases(t); len(leases) > 0 {
					t.Errorf("%+v", leases)
				}
				n.Do(t, n.Berth, "rm", "-f", id)
				if out := n.Do(t, n.Berth, "ps", "-aq"); out != "" {
					t.Error(out)
				}
			})
		}
	}
}
