package broker

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/test/rig"
)

// instanceFiles are an image's scripts for instances.
func instanceFiles() map[string]string {
	return map[string]string{
		".singularity.d/startscript": "#!/bin/sh\necho start \"$@\" $APPTAINER_INSTANCE\n",
		".singularity.d/runscript":   "#!/bin/sh\nexec \"$@\"\n",
	}
}

// instance is an instance as instance list --json has it.
type instance struct {
	Instance string
	PID      int
	Img      string
	LogOut   string `json:"logOutPath"`
	LogErr   string `json:"logErrPath"`
}

// apptainerHere is apptainer with log files in the home directory of the test also for root.
func (h home) apptainerHere(words ...string) []string {
	return append([]string{"env", "APPTAINER_CONFIGDIR=" + h.dir + "/.apptainer"}, h.apptainer(words...)...)
}

// listInstances lists the instances of a user.
func (h home) listInstances() []instance {
	h.t.Helper()
	var list struct{ Instances []instance }
	said := h.run(h.uid, h.apptainer("instance", "list", "--json")...)
	if err := json.Unmarshal([]byte(said.Out), &list); err != nil || said.Code != 0 {
		h.t.Fatalf("%v: %+v", err, said)
	}
	return list.Instances
}

// runInstanceVerb runs a verb of instances that has to succeed.
func (h home) runInstanceVerb(words ...string) {
	h.t.Helper()
	if got := h.run(h.uid, h.apptainerHere(append([]string{"instance"}, words...)...)...); got.Code != 0 {
		h.t.Fatalf("%q: %+v", words, got)
	}
}

// endInstances ends what a test has started.
func (h home) endInstances() {
	h.t.Cleanup(func() { h.run(h.uid, h.apptainer("instance", "stop", "--all", "--force")...) })
}

