package tasks

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// lived is one life of a task, as it was inside.
type lived struct {
	started, last time.Time
	said          int  // lines that it has certainly written
	end           *int // its exit code, nil if it was killed
}

// lives reads what a task has noted of itself.
func (h *hundred) readLives(name string) (all []lived) {
	h.t.Helper()
	data, err := os.ReadFile(h.hold("records", name))
	if err != nil && !os.IsNotExist(err) {
		h.t.Error(err)
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		n, err := strconv.ParseInt(f[len(f)-1], 10, 64)
		rig.Must(h.t, err)
		at := time.Unix(0, n)
		if f[0] == "start" {
			all = append(all, lived{started: at})
		}
		l := &all[len(all)-1]
		l.last = at
		if f[0] == "start" {
			continue
		}
		value, err := strconv.Atoi(f[2])
		rig.Must(h.t, err)
		if f[0] == "end" {
			l.end = &value
		} else {
			l.said = value
		}
	}
	return all
}

// mayHaveMissedEnd reports whether a life may have ended while the task had no monitor: its monitor
// was killed, before the next life at the latest, and no other one was seen in between.
func (h *hundred) mayHaveMissedEnd(name string, all []lived, life int) bool {
	past := h.incidents(name, monitorKilled, adopted)
	for i, kill := range past {
		if kill.what != monitorKilled || life+1 < len(all) && kill.at.After(all[life+1].started) {
			continue
		}
		if !slices.ContainsFunc(past[i:], func(a incident) bool { return a.what == adopted && a.at.Before(all[life].last) }) {
			return true
		}
	}
	return false
}

// shown is a line of berth ps --json.
type shown struct {
	ID, Name, State, Why string
	Exit                 *struct {
		Code, Restarts int
		Error          string
	}
}

// checkJobs compares what is known of each task with what it was inside.
func (h *hundred) checkJobs() {
	h.t.Helper()
	var list []shown
	rig.Decode(h.t, h.must("ps", "-a", "--json"), &list)
	byName := map[string]shown{}
	for _, s := range list {
		byName[s.Name] = s
	}
	for _, j := range h.jobs {
		if j.name == "" {
			continue // said already
		}
		s, kept := byName[j.name]
		switch {
		case !kept && !j.rm && !j.prey:
			h.reportJob(j, "nobody removed it, and it is gone")
		case kept && s.Exit == nil && s.State == "lost" && !j.prey:
			h.reportJob(j, "it is lost: %s", s.Why)
		case kept && s.Exit == nil:
			h.reportJob(j, "it was waited for, and is %s", s.State)
		case kept:
			h.ended(j, s)
			h.output(j)
		case j.waited != "":
			code, err := strconv.Atoi(j.waited)
			rig.Must(h.t, err)
			h.code(j, code)
		}
	}
	if data, err := os.ReadFile(h.hold("violations")); err == nil {
		h.t.Errorf("seen from inside:\n%s", data)
	}
}

// reportJob fails the test with what is wrong with a job, and all that happened to it.
func (h *hundred) reportJob(j *job, format string, args ...any) {
	h.t.Helper()
	var past strings.Builder
	for _, i := range h.incidents(j.name, monitorKilled, adopted, initKilled, runtimeKilled, commandKilled, attacked) {
		fmt.Fprintf(&past, " %s %s;", i.at.Format("05.000"), i.what)
	}
	record, _ := os.ReadFile(h.hold("records", j.name))
	h.t.Errorf("task %s: %s\n%q\n%s\n%s-hundred.seed %d", j.name, fmt.Sprintf(format, args...), j.words(h, j.name), past.String(), record, h.seed)
}

func (h *hundred) ended(j *job, s shown) {
	h.t.Helper()
	h.code(j, s.Exit.Code)
	if j.waited != "" && j.waited != strconv.Itoa(s.Exit.Code) {
		h.reportJob(j, "berth wait has said %s, and its exit code is %d", j.waited, s.Exit.Code)
	}
	if (s.Exit.Code == 255) != strings.Contains(s.Exit.Error, "isn't known") {
		h.reportJob(j, "exit code %d, %q", s.Exit.Code, s.Exit.Error)
	}
	if len(h.readLives(j.name)) == 0 {
		return // it was killed while it waited for GPUs, or at its start
	}
	if n := len(h.readLives(j.name)); s.Exit.Restarts < n-1 || j.restart == "" && n > 1 {
		h.reportJob(j, "%d lives, and %d restarts", n, s.Exit.Restarts)
	}
	// Between two lives only its monitor proves that the lease is in use.
	pushed := len(h.incidents(j.name, attacked)) > 0 ||
		len(h.incidents(j.name, monitorKilled)) > 0 && strings.Contains(s.Exit.Error, "it isn't started again: its lease was released")
	if j.restart == "on-failure" && s.Exit.Code != 0 && !pushed || j.restart == "always" && !pushed {
		h.reportJob(j, "nobody stopped it, and it wasn't started again: %+v", *s.Exit)
	}
	if j.restart == "on-failure:2" && s.Exit.Code != 0 && s.Exit.Restarts != 2 && !pushed {
		h.reportJob(j, "it was started again %d times", s.Exit.Restarts)
	}
}

