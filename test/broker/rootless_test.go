package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

// home is a user with a home directory.
type home struct {
	node
	uid int
	dir string
}

func (n node) home(uid int) home {
	n.t.Helper()
	dir := n.t.TempDir()
	rig.Must(n.t, os.Chmod(filepath.Dir(dir), 0o755))
	rig.Must(n.t, os.Chown(dir, uid, uid))
	n.Do(n.t, n.Berth, "gpus") // takes the inventory, which a user can't
	return home{n, uid, dir}
}

func (h home) words(words ...string) []string {
	return append([]string{"env", "HOME=" + h.dir, h.Berth}, words...)
}

// berth runs berth as the user. What a slow machine is told of an image's unpacking is left out.
func (h home) berth(words ...string) rig.Said {
	h.t.Helper()
	said := h.run(h.uid, h.words(words...)...)
	lines := slices.DeleteFunc(strings.SplitAfter(said.Err, "\n"), func(line string) bool { return strings.HasPrefix(line, "berth: unpacking layer ") })
	said.Err = strings.Join(lines, "")
	return said
}

// waitForNoCgroup waits until the cgroups of commands are removed.
func (n node) waitForNoCgroup() {
	n.t.Helper()
	rig.WaitUntil(n.t, "the cgroups are removed", func() bool {
		return n.Do(n.t, "sh", "-c", "find /sys/fs/cgroup -name 'alloc-*' 2>/dev/null; true") == "" // some may vanish meanwhile
	})
}

// wantClean fails if a lease, a cgroup or a task is left.
func (h home) wantClean() {
	h.t.Helper()
	h.waitForLeases(0)
	h.waitForNoCgroup()
	if got := h.berth("ps", "-aq"); got != (rig.Said{}) {
		h.t.Errorf("tasks are left: %+v", got)
	}
}

// TestRunAsUser: berth run without root gives a container its devices and no others, the exit codes of the command, and files
// that belong to the user.
func TestRunAsUser(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	busybox := rig.ImagePath(t, "busybox")
	n.wantSaid("without devices", h.berth("run", busybox, "sh", "-c", "id -u; ls /dev | grep -c nvidia; "+opening+"; exit 7"), rig.Said{Out: "0\n0\n????????\n", Code: 7})
	n.wantSaid("sysfs", h.berth("run", busybox, "sh", "-c", "grep ' /sys' /proc/mounts | grep -v ' /sys/fs/cgroup ' | cut -d' ' -f4 | cut -d, -f1 | sort -u"), rig.Said{Out: "ro\n"})
	n.start(bob, n.Berth, "alloc", "1", "--", "sleep", "1000")
	n.waitForLeases(1)
	got := h.berth("run", "--gpus", "2", "-v", h.dir+":/home", busybox, "sh", "-c",
		"touch /home/file; echo /dev/nvidia?; for i in 2 3; do (: </dev/nvidia$i) 2>&1 | sed 's/.*: //'; done; mknod /dev/own c 195 0 2>/dev/null || echo no node")
	n.wantSaid("with devices", got, rig.Said{Out: "/dev/nvidia2 /dev/nvidia3\nNo such device or address\nNo such device or address\nno node\n"})
	n.waitForLeases(1)
	fi, err := os.Stat(filepath.Join(h.dir, "file"))
	rig.Must(t, err)
	if uid := fi.Sys().(*syscall.Stat_t).Uid; uid != alice {
		t.Errorf("the file belongs to %d", uid)
	}
	n.wantSaid("in a lease", n.run(alice, append([]string{n.Berth, "alloc", "2", "--"}, h.words("run", "--gpus", "1", busybox, "sh", "-c", "echo /dev/nvidia?")...)...), rig.Said{Out: "/dev/nvidia2\n"})
	n.wantSaid("all of a lease", n.run(alice, append([]string{n.Berth, "alloc", "2", "--"}, h.words("run", busybox, "sh", "-c", "echo /dev/nvidia?")...)...), rig.Said{Out: "/dev/nvidia2 /dev/nvidia3\n"})
	for _, c := range []struct {
		name  string
		words []string
		code  int
		err   string
	}{
		{"another user", []string{"run", "--user", "1000", busybox, "true"}, 125, "berth: --user 1000: a task without root on the host has user 0, which is your own user outside, and others only by the subordinate ids of /etc/subuid and /etc/subgid and the program newuidmap\n"},
		{"no such command", []string{"run", busybox, "nothing"}, 127, "berth: command not found: \"nothing\" is nowhere in PATH (/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)\n"},
		{"too many devices", []string{"run", "--gpus", "9", busybox, "true"}, 125, "berth: request 9: node has 8 GPUs, 9 asked; berth gpus lists the node's devices\n"},
		{"busy devices", []string{"run", "--gpus", "8", busybox, "true"}, 75, ""},
	} {
		if got := h.berth(c.words...); got.Code != c.code || c.err != "" && got.Err != c.err {
			t.Errorf("%s: %+v, want %d, %s", c.name, got, c.code, c.err)
		}
	}
	n.Do(t, n.Berth, "release", "--force", n.waitForLeases(1)[0].ID)
	h.wantClean()
}

