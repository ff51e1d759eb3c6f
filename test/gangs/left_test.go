package gangs

import (
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// expectNothingLeft holds the server to what a gang must leave: nothing. What the kernel takes
// back when the last process ends may come a moment later.
func (n node) expectNothingLeft(t *testing.T) {
	t.Helper()
	var found []string
	for last := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		found = n.listLeft(t)
		if len(found) == 0 {
			return
		}
		if time.Now().After(last) {
			break
		}
	}
	t.Fatalf("left after the gang:\n%s\n%s", strings.Join(found, "\n"), n.RunBerth(t, "ps", "-a").Out)
}

// listLeft returns what there is of gangs: interfaces, mounts, cgroups, tasks, leases, processes.
func (n node) listLeft(t *testing.T) (found []string) {
	t.Helper()
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if strings.HasPrefix(i.Name, "berth") {
			found = append(found, "interface "+i.Name)
		}
	}
	for _, l := range n.Leases(t) {
		found = append(found, fmt.Sprintf("lease %s of %s, live %v", l.ID, l.Owner.Container, l.Live))
	}
	tasks, err := os.ReadDir(n.Path("/var/lib/berth/tasks"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if isTaskID(task.Name()) {
			found = append(found, "task "+task.Name())
		}
	}
	return append(found, append(n.listMounts(t), append(n.listCgroups(t), n.listProcesses(t)...)...)...)
}

func isTaskID(name string) bool { return regexp.MustCompile(`^[0-9a-f]{12}$`).MatchString(name) }

// listMounts returns those of tasks, and files that keep a namespace.
func (n node) listMounts(t *testing.T) (found []string) {
	t.Helper()
	data, err := os.ReadFile(n.procDir() + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		f := strings.Fields(line)
		if len(f) > 4 && (strings.Contains(f[4], "/berth/") && !strings.HasPrefix(f[4], "/run/berth/simnode") || strings.Contains(line, " - nsfs ")) &&
			regexp.MustCompile(`[0-9a-f]{12}|nsfs`).MatchString(line) && !strings.Contains(f[4], "/driver") {
			found = append(found, "mount "+f[4])
		}
	}
	return found
}

// procDir is the directory of the node's first process.
func (n node) procDir() string { return strings.TrimSuffix(n.Path(""), "/root") }

// listCgroups returns those with a task's id in their name.
func (n node) listCgroups(t *testing.T) (found []string) {
	t.Helper()
	root, known := n.Path("/sys/fs/cgroup"), n.seen.all()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil { // it has gone
			return nil
		}
		if !e.IsDir() || !slices.Contains(known, e.Name()) {
			return nil
		}
		// Where a node shows no unified hierarchy, crun makes directories of its name.
		if _, err := os.Stat(filepath.Join(path, "cgroup.procs")); err == nil {
			found = append(found, "cgroup "+strings.TrimPrefix(path, root))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// listProcesses returns the node's that are in a cgroup of a task's, and berth's own that watch.
func (n node) listProcesses(t *testing.T) (found []string) {
	t.Helper()
	for _, p := range n.listMembers() {
		found = append(found, fmt.Sprintf("process %d, a %s: %s", p.pid, p.kind, p.words))
	}
	return found
}

// member is a process that has part in a gang.
type member struct {
	pid               int
	kind, task, words string
}

// listMembers returns all of them: monitors by their program, holders and ranks by their cgroup.
func (n node) listMembers() (found []member) {
	known := n.seen.all()
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		data, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(data) == 0 {
			continue
		}
		m := member{pid: pid, words: strings.ReplaceAll(strings.TrimSuffix(string(data), "\x00"), "\x00", " ")}
		exe, _ := os.Readlink(dir + "/exe") // it may have ended
		cgroup, _ := os.ReadFile(dir + "/cgroup")
		switch id := firstKnown(string(cgroup), known); {
		case strings.HasPrefix(exe, filepath.Dir(n.Berth)+"/") && !strings.Contains(filepath.Base(exe), ".test"):
			m.kind, m.task = filepath.Base(exe), firstKnown(m.words, known)
		case id != "" && m.words == "@catatonit -P":
			m.kind, m.task = "holder", id
		case id != "":
			m.kind, m.task = "rank", id
		default:
			continue
		}
		found = append(found, m)
	}
	return found
}

// ids are those of all tasks that there ever were on a node: the cgroups of others on this
// machine show there too, and aren't the node's to remove.
type ids struct {
	mu    sync.Mutex
	known map[string]bool
}

// watchTasks looks often enough to see each task, for as long as the test binary runs.
func (i *ids) watchTasks(dir string) {
	for ; ; time.Sleep(3 * time.Millisecond) {
		entries, _ := os.ReadDir(dir) // none yet, or the node has ended
		i.mu.Lock()
		for _, e := range entries {
			if isTaskID(e.Name()) {
				i.known[e.Name()] = true
			}
		}
		i.mu.Unlock()
	}
}

func (i *ids) all() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Collect(maps.Keys(i.known))
}

func firstKnown(text string, known []string) string {
	for _, id := range known {
		if strings.Contains(text, id) {
			return id
		}
	}
	return ""
}
