package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// view is the output of `berth leases --json`.
type view struct {
	Leases []lease `json:"leases"`
	Line   []struct {
		ID      string `json:"id"`
		Request string `json:"request"`
	} `json:"line"`
}

type lease struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Status  string `json:"status"`
	Devices []struct {
		UUID  string `json:"uuid"`
		Index string `json:"index"`
	} `json:"devices"`
	Owner struct {
		EntryPoint string `json:"door"`
		Container  string `json:"container"`
		Name       string `json:"name"`
		Cgroup     string `json:"cgroup"`
	} `json:"owner"`
	Live bool   `json:"live"`
	Note string `json:"note"`
}

func (n *node) leases() view {
	n.t.Helper()
	var v view
	check(n.t, json.Unmarshal([]byte(n.berth("leases", "--json").ok()), &v))
	return v
}

// waitForLeases waits until that many live leases are held, and returns them.
func (n *node) waitForLeases(count int) []lease {
	n.t.Helper()
	var live []lease
	eventually(n.t, "leases", func() bool {
		live = slices.DeleteFunc(n.leases().Leases, func(l lease) bool { return !l.Live })
		return len(live) == count
	})
	return live
}

// waitForRunning is holds for leases whose holders run.
func (n *node) waitForRunning(count int) []lease {
	n.t.Helper()
	eventually(n.t, "running holders", func() bool {
		return !slices.ContainsFunc(n.waitForLeases(count), func(l lease) bool { return l.Status != "running" })
	})
	return n.waitForLeases(count)
}

// gpus is the output of `berth gpus --json`.
type gpus struct {
	Hostname   string `json:"hostname"`
	NVSwitches int    `json:"nvswitches"`
	Driver     struct {
		Version string `json:"version"`
		CUDA    string `json:"cuda"`
	} `json:"driver"`
	Devices []device `json:"devices"`
	NICs    []struct {
		Name string `json:"name"`
	} `json:"nics"`
}

type device struct {
	UUID    string `json:"uuid"`
	Index   string `json:"index"`
	Model   string `json:"model"`
	Profile string `json:"profile"`
	Parent  string `json:"parent"`
	Minor   int    `json:"minor"`
	PCI     string `json:"pci"`
	Memory  uint64 `json:"memory"`
	NUMA    int    `json:"numa"`
	State   string `json:"state"`
	Lost    string `json:"lost"`
}

func (n *node) gpus() gpus {
	n.t.Helper()
	var g gpus
	check(n.t, json.Unmarshal([]byte(n.berth("gpus", "--json").ok()), &g))
	return g
}

// states of the node's GPUs and slices, by index: "0 free, 1 leased".
func (n *node) states() string {
	n.t.Helper()
	var s []string
	for _, d := range n.gpus().Devices {
		s = append(s, d.Index+" "+d.State)
	}
	return strings.Join(s, ", ")
}

// checkClean checks that nothing is left of everything that was run in the node: no lease, waiter,
// process, cgroup, mount, task, container or stray file.
func (n *node) checkClean(t *testing.T) {
	t.Helper()
	left := n.leftovers()
	for last := time.Now().Add(10 * time.Second); len(left) > 0 && time.Now().Before(last); left = n.leftovers() {
		time.Sleep(20 * time.Millisecond) // a child that calls NVML is killed and not waited for
	}
	for _, l := range left {
		t.Errorf("left behind: %s", l)
	}
}

func (n *node) leftovers() (left []string) {
	n.t.Helper()
	v := n.leases()
	for _, l := range v.Leases {
		left = append(left, "lease "+l.ID+" "+l.Note)
	}
	for _, w := range v.Line {
		left = append(left, "waiter "+w.ID)
	}
	for _, dir := range []string{"/var/lib/berth/tasks", "/var/lib/berth/names", "/run/berth/attach", "/run/berth/leases", "/run/berth/runtime/crun", "/run/berth/runtime/runc"} {
		for _, name := range n.list(dir) {
			left = append(left, dir+"/"+name)
		}
	}
	known := []string{"attach", "cdi.json", "discover.lock", "inspection.lock", "inventory.json", "ldmemo", "leases", "ledger.gate", "ledger.json", "ledger.lock", "proc", "runtime"}
	for _, name := range n.list("/run/berth") {
		if !slices.Contains(known, name) {
			left = append(left, "/run/berth/"+name)
		}
	}
	mounts, err := os.ReadFile("/proc/" + strconv.Itoa(n.keeper.Process.Pid) + "/mountinfo")
	check(n.t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " /var/lib/berth/") && !strings.Contains(line, " /var/lib/berth/shared ") {
			left = append(left, "mount "+line)
		}
	}
	return append(left, n.cgroupsLeft()...)
}

// cgroupsLeft lists cgroups below /berth, and processes besides the keeper.
func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	check(t, err)
	return string(data)
}

func (n *node) cgroupsLeft() (left []string) {
	if n.cgroup == "" { // the machine's hierarchies are shared: only the cgroups of this node's leases count
		for _, m := range regexp.MustCompile(`"cgroup":"(/berth/[^"]+)"`).FindAllStringSubmatch(n.read("/var/lib/berth/events.log"), -1) {
			for _, tree := range n.list("/sys/fs/cgroup") {
				// crun makes directories in "unified" although no tree is mounted there.
				if dir := "/sys/fs/cgroup/" + tree + m[1]; tree != "unified" && len(n.list(dir)) > 0 {
					left = append(left, "cgroup "+dir)
				}
			}
		}
		return left
	}
	dirs, err := filepath.Glob(n.cgroup + "/berth/*")
	check(n.t, err)
	for _, dir := range dirs {
		if filepath.Base(dir) == "monitors" && read(n.t, dir+"/cgroup.procs") == "" {
			continue // empty cgroups of detached tasks' monitors
		}
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
			left = append(left, "cgroup "+filepath.Base(dir))
		}
	}
	data, err := os.ReadFile(n.cgroup + "/cgroup.procs")
	check(n.t, err)
	for _, pid := range strings.Fields(string(data)) {
		comm, err := os.ReadFile("/proc/" + pid + "/cmdline")
		own := slices.ContainsFunc([]string{"/proc/self/exe", ".test", "simnode-services"}, func(s string) bool { return strings.Contains(string(comm), s) })
		if err == nil && len(comm) > 0 && !own {
			left = append(left, "process "+pid+" "+string(comm))
		}
	}
	return left
}