// TestInstances: an instance has the devices of its lease until it ends, its processes and those of exec, run and shell are in one PID namespace, and its end
// ends all of them and the lease.
func TestInstances(t *testing.T) {
	h, image := sifHome(t, instanceFiles())
	h.start(bob, h.Berth, "alloc", "1", "--", "sleep", "1000")
	h.waitForLeases(1)
	for _, uid := range []int{alice, 0} {
		h := h.home(uid)
		h.endInstances()
		h.runInstanceVerb("start", "--nv", image, "one", "a", "b c")
		leases := h.waitForLeases(2)
		if !strings.HasSuffix(h.Do(t, "sh", "-c", h.Berth+" leases | grep -c 'instance://one'"), "1\n") {
			t.Errorf("user %d: leases %+v", uid, leases)
		}
		listed := h.listInstances()
		if len(listed) != 1 || listed[0].Instance != "one" || listed[0].Img != image {
			t.Fatalf("user %d: %+v", uid, listed)
		}
		rig.WaitUntil(t, "the startscript has run", func() bool {
			log, err := os.ReadFile(listed[0].LogOut)
			return err == nil && string(log) == "start a b c one\n"
		})
		const show = openNodes + "; " + opening + "; ps -o comm; :"
		first := h.run(uid, h.apptainer("exec", "instance://one", "sh", "-c", show)...)
		lines := strings.SplitN(first.Out, "\n", 3)
		if first.Code != 0 || len(lines) != 3 || len(lines[0]) != 1 || lines[0] == "0" || strings.Trim(lines[1], "?") != lines[0] || lines[2] != "COMMAND\n.berth-init\nsh\nps\n" {
			t.Errorf("user %d: %+v", uid, first)
		}
		h.runInstanceVerb("run", image, "two", "sleep", "1000")
		h.wantSaid("without a lease", h.run(uid, h.apptainer("exec", "instance://two", "sh", "-c", openNodes+"; "+opening+"; ps -o comm; :")...),
			rig.Said{Out: "\n????????\nCOMMAND\n.berth-init\nsleep\nsh\nps\n"})
		for _, tt := range []struct {
			what  string
			words []string
			want  rig.Said
		}{
			{"exit code", []string{"exec", "instance://one", "sh", "-c", "exit 7"}, rig.Said{Code: 7}},
			{"signal", []string{"exec", "instance://one", "sh", "-c", "kill -9 $$"}, rig.Said{Code: -1}},
			{"no program", []string{"exec", "instance://one", "nosuch"}, rig.Said{Code: 255, Err: "berth: nosuch: executable file not found in $PATH\n"}},
			{"run", []string{"run", "instance://one", "echo", "a", "b  c"}, rig.Said{Out: "a b  c\n"}},
			{"no directory", []string{"exec", "--pwd", "/nosuch", "instance://one", "true"}, rig.Said{Code: 255, Err: "berth: set the working directory: no such file or directory\n"}},
			{"environment", []string{"exec", "--env", "A=1", "instance://one", "sh", "-c", "echo $A $APPTAINER_INSTANCE; env | grep -c BERTH_SCRIPT"}, rig.Said{Code: 1, Out: "1 one\n0\n"}},
			{"a name that is taken", []string{"instance", "start", image, "one"}, rig.Said{Code: 255, Err: "berth: one: there is an instance of this name already\n"}},
			{"a bad name", []string{"instance", "start", image, "../one"}, rig.Said{Code: 255, Err: "berth: \"../one\" is no name of an instance: it has letters, digits, \"_\", \"-\" and \".\"\n"}},
			{"no image", []string{"instance", "start", "/nosuch", "three"}, rig.Said{Code: 255, Err: "berth: image \"/nosuch\": there is no such file or directory; docker://NAME is an image of a registry\n"}},
			{"no instance", []string{"exec", "instance://three", "true"}, rig.Said{Code: 255, Err: "berth: there is no instance three; berth apptainer instance list lists them\n"}},
			{"devices", []string{"exec", "--gpus", "2", "instance://one", "true"}, rig.Said{Code: 255, Err: "berth: --gpus: an instance has the devices that it was started with\n"}},
		} {
			h.wantSaid(fmt.Sprintf("user %d: %s", uid, tt.what), h.run(uid, h.apptainerHere(tt.words...)...), tt.want)
		}
		joined := h.start(uid, h.apptainer("exec", "instance://one", "sleep", "1000")...)
		rig.WaitUntil(t, "the command runs", func() bool {
			return strings.Contains(h.run(uid, h.apptainer("exec", "instance://one", "ps", "-o", "comm")...).Out, "sleep")
		})
		killed := h.start(uid, h.apptainer("exec", "instance://one", "sleep", "2000")...)
		rig.WaitUntil(t, "another command runs", func() bool {
			return strings.Count(h.run(uid, h.apptainer("exec", "instance://one", "ps", "-o", "comm")...).Out, "sleep") == 2
		})
		rig.Must(t, killed.Cmd.Process.Kill())
		rig.WaitUntil(t, "the command ends with its launcher", func() bool {
			return strings.Count(h.run(uid, h.apptainer("exec", "instance://one", "ps", "-o", "comm")...).Out, "sleep") == 1
		})
		h.runInstanceVerb("stop", "o*")
		if code := joined.Wait(t); code != 130 && code != -1 {
			t.Errorf("user %d: a command in an instance that ends: exit code %d", uid, code)
		}
		h.waitForLeases(1)
		if got := h.listInstances(); len(got) != 1 || got[0].Instance != "two" {
			t.Errorf("user %d: %+v", uid, got)
		}
		h.runInstanceVerb("stop", "--all")
		if got := h.listInstances(); len(got) != 0 {
			t.Errorf("user %d: %+v", uid, got)
		}
		h.wantSaid("nothing to stop", h.run(uid, h.apptainer("instance", "stop", "--all")...), rig.Said{Code: 1, Err: "berth: there is no instance; berth apptainer instance list lists them\n"})
	}
}

