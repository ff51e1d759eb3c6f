package packages

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"time"
)

// job is one task of a user's or of root's.
type job struct {
	name string // mix-N
	user string
	way  *way
	gpus int
	life time.Duration
}

// way is how tasks are started.
type way struct {
	name string
	// user is the shell's command of a user, and root that of root; one is empty.
	user, root func(j *job) string
	// asks is true for users' detached tasks, which ask the broker themselves.
	asks bool
	// stays is true if what was killed may leave processes in the lease for ever.
	stays bool
	// unleased tasks hold no lease, and must not open a GPU.
	unleased bool
	// refused requests don't wait for busy GPUs, as those of docker: they are repeated.
	refused bool
}

// opener returns the command that looks which GPUs it can open, whose nodes begin with prefix.
func (j *job) opener(prefix string) string {
	if j.way.unleased {
		return fmt.Sprintf("/mix/opener none %s %s %d", prefix, j.name, j.life.Milliseconds())
	}
	return fmt.Sprintf("/mix/opener hold %s %s %d %d", prefix, j.name, j.gpus, j.life.Milliseconds())
}

// alloc returns berth alloc with what follows it, or that alone without a lease.
func (j *job) alloc(command string) string {
	if j.way.unleased {
		return command
	}
	return fmt.Sprintf("berth alloc --wait %d -- %s", j.gpus, command)
}

// run returns berth run with some flags.
func (j *job) run(flags, image string) string {
	return fmt.Sprintf("berth run %s --wait --gpus %d --volume /mix:/mix --volume /dev:/nodes %s %s", flags, j.gpus, image, j.opener("/nodes/nvidia"))
}

func runShell(j *job) string { return j.alloc(j.opener("/dev/nvidia")) }

func runPodman(j *job) string {
	// The id is for releaseKilled.
	return j.alloc("sh -c 'echo $BERTH_LEASE >'$HOME/" + j.name + ".lease'; exec \"$0\" \"$@\"' podman run --rm --cgroups=disabled --network none --env BERTH_DEVICES --volume /dev:/dev --volume /mix:/mix --rootfs image:O " + j.opener("/dev/nvidia"))
}

func runBubblewrap(j *job) string {
	return j.alloc("bwrap --ro-bind / / --dev-bind /dev /dev --bind /mix /mix --unshare-all " + j.opener("/dev/nvidia"))
}

func runApptainer(j *job) string {
	return j.alloc("apptainer --silent exec --no-mount /etc/localtime --bind /mix image " + j.opener("/dev/nvidia"))
}

// runDetached returns berth run -d and berth wait.
func runDetached(j *job, image string) string {
	return j.run("-d --name "+j.name, image) + " >/dev/null && code=$(berth wait " + j.name + ") && exit $code"
}

// mixWays are all ways, without Apptainer's if that isn't installed.
var mixWays = []*way{
	{name: "ssh", user: runShell},
	{name: "at", user: func(j *job) string {
		return fmt.Sprintf(`echo '%s; echo $? >~/%s.end' | at now 2>/dev/null; until [ -s ~/%[2]s.end ]; do sleep 0.1; done; exit $(cat ~/%[2]s.end)`, runShell(j), j.name)
	}},
	{name: "a user's service", user: func(j *job) string {
		return "systemd-run --user --quiet --pipe --wait --collect --setenv MIX=" + j.name + " " + runShell(j)
	}},
	{name: "a service with a user", root: func(j *job) string {
		return "systemd-run --quiet --pipe --wait --collect --setenv MIX=" + j.name + " --uid " + j.user + " " + runShell(j)
	}},
	{name: "a user's berth run", user: func(j *job) string { return j.run("", "image") }},
	{name: "a user's berth run -d", asks: true, user: func(j *job) string { return runDetached(j, "image") }},
	{name: "podman", stays: true, user: runPodman},
	{name: "bubblewrap", user: runBubblewrap},
	{name: "Apptainer", user: runApptainer},
	{name: "root's berth run", root: func(j *job) string { return j.run("", shared+"/image") }},
	{name: "root's berth run -d", root: func(j *job) string { return runDetached(j, shared+"/image") }},
	{name: "docker --gpus", refused: true, root: func(j *job) string {
		return fmt.Sprintf("docker run --rm --runtime berth --gpus %d --network none --volume /mix:/mix --volume /dev:/nodes test %s", j.gpus, j.opener("/nodes/nvidia"))
	}},
	{name: "podman without a lease", unleased: true, user: runPodman},
	{name: "bubblewrap without a lease", unleased: true, user: runBubblewrap},
	{name: "Apptainer without a lease", unleased: true, user: runApptainer},
	{name: "a privileged container without a lease", unleased: true, root: func(j *job) string {
		return "docker run --rm --runtime runc --privileged --network none --volume /mix:/mix --volume /dev:/nodes test " + j.opener("/nodes/nvidia")
	}},
}

