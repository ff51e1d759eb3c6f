package slurm

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

// ends are the ways in which ranks end: scripts of four ranks, with flags of srun.
var ends = []struct {
	name, script, stdin string
	srun                []string
}{
	{name: "all succeed", script: "echo $SLURM_PROCID"},
	{name: "a code of each", script: "exit $SLURM_PROCID"},
	{name: "one fails, and srun ends the others", script: "[ $SLURM_PROCID = 2 ] || exec sleep 1000; exit 3", srun: []string{"--kill-on-bad-exit"}},
	{name: "SIGTERM", script: "kill -TERM $$"},
	{name: "SIGKILL", script: "kill -KILL $$"},
	{name: "SIGSEGV", script: "ulimit -c 0; kill -SEGV $$"},
	{name: "one is killed", script: "[ $SLURM_PROCID != 1 ] || kill -KILL $$"},
	{name: "labels and input", script: "cat", stdin: "a line\n", srun: []string{"--label", "--input=all"}},
	{name: "output files", script: "echo $SLURM_PROCID >&2; exit 1", srun: []string{"--output=ended.log"}},
	{name: "standard error", script: "echo to the user >&2"},
}

var (
	step  = regexp.MustCompile(`(StepId=|STEP )[0-9.]+`)
	when  = regexp.MustCompile(`AT [-0-9T:]+`)
	tasks = regexp.MustCompile(`^(.*): tasks? ([-,0-9]+): (.*)$`)
)

// normalizeText removes what differs from job to job, and the order of lines. srun says for tasks that end at the same time what it says for one.
func normalizeText(text string) string {
	var lines []string
	for _, line := range sortLines(when.ReplaceAllString(step.ReplaceAllString(text, "${1}N"), "AT T")) {
		m := tasks.FindStringSubmatch(line)
		if m == nil {
			lines = append(lines, line)
			continue
		}
		for part := range strings.SplitSeq(m[2], ",") {
			first, last, ranged := strings.Cut(part, "-")
			from, _ := strconv.Atoi(first) // digits
			to := from
			if ranged {
				to, _ = strconv.Atoi(last)
			}
			for ; from <= to; from++ {
				lines = append(lines, fmt.Sprintf("%s: task %d: %s", m[1], from, m[3]))
			}
		}
	}
	return strings.Join(sortLines(strings.Join(lines, "\n")), "\n")
}

// TestEnds: exit codes, signals, input, output and Slurm's messages are those of Apptainer.
func TestEnds(t *testing.T) {
	l := startCluster(t)
	for _, e := range ends {
		t.Run(e.name, func(t *testing.T) {
			var said [2]rig.Said
			for i, program := range [][]string{{"apptainer", "--silent", "exec"}, {"berth", "apptainer", "exec", "--nv"}} {
				words := append(append([]string{"srun", "-n", "4"}, e.srun...), program...)
				cmd := l.newCommand(append(words, "pytorch.sif", "sh", "-c", e.script)...)
				cmd.Stdin = strings.NewReader(e.stdin)
				said[i] = runToEnd(t, cmd)
				said[i].Out, said[i].Err = normalizeText(said[i].Out+l.readFile("ended.log")), normalizeText(said[i].Err)
				l.removeFiles("ended.log")
				l.waitForNothing()
			}
			// berth's launcher doesn't end by a signal that dumps core.
			said[0].Err = strings.ReplaceAll(said[0].Err, "Segmentation fault", "Exited with exit code 139")
			if said[0] != said[1] {
				t.Errorf("Apptainer: %+v\nberth: %+v", said[0], said[1])
			}
		})
	}
}

// stubborn is a rank that SIGTERM doesn't end, nor its child.
const stubborn = `trap "" TERM INT HUP; sleep 7777 & opens >$0.tmp.$SLURM_PROCID; mv $0.tmp.$SLURM_PROCID $0.$SLURM_PROCID; while :; do sleep 7777; done`

// TestCancel: a job that is cancelled or whose time is over leaves no lease and no process, whatever its ranks do with signals, and a
// signal that scancel sends reaches the command.
func TestCancel(t *testing.T) {
	l := startCluster(t)
	start := func(name, script string, flags ...string) (rig.Process, string) {
		words := append([]string{"srun", "-n", "4", "-J", name, "berth", "apptainer", "exec", "--nv"}, flags...)
		words = append([]string{"sh", "-c", `exec "$@" >$0.log 2>&1`, name}, append(words, "pytorch.sif", "sh", "-c", script, name)...)
		p := rig.StartProcess(t, l.newCommand(words...))
		l.waitForGPUs(name, p, 1)
		return p, strings.TrimSpace(l.wantOutput("squeue", "--noheader", "--name", name, "--format=%i"))
	}
	for _, flags := range [][]string{nil, {"--pid"}} {
		job, id := start("stubborn", stubborn, flags...)
		l.wantOutput("scancel", id)
		job.Wait(t)
		l.waitForNothing()
		l.removeFiles("stubborn.*")
	}

	job, id := start("signalled", `trap "echo caught; exit 7" USR1; opens >$0.tmp.$SLURM_PROCID; mv $0.tmp.$SLURM_PROCID $0.$SLURM_PROCID; while :; do sleep 0.1; done`)
	l.wantOutput("scancel", "--signal=USR1", id+".0")
	if code := job.Wait(t); code != 7 || strings.Count(l.readFile("signalled.log"), "caught\n") != 4 {
		t.Errorf("signal USR1: exit code %d: %s", code, l.readFile("signalled.log"))
	}
	l.waitForNothing()

	job, _ = start("interrupted", rank)
	for range 2 { // srun wants two within a second
		l.wantOutput("pkill", "--signal", "INT", "--oldest", "-x", "srun")
		time.Sleep(100 * time.Millisecond)
	}
	job.Wait(t)
	l.waitForNothing()

	if testing.Short() {
		return
	}
	job, id = start("late", stubborn)
	l.wantRoot("scontrol", "update", "JobId="+id, "TimeLimit=0:01")
	l.waitForEnd(id, 3*time.Minute)
	job.Wait(t)
	l.waitForNothing()
	if state := l.wantOutput("scontrol", "show", "job", id); !strings.Contains(state, "JobState=TIMEOUT") {
		t.Errorf("after the time limit: %s", state)
	}
}

// waitForEnd waits until a job isn't in Slurm's queue.
func (l login) waitForEnd(id string, limit time.Duration) {
	l.t.Helper()
	for last := time.Now().Add(limit); strings.TrimSpace(l.wantOutput("squeue", "--noheader", "--jobs", id)) != ""; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(last) {
			l.t.Fatalf("job %s doesn't end: %s", id, l.wantOutput("scontrol", "show", "job", id))
		}
	}
}

// TestHiddenProcesses: where the processes of root are hidden from users, each rank has a lease.
func TestHiddenProcesses(t *testing.T) {
	l := startCluster(t)
	l.wantRoot("mount", "-o", "remount,hidepid=invisible", "/proc")
	job := l.startRanks("hidden", nil, []string{"--nv"})
	seen := map[string]bool{}
	for r := range 4 {
		name := fmt.Sprintf("hidden.%d", r)
		rig.WaitUntil(t, "the ranks run", func() bool { return l.readFile(name) != "" || job.HasEnded() })
		seen[l.readFile(name)] = true
	}
	if got := l.listLeases(); len(seen) != 4 || len(got) != 4 {
		t.Errorf("GPUs %v, leases %+v: %s", seen, got, l.readFile("hidden.log"))
	}
	l.endRanks("hidden", job)
	l.waitForNothing()
}