// TestInstanceKilled: whichever process of an instance outside of the container is killed, and whenever the command that starts it is, all of the instance and the lease end, or it
// is a whole instance. The name is free at once.
func TestInstanceKilled(t *testing.T) {
	h, image := sifHome(t, instanceFiles())
	h.endInstances()
	sleep := fmt.Sprintf("1%07d", os.Getpid()) // of this test alone
	isLeft := func() bool { return h.Do(t, "sh", "-c", "pgrep -f '^sleep "+sleep+"' || true") != "" }
	for generation := range 3 {
		h.runInstanceVerb("run", "--nv", image, "one", "sleep", sleep)
		h.waitForLeases(1)
		pid := h.listInstances()[0].PID
		var inside []string
		rig.WaitUntil(t, "the command runs", func() bool {
			inside = strings.Fields(h.Do(t, "sh", "-c", "pgrep -f '^sleep "+sleep+"' || true"))
			return len(inside) == 1
		})
		if files, err := filepath.Glob("/proc/" + inside[0] + "/fd/*"); err != nil || len(files) != 3 {
			t.Errorf("open files of the command: %q, %v", files, err)
		}
		joined := h.start(alice, h.apptainer("exec", "instance://one", "sleep", sleep)...)
		rig.WaitUntil(t, "two commands run", func() bool {
			return len(strings.Fields(h.Do(t, "sh", "-c", "pgrep -f '^sleep "+sleep+"' || true"))) == 2
		})
		for range generation { // the first process, its parent, and the parent of that
			parent, err := process.Parent("/proc", pid)
			rig.Must(t, err)
			pid = parent
		}
		rig.Must(t, unix.Kill(pid, unix.SIGKILL))
		rig.WaitUntil(t, "no process is left", func() bool { return !isLeft() })
		joined.Wait(t)
		h.waitForLeases(0)
		rig.WaitUntil(t, "it isn't listed", func() bool { return len(h.listInstances()) == 0 })
	}
	for i := range 25 {
		starter := h.start(alice, h.apptainerHere("instance", "run", "--nv", image, "one", "sleep", sleep)...)
		time.Sleep(time.Duration(i) * 10 * time.Millisecond)
		_ = starter.Cmd.Process.Kill() // it may have ended
		starter.Wait(t)
		rig.WaitUntil(t, "the start is over", func() bool {
			listed := h.listInstances()
			got := h.run(alice, h.apptainer("instance", "stop", "--force", "one")...)
			return got.Code == 0 || len(listed) == 0 && len(h.Leases(t)) == 0 && !isLeft()
		})
		h.waitForLeases(0)
		if isLeft() {
			t.Fatalf("killed after %d ms: the command is left", i*10)
		}
	}
	h.start(bob, h.Berth, "alloc", "8", "--", "sleep", "1000")
	h.waitForLeases(1)
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGKILL} { // while it waits for devices
		starter := h.start(alice, h.apptainerHere("instance", "start", "--nv", "--wait", image, "one")...)
		h.waitForQueue(1)
		rig.Must(t, starter.Cmd.Process.Signal(sig))
		starter.Wait(t)
		h.waitForQueue(0)
	}
	h.runInstanceVerb("start", image, "one")
}

// TestInstanceNames: of several instances that start with one name at once one does, and the others fail.
func TestInstanceNames(t *testing.T) {
	h, image := sifHome(t, instanceFiles())
	h.endInstances()
	for range 5 {
		var starting sync.WaitGroup
		var mu sync.Mutex
		codes := map[int]int{}
		for range 5 {
			starting.Go(func() {
				got := h.run(alice, h.apptainerHere("instance", "start", image, "one")...)
				mu.Lock()
				defer mu.Unlock()
				codes[got.Code]++
			})
		}
		starting.Wait()
		if codes[0] != 1 || codes[255] != 4 || len(h.listInstances()) != 1 {
			t.Fatalf("exit codes %v, instances %+v", codes, h.listInstances())
		}
		h.runInstanceVerb("stop", "one")
	}
}

// TestInstanceSignals: the processes of an instance get the signal of instance stop, and are killed after the timeout. The launcher of a command in an instance passes signals on.
func TestInstanceSignals(t *testing.T) {
	h, image := sifHome(t, instanceFiles())
	h.endInstances()
	said := filepath.Join(h.dir, "said")
	const script = "exec >said; trap 'echo INT; exit' INT; trap 'echo TERM; exit 7' TERM; echo ready; while :; do sleep 0.01; done"
	for words, want := range map[string]string{"": "INT\n", "-s TERM": "TERM\n", "--signal=15": "TERM\n", "-F": "", "-s USR2 -t 0": ""} {
		h.run(alice, append([]string{"env", "-C", h.dir}, h.apptainerHere("instance", "run", image, "one", "sh", "-c", script)...)...)
		waitForText(t, said, "ready\n")
		h.runInstanceVerb(append(append([]string{"stop"}, strings.Fields(words)...), "one")...)
		waitForText(t, said, "ready\n"+want)
		rig.Must(t, os.Remove(said))
	}
	h.runInstanceVerb("start", image, "one")
	launcher := h.start(alice, append([]string{"env", "-C", h.dir}, h.apptainer("exec", "instance://one", "sh", "-c", script)...)...)
	waitForText(t, said, "ready\n")
	rig.Must(t, launcher.Cmd.Process.Signal(unix.SIGTERM))
	if code := launcher.Wait(t); code != 7 {
		t.Errorf("exit code %d", code)
	}
	waitForText(t, said, "ready\nTERM\n")
}

