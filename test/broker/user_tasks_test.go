package broker

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

// TestUserTasksOfRoot: root's berth ps lists the running tasks of all users with what root knows by itself, and each verb for tasks
// says how root ends one.
func TestUserTasksOfRoot(t *testing.T) {
	n := start(t)
	n.broker()
	a, b := n.home(alice), n.home(bob)
	busybox := rig.ImagePath(t, "busybox")
	task := func(h home, words ...string) (id string) {
		t.Helper()
		said := h.berth(append(append([]string{"run", "-d"}, words...), busybox, "sleep", "1000")...)
		if said.Code != 0 {
			t.Fatalf("%v: %+v", words, said)
		}
		return strings.TrimSpace(said.Out)
	}
	leased, bare := task(a, "--gpus", "2", "--name", "train"), task(a, "--name", "idle")
	within := n.start(bob, append([]string{n.Berth, "alloc", "2", "--"}, b.words("run", "--gpus", "1", "--name", "secret", busybox, "sleep", "1000")...)...)
	rig.WaitUntil(t, "the task in a lease runs", func() bool { return b.berth("ps", "-q").Out != "" })
	inner := strings.TrimSpace(b.berth("ps", "-q").Out)
	n.start(0, n.Berth, "alloc", "device=7", "--", n.Berth, "run", "--name", "own", busybox, "sleep", "1000")
	rig.WaitUntil(t, "root's task runs", func() bool { return n.Do(t, n.Berth, "ps", "-q", "--filter", "name=own") != "" })
	own := strings.TrimSpace(n.Do(t, n.Berth, "ps", "-q", "--filter", "name=own"))
	ended := strings.TrimSpace(n.Do(t, n.Berth, "run", "-d", "--name", "ended", busybox, "true"))
	n.Do(t, n.Berth, "wait", "ended")
	n.wantSaid("a task of alice's that ends", a.berth("run", "--rm=false", busybox, "true"), rig.Said{})
	leases := map[string]string{} // by user
	for _, l := range n.waitForLeases(3) {
		leases[fmt.Sprint(l.Owner.UID)] = l.ID
	}

	lines := []string{
		leased + " train|4711|0,1|" + leases["4711"] + "|running||\"sleep 1000\"\n",
		bare + " |4711|||running||\"sleep\"\n",
		inner + " |daemon|2,3|" + leases["1"] + "|running||\"sleep\"\n",
		own + " own|root|7|" + leases["0"] + "|running|" + busybox + "|\"sleep 1000\"\n",
	}
	const format = "{{.ID}} {{.Names}}|{{.User}}|{{.GPUs}}|{{.Lease}}|{{.State}}|{{.Image}}|{{.Command}}"
	for _, words := range [][]string{nil, {"--all"}} {
		got := n.Do(t, n.Berth, append(append([]string{"ps", "--no-trunc", "--format", format}, words...), "--filter", "status=running")...)
		for _, line := range lines {
			if !strings.Contains(got, line) {
				t.Errorf("ps %v has no line %q: %s", words, line, got)
			}
		}
		if strings.Count(got, "\n") != len(lines) {
			t.Errorf("ps %v: %s", words, got)
		}
	}
	if got := n.Do(t, n.Berth, "ps", "-aq"); strings.Count(got, "\n") != 2 || !strings.Contains(got, ended) || !strings.Contains(got, own) { // root's own
		t.Errorf("ps -aq: %s", got)
	}
	table := n.Do(t, n.Berth, "ps")
	for _, want := range []string{`NAME +USER\n`, leased + ` +- +"sleep 1000" +\d+s ago +up \d+s +0,1 +train +4711\n`, bare + ` +- +"sleep" +\d+s ago +up \d+s +- +- +4711\n`} {
		if !regexp.MustCompile(want).MatchString(table) {
			t.Errorf("ps has no %s: %s", want, table)
		}
	}
	var all []struct {
		ID       string `json:"id"`
		User     int    `json:"user"`
		UserName string `json:"user_name"`
		Unread   bool   `json:"unread"`
	}
	rig.Decode(t, n.Do(t, n.Berth, "ps", "--json"), &all)
	for _, got := range all {
		if users := got.ID != own; got.Unread != users || users != (got.User != 0) || got.UserName == "" {
			t.Errorf("ps --json: %+v", got)
		}
	}
	if got := a.berth("ps", "-q").Out; strings.Count(got, "\n") != 2 || strings.Contains(got, inner) {
		t.Errorf("alice sees %s", got)
	}

	ofAlice := "berth: task " + leased + ": it is a task of user 4711, who alone has its record; berth release " + leases["4711"] + " ends its lease with all processes\n"
	for _, words := range [][]string{{"stop"}, {"kill"}, {"rm", "-f"}, {"wait"}, {"logs"}} {
		n.wantSaid(strings.Join(words, " "), n.Run(t, n.Command(n.Berth, append(words, leased)...)), rig.Said{Code: 1, Err: ofAlice})
	}
	n.wantSaid("inspect", n.Run(t, n.Command(n.Berth, "inspect", leased)), rig.Said{Code: 1, Out: "[]\n", Err: ofAlice})
	n.wantSaid("by name, which users choose", n.Run(t, n.Command(n.Berth, "stop", "train")), rig.Said{Code: 1, Err: "berth: task \"train\": there is no such task; berth ps -a lists all\n"})
	n.wantSaid("exec", n.Run(t, n.Command(n.Berth, "exec", leased, "true")), rig.Said{Code: 125, Err: ofAlice})
	refused := n.Run(t, n.Command(n.Berth, "rm", "-f", bare))
	m := regexp.MustCompile(`; (echo 1 >(/sys/fs/cgroup/\S+/cgroup\.kill)) ends it\n$`).FindStringSubmatch(refused.Err)
	if refused.Code != 1 || m == nil {
		t.Fatalf("a task without a lease: %+v", refused)
	}
	n.wantSaid("release of a task without a lease", n.Run(t, n.Command(n.Berth, "release", "--force", bare)), rig.Said{Code: 1, Err: refused.Err})
	n.Do(t, "sh", "-c", m[1])
	n.Do(t, n.Berth, "release", "--force", leased)
	n.Do(t, n.Berth, "release", "--force", leases["1"])
	within.Wait(t)
	rig.WaitUntil(t, "the tasks have ended", func() bool { return n.Do(t, n.Berth, "ps", "-q") == own+"\n" })
	if got := n.Do(t, n.Berth, "ps"); strings.Contains(got, "USER") {
		t.Errorf("without tasks of users: %s", got)
	}
	n.Do(t, n.Berth, "rm", "-f", own, ended)
	rig.WaitUntil(t, "alice's tasks have ended", func() bool { return a.berth("ps", "-q").Out == "" })
	for _, id := range strings.Fields(a.berth("ps", "-aq").Out) {
		a.berth("rm", "-f", id)
	}
	a.wantClean()
}