// giveSubordinateIDs gives alice subordinate ids from 300,000 on.
func (h home) giveSubordinateIDs() {
	h.t.Helper()
	passwd, err := os.ReadFile("/etc/passwd")
	rig.Must(h.t, err)
	for file, content := range map[string]string{
		"/etc/passwd": string(passwd) + "alice:x:4711:4711::" + h.dir + ":/bin/sh\n", // newuidmap needs a name
		"/etc/subuid": "alice:300000:65536\n", "/etc/subgid": "4711:400000:65536\n",
	} {
		own := filepath.Join(h.t.TempDir(), "file")
		rig.Must(h.t, os.WriteFile(own, []byte(content), 0o600))
		rig.Must(h.t, os.Chmod(own, 0o644))
		if _, err := os.Stat(file); os.IsNotExist(err) {
			h.Do(h.t, "touch", file)
		}
		h.Do(h.t, "mount", "--bind", own, file)
		h.t.Cleanup(func() { h.Do(h.t, "umount", file) })
	}
}

// TestSubordinateIDs: with subordinate ids a task without root can run as any user of its image, its verbs reach it whichever namespace
// they are in, and its files are removed.
func TestSubordinateIDs(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	h.giveSubordinateIDs()
	busybox := rig.ImagePath(t, "busybox")
	const maps = "cat /proc/self/uid_map /proc/self/gid_map | tr -s ' '"
	want := " 0 4711 1\n 1 300000 65536\n 0 4711 1\n 1 400000 65536\n"
	n.wantSaid("maps", h.berth("run", busybox, "sh", "-c", maps), rig.Said{Out: want})
	h.checkDirectories()
	// What a pipe has is there for the process in the namespace.
	n.wantSaid("--env-file", n.run(alice, append([]string{"sh", "-c", `echo A=1 | "$0" "$@"`}, h.words("run", "--env-file", "/dev/stdin", busybox, "sh", "-c", "echo $A")...)...), rig.Said{Out: "1\n"})
	for _, runtime := range []string{"crun", "runc"} {
		got := h.berth("run", "--runtime", runtime, "--gpus", "1", "--user", "1000:1001", "-v", h.dir+":/home", busybox, "sh", "-c",
			"id -u; id -g; touch /tmp/file; chmod 600 /tmp/file; (: </dev/nvidia0) 2>&1 | sed 's/.*: //'; touch /home/file || echo not mine")
		if got.Out != "1000\n1001\nNo such device or address\nnot mine\n" || got.Code != 0 {
			t.Errorf("another user with %s: %+v", runtime, got)
		}
	}
	n.wantSaid("-d", rig.Said{Code: h.berth("run", "-d", "--name", "root", busybox, "sleep", "1000").Code}, rig.Said{})
	n.wantSaid("groups of another user in root's task", h.berth("exec", "--user", "1000", "root", "id", "-G"), rig.Said{Out: "1000 44\n"})
	n.wantSaid("rm -f", h.berth("rm", "-f", "root"), rig.Said{Out: "root\n"})
	n.wantSaid("chown", h.berth("run", "-v", h.dir+":/home", busybox, "sh", "-c", "touch /home/own /home/other; chown 1000:1000 /home/other; ls -ln /home | awk 'NR>1 {print $3,$4,$9}'"),
		rig.Said{Out: "1000 1000 other\n0 0 own\n"})
	for file, uid := range map[string]uint32{"own": alice, "other": 300999} {
		fi, err := os.Stat(filepath.Join(h.dir, file))
		rig.Must(t, err)
		if got := fi.Sys().(*syscall.Stat_t).Uid; got != uid {
			t.Errorf("%s belongs to %d", file, got)
		}
	}
	got := h.berth("run", "--user", "70000", busybox, "true")
	if got.Code != 125 || !strings.Contains(got.Err, "--user 70000: a task without root on the host has") {
		t.Errorf("a user that there isn't: %+v", got)
	}
	const waits = "trap 'exit 3' TERM; trap 'echo signalled' USR1; echo begins; while :; do sleep 0.1; done"
	for _, killed := range []bool{false, true} {
		if got := h.berth("run", "-d", "--name", "job", "--user", "1000", busybox, "sh", "-c", waits); got.Code != 0 {
			t.Fatalf("%+v", got)
		}
		rig.WaitUntil(t, "it runs", func() bool { return h.berth("logs", "job").Out == "begins\n" })
		if killed { // the next monitor is in another namespace
			h.killMonitor("job")
		}
		n.wantSaid("exec", h.berth("exec", "job", "id", "-u"), rig.Said{Out: "1000\n"})
		n.wantSaid("groups of exec", h.berth("exec", "--user", "1000", "job", "id", "-G"), rig.Said{Out: "1000 44\n"})
		n.wantSaid("exec as root", h.berth("exec", "--user", "0", "job", "id", "-u"), rig.Said{Out: "0\n"})
		n.wantSaid("kill", h.berth("kill", "-s", "USR1", "job"), rig.Said{Out: "job\n"})
		rig.WaitUntil(t, "the signal has come", func() bool { return strings.Contains(h.berth("logs", "job").Out, "signalled") })
		n.wantSaid("stop", h.berth("stop", "job"), rig.Said{Out: "job\n"})
		n.wantSaid("wait", h.berth("wait", "job"), rig.Said{Out: "3\n"})
		n.wantSaid("rm", h.berth("rm", "job"), rig.Said{Out: "job\n"})
	}
	n.wantSaid("-d", rig.Said{Code: h.berth("run", "-d", "--timeout", "4s", "--name", "job", "--user", "1000", busybox, "sh", "-c", waits).Code}, rig.Said{})
	h.killMonitor("job")
	rig.WaitUntil(t, "it is taken over", func() bool { return h.berth("logs", "job").Out == "begins\n" })
	if got := h.berth("wait", "job"); got.Out != "255\n" || !strings.Contains(got.Err, "its time of 4s was over") { // the monitor may not see how it has ended
		t.Errorf("timeout: %+v", got)
	}
	n.wantSaid("rm", h.berth("rm", "job"), rig.Said{Out: "job\n"})
	n.wantSaid("-d", rig.Said{Code: h.berth("run", "-d", "--name", "job", "--user", "1000", busybox, "sh", "-c", waits).Code}, rig.Said{})
	n.wantSaid("rm -f", h.berth("rm", "-f", "job"), rig.Said{Out: "job\n"})
	h.wantClean()
}

