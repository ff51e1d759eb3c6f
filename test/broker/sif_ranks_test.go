package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// launchRanks starts ranks as an MPI launcher does, each with the variables and its number in the place of @. A rank writes its pid
// and the GPUs that it opens to the file NAME.RANK, and ends when the file end exists.
func (h home) launchRanks(name, variables, flags, image string) rig.Process {
	h.t.Helper()
	script := fmt.Sprintf(`%s; until [ -e end ]; do sleep 0.02; done`, opening)
	launch := fmt.Sprintf(`cd %s; for r in 0 1 2 3; do
		env HOME=%[1]s $(echo "$2" | sed "s/@/$r/g") sh -c '"$@"; :' sh %s apptainer exec %s "$1" sh -c "$3" >%s.$r 2>&1 &
	done; wait`, h.dir, h.Berth, flags, name)
	return h.start(h.uid, "sh", "-c", launch, "sh", image, variables, script)
}

// waitForGPUs waits until the four ranks of a launch have opened the same number of GPUs, and returns what a rank has said.
func (h home) waitForGPUs(name string, count int) (said string) {
	h.t.Helper()
	rig.WaitUntil(h.t, "the ranks of "+name+" run", func() bool {
		for r := range 4 {
			data, err := os.ReadFile(filepath.Join(h.dir, fmt.Sprintf("%s.%d", name, r)))
			if err != nil || !strings.HasSuffix(string(data), "\n") {
				return false
			}
			if said = string(data); r > 0 && len(strings.ReplaceAll(said, "?", "")) != count+1 {
				h.t.Fatalf("rank %d of %s: %s", r, name, said)
			}
		}
		return true
	})
	for r := range 4 {
		if data, err := os.ReadFile(filepath.Join(h.dir, fmt.Sprintf("%s.%d", name, r))); err != nil || string(data) != said {
			h.t.Errorf("rank %d of %s has other GPUs: %s, %v, and rank 3: %s", r, name, data, err, said)
		}
	}
	return said
}

// endRanks ends the ranks of all launches.
func (h home) endRanks(launchers ...rig.Process) {
	h.t.Helper()
	rig.Must(h.t, os.WriteFile(filepath.Join(h.dir, "end"), nil, 0o644))
	for _, l := range launchers {
		if code := l.Wait(h.t); code != 0 {
			h.t.Errorf("the launcher ends with %d", code)
		}
	}
	h.wantClean()
	rig.Must(h.t, os.Remove(filepath.Join(h.dir, "end")))
}

// openMPI are variables of mpirun's ranks.
const openMPI = "OMPI_COMM_WORLD_RANK=@ OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=@ PMIX_NAMESPACE=job"

// TestSIFRanks: the ranks of an MPI job have one lease, whose devices all of them open, and two jobs have two.
func TestSIFRanks(t *testing.T) {
	h, image := sifHome(t, nil)
	for launcher, variables := range map[string]string{
		"openmpi": openMPI, "pmix": "PMIX_RANK=@ PMIX_NAMESPACE=job", "hydra": "PMI_RANK=@ PMI_SIZE=4",
		"slurm": "SLURM_PROCID=@ SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4",
	} {
		flags := "--gpus 2"
		if launcher == "slurm" {
			flags += " --pid"
		}
		ranks := h.launchRanks(launcher, variables, flags, image)
		h.waitForGPUs(launcher, 2)
		h.waitForLeases(1)
		h.endRanks(ranks)
	}
	first := h.launchRanks("first", openMPI, "--nv", image)
	one := h.waitForGPUs("first", 1)
	second := h.launchRanks("second", openMPI, "--nv", image) // with the same variables
	if other := h.waitForGPUs("second", 1); other == one {
		t.Errorf("two jobs have GPU %s", one)
	}
	h.waitForLeases(2)
	h.endRanks(first, second)
	again := h.launchRanks("again", openMPI, "--wait=1m --gpus 8", image)
	h.waitForGPUs("again", 8)
	h.endRanks(again)
	if names, err := filepath.Glob(h.dir + "/.local/share/berth/run/jobs/*"); err != nil || len(names) != 1 {
		t.Errorf("files of jobs that have ended stay: %q, %v", names, err)
	}
}

// TestSIFRankDies: the lease of a job stays until its last rank has ended, whichever rank is killed.
func TestSIFRankDies(t *testing.T) {
	h, image := sifHome(t, nil)
	ranks := h.launchRanks("job", openMPI, "--nv", image)
	h.waitForGPUs("job", 1)
	lease := h.waitForLeases(1)[0]
	const holder = "find /sys/fs/cgroup -name 'alloc-*' | sed 's/.*alloc-//; s/[.].*//'" // the rank that has taken it
	h.Do(t, "sh", "-c", "kill -KILL $("+holder+"); while kill -0 $("+holder+") 2>/dev/null; do sleep 0.02; done")
	if got := h.run(alice, h.apptainer("exec", "--gpus", "8", image, "true")...); got.Code != 75 {
		t.Errorf("all GPUs, while three ranks have one: %+v", got)
	}
	if got := h.waitForLeases(1)[0]; got.ID != lease.ID {
		t.Errorf("lease %s, before %s", got.ID, lease.ID)
	}
	h.endRanks(ranks)
}

// TestSIFRankOfAnother: a user's process with the variables of another user's job, and with a file that leads to its lease, has a lease of its own. So has a
// batch script of Slurm's, which is no rank.
func TestSIFRankOfAnother(t *testing.T) {
	h, image := sifHome(t, nil)
	ranks := h.launchRanks("job", openMPI, "--nv", image)
	said := h.waitForGPUs("job", 1)
	names, err := filepath.Glob(h.dir + "/.local/share/berth/run/jobs/*")
	rig.Must(t, err)
	if len(names) != 1 {
		t.Fatalf("files: %q", names)
	}
	data, err := os.ReadFile(names[0])
	rig.Must(t, err)
	other := h.home(bob)
	variables := strings.Fields(strings.ReplaceAll(openMPI, "@", "0"))
	words := func(script string) []string {
		rank := append(append([]string{"env", "HOME=" + other.dir}, variables...), h.Berth, "apptainer", "exec", "--nv", image, "sh", "-c", opening)
		return append([]string{"sh", "-c", script, "sh"}, rank...)
	}
	forge := fmt.Sprintf(`"$@" >%[1]s/before; for f in %[1]s/.local/share/berth/run/jobs/*; do printf %%s '%[2]s' >"$f"; done; "$@"`, other.dir, data)
	got := other.run(bob, words(forge)...)
	if gpu := strings.ReplaceAll(got.Out, "?", ""); got.Code != 0 || len(gpu) != 2 || got.Out == said {
		t.Errorf("another user's rank: %+v, and the job has %s", got, said)
	}
	h.endRanks(ranks)
	batch := slices.Concat([]string{"env", "SLURM_PROCID=0", "SLURM_JOB_ID=7"}, h.apptainer("exec", "--nv", image, "true"))
	h.wantSaid("a batch script", h.run(alice, batch...), rig.Said{})
	h.wantClean()
}