// TestHostileUserTasks: nothing that a user does to their files, cgroups or processes holds root's berth ps up, makes it read a file of
// the user's or shows a task as another user's.
func TestHostileUserTasks(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	id := strings.TrimSpace(h.berth("run", "-d", "--name", "job", rig.ImagePath(t, "busybox"), "sleep", "1000").Out)
	record := filepath.Join(h.dir, ".local/share/berth/tasks", id, "task.json")
	n.Do(t, "mv", record, record+".kept")
	const format = "{{.ID}} {{.User}} {{.Command}}"
	job := id + ` 4711 "sleep"`
	rig.WaitUntil(t, "the command runs", func() bool { return n.ends(0, "ps", "--format", format).Out == job+"\n" }) // after berth run the runtime may still execute it
	for _, replace := range []string{`mkfifo "$0"`, `ln -s /etc/shadow "$0"`, `ln -s /dev/zero "$0"`, `truncate -s 1T "$0"`} {
		if said := n.run(alice, "sh", "-c", replace, record); said.Code != 0 {
			t.Fatalf("%+v", said)
		}
		n.wantSaid(replace, n.ends(0, "ps", "--format", format), rig.Said{Out: job + "\n"})
		n.Do(t, "rm", record)
	}
	n.Do(t, "mv", record+".kept", record)

	// A cgroup that looks like a task's, whose process hangs in the kernel, and names that no task has.
	const fake = "0123456789ab"
	script := `main=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup) && main=${main%/command} &&
for name in "` + strings.Repeat("x", 200) + `" 0123456789aB "../x" alloc-1.1.1-1/main/command; do mkdir -p "$main/$name/container" && (echo 0 >"$main/$name/container/cgroup.procs"; exec sleep 1000) >/dev/null & done
mkdir -p $main/` + fake + `/container && echo 0 >$main/` + fake + `/container/cgroup.procs && exec "$@"`
	for _, how := range []string{"exec", "map"} {
		end := n.hang(how, filepath.Join(filepath.Dir(n.Berth), "berth"), "alloc", "device=7", "--", "sh", "-c", script, "sh")
		got := n.ends(0, "ps", "--format", format)
		if got.Code != 0 || got.Err != "" || strings.Count(got.Out, "\n") != 2 || !strings.Contains(got.Out, job) || !strings.Contains(got.Out, fake+` 4711 "`) {
			t.Errorf("%s: %+v", how, got)
		}
		if said := n.ends(0, "stop", fake); said.Code != 1 || !strings.Contains(said.Err, "it is a task of user 4711") {
			t.Errorf("%s: stop: %+v", how, said)
		}
		end()
		n.Do(t, n.Berth, "release", "--force", n.waitForLeases(1)[0].ID)
		n.waitForLeases(0)
	}
	began := time.Now()
	h.berth("rm", "-f", "job")
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("rm takes %v", took)
	}
	h.wantClean()
}