// checkDirectories runs verbs from working directories with odd names, that the user can't search, and that are gone.
func (h home) checkDirectories() {
	h.t.Helper()
	odd := filepath.Join(h.dir, "a b\nc")
	rig.Must(h.t, os.Mkdir(odd, 0o755))
	rig.Must(h.t, os.WriteFile(filepath.Join(odd, "f"), []byte("found\n"), 0o600))
	rig.Must(h.t, os.Chmod(filepath.Join(odd, "f"), 0o644))
	from := func(enter string, words ...string) rig.Said {
		h.t.Helper()
		return h.Run(h.t, h.Command("sh", append([]string{"-ec", enter + `; exec "$@"`, "sh"}, as(h.uid, h.words(words...)...)...)...))
	}
	busybox := rig.ImagePath(h.t, "busybox")
	h.wantSaid("an odd name", from("cd '"+odd+"'", "run", "-v", "./f:/f", busybox, "cat", "/f"), rig.Said{Out: "found\n"})
	for what, enter := range map[string]string{
		"of root's": "mkdir -m 700 -p /run/roots && cd /run/roots", "below one of root's": "mkdir -m 700 -p /run/roots && mkdir -p /run/roots/sub && cd /run/roots/sub",
		"gone": "mkdir /run/gone && cd /run/gone && rmdir /run/gone",
	} {
		h.wantSaid("run in a directory "+what, from(enter, "run", busybox, "echo", "ran"), rig.Said{Out: "ran\n"})
		h.wantSaid("ps in a directory "+what, from(enter, "ps", "-aq"), rig.Said{})
	}
	rig.Must(h.t, os.RemoveAll(odd))
}

