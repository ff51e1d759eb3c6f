package leasing

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// rank is this process as a rank of an MPI job: environment variables, as "NAME=value", that no other rank has. job is what they say of the job.
type rank struct {
	variables []string
	job       string
}

// findRank returns the rank that an environment describes. found is false for a process that no launcher has started as one of several.
func findRank(env []string) (r rank, found bool) {
	values := map[string]string{}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		values[name] = value
	}
	for _, l := range []struct {
		rank, size string // variables with the rank, and how many there are
		job        []string
	}{
		{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}}, // Open MPI's mpirun
		{"PMIX_RANK", "SLURM_STEP_NUM_TASKS", []string{"PMIX_NAMESPACE"}},                                       // srun --mpi=pmix, and others with PMIx
		{"PMI_RANK", "PMI_SIZE", nil}, // mpiexec of MPICH and Intel MPI, srun --mpi=pmi2
		{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", []string{"SLURM_JOB_ID", "SLURM_STEP_ID"}}, // srun
	} {
		isStep := l.rank != "SLURM_PROCID" || values["SLURM_STEP_ID"] != "" // a batch script is no step
		if values[l.rank] == "" || values[l.size] == "1" || !isStep {
			continue
		}
		for _, name := range append([]string{l.rank}, l.job...) {
			r.variables = append(r.variables, name+"="+values[name])
		}
		r.job = strings.Join(r.variables[1:], " ")
		return r, true
	}
	return r, false
}

// findLauncher returns the process that has started the rank, and its start: the first ancestor of this process that isn't part of the rank. With Slurm it is
// root's. found is false if it has ended, so that the rank belongs to init, or is hidden.
func (r rank) findLauncher(proc string) (pid int, start uint64, found bool) {
	for pid = os.Getppid(); pid > 1 && r.isPart(proc, pid); {
		var err error
		if pid, err = process.Parent(proc, pid); err != nil {
			return 0, 0, false
		}
	}
	start, err := process.Start(proc, pid)
	return pid, start, err == nil && pid > 1
}

// isPart reports whether a process has the variables of the rank.
func (r rank) isPart(proc string, pid int) bool {
	env, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "environ"))
	if err != nil { // no process of this user's
		return false
	}
	words := strings.Split(string(env), "\x00")
	return !slices.ContainsFunc(r.variables, func(kv string) bool { return !strings.HasSuffix(kv, "=") && !slices.Contains(words, kv) })
}

// jobVariable is the environment variable of a process in a user namespace with the path of its job's file: see NameJob.
const jobVariable = "BERTH_JOB"

// NameJob sets jobVariable for the process in a user namespace that this process starts. If this process is a rank of an MPI job, it is the path
// of a file that the job's ranks on this node have for this request, and otherwise "". Only outside of the user namespace is the launcher seen.
func NameJob(conf berth.Config, wanted request.Request) error {
	const proc = "/proc"
	if err := os.Setenv(jobVariable, ""); err != nil {
		return err
	}
	r, found := findRank(os.Environ())
	if !found || wanted.IsZero() {
		return nil
	}
	pid, start, found := r.findLauncher(proc)
	if !found {
		return nil
	}
	boot, err := os.ReadFile(proc + "/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	host := shortHash(string(boot)) // hosts may share the directory
	dir := filepath.Join(conf.TaskState(), "jobs")
	removeEnded(proc, dir, host)
	return os.Setenv(jobVariable, filepath.Join(dir, fmt.Sprintf("%s-%d-%d-%s", host, pid, start, shortHash(r.job+"\n"+wanted.String()))))
}

func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// removeEnded removes the files of this host's launchers that have ended.
func removeEnded(proc, dir, host string) {
	names, _ := filepath.Glob(filepath.Join(dir, host+"-*")) // the next rank tries again
	for _, name := range names {
		var pid int
		var start uint64
		if _, err := fmt.Sscanf(strings.TrimPrefix(filepath.Base(name), host), "-%d-%d-", &pid, &start); err == nil && !process.Lives(proc, pid, start) {
			_ = os.Remove(name) // another rank may have removed it
		}
	}
}

// rankLease implements launcher.Devices by the lease of the ranks of an MPI job on this node. The first rank takes it, the others join it, and it
// ends with the last of them.
//
// Ranks find the lease by a file of their user's. Whether a process may join it, and which devices it has, is the broker's to say.
type rankLease struct {
	userLease
	file string
}

// jobLease is the content of a job's file.
type jobLease struct{ ID, Cgroup string }

func (l rankLease) Acquire(ctx context.Context, owner ledger.Owner, r request.Request, queued func()) (lease ledger.Lease, err error) {
	f, err := l.lockFile(ctx)
	if err != nil {
		return lease, fmt.Errorf("find the lease of this MPI job: %w", err)
	}
	defer f.Close() // written before
	var have jobLease
	if err := json.NewDecoder(f).Decode(&have); err == nil { // an empty file is the first rank's
		if _, err := l.session.Client().Place(ctx, protocol.Cgroup{Descendant: os.Getpid(), Join: have.Cgroup}); err == nil {
			return findUserLease(ctx, l.node, l.session, have.ID)
		} // it has ended, with ranks that were faster
	}
	if lease, err = l.userLease.Acquire(ctx, owner, r, queued); err != nil {
		return lease, err
	}
	data, err := json.Marshal(jobLease{lease.ID, lease.Owner.Cgroup})
	if err != nil {
		return lease, err
	}
	if err := f.Truncate(0); err != nil {
		return lease, err
	}
	_, err = f.WriteAt(data, 0)
	return lease, err
}

// The first rank may wait in the queue for as long as it wants to, and the others for the first.
const (
	forever  = 10000 * time.Hour
	lockTime = time.Minute
)

// lockFile opens and locks the file of the job.
func (l rankLease) lockFile(ctx context.Context) (*os.File, error) {
	limit := lockTime + l.wait
	if l.wait < 0 {
		limit = forever
	}
	return lockJobFile(ctx, l.file, limit)
}

// lockJobFile opens and locks the file of a job. It waits until limit has passed for another rank to take the lease, but not for a process that is stopped.
func lockJobFile(ctx context.Context, path string, limit time.Duration) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := lock.Acquire(limited, int(f.Fd()), lock.Exclusive); err != nil {
		return nil, errors.Join(cmp.Or(ctx.Err(), describeWait(err)), f.Close())
	}
	return f, nil
}

// describeWait returns the error of a rank that could not lock the file of its job. It doesn't wrap a [lock.HeldError]: what is advised for those is to end processes
// that hold a lock for milliseconds, and a rank holds this one while it waits for devices.
func describeWait(err error) error {
	var held *lock.HeldError
	if !errors.As(err, &held) {
		return err
	}
	rank, end := "its first rank, which takes it for all", "end the job"
	if len(held.Holders) > 0 {
		h := held.Holders[0]
		rank = fmt.Sprintf("process %d (%s), which takes it for all ranks and is %s", h.PID, h.Command, h.State)
		end = fmt.Sprintf("kill -9 %d lets another rank take it", h.PID)
	}
	return fmt.Errorf("waited %v for %s; if that rank waits for devices, give all ranks the same --wait, and otherwise %s", held.Waited.Round(time.Second), rank, end)
}