// TestInstanceOfAnother: an instance can't be listed, entered or stopped by another user, also with a record that names its first process. A record leads to no process outside of
// containers.
func TestInstanceOfAnother(t *testing.T) {
	h, image := sifHome(t, instanceFiles())
	h.endInstances()
	h.runInstanceVerb("start", "--nv", image, "one")
	lease := h.waitForLeases(1)
	records, err := filepath.Glob(h.dir + "/.local/share/berth/instances/*/one")
	rig.Must(t, err)
	if len(records) != 1 {
		t.Fatalf("records %q", records)
	}
	record, err := os.ReadFile(records[0])
	rig.Must(t, err)
	other := h.home(bob)
	other.wantSaid("another user's", other.run(bob, other.apptainer("exec", "instance://one", "true")...),
		rig.Said{Code: 255, Err: "berth: there is no instance one; berth apptainer instance list lists them\n"})
	if got := other.run(bob, "cat", records[0]); got.Code == 0 {
		t.Errorf("another user reads the record: %+v", got)
	}

	// plant makes a record of bob's that looks like a running instance.
	plant := func(text string) {
		t.Helper()
		path := strings.Replace(records[0], h.dir, other.dir, 1)
		rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
		rig.Must(t, os.Chown(path, bob, bob))
		holder := other.start(bob, "flock", path, "sleep", "1000")
		t.Cleanup(func() { _ = holder.Cmd.Process.Kill() })
		rig.WaitUntil(t, "the record is locked", func() bool {
			return other.run(bob, "flock", "--nonblock", path, "true").Code != 0
		})
	}
	plant(string(record))
	for what, words := range map[string][]string{"enter": {"exec", "instance://one", "true"}, "stop": {"instance", "stop", "-F", "-t", "0", "one"}} {
		if got := other.run(bob, other.apptainer(words...)...); got.Code != 255 || !strings.Contains(got.Err, "ermi") {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if got := h.run(alice, h.apptainer("exec", "instance://one", "sh", "-c", openNodes)...); got.Code != 0 || len(got.Out) != 2 {
		t.Errorf("the instance afterwards: %+v", got)
	}
	if now := h.waitForLeases(1); now[0].ID != lease[0].ID {
		t.Errorf("another lease: %+v", now)
	}

	// A process of bob's on the host instead of a container's.
	outside := other.start(bob, "sleep", "1000")
	start, err := process.Start("/proc", outside.Cmd.Process.Pid)
	rig.Must(t, err)
	var fields map[string]any
	rig.Decode(t, string(record), &fields)
	fields["pid"], fields["start"] = outside.Cmd.Process.Pid, start
	planted, err := json.Marshal(fields)
	rig.Must(t, err)
	path := strings.Replace(records[0], h.dir, other.dir, 1)
	rig.Must(t, os.WriteFile(path, planted, 0o600))
	for what, words := range map[string][]string{"enter": {"exec", "instance://one", "true"}, "stop": {"instance", "stop", "-F", "-t", "0", "one"}} {
		if got := other.run(bob, other.apptainer(words...)...); got.Code != 255 {
			t.Errorf("%s: a process of the host: %+v", what, got)
		}
	}
	if outside.HasEnded() {
		t.Error("a record has led to a process of the host")
	}

	// A link in the place of the directory.
	dir := filepath.Join(other.dir, ".local/share/berth/instances")
	rig.Must(t, os.RemoveAll(dir))
	rig.Must(t, os.Symlink(filepath.Join(h.dir, ".local/share/berth/instances"), dir))
	if got := other.run(bob, other.apptainer("instance", "list")...); got.Code != 255 || got.Out != "" {
		t.Errorf("a link: %+v", got)
	}
}

// TestInstanceApart: a program in an instance, with all capabilities that it can have there, gets no open file of berth's from the processes that join it: a directory
// among them would lead to the files of the user from which --containall keeps it.
func TestInstanceApart(t *testing.T) {
	program, err := shared.Compile("peek", "testdata/peek.c", "-static")
	rig.Must(t, err)
	peek, err := os.ReadFile(program)
	rig.Must(t, err)
	files := instanceFiles()
	files["bin/peek"] = string(peek)
	h, image := sifHome(t, files)
	h.endInstances()
	rig.Must(t, os.WriteFile(filepath.Join(h.dir, "secret-of-alice"), nil, 0o644))
	for _, flags := range []string{"--fakeroot --containall", "--containall"} {
		h.runInstanceVerb(append(append([]string{"run"}, strings.Fields(flags)...), image, "one", "peek", "secret-of-alice")...)
		log := h.listInstances()[0].LogOut
		rig.WaitUntil(t, "the program looks", func() bool {
			text, err := os.ReadFile(log)
			return err == nil && strings.HasSuffix(string(text), "looks\n")
		})
		for range 30 {
			h.wantSaid(flags, h.run(alice, append([]string{"env", "-C", "/"}, h.apptainer("exec", "instance://one", "true")...)...), rig.Said{})
		}
		if text, err := os.ReadFile(log); err != nil || strings.Contains(string(text), "found") {
			t.Errorf("%s: the program has reached the user's files: %q, %v", flags, text, err)
		}
		h.runInstanceVerb("stop", "-F", "one")
		rig.Must(t, os.Remove(log))
	}
}

// TestInstanceUsers: root lists and ends instances of a user, by a process of that user.
func TestInstanceUsers(t *testing.T) {
	h, image := sifHome(t, instanceFiles())
	passwd, err := os.ReadFile("/etc/passwd")
	rig.Must(t, err)
	own := filepath.Join(t.TempDir(), "passwd")
	rig.Must(t, os.WriteFile(own, append(passwd, fmt.Sprintf("alice:x:%d:%[1]d::%s:/bin/sh\n", alice, h.dir)...), 0o600))
	rig.Must(t, os.Chmod(own, 0o644))
	h.Do(t, "mount", "--bind", own, "/etc/passwd")
	t.Cleanup(func() { h.Do(t, "umount", "/etc/passwd") })
	h.endInstances()
	h.runInstanceVerb("start", "--nv", image, "one")
	pid := strconv.Itoa(h.listInstances()[0].PID)
	got := h.Run(t, h.Command(h.Berth, "apptainer", "instance", "list", "--user", "alice"))
	if got.Code != 0 || !strings.Contains(got.Out, "\none              "+pid+" ") {
		t.Errorf("list: %+v", got)
	}
	locks, err := filepath.Glob(h.dir + "/.local/share/berth/instances/*/.lock")
	rig.Must(t, err)
	lock := locks[0]
	holder := h.start(alice, "flock", "--no-fork", lock, "sleep", "1000")
	rig.WaitUntil(t, "the lock is taken", func() bool { return h.run(alice, "flock", "--nonblock", lock, "true").Code != 0 })
	h.wantSaid("a process that the user keeps waiting", h.Run(t, h.Command("timeout", "60", h.Berth, "apptainer", "instance", "list", "--user", "alice")),
		rig.Said{Code: 255, Err: "berth: a process of user alice doesn't answer\n"})
	waiting := h.start(0, h.Berth, "apptainer", "instance", "list", "--user", "alice")
	var pids []string
	rig.WaitUntil(t, "the process of the user runs", func() bool {
		pids = strings.Fields(h.Do(t, "sh", "-c", fmt.Sprintf("pgrep -u %d -f 'instance list' || true", alice)))
		return len(pids) == 1
	})
	// A user that can trace the process can run code in it, in root's cgroup.
	for uid, code := range map[int]int{alice: 1, 0: 0} {
		if got := h.run(uid, "readlink", "/proc/"+pids[0]+"/exe"); got.Code != code {
			t.Errorf("user %d traces process %s: %+v", uid, pids[0], got)
		}
	}
	waiting.Wait(t)
	rig.Must(t, holder.Cmd.Process.Kill())
	holder.Wait(t)
	if got := h.run(bob, h.Berth, "apptainer", "instance", "list", "--user", "alice"); got.Code != 255 || got.Out != "" {
		t.Errorf("another user lists: %+v", got)
	}
	if got := h.Run(t, h.Command(h.Berth, "apptainer", "instance", "stop", "--user", "alice", "one")); got.Code != 0 {
		t.Errorf("stop: %+v", got)
	}
	h.waitForLeases(0)
}

// TestInstanceTerminal: a command in an instance is a job of the caller's shell, as one without an instance.
func TestInstanceTerminal(t *testing.T) {
	h, image := sifHome(t, instanceFiles())
	h.endInstances()
	h.runInstanceVerb("start", image, "one")
	x := h.openTerminal(image)
	for range 3 {
		x.controlJob("$berth apptainer exec instance://one")
	}
	x.typeLine("$berth apptainer exec instance://one sh -c 'echo a''gain; exec sleep 1000'")
	x.waitForText("again")
	x.tmux("send-keys", "C-c")
	x.typeLine("echo code $? en''d")
	x.waitForText("code 130 end")
}

// TestInstanceJoin: a command that joins an instance is a child of its launcher with the launcher's open files alone, and no other process is left
// beside it. Arguments are passed on byte by byte. It can be stopped and continued from the inside.
func TestInstanceJoin(t *testing.T) {
	h, image := sifHome(t, instanceFiles())
	h.endInstances()
	h.runInstanceVerb("start", "--nv", image, "one")
	list := []string{"sh", "-c", "ls /proc/$$/fd; echo error >&2"}
	for _, tt := range []struct {
		what string
		argv []string
		want rig.Said
	}{
		{"open files", list, h.run(alice, list...)},
		{"bytes", []string{"echo", "\xff\n$A"}, rig.Said{Out: "\xff\n$A\n"}},
		{"much", []string{"sh", "-c", "echo ${#1}", "sh", strings.Repeat("a", 100_000)}, rig.Said{Out: "100000\n"}},
		{"stopped from the inside", []string{"sh", "-c", "(sleep 0.1; kill -CONT $$) & kill -STOP $$; exit 3"}, rig.Said{Code: 3}},
		{"not a program", []string{"/etc/passwd"}, rig.Said{Code: 255, Err: "berth: /etc/passwd: permission denied\n"}},
	} {
		h.wantSaid(tt.what, h.run(alice, h.apptainer(append([]string{"exec", "instance://one"}, tt.argv...)...)...), tt.want)
	}
	sleep := fmt.Sprintf("2%07d", os.Getpid())
	find := func(line string) []string { return strings.Fields(h.Do(t, "sh", "-c", "pgrep -f '"+line+"' || true")) }
	joined := h.start(alice, h.apptainer("exec", "instance://one", "sleep", sleep)...)
	var pids []string
	rig.WaitUntil(t, "the command runs", func() bool {
		pids = find("^sleep " + sleep)
		return len(pids) == 1
	})
	pid, err := strconv.Atoi(pids[0])
	rig.Must(t, err)
	launcher, err := process.Parent("/proc", pid)
	rig.Must(t, err)
	if children := process.Children("/proc", launcher); len(children) != 1 {
		t.Errorf("children of the launcher: %v, the command is %d", children, pid)
	}
	rig.Must(t, joined.Cmd.Process.Kill())
	joined.Wait(t)
	for i := range 30 { // while it joins
		launcher := h.start(alice, h.apptainer("exec", "instance://one", "sleep", sleep)...)
		time.Sleep(time.Duration(i) * 5 * time.Millisecond)
		_ = launcher.Cmd.Process.Kill() // it may have ended
		launcher.Wait(t)
		rig.WaitUntil(t, "no process is left", func() bool { return len(find("^(sleep "+sleep+"|berth join |nsenter .*berth-init)")) == 0 })
	}
}

// TestInstanceJoinStopped: a process of an instance that stops the ones that join before they have executed their command keeps a launcher waiting for ten seconds,
// and nothing is left of the command.
func TestInstanceJoinStopped(t *testing.T) {
	files := instanceFiles()
	files[".singularity.d/startscript"] = `#!/bin/sh
while :; do
	for p in /proc/[0-9]*; do
		read c <$p/comm && [ "$c" = .berth-init ] && kill -STOP ${p#/proc/} && read c <$p/comm && [ "$c" != .berth-init ] && kill -CONT ${p#/proc/}
	done 2>/dev/null
done
`
	h, image := sifHome(t, files)
	for _, uid := range []int{alice, 0} {
		h := h.home(uid)
		h.endInstances()
		h.runInstanceVerb("start", image, "one")
		var got rig.Said
		var took time.Duration
		for try := 0; try < 20 && got.Code == 0; try++ { // the command may be faster
			begin := time.Now()
			got = h.run(uid, h.apptainer("exec", "instance://one", "true")...)
			took = time.Since(begin)
		}
		h.wantSaid(fmt.Sprintf("user %d", uid), got, rig.Said{
			Code: 255, Err: "berth: enter the container: the process doesn't answer after 10s: another process of the container may have stopped it\n",
		})
		if took > 20*time.Second {
			t.Errorf("user %d: it took %s", uid, took)
		}
		rig.WaitUntil(t, "no process is left", func() bool {
			return h.Do(t, "sh", "-c", "pgrep -f '^(/dev/.berth-init|berth|nsenter) join ' || true") == ""
		})
		h.runInstanceVerb("stop", "--force", "one")
	}
}

// TestInstanceJoinEnvironment: neither the caller's environment nor that of the command is one of nsenter, which the dynamic linker would read: nsenter runs outside of
// the container at first.
func TestInstanceJoinEnvironment(t *testing.T) {
	h, image := sifHome(t, instanceFiles())
	h.endInstances()
	h.runInstanceVerb("start", image, "one")
	debug := filepath.Join(h.dir, "debug")
	settings := []string{"LD_DEBUG=files", "LD_DEBUG_OUTPUT=" + debug}
	written := func(words ...string) int {
		t.Helper()
		if got := h.run(alice, words...); got.Code != 0 {
			t.Fatalf("%q: %+v", words, got)
		}
		files, err := filepath.Glob(debug + ".*")
		rig.Must(t, err)
		n := 0
		for _, file := range files {
			text, err := os.ReadFile(file)
			rig.Must(t, err)
			n += strings.Count(string(text), "transferring control: nsenter\n")
		}
		return n
	}
	words := h.apptainer("exec", "--env", strings.Join(settings, ","), "instance://one", "true")[2:]
	if n := written(append([]string{"env", "HOME=" + h.dir, settings[0], settings[1]}, words...)...); n != 0 {
		t.Errorf("%d nsenter have read the environment", n)
	}
	if n := written("env", settings[0], settings[1], "nsenter", "--version"); n != 1 {
		t.Errorf("outside: %d nsenter have read the environment", n)
	}
}

// TestInstanceListEscapes: the name of an image brings no control character to the terminal of a list.
func TestInstanceListEscapes(t *testing.T) {
	h, image := sifHome(t, instanceFiles())
	h.endInstances()
	named := filepath.Join(h.dir, "\u009b31m\x7f.sif")
	rig.Must(t, os.Symlink(image, named))
	h.runInstanceVerb("start", named, "one")
	if got := h.listInstances(); len(got) != 1 || got[0].Img != named {
		t.Errorf("%+v", got)
	}
	for _, flags := range [][]string{nil, {"--json"}, {"--logs"}} {
		got := h.run(alice, h.apptainer(append([]string{"instance", "list"}, flags...)...)...)
		if got.Code != 0 || strings.ContainsAny(got.Out, "\u009b\x7f") {
			t.Errorf("%q: %+q, %+v", flags, got.Out, got)
		}
	}
}

// TestInstanceNameAfterKill: the name of an instance whose first process was killed is free at once.
func TestInstanceNameAfterKill(t *testing.T) {
	h, image := sifHome(t, instanceFiles())
	h.endInstances()
	for range 5 {
		h.runInstanceVerb("start", "--nv", image, "one")
		rig.Must(t, unix.Kill(h.listInstances()[0].PID, unix.SIGKILL))
		h.runInstanceVerb("start", "--nv", image, "one")
		h.runInstanceVerb("stop", "one")
	}
}