// TestRunAsUserWithoutBroker: a user is told who can help.
func TestRunAsUserWithoutBroker(t *testing.T) {
	n := start(t)
	h := n.home(alice)
	const line = "berth: this needs root, and runs as user 4711: use sudo, or have the admin start the broker: systemctl enable --now berth-broker.socket\n"
	for _, words := range [][]string{{"run"}, {"run", "--gpus", "1"}, {"run", "-d"}, {"run", "-n", "2"}, {"run", "-n", "2", "--gpus-per-rank", "1"}, {"run", "-n", "2", "-d"}} {
		n.wantSaid(strings.Join(words, " "), h.berth(append(words, rig.ImagePath(t, "busybox"), "true")...), rig.Said{Code: 125, Err: line})
	}
	// A cgroup of the user's own needs no broker.
	n.Do(t, "sh", "-c", "mkdir -p /sys/fs/cgroup/alice/shell && chown -R 4711 /sys/fs/cgroup/alice")
	script := "echo $$ >/sys/fs/cgroup/alice/shell/cgroup.procs && exec " + strings.Join(as(alice, h.words("run", rig.ImagePath(t, "busybox"), "echo", "ran")...), " ")
	for range 2 {
		n.wantSaid("in a cgroup of the user's", n.Run(t, n.Command("sh", "-c", script)), rig.Said{Out: "ran\n"})
	}
	n.wantSaid("a gang in a cgroup of the user's", n.Run(t, n.Command("sh", "-c", strings.Replace(script, " run ", " run -n 1 ", 1))), rig.Said{Out: "rank-0 | ran\n"})
	if got := n.Do(t, "ls", "/sys/fs/cgroup/alice/shell"); strings.Contains(got, "alloc-") {
		t.Errorf("cgroups are left: %s", got)
	}
	n.Do(t, "sh", "-c", "find /sys/fs/cgroup/alice -depth -type d -exec rmdir {} +")
}