// code checks a task's exit code.
func (h *hundred) code(j *job, code int) {
	h.t.Helper()
	all := h.readLives(j.name)
	killed := len(h.incidents(j.name, initKilled, attacked)) > 0 || j.timeout > 0
	cut := len(h.incidents(j.name, runtimeKilled, initKilled, monitorKilled, attacked)) > 0
	last := len(all) - 1
	switch {
	case last >= 0 && all[last].end != nil && *all[last].end == code: // as it should
	case code == 255 && (last < 0 || h.mayHaveMissedEnd(j.name, all, last)): // the exit code is unknown
	case (code == 137 || code == 143) && killed:
	case code == 125 && cut && (j.restart != "" || last < 0): // the next life couldn't be begun
	default:
		h.reportJob(j, "its exit code is %d", code)
	}
}

// output checks that all that a task wrote is in its log, once: the second time only what
// a killed monitor was just writing down.
func (h *hundred) output(j *job) {
	h.t.Helper()
	c := h.repeatUnlessKilled("logs", j.name)
	if c.code != 0 {
		h.reportJob(j, "its log can't be read: %+v", c)
		return
	}
	all := h.readLives(j.name)
	seen := make([]map[int]int, len(all)) // how often each line of each life is there
	for i := range seen {
		seen[i] = map[int]int{}
	}
	for stream, text := range []string{c.err, c.out} {
		for text := range strings.Lines(text) {
			var life, line int
			n, err := fmt.Sscanf(text, j.name+" %d %d\n", &life, &line)
			if stream == 0 && err != nil && len(h.incidents(j.name, initKilled, runtimeKilled, monitorKilled, attacked)) > 0 {
				continue // a runtime's last words
			}
			if err != nil || n != 2 || life < 1 || life > len(all) || line%2 != stream {
				h.reportJob(j, "stream %d of its log has %q", 2-stream, text)
				continue
			}
			seen[life-1][line]++
		}
	}
	for life, l := range all {
		// A line is written before that is noted.
		most := max(l.said, len(seen[life]))
		if most > l.said+1 {
			h.reportJob(j, "life %d has %d lines in its log, and wrote %d", life+1, len(seen[life]), l.said)
		}
		unseen := h.mayHaveMissedEnd(j.name, all, life)
		for line := 1; line <= most; line++ {
			switch n := seen[life][line]; {
			case n == 1, n == 0 && unseen:
			case n > 1 && len(h.incidents(j.name, monitorKilled)) > 0:
			default:
				h.reportJob(j, "line %d of life %d is in its log %d times", line, life+1, n)
				return
			}
		}
	}
}

// listState returns all that berth keeps, but for the events and what containers see of the driver,
// which are there for the next ones.
func (h *hundred) listState() (names []string) {
	h.t.Helper()
	for _, root := range []string{"/var/lib/berth", "/run/berth"} {
		rig.Must(h.t, filepath.WalkDir(h.Path(root), func(path string, e fs.DirEntry, err error) error {
			name := strings.TrimPrefix(path, h.Path(""))
			switch {
			case err != nil:
				return err
			case name == "/run/berth/proc":
				return filepath.SkipDir
			case !strings.HasPrefix(e.Name(), "events.log"):
				names = append(names, name)
			}
			return nil
		}))
	}
	return names
}

// removeAllTasks removes all tasks, and looks for what is left of them.
func (h *hundred) removeAllTasks(before []string) {
	h.t.Helper()
	if ids := strings.Fields(h.must("ps", "-a", "-q")); len(ids) > 0 {
		h.must(append([]string{"rm", "-f"}, ids...)...)
	}
	if left := h.must("ps", "-a", "-q"); left != "" {
		h.t.Errorf("removed tasks are there: %s", left)
	}
	// The next launch sweeps what launchers have left that were killed, and the next exec
	// what others have. All GPUs are free.
	h.runOnAllGPUs()
	if left := h.Leases(h.t); len(left) > 0 {
		h.t.Errorf("leases are left: %+v", left)
	}
	if diff := cmp.Diff(before, h.listState()); diff != "" {
		h.t.Errorf("what berth keeps, before and after:\n%s", diff)
	}
	if mounts := h.Do(h.t, "cat", "/proc/self/mountinfo"); strings.Contains(mounts, "/berth/tasks/") {
		h.t.Errorf("mounts are left: %s", mounts)
	}
	for id, name := range h.ids() {
		for _, pattern := range []string{"/sys/fs/cgroup/berth/", "/sys/fs/cgroup/*/berth/"} {
			// Where v2 is hidden from a simulated server, its runtimes make directories.
			groups, err := filepath.Glob(h.Path(pattern + id + "/cgroup.procs"))
			rig.Must(h.t, err)
			if len(groups) > 0 {
				h.t.Errorf("task %s %s: cgroups are left: %q", id, name, groups)
			}
		}
	}
	var left []string
	rig.WaitUntil(h.t, "all processes have ended", func() bool {
		left = nil
		for _, v := range h.victims() {
			left = append(left, fmt.Sprintf("%+v", v))
		}
		return len(left) == 0
	})
}
