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

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/process"
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
		{"PMIX_RANK", "", []string{"PMIX_NAMESPACE"}},                                                           // other launchers with PMIx
		{"PMI_RANK", "PMI_SIZE", nil},                                                                           // mpiexec of MPICH and Intel MPI, srun --mpi=pmi2
		{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", []string{"SLURM_JOB_ID", "SLURM_STEP_ID"}},                     // srun
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

// findLauncher returns the process that has started the rank: the first ancestor of this process that isn't part of it, which is another user's
// with Slurm.
func (r rank) findLauncher(proc string) (pid int, err error) {
	for pid = os.Getppid(); pid > 1; {
		env, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "environ"))
		if err != nil {
			return pid, nil //nolint:nilerr // no process of this user's
		}
		words := strings.Split(string(env), "\x00")
		if slices.ContainsFunc(r.variables, func(kv string) bool { return !strings.HasSuffix(kv, "=") && !slices.Contains(words, kv) }) {
			return pid, nil
		}
		if pid, err = process.Parent(proc, pid); err != nil {
			return 0, err
		}
	}
	return pid, nil
}

// rankLease is the lease of a job in the job's file.
type rankLease struct {
	Cgroup      string
	Environment []string
}

// ShareWithRanks gives a rank of an MPI job the lease of the job's ranks on this node, as if berth alloc had started it, and sets the environment variables
// of that lease. The first rank takes it, and it ends with the last. Another process has no lease afterwards.
//
// Ranks find each other by a file of their user's that belongs to their launcher. That the process is of the lease's user is checked by the broker.
func ShareWithRanks(c *cli.Context, conf berth.Config, wanted request.Request, name, command string) error {
	r, found := findRank(os.Environ())
	if !found || os.Geteuid() == 0 || wanted.IsZero() || os.Getenv("BERTH_LEASE") != "" {
		return nil
	}
	f, err := r.lockFile(c, filepath.Join(conf.TaskState(), "jobs"), wanted)
	if err != nil {
		return fmt.Errorf("find the lease of this MPI job: %w", err)
	}
	defer f.Close() // written before
	broker := client.New(conf.State)
	var l rankLease
	if err := json.NewDecoder(f).Decode(&l); err == nil { // an empty file is the first rank's
		if _, err := broker.Place(c.Context, protocol.Cgroup{Join: l.Cgroup}); err == nil {
			return setEnvironment(l.Environment)
		} // it has ended, with ranks that were faster
	}
	granted, err := broker.Acquire(c.Context, protocol.Acquire{
		Request: wanted.String(), WaitSeconds: waiting.Limit(c).Seconds(), Name: name, Command: command,
	}, waiting.NewWaitPrinter(time.Now()))
	if err != nil {
		return verb.NameRequest(backend.AdviseBroker(err))
	}
	for _, remark := range granted.Remarks {
		verb.PrintError(remark)
	}
	data, err := json.Marshal(rankLease{granted.Lease.Owner.Cgroup, granted.Environment})
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	return setEnvironment(granted.Environment)
}

// lockFile opens and locks the file of the job below a directory. Files of launchers that have ended are removed.
func (r rank) lockFile(c *cli.Context, dir string, wanted request.Request) (f *os.File, err error) {
	const proc = "/proc"
	pid, err := r.findLauncher(proc)
	if err != nil {
		return nil, err
	}
	start, err := process.Start(proc, pid)
	if err != nil {
		return nil, err
	}
	boot, err := os.ReadFile(proc + "/sys/kernel/random/boot_id") // hosts may share the directory
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	host := shortHash(string(boot))
	removeEnded(proc, dir, host)
	name := fmt.Sprintf("%s-%d-%d-%s", host, pid, start, shortHash(r.job+"\n"+wanted.String()))
	f, err = os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	// The first rank may wait in the queue for as long as it wants to.
	limit := waiting.Limit(c)
	if limit < 0 {
		limit = forever
	}
	ctx, cancel := context.WithTimeout(c.Context, limit+lockTime)
	defer cancel()
	if err := lock.Acquire(ctx, int(f.Fd()), lock.Exclusive); err != nil {
		return nil, errors.Join(cmp.Or(c.Context.Err(), err), f.Close())
	}
	return f, nil
}

func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

const (
	forever  = 10000 * time.Hour
	lockTime = time.Minute // for ranks that don't wait in the queue
)

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

func setEnvironment(env []string) error {
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}