// TestDetachedTaskOfUser: a detached task of a user goes through its life, and its lease ends with it.
func TestDetachedTaskOfUser(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	busybox := rig.ImagePath(t, "busybox")
	if got := h.berth("run", "-d", "--name", "job", "--gpus", "8", busybox, "sh", "-c", "echo begins; trap 'echo ends; exit 3' TERM; while :; do sleep 0.1; done"); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	rig.WaitUntil(t, "it runs", func() bool { return h.berth("logs", "job").Out == "begins\n" })
	n.wantSaid("ps", h.berth("ps", "--format", "{{.Names}} {{.GPUs}} {{.State}}"), rig.Said{Out: "job 0,1,2,3,4,5,6,7 running\n"})
	if got := n.home(bob).berth("ps", "-aq"); got != (rig.Said{}) {
		t.Errorf("another user sees %+v", got)
	}
	waits := n.start(alice, h.words("run", "--wait=1m", "--gpus", "1", busybox, "true")...)
	n.waitForQueue(1)
	n.wantSaid("queued", rig.Said{Code: h.berth("run", "-d", "--name", "next", "--wait=1m", "--gpus", "1", busybox, "sh", "-c", "ls /dev/nvidia? | wc -l").Code}, rig.Said{})
	n.waitForQueue(2)
	n.wantSaid("stop", h.berth("stop", "job"), rig.Said{Out: "job\n"})
	if code := waits.Wait(t); code != 0 {
		t.Errorf("the task that waited: exit code %d", code)
	}
	n.wantSaid("wait", h.berth("wait", "job", "next"), rig.Said{Out: "3\n0\n"})
	n.wantSaid("logs", h.berth("logs", "job"), rig.Said{Out: "begins\nends\n"})
	n.wantSaid("logs", h.berth("logs", "next"), rig.Said{Out: "1\n"})
	n.wantSaid("rm", h.berth("rm", "job", "next"), rig.Said{Out: "job\nnext\n"})
	// No other request follows: the broker ends the leases.
	rig.WaitUntil(t, "the leases have ended", func() bool { return len(n.Leases(t)) == 0 })
	h.wantClean()
}

// TestRestartByNextMonitor: a task whose monitor was killed is started again after its end, as its policy says.
func TestRestartByNextMonitor(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	for _, devices := range [][]string{nil, {"--gpus", "1"}} {
		words := append(append([]string{"run", "-d", "--name", "job", "--restart", "always", "-v", h.dir + ":/home"}, devices...),
			rig.ImagePath(t, "busybox"), "sh", "-c", "echo $$ >>/home/lives; until [ -e /home/end ]; do sleep 0.1; done; rm /home/end; exit 4")
		if got := h.berth(words...); got.Code != 0 {
			t.Fatalf("%+v", got)
		}
		h.killMonitor("job")
		h.berth("ps") // starts the next one
		rig.Must(t, os.WriteFile(filepath.Join(h.dir, "end"), nil, 0o644))
		rig.Must(t, os.Chown(h.dir+"/end", alice, alice))
		rig.WaitUntil(t, "it lives again", func() bool { lives, _ := os.ReadFile(h.dir + "/lives"); return strings.Count(string(lives), "\n") == 2 })
		n.wantSaid("rm", h.berth("rm", "-f", "job"), rig.Said{Out: "job\n"})
		rig.Must(t, os.Remove(h.dir+"/lives"))
		h.wantClean()
	}
}

// killMonitor kills the monitor of a task with SIGKILL.
func (h home) killMonitor(name string) {
	h.t.Helper()
	var pid int
	rig.WaitUntil(h.t, "the task has a monitor", func() bool { // which is recorded after the start
		_, after, _ := strings.Cut(h.berth("inspect", name).Out, `"monitor_pid": `)
		n, _ := fmt.Sscan(after, &pid)
		return n == 1 && pid > 0
	})
	rig.Must(h.t, syscall.Kill(pid, syscall.SIGKILL))
}

// TestRestartAfterRelease: a task whose lease root has ended isn't started again.
func TestRestartAfterRelease(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	if got := h.berth("run", "-d", "--name", "job", "--restart", "always", "--gpus", "1", rig.ImagePath(t, "busybox"), "sleep", "1000"); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	n.Do(t, n.Berth, "release", "--force", n.waitForLeases(1)[0].ID)
	n.waitForLeases(0)
	if got := h.berth("wait", "job"); !strings.Contains(got.Err, "its lease was released") || got.Out != "255\n" { // its monitor was ended, too
		t.Errorf("%+v", got)
	}
	n.wantSaid("rm", h.berth("rm", "job"), rig.Said{Out: "job\n"})
	h.wantClean()
}

