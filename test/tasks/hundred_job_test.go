package tasks

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// job is one of the tasks. It is launched until it has started once, each time under
// another name.
type job struct {
	n       int
	gpus    int
	runtime string
	wait    bool // in line, rather than trying again
	rm      bool
	heed    bool // it ends well when it is asked to
	init    bool // not its first process itself
	input   bool
	// prey may be stopped and removed by the random verbs.
	prey    bool
	restart string
	timeout time.Duration
	life    time.Duration // 0 is for ever
	codes   []int         // of its lives
	stop    time.Duration // until it is stopped; 0: it ends by itself

	name string // that under which it has started
	// waited is what berth wait has said in the end, "" if that wasn't used or known.
	waited string
}

// heeded is the exit code of what was asked to end.
const heeded = 44

// drawJobs draws what is asked for.
func drawJobs(r *rand.Rand, n int) []*job {
	jobs := make([]*job, n)
	one := func(of int) bool { return r.IntN(of) == 0 }
	some := func(least, most int) time.Duration {
		return time.Duration(least+r.IntN(most-least)) * time.Millisecond
	}
	for i := range jobs {
		j := &job{
			n: i, gpus: []int{1, 1, 1, 2, 2, 4}[r.IntN(6)], runtime: []string{"crun", "runc"}[r.IntN(2)],
			wait: !one(6), heed: one(2), init: one(5), input: one(6), prey: one(4),
			life: some(200, 1500), codes: []int{r.IntN(40)},
		}
		switch r.IntN(8) {
		case 0:
			j.restart, j.codes, j.life = "on-failure", []int{3, 4, 0}, some(100, 400)
		case 1:
			j.restart, j.codes, j.life = "on-failure:2", []int{5, 6, 7, 8}, some(100, 400)
		case 2:
			j.restart, j.codes, j.life, j.stop = "always", []int{0, 9}, some(100, 500), some(300, 1500)
		case 3:
			j.life, j.timeout = 0, some(300, 1500)
		case 4:
			j.life, j.stop = 0, some(100, 1500)
		case 5:
			j.rm = true
		}
		jobs[i] = j
	}
	return jobs
}

// words are those of berth run.
func (j *job) words(h *hundred, name string) []string {
	words := []string{"run", "-d", "--name", name, "--gpus", strconv.Itoa(j.gpus), "--runtime", j.runtime, "-v", h.dir + ":/hold"}
	for flag, given := range map[string]bool{"--wait": j.wait, "--rm": j.rm, "--init": j.init, "-i": j.input} {
		if given {
			words = append(words, flag)
		}
	}
	if j.restart != "" {
		words = append(words, "--restart", j.restart)
	}
	if j.timeout > 0 {
		words = append(words, "--timeout", j.timeout.String())
	}
	codes := strings.Trim(strings.ReplaceAll(fmt.Sprint(j.codes), " ", ","), "[]")
	words = append(words, h.box, "/hold/holder", "live", name, strconv.FormatInt(j.life.Milliseconds(), 10), codes)
	if j.heed {
		words = append(words, strconv.Itoa(heeded))
	}
	return words
}

// launch brings a job to its end.
func (h *hundred) launch(j *job) {
	for try := range 200 {
		name := fmt.Sprintf("t%03d-%d", j.n, try)
		c := h.berth(j.words(h, name)...)
		switch {
		case c.code == 0:
			id := strings.TrimSpace(c.out)
			if !tasks.ValidID(id) {
				h.t.Errorf("berth %q says %+v, which is no id", j.words(h, name), c)
				return
			}
			h.noteTask(id, name)
			j.name = name
			h.finish(j)
			return
		case c.code == -1:
			// It is unknown whether the task has started. It is removed all the same.
			h.noteIncident(name, commandKilled)
			h.repeatUnlessKilled("rm", "-f", name)
		case c.code == 75 && !j.wait:
			time.Sleep(2 * time.Second) // another one's turn
		case len(h.incidents(name, monitorKilled, initKilled, runtimeKilled, commandKilled, attacked)) == 0:
			h.t.Errorf("nobody touched it, and berth %q: %+v", j.words(h, name), c)
			return
		}
	}
	h.t.Errorf("job %d doesn't get to start: %q", j.n, j.words(h, "it"))
}

// finish waits for the end of a job that has started, or ends it.
func (h *hundred) finish(j *job) {
	if j.stop > 0 {
		time.Sleep(j.stop)
		h.noteIncident(j.name, attacked)
		h.repeatUnlessKilled("stop", "-t", "5", j.name)
	}
	c := h.repeatUnlessKilled("wait", j.name)
	for strings.Contains(c.err, "and its processes have ended") { // and so were those that came after it
		c = h.repeatUnlessKilled("wait", j.name)
	}
	if c.code == 0 {
		j.waited = strings.TrimSpace(c.out)
	}
}

// repeatUnlessKilled repeats a verb until neither it nor a runtime that it has started is killed.
func (h *hundred) repeatUnlessKilled(words ...string) call {
	for {
		if c := h.berth(words...); c.code != -1 && !strings.Contains(c.err, "signal: killed") {
			return c
		}
	}
}

// noteTask learns what a task is called.
func (h *hundred) noteTask(id, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known[id] == "" {
		h.known[id] = name
	}
}
