package slurm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// train is a program of four ranks, which compute together, and say what each of them has.
const train = `import subprocess
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
gpus = subprocess.run("opens", capture_output=True, text=True).stdout.strip()
world.barrier()
print(f"rank {world.rank} of {world.size}: sum {total}, GPUs {gpus}, {open('/data/file').read().strip()}", flush=True)
`

// listTrained is what train prints, sorted, if all ranks open the same GPUs.
func listTrained(gpus string) (lines []string) {
	for r := range 4 {
		lines = append(lines, fmt.Sprintf("rank %d of 4: sum 6, GPUs %s, of-the-data", r, gpus))
	}
	return lines
}

// sortLines returns the lines of a text.
func sortLines(text string) []string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	slices.Sort(lines)
	return lines
}

// pmi2 begins to speak PMI2 with Slurm, through the descriptor that a rank has for that.
const pmi2 = `echo "cmd=init pmi_version=2 pmi_subversion=0" >&$PMI_FD; read -r said <&$PMI_FD; echo "$said, GPUs $(opens)"`

// TestMPI: PMIx and PMI2 of Slurm reach the ranks, which share a lease with each of them.
func TestMPI(t *testing.T) {
	l := startCluster(t)
	l.writeFile("train.py", train)
	ranks := func(mpi string, command ...string) []string {
		words := []string{"srun", "-n", "4", "--mpi=" + mpi, "berth", "apptainer", "exec", "--gpus", "3", "-B", "/data", "pytorch.sif"}
		return sortLines(l.wantOutput(append(words, command...)...))
	}
	if kinds := l.runCommand("srun", "--mpi=list").Err + l.runCommand("srun", "--mpi=list").Out; strings.Contains(kinds, "pmix") || *suite != "forky" {
		if got := ranks("pmix", "python", "train.py"); !slices.Equal(got, listTrained("012")) {
			t.Errorf("PMIx: %q", got)
		}
	}
	l.waitForNothing()
	if got := ranks("pmi2", "bash", "-c", pmi2); !slices.Equal(got, slices.Repeat([]string{"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0, GPUs 012"}, 4)) {
		t.Errorf("PMI2: %q", got)
	}
	l.waitForNothing()
}

// TestEnvironment: a rank has Slurm's variables and descriptors, as without a container.
func TestEnvironment(t *testing.T) {
	l := startCluster(t)
	const show = `env | grep -E "^(SLURM|PMI)" | sed "s/[0-9][0-9.]*/N/g" | sort` // addresses and ids are each step's
	for _, mpi := range []string{"none", "pmi2", "pmix"} {
		if mpi == "pmix" && *suite == "forky" { // it has none
			continue
		}
		srun := []string{"srun", "-n", "1", "-J", "name", "--mpi=" + mpi}
		plain := l.wantOutput(append(srun, "sh", "-c", show)...)
		inside := l.wantOutput(append(srun, "berth", "apptainer", "exec", "--nv", "pytorch.sif", "sh", "-c", show)...)
		if inside != plain || !strings.Contains(plain, "SLURM_STEP_NUM_TASKS=N") {
			t.Errorf("%s: %s, and without a container: %s", mpi, inside, plain)
		}
	}
}