// TestExecAsUser: a command in a task of a user's opens the task's devices, and has its exit code.
func TestExecAsUser(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	busybox := rig.ImagePath(t, "busybox")
	for name, devices := range map[string][]string{"with": {"--gpus", "1"}, "without": nil} {
		if got := h.berth(append(append([]string{"run", "-d", "--name", name}, devices...), busybox, "sleep", "1000")...); got.Code != 0 {
			t.Fatalf("%+v", got)
		}
	}
	n.wantSaid("with a GPU", h.berth("exec", "-e", "X=1", "-w", "/tmp", "with", "sh", "-c", "echo $X $PWD; (: </dev/nvidia0) 2>&1 | sed 's/.*: //'; exit 5"), rig.Said{Out: "1 /tmp\nNo such device or address\n", Code: 5})
	n.wantSaid("without devices", h.berth("exec", "without", "sh", "-c", "echo /dev/nvidia*; cat /proc/1/comm"), rig.Said{Out: "/dev/nvidia*\nsleep\n"})
	n.wantSaid("no such command", h.berth("exec", "with", "nothing"), rig.Said{Code: 127, Err: "berth: task with: command not found: \"nothing\" is nowhere in PATH (/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)\n"})
	n.wantSaid("another user", n.home(bob).berth("exec", "with", "true"), rig.Said{Code: 125, Err: "berth: task \"with\": there is no such task; berth ps -a lists all\n"})
	n.wantSaid("detached", h.berth("exec", "-d", "with", "sleep", "1000"), rig.Said{})
	n.wantSaid("both end", h.berth("rm", "-f", "with", "without"), rig.Said{Out: "with\nwithout\n"})
	h.wantClean()
}

// TestJoinedCgroups: a process enters no cgroup but those that the broker has made for its user, and doesn't leave a lease by that.
func TestJoinedCgroups(t *testing.T) {
	n := start(t)
	n.broker()
	n.start(bob, n.Berth, "alloc", "1", "--", "sleep", "1000")
	n.start(alice, n.Berth, "alloc", "1", "--", "sleep", "1000")
	n.waitForLeases(2)
	n.Do(t, "sh", "-c", "mkdir -p /sys/fs/cgroup/alice/alloc-1.1.1-1/main/command && chown -R 4711 /sys/fs/cgroup/alice")
	t.Cleanup(func() { n.Do(t, "sh", "-c", "find /sys/fs/cgroup/alice -depth -type d -exec rmdir {} +") })
	own := ""
	groups := []string{"/", "/alice", "/alice/alloc-1.1.1-1", "alloc-1.1.1-1", "/berth", "/berth/../berth", "/berth/alloc-1.1.1-1"}
	for line := range strings.Lines(n.Do(t, "sh", "-c", "stat -c '%u %n' /sys/fs/cgroup/berth/alloc-*/main")) {
		uid, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		group := strings.TrimPrefix(strings.TrimSuffix(dir, "/main"), "/sys/fs/cgroup")
		groups = append(groups, group+"/main", group+"/main/command", group+"/")
		if uid == strconv.Itoa(alice) {
			own = group
		} else {
			groups = append(groups, group)
		}
	}
	join := func(group string, around ...string) string {
		words := append(append([]string{}, around...), "perl", "-e", connecting+`my $s = connection(); print $s qq({"version":1,"cgroup":{"join":"`+group+`"}}\n); print <$s>; open F, "/proc/self/cgroup"; print grep /^0/, <F>;`)
		got := n.run(alice, words...)
		return got.Out + got.Err
	}
	for _, group := range groups {
		if got := join(group); !strings.Contains(got, `"code":"caller"`) && !strings.Contains(got, "not a cgroup path") {
			t.Errorf("%s: %s", group, got)
		}
	}
	n.Do(t, "sh", "-c", "mkdir -p /sys/fs/cgroup/berth/alloc-1.1.1-ended/main/command && chown 4711 /sys/fs/cgroup/berth/alloc-1.1.1-ended/main")
	if got := join("/berth/alloc-1.1.1-ended"); !strings.Contains(got, "has ended") {
		t.Errorf("that of a lease that has ended: %s", got)
	}
	n.Do(t, "sh", "-c", "find /sys/fs/cgroup/berth/alloc-1.1.1-ended -depth -type d -exec rmdir {} +")
	n.Do(t, "sh", "-c", "mkdir -p /sys/fs/cgroup/other.slice/alloc-1.1.1-1/main/command && chown 4711 /sys/fs/cgroup/other.slice/alloc-1.1.1-1/main")
	t.Cleanup(func() { n.Do(t, "sh", "-c", "find /sys/fs/cgroup/other.slice -depth -type d -exec rmdir {} +") })
	if got := join("/other.slice/alloc-1.1.1-1"); !strings.Contains(got, "another slice") {
		t.Errorf("another slice: %s", got)
	}
	if got := join(own); !strings.Contains(got, "placed") || !strings.Contains(got, own+"/main/command") {
		t.Errorf("one's own: %s", got)
	}
	if got := join(own, n.Berth, "alloc", "1", "--"); !strings.Contains(got, "belongs to another lease") || strings.Contains(got, own+"/main/command") {
		t.Errorf("from another lease: %s", got)
	}
}