// drawJobs draws n jobs, of each way as many.
func drawJobs(r *rand.Rand, n int) []*job {
	jobs := make([]*job, n)
	for i := range jobs {
		jobs[i] = &job{
			name: fmt.Sprintf("mix-%d", i), user: mixUsers[r.IntN(len(mixUsers))], way: mixWays[i%len(mixWays)],
			gpus: []int{1, 1, 1, 2, 2, 4}[r.IntN(6)], life: time.Duration(200+r.IntN(1000)) * time.Millisecond,
		}
	}
	r.Shuffle(n, func(i, k int) { jobs[i], jobs[k] = jobs[k], jobs[i] })
	return jobs
}

// words returns the command of a job. The variable MIX tells whose a process is.
func (m *mix) words(j *job) []string {
	script := "export MIX=" + j.name + "; "
	if j.way.root != nil {
		return []string{"sh", "-c", script + j.way.root(j)}
	}
	return m.ssh(j.user, script+j.way.user(j))
}

// launch brings a job to its end. It is repeated if its request doesn't queue and GPUs are busy, or if it is a detached task
// that waited when the broker was killed, which fails then (docs/broker.md).
func (m *mix) launch(j *job) {
	for range 500 {
		m.setSpared(j, false)
		code, said := m.runForAtMost(2*time.Minute, m.words(j)...)
		m.setSpared(j, true) // what follows are the test's own commands
		switch {
		case m.hits(j.name) > 0:
			if j.way.stays {
				m.releaseKilled(j)
			}
			return
		case code == 0:
			return
		case j.way.refused && strings.Contains(said, " free"):
			time.Sleep(100 * time.Millisecond)
		case j.way.asks && m.failedByBroker(j):
			m.do(m.ssh(j.user, "berth rm "+j.name)...)
		default:
			m.t.Errorf("%s of %s by %s: it was not killed, and its exit code is %d: %s", j.name, j.user, j.way.name, code, said)
			return
		}
	}
	m.t.Errorf("%s by %s never gets GPUs", j.name, j.way.name)
}

// failedByBroker reports whether a detached task failed because the broker was killed.
func (m *mix) failedByBroker(j *job) bool {
	_, said := m.run(m.ssh(j.user, "berth inspect "+j.name)...) // there may be no task
	return strings.Contains(said, `"error": "the broker was restarted `)
}

// releaseKilled ends what podman, or its runtime, has left in a lease when it was killed: a container that was never
// started, which podman itself doesn't know. It is the user who ends the lease.
func (m *mix) releaseKilled(j *job) {
	time.Sleep(j.life)
	code, said := m.runForAtMost(time.Minute, m.ssh(j.user, "berth release --force $(cat "+j.name+".lease)")...)
	if code == 0 {
		m.t.Logf("what was killed of %s held its lease: %s", j.name, strings.TrimSpace(said))
	}
}

// runForAtMost runs a command that may be killed, and whose children may outlive it.
func (m *mix) runForAtMost(most time.Duration, words ...string) (code int, said string) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	from := m.Command(words...)
	cmd := exec.CommandContext(ctx, from.Path, from.Args[1:]...)
	cmd.Env, cmd.WaitDelay = from.Env, 10*time.Second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) || ctx.Err() != nil {
		m.t.Errorf("%q: %v, %v: %s", words, err, ctx.Err(), out)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}
