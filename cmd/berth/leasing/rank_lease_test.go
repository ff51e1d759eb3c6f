package leasing

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/lock"
)

func TestFindRank(t *testing.T) {
	for _, tt := range []struct {
		name, env string
		job       string
		want      []string // nil: no rank
	}{
		{"Open MPI", "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_RANK=1 PMIX_NAMESPACE=n@1 SLURM_PROCID=0 SLURM_JOB_ID=7", "PMIX_NAMESPACE=n@1 OMPI_MCA_ess_base_jobid=", []string{"OMPI_COMM_WORLD_RANK=1", "PMIX_NAMESPACE=n@1", "OMPI_MCA_ess_base_jobid="}},
		{"Open MPI, one rank", "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", "", nil},
		{"PMIx", "PMIX_RANK=2 PMIX_NAMESPACE=slurm.pmix.7.0", "PMIX_NAMESPACE=slurm.pmix.7.0", []string{"PMIX_RANK=2", "PMIX_NAMESPACE=slurm.pmix.7.0"}},
		{"PMIx, one task of Slurm's", "PMIX_RANK=0 PMIX_NAMESPACE=slurm.pmix.7.0 SLURM_PROCID=0 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1", "", nil},
		{"Hydra", "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALNRANKS=4", "", []string{"PMI_RANK=3"}},
		{"srun", "SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2", "SLURM_JOB_ID=7 SLURM_STEP_ID=0", []string{"SLURM_PROCID=1", "SLURM_JOB_ID=7", "SLURM_STEP_ID=0"}},
		{"srun, one task", "SLURM_PROCID=0 SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1", "", nil},
		{"a batch script of Slurm", "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_JOB_ID=7", "", nil},
		{"no launcher", "HOME=/root", "", nil},
	} {
		got, found := findRank(strings.Fields(tt.env))
		if diff := cmp.Diff(tt.want, got.variables); diff != "" || found != (tt.want != nil) || got.job != tt.job {
			t.Errorf("%s: %v, job %q, want %q (-want +got):\n%s", tt.name, found, got.job, tt.job, diff)
		}
	}
}

// TestFindLauncher: processes between the launcher and this one have the rank's variables.
func TestFindLauncher(t *testing.T) {
	proc := t.TempDir()
	add := func(pid, parent int, env ...string) {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"environ": strings.Join(env, "\x00") + "\x00", "stat": strconv.Itoa(pid) + " (sh) S " + strconv.Itoa(parent) + strings.Repeat(" 7", 50)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	const launcher, shell = 70000000, 70000001
	add(os.Getppid(), shell, "A=1", "PMI_RANK=1")
	add(shell, launcher, "PMI_RANK=1")
	add(launcher, 1, "PMI_RANK=0")
	ofRank := rank{variables: []string{"PMI_RANK=1"}}
	if got, start, found := ofRank.findLauncher(proc); got != launcher || start != 7 || !found {
		t.Errorf("%d, %d, %v, want %d", got, start, found, launcher)
	}
	if err := os.RemoveAll(filepath.Join(proc, strconv.Itoa(launcher))); err != nil {
		t.Fatal(err)
	}
	if _, _, found := ofRank.findLauncher(proc); found {
		t.Error("found where it is hidden")
	}
}

// TestLockJobFile: a rank that waits too long for the one that takes the lease says which process that is and what to do, and one whose context ends says only
// that. A lock that becomes free is taken.
func TestLockJobFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jobs", "job")
	first, err := lockJobFile(t.Context(), path, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockJobFile(t.Context(), path, 600*time.Millisecond)
	for _, want := range []string{
		fmt.Sprintf("waited 1s for process %d (", os.Getpid()), "takes it for all ranks and is running", "the same --wait", fmt.Sprintf("kill -9 %d ", os.Getpid()),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
	if held := new(lock.HeldError); errors.As(err, &held) {
		t.Error("the error has the advice for locks that are held for milliseconds")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockJobFile(ended, path, time.Minute); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "waited") {
		t.Error(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = first.Close() })
	second, err := lockJobFile(t.Context(), path, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	_ = second.Close()
}