// TestJoinInForeignLease: a place that a process of a user's has made in the lease of another user is entered by no process from outside of
// that lease.
func TestJoinInForeignLease(t *testing.T) {
	n := start(t)
	n.broker()
	const asking = connecting + `my $s = connection(); print $s qq({"version":1,"cgroup":{"join":"$ARGV[0]"}}\n) =~ s/"join":""//r; my $said = <$s>; print $said; sleep 1000 unless $ARGV[0];`
	rig.StartProcess(t, n.Command("sh", "-c", // as sudo or su would do it in bob's lease
		"exec "+n.Berth+" alloc 1 -- setpriv --reuid 4711 --regid 4711 --clear-groups perl -e '"+asking+"' '' >"+filepath.Join(t.TempDir(), "said")))
	rig.WaitUntil(t, "alice has a place in the lease", func() bool {
		return n.Do(t, "sh", "-c", "find /sys/fs/cgroup/berth -path '*/main/command/alloc-*' -name main") != ""
	})
	place := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(n.Do(t, "sh", "-c", "find /sys/fs/cgroup/berth -path '*/main/command/alloc-*' -name main")), "/sys/fs/cgroup"), "/main")
	if got := n.run(alice, "perl", "-e", asking, place); !strings.Contains(got.Out, "in the lease of another user") {
		t.Errorf("%+v", got)
	}
	n.Do(t, n.Berth, "release", "--force", n.waitForLeases(1)[0].ID)
	n.waitForNoCgroup()
}

// TestCgroupsInTheWay: a user who makes cgroups in that of a lease as fast as possible keeps nobody waiting when it ends.
func TestCgroupsInTheWay(t *testing.T) {
	n := start(t)
	n.broker()
	ends := n.start(alice, n.Berth, "alloc", "1", "--", "sleep", "1")
	n.waitForLeases(1)
	dir := strings.TrimSpace(n.Do(t, "sh", "-c", "ls -d /sys/fs/cgroup/berth/alloc-*/main"))
	var churns []rig.Process
	for range 2 {
		churns = append(churns, n.start(alice, "perl", "-e", `for (my $i = 0; ; $i++) { mkdir "$ARGV[0]/$$-$i" or $!{ENOENT} && exit }`, dir))
	}
	if code := ends.Wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	n.wantSaid("another user", n.run(bob, n.Berth, "alloc", "8", "--", "true"), rig.Said{})
	n.waitForNoCgroup()
	for _, p := range churns {
		p.Wait(t) // the directory is gone
	}
}

