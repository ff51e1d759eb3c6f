package tasks

import (
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// victim is a process that takes part, held so that no other can have its pid.
type victim struct {
	kind, name string // what it is, and of which task
	what       string // more closely: what is rare is killed as often as what isn't
	pid, pidfd int
}

// launcherProcess is what the command that launches a detached task is, more closely.
const launcherProcess = "launcher"

// nextKind returns what a process may have become by the time that it is killed: a launcher executes the monitor, and a
// runtime's child the container's first program.
func (v victim) nextKind() string {
	switch v.what {
	case launcherProcess:
		return monitorKilled
	case "crun", "runc":
		return initKilled
	}
	return ""
}

// enough is how often a task is hit at most, and how many hits there are for each: the
// last ones would never end. A job whose starts were hit enoughStarts times isn't hit any more: it would never start.
const (
	enough       = 12
	enoughStarts = 50
)

// killer kills until the context ends.
func (h *hundred) killer(ctx context.Context, r *rand.Rand) {
	// A higher priority than that of its victims, or it is too slow where they are many. The locked
	// thread ends with the goroutine.
	runtime.LockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -15); err != nil {
		h.t.Log(err)
	}
	for n := 0; n < enough*len(h.jobs) && ctx.Err() == nil; n++ {
		time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
		found := h.victims()
		if r.IntN(3) == 0 {
			found = h.runtimes(found)
		}
		kinds := map[string][]victim{}
		for _, v := range found {
			if len(h.incidents(v.name, monitorKilled, initKilled, runtimeKilled)) < enough && h.countHits(v.name) < enoughStarts {
				kinds[v.what] = append(kinds[v.what], v)
			}
		}
		if len(kinds) > 0 {
			names := slices.Sorted(maps.Keys(kinds))
			some := kinds[names[r.IntN(len(names))]]
			h.kill(some[r.IntN(len(some))], r)
		}
		release(found)
	}
}

// runtimes looks for a runtime, which lives for some milliseconds, and returns it and all
// that has to do with the same task.
func (h *hundred) runtimes(found []victim) []victim {
	for range 10 {
		if i := slices.IndexFunc(found, func(v victim) bool { return v.kind == runtimeKilled }); i >= 0 {
			name := found[i].name
			return slices.DeleteFunc(found, func(v victim) bool {
				if v.name != name {
					release([]victim{v})
				}
				return v.name != name
			})
		}
		release(found)
		found = h.victims()
	}
	return found
}

func release(all []victim) {
	for _, v := range all {
		_ = unix.Close(v.pidfd) // nothing was written
	}
}

func (h *hundred) kill(v victim, r *rand.Rand) {
	if v.name != "" { // before it dies
		h.noteIncident(v.name, v.kind)
		if next := v.nextKind(); next != "" {
			h.noteIncident(v.name, next)
		}
	}
	if unix.PidfdSendSignal(v.pidfd, unix.SIGKILL, nil, 0) != nil {
		return
	}
	h.mu.Lock()
	h.kills[v.what]++
	h.hits[jobOf(v.name)]++
	h.mu.Unlock()
	if v.kind == monitorKilled && r.IntN(3) > 0 {
		h.background.Go(func() { h.awaitAdoption(v) })
	}
}

