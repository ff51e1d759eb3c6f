package slurm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// rank is the command of a rank: it writes which GPUs it opens to the file NAME.RANK, and ends when the file NAME.end exists.
const rank = `name=$0; opens >$name.tmp.$SLURM_PROCID; mv $name.tmp.$SLURM_PROCID $name.$SLURM_PROCID; until [ -e $name.end ]; do sleep 0.05; done`

// startRanks starts four ranks of a job with flags of srun and of berth apptainer exec.
func (l login) startRanks(name string, srun, exec []string) rig.Process {
	l.t.Helper()
	words := append([]string{"srun", "-n", "4"}, srun...)
	words = append(append(words, "berth", "apptainer", "exec"), exec...)
	words = append(words, "pytorch.sif", "sh", "-c", rank, name)
	return rig.StartProcess(l.t, l.newCommand(append([]string{"sh", "-c", `exec "$@" >$0.log 2>&1`, name}, words...)...))
}

// waitForGPUs waits until the ranks of a job run, and returns the GPUs that all of them open.
func (l login) waitForGPUs(name string, ranks rig.Process, count int) (gpus string) {
	l.t.Helper()
	said := make([]string, 4)
	rig.WaitUntil(l.t, "the ranks of "+name+" run", func() bool {
		if ranks.HasEnded() {
			l.t.Fatalf("srun of %s has ended: %s", name, l.readFile(name+".log"))
		}
		for r := range said {
			if said[r] = l.readFile(fmt.Sprintf("%s.%d", name, r)); said[r] == "" {
				return false
			}
		}
		return true
	})
	for r := range said {
		if said[r] != said[0] || len(said[r]) != count+1 {
			l.t.Errorf("rank %d of %s opens %q, rank 0 %q", r, name, said[r], said[0])
		}
	}
	return strings.TrimSpace(said[0])
}

// endRanks ends the ranks of a job.
func (l login) endRanks(name string, ranks rig.Process) {
	l.t.Helper()
	l.writeFile(name+".end", "")
	if code := ranks.Wait(l.t); code != 0 {
		l.t.Errorf("srun of %s ends with %d", name, code)
	}
	l.removeFiles(name + ".*")
}

// TestRanks: the ranks that one srun starts have one lease, whose GPUs all of them open. Another srun has a lease of its own, in the same
// job, too. Both end with their ranks.
func TestRanks(t *testing.T) {
	l := startCluster(t)
	first := l.startRanks("first", nil, []string{"--nv"})
	one := l.waitForGPUs("first", first, 1)
	if got := l.listLeases(); len(got) != 1 || got[0].Owner.UID != userID {
		t.Errorf("leases: %+v", got)
	}
	second := l.startRanks("second", nil, []string{"--nv"})
	if other := l.waitForGPUs("second", second, 1); other == one {
		t.Errorf("two jobs have GPU %s", one)
	}
	if got := l.listLeases(); len(got) != 2 {
		t.Errorf("leases: %+v", got)
	}
	l.endRanks("first", first)
	l.endRanks("second", second)
	l.waitForNothing()
}