// TestJoinWhileItEnds: when root ends a lease, no process of its user's enters the lease's cgroup meanwhile, or stays there.
func TestJoinWhileItEnds(t *testing.T) {
	n := start(t)
	n.broker()
	for range 3 {
		n.start(alice, n.Berth, "alloc", "1", "--", "sleep", "1000")
		lease := n.waitForLeases(1)[0]
		group := strings.TrimPrefix(strings.TrimSpace(n.Do(t, "sh", "-c", "ls -d /sys/fs/cgroup/berth/alloc-*")), "/sys/fs/cgroup")
		joins := n.start(alice, "perl", "-e", connecting+`$SIG{CHLD} = "IGNORE";
			for (1 .. 100) { select undef, undef, undef, 0.005; next if fork; my $s = connection() or exit; print $s qq({"version":1,"cgroup":{"join":"$ARGV[0]"}}\n); <$s> =~ /placed/ and sleep 1000; exit }`, group)
		time.Sleep(50 * time.Millisecond)
		if got := n.Run(t, n.Command(n.Berth, "release", "--force", lease.ID)); got.Code != 0 {
			t.Errorf("%+v", got)
		}
		joins.Wait(t)
		n.waitForLeases(0)
		n.waitForNoCgroup()
	}
}

// TestKilledRunOfUser: kill -9 of any process of a berth run of a user's leaves no lease for longer than its container lives, and
// the next command removes what is left.
func TestKilledRunOfUser(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	for i := range 24 {
		outside, words, delay := i%2 == 0, []string{"run", "--gpus", "8"}, 10*time.Millisecond
		if i >= 12 {
			words, delay = []string{"run", "-n", "2", "--gpus-per-rank", "4"}, 60*time.Millisecond
		}
		p := n.start(alice, h.words(append(words, rig.ImagePath(t, "busybox"), "sleep", "2")...)...)
		time.Sleep(time.Duration(i%12) * delay)
		if outside {
			rig.Must(t, p.Cmd.Process.Kill())
		} else {
			for _, pid := range listChildren(p.Cmd.Process.Pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
		p.Wait(t)
		if got := h.berth("run", "--wait=1m", "--gpus", "8", rig.ImagePath(t, "busybox"), "true"); got.Code != 0 {
			t.Errorf("all GPUs are free again: %+v", got)
		}
	}
	rig.WaitUntil(t, "all tasks are removed", func() bool { return h.berth("ps", "-aq") == rig.Said{} })
	h.wantClean()
}

// TestCgroupRequests: a process has one cgroup without a lease, whatever the names of those that its user has made around it, and
// other processes get one as before.
func TestCgroupRequests(t *testing.T) {
	n := start(t)
	n.broker()
	words := as(alice, "perl", "-e", connecting+`
		sub place { my $s = connection(); print $s qq({"version":1,"cgroup":{}}\n); my $r = <$s>; $r =~ /"cgroup":"([^"]*)"/ or die $r; return "/sys/fs/cgroup$1" }
		my $own = place();
		place() eq $own or die "two cgroups";
		my $deep = ""; for (1 .. 6) { $deep .= "/alloc-1.1.1-1"; for my $i (0 .. 9, "*", "[") { mkdir "$own/main/$i"; mkdir "$own/main/$i$deep" } }
		for my $name ("*", "[", "0 (deleted)") {
			mkdir "$own/main/$name"; open F, ">", "$own/main/$name/cgroup.procs" or die $!; syswrite F, $$ or die $!; close F;
			place() eq $own or die "in $name";
		}
		print "done\n"`)
	n.wantSaid("one process", n.Run(t, n.Command(words[0], words[1:]...)), rig.Said{Out: "done\n"})
	n.waitForNoCgroup()
}

// TestDescendantsOnly: a lease is for the caller or a descendant, and not for other processes, of the same user or of others.
func TestDescendantsOnly(t *testing.T) {
	n := start(t)
	n.broker()
	for _, uid := range []int{alice, bob} {
		pid := n.start(uid, "sleep", "1000").Cmd.Process.Pid
		for _, request := range []string{`"acquire":{"request":"1","descendant":%d}`, `"cgroup":{"descendant":%d}`} {
			words := as(alice, "perl", "-e", connecting+`my $s = connection(); print $s qq({"version":1,`+fmt.Sprintf(request, pid)+`}\n); print <$s>;`)
			got := n.Run(t, n.Command(words[0], words[1:]...))
			if !strings.Contains(got.Out, `"code":"caller"`) {
				t.Errorf("%s of user %d: %+v", request, uid, got)
			}
		}
	}
	n.waitForLeases(0)
}
