package packages

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// victim is a process of the server that takes part, held so that no other can have its pid.
type victim struct {
	kind, name string // what it is, and of which job; the broker is nobody's
	pid, pidfd int
}

func (v victim) close() { _ = unix.Close(v.pidfd) } // nothing was written

// victimKinds are the programs that take part.
var victimKinds = map[string]string{
	"berth-broker": "broker", "berth": "berth", "berth-monitor": "monitor", "berth-runtime": "runtime", "runc": "runtime", "crun": "runtime",
	"podman": "podman", "conmon": "conmon", "bwrap": "bubblewrap", "apptainer": "Apptainer", "starter": "Apptainer", "docker": "docker",
	"containerd-shim-runc-v2": "shim", "systemd-run": "systemd-run", "ssh": "ssh", "opener": "task",
}

var jobName = regexp.MustCompile(`\bmix-[0-9]+\b`)

// findVictims returns the processes of the server that take part.
func (m *mix) findVictims() (found []victim) {
	first := strings.Split(m.Path(""), "/")[2]
	root := cgroupOf(first)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		m.t.Error(err)
	}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if kind, _ := classify(dir, root); kind == "" {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		// Once more, now that no other process can have its pid.
		v := victim{pid: pid, pidfd: fd}
		if v.kind, v.name = classify(dir, root); v.kind == "" || unix.PidfdSendSignal(fd, 0, nil, 0) != nil {
			v.close()
			continue
		}
		found = append(found, v)
	}
	return found
}

// cgroupOf returns the cgroup of version 2 directly below the machine's root.
func cgroupOf(pid string) string {
	data, _ := os.ReadFile("/proc/" + pid + "/cgroup") // it may have ended
	_, path, _ := strings.Cut(string(data), "0::/")
	path, _, _ = strings.Cut(path, "\n")
	root, _, _ := strings.Cut(path, "/")
	return root
}

// classify returns what a process of the server is, and of which job.
func classify(dir, root string) (kind, name string) {
	exe, err := os.Readlink(dir + "/exe")
	if err != nil {
		return "", ""
	}
	if kind = victimKinds[filepath.Base(exe)]; kind == "" || cgroupOf(filepath.Base(dir)) != root {
		return "", ""
	}
	words, _ := os.ReadFile(dir + "/cmdline")
	if len(words) == 0 {
		return "", "" // it has ended
	}
	environment, _ := os.ReadFile(dir + "/environ")
	text := string(words) + "\x00" + string(environment)
	if name = jobName.FindString(text); name != "" {
		return kind, name
	}
	list := strings.Split(strings.TrimSuffix(string(words), "\x00"), "\x00")
	if kind == "monitor" { // the last word is the task's id
		for _, data := range []string{"/var/lib/berth", "/home/*/.local/share/berth"} {
			records, _ := filepath.Glob(dir + "/root" + data + "/tasks/" + list[len(list)-1] + "/task.json")
			for _, path := range records {
				record, _ := os.ReadFile(path) // it may have been removed
				name = jobName.FindString(string(record))
			}
		}
		return kind, name
	}
	// A runtime is given its bundle, a shim works in it.
	bundle := dir + "/cwd"
	if i := slices.Index(list, "--bundle"); i >= 0 && i+1 < len(list) {
		bundle = dir + "/root" + list[i+1]
	}
	if kind == "runtime" || kind == "shim" {
		config, _ := os.ReadFile(bundle + "/config.json")
		name = jobName.FindString(string(config))
	}
	return kind, name
}

// killAtRandom kills until it is told to stop: of half of each way's jobs at most, and the broker.
func (m *mix) killAtRandom(stop <-chan struct{}, r *rand.Rand) {
	known := map[string]*job{}
	for _, j := range m.jobs {
		known[j.name] = j
	}
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(r.IntN(300)) * time.Millisecond):
		}
		broker := r.IntN(6) == 0
		kinds := map[string][]victim{}
		found := m.findVictims()
		for _, v := range found {
			if j := known[v.name]; broker && v.kind == "broker" || !broker && j != nil && m.mayHit(j) {
				kinds[v.kind] = append(kinds[v.kind], v)
			}
		}
		if names := slices.Sorted(maps.Keys(kinds)); len(names) > 0 {
			some := kinds[names[r.IntN(len(names))]]
			m.kill(some[r.IntN(len(some))])
		}
		for _, v := range found {
			v.close()
		}
	}
}

func (m *mix) kill(v victim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.spared[v.name] || unix.PidfdSendSignal(v.pidfd, unix.SIGKILL, nil, 0) != nil {
		return
	}
	m.kills[v.kind]++
	if v.name != "" {
		m.hit[v.name]++
	}
}

// setSpared says whether no process of a job may be killed.
func (m *mix) setSpared(j *job, spared bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spared[j.name] = spared
}

// mayHit reports whether a job may be killed: not if that leaves less than half of its way's jobs.
func (m *mix) mayHit(j *job) bool {
	all, hit := 0, 0
	for _, other := range m.jobs {
		if other.way == j.way {
			all++
			if m.hits(other.name) > 0 {
				hit++
			}
		}
	}
	return m.hits(j.name) > 0 || hit < all/2
}

func (m *mix) hits(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hit[name]
}