// countHits returns how often the tasks of a task's job were hit; 0 for a process that has to do with no task.
func (h *hundred) countHits(name string) int {
	if name == "" {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hits[jobOf(name)]
}

// jobOf returns the part of a task's name that all tries of its job have.
func jobOf(name string) string {
	job, _, _ := strings.Cut(name, "-")
	return job
}

// awaitAdoption has a verb give a task another monitor, and notes when it has one.
func (h *hundred) awaitAdoption(v victim) {
	h.berth("ps")
	for id, name := range h.ids() {
		if name != v.name {
			continue
		}
		var life tasks.Life
		data, err := os.ReadFile(h.task(id, "run.json"))
		if err == nil && json.Unmarshal(data, &life) == nil && life.Monitor.PID != v.pid && life.Ended == nil && isRunning(life.Monitor.PID) {
			h.noteIncident(name, adopted)
		}
	}
}

// task returns the path of a file of a task, as this process sees it.
func (h *hundred) task(id, file string) string {
	return h.Path(filepath.Join("/var/lib/berth/tasks", id, file))
}

// ids looks which tasks there are, and returns all that there ever were with their names.
func (h *hundred) ids() map[string]string {
	entries, _ := os.ReadDir(h.Path("/var/lib/berth/tasks")) // none yet
	h.mu.Lock()
	all := maps.Clone(h.known)
	h.mu.Unlock()
	for _, e := range entries {
		if all[e.Name()] != "" {
			continue
		}
		var rec struct{ Name string }
		if data, err := os.ReadFile(h.task(e.Name(), "task.json")); err == nil {
			_ = json.Unmarshal(data, &rec) // the name comes with the next look
		}
		all[e.Name()] = rec.Name
		h.noteTask(e.Name(), rec.Name)
	}
	return all
}

// victims are all processes of the server's that take part.
func (h *hundred) victims() (found []victim) {
	ids := h.ids()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		h.t.Error(err)
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if v := h.classify(dir, ids); v.kind == "" {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		// Once more, now that no other process can have its pid.
		v := h.classify(dir, ids)
		if v.kind == "" || v.kind != commandKilled && v.name == "" || unix.PidfdSendSignal(fd, 0, nil, 0) != nil {
			_ = unix.Close(fd) // nothing was written
			continue
		}
		v.pid, v.pidfd = pid, fd
		found = append(found, v)
	}
	return found
}

// classify says what a process is, and of which task; nothing is none of ours.
func (h *hundred) classify(dir string, ids map[string]string) victim {
	data, err := os.ReadFile(dir + "/cmdline")
	if err != nil || len(data) == 0 { // a thread of the kernel, or dead
		return victim{}
	}
	exe, err := os.Readlink(dir + "/exe")
	if err != nil {
		return victim{}
	}
	words := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	switch last := words[len(words)-1]; {
	case exe == filepath.Join(filepath.Dir(h.Berth), "berth-monitor"):
		what := "monitor"
		if _, err := os.Stat(h.task(last, "run.json")); err != nil {
			what = "monitor that begins"
		}
		return victim{kind: monitorKilled, name: ids[last], what: what}
	case exe == h.Berth && len(words) > 1:
		v := victim{kind: commandKilled, what: "berth " + words[1]}
		if i := slices.Index(words, "--name"); i >= 0 && i+1 < len(words) {
			v.name = words[i+1]
		}
		if words[1] == "launch" {
			v.what, v.name = launcherProcess, words[len(words)-1]
		}
		return v
	}
	// At first it has the words of the runtime that has made it.
	if name, is := h.first(dir, ids); is {
		return victim{kind: initKilled, name: name, what: initKilled}
	}
	for i, w := range words {
		if name, ours := ids[w]; ours && i > 3 && words[1] == "--root" {
			return victim{kind: runtimeKilled, name: name, what: filepath.Base(words[0])}
		}
	}
	return victim{}
}

// first reports whether a process is the first one of a container, and returns the name of its task.
func (h *hundred) first(dir string, ids map[string]string) (name string, is bool) {
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return "", false
	}
	_, pids, _ := strings.Cut(string(status), "\nNSpid:")
	pids, _, _ = strings.Cut(pids, "\n")
	if f := strings.Fields(pids); len(f) < 2 || f[len(f)-1] != "1" {
		return "", false
	}
	groups, err := os.ReadFile(dir + "/cgroup")
	if err != nil {
		return "", false
	}
	_, rest, _ := strings.Cut(string(groups), "/berth/")
	id, _, _ := strings.Cut(rest, "/")
	name, is = ids[id]
	return name, is
}

// user uses verbs on random tasks.
func (h *hundred) user(ctx context.Context, r *rand.Rand) {
	reading := [][]string{
		{"ps"},
		{"ps", "-a", "--json"},
		{"logs"},
		{"logs", "-n", "3"},
		{"inspect"},
		{"inspect", "--why"},
		{"stats", "--no-stream"},
		{"exec", "-", "/hold/holder", "check", "-"},
		{"exec", "-d", "-", "/hold/holder", "check", "-"},
		{"logs", "-f"},
		{"wait"},
		{"attach"},
		{"leases"},
		{"prune"},
		{"kill", "-s", "CONT"},
	}
	ending := [][]string{{"stop"}, {"stop", "-t", "0"}, {"kill"}, {"kill", "-s", "TERM"}, {"rm", "-f"}, {"rm"}}
	for ctx.Err() == nil {
		time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
		ids := h.ids()
		names := slices.DeleteFunc(slices.Sorted(maps.Values(ids)), func(n string) bool { return n == "" })
		if len(names) == 0 {
			continue
		}
		name := names[r.IntN(len(names))]
		words := slices.Clone(reading[r.IntN(len(reading))])
		if h.isPrey(name) && r.IntN(3) == 0 {
			words = slices.Clone(ending[r.IntN(len(ending))])
			h.noteIncident(name, attacked)
		}
		switch words[0] {
		case "ps", "leases", "prune":
			h.berth(words...)
		case "exec":
			for i, w := range words {
				if w == "-" {
					words[i] = name
				}
			}
			h.berth(words...)
		default:
			// Some go on as long as the task does.
			h.background.Go(func() { h.berth(append(words, name)...) })
		}
	}
}

func (h *hundred) isPrey(name string) bool {
	n, err := strconv.Atoi(strings.TrimPrefix(strings.Split(name, "-")[0], "t"))
	return err == nil && n < len(h.jobs) && h.jobs[n].prey
}
