package tasks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/tasks"
	"github.com/berth-gpu/berth/test/rig"
)

// programs are those of a package that tasks are run with.
func programs() []string {
	return []string{"berth", "berth-nvml", "berth-hook", "berth-monitor"}
}

// buildOlder returns a directory with programs of another version: other bytes, and in
// BERTH_TEST_OLDER really older ones.
func buildOlder(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("BERTH_TEST_OLDER"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	for _, name := range programs() {
		program, err := os.ReadFile(filepath.Join(shared.Dir, name))
		rig.Must(t, err)
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), append(program, "older"...), 0o755))
	}
	return dir
}

// replaceProgram replaces a program as package managers do: processes that run it keep the old one.
func replaceProgram(t *testing.T, from, name, dir string) {
	t.Helper()
	in, err := os.Open(filepath.Join(from, name))
	rig.Must(t, err)
	defer in.Close()
	path := filepath.Join(dir, name)
	out, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	rig.Must(t, err)
	_, err = io.Copy(out, in)
	rig.Must(t, errors.Join(err, out.Close(), os.Rename(path+".new", path)))
}

// upgraded is a server on which berth is upgraded while tasks run.
type upgraded struct {
	server
	dir string
}

// install has programs of a directory in the place of the server's, until upgrade.
func install(t *testing.T, s server, from string) upgraded {
	t.Helper()
	dir := t.TempDir()
	for _, name := range namesIn(t, from) {
		replaceProgram(t, from, name, dir)
	}
	r := &rig.Rig{Dir: dir, Berth: filepath.Join(dir, "berth")}
	return upgraded{server{r.Join(whole{s.Node}), s.runtime}, dir}
}

// whole is a server as another rig's.
type whole struct{ *rig.Node }

func (w whole) Command(words ...string) *exec.Cmd { return w.Node.Command(words[0], words[1:]...) }

// life is that of a task now.
func (u upgraded) life(t *testing.T, id string) tasks.Life {
	t.Helper()
	life, err := tasks.Store{Data: u.Path("/var/lib/berth")}.Life(id)
	rig.Must(t, err)
	if life == nil {
		t.Fatalf("task %s has no life", id)
	}
	return *life
}

// monitor is the process that watches over a task, and the program that it runs.
func (u upgraded) monitor(t *testing.T, id string) (pid int, program []byte) {
	t.Helper()
	pid = u.life(t, id).Monitor.PID
	program, err := os.ReadFile(fmt.Sprintf("/proc/%d/exe", pid))
	rig.Must(t, err)
	return pid, program
}

// expectMonitorOf fails unless a task's monitor is that of a directory.
func (u upgraded) expectMonitorOf(t *testing.T, id, from string) {
	t.Helper()
	want, err := os.ReadFile(filepath.Join(from, "berth-monitor"))
	rig.Must(t, err)
	if _, got := u.monitor(t, id); !bytes.Equal(got, want) {
		t.Errorf("task %s isn't watched over by the monitor of %s", id, from)
	}
}

// namesIn lists the programs of a directory. Older versions had others.
func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	rig.Must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// upgrade puts the new programs in the place of the old ones, and removes those that there
// are no more.
func (u upgraded) upgrade(t *testing.T) {
	t.Helper()
	for _, name := range namesIn(t, u.dir) {
		if !slices.Contains(programs(), name) {
			rig.Must(t, os.Remove(filepath.Join(u.dir, name)))
		}
	}
	for _, name := range programs() {
		replaceProgram(t, shared.Dir, name, u.dir)
	}
}

// TestUpgrade: tasks live across an upgrade of berth, whatever version watches over them,
// and every verb of the new one works on them.
func TestUpgrade(t *testing.T) {
	old := buildOlder(t)
	everywhere(t, func(t *testing.T, s server) {
		u := install(t, s, old)

		// The task answers input and signals. The input has a process of its own, because "read -t" of busybox loses what it has read of a line when
		// its time is over. A read ends early while no monitor has the other end of the pipe.
		const line = `trap 'echo usr' USR1; trap 'echo asked; exit 7' TERM; exec 3<&0
while :; do if read x; then echo "heard $x"; else sleep 0.1; fi; done <&3 &
echo begun; while :; do sleep 1 & wait $!; done`
		begin := func(name string, flags ...string) string {
			id := u.detach(t, append(append([]string{"-i", "--gpus", "1", "--name", name}, flags...), rig.ImagePath(t, "busybox"), "sh", "-c", line)...)
			rig.WaitUntil(t, name+" has begun", func() bool { return strings.Contains(u.RunBerth(t, "logs", name).Out, "begun") })
			return id
		}
		kept, orphan, again := begin("kept"), begin("orphan"), begin("again", "--restart", "always")
		gang := u.detach(t, "-n", "2", "--gpus-per-rank", "1", "--network", "none", "--name", "gang", rig.ImagePath(t, "busybox"), "sleep", "1000")
		u.detach(t, "--name", "ended", rig.ImagePath(t, "busybox"), "sh", "-c", "echo over; exit 3")
		u.prints(t, "3\n", "wait", "ended")
		r := u.run(t, "--name", "front", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec sleep 1000"))
		before := u.Leases(t)
		u.upgrade(t)
		u.expectMonitorOf(t, kept, old)

		if got := u.Leases(t); len(got) != 4 || fmt.Sprint(got) != fmt.Sprint(before) {
			t.Errorf("the leases are %+v, before %+v", got, before)
		}
		all := func(name, id string) {
			t.Run(name, func(t *testing.T) { u.checkVerbs(t, name, id) })
		}
		all("kept", kept)

		pid, _ := u.monitor(t, orphan)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		rig.WaitUntil(t, "it is adopted", func() bool {
			u.RunBerth(t, "ps")
			return u.life(t, orphan).Monitor.PID != pid
		})
		u.expectMonitorOf(t, orphan, shared.Dir)
		all("orphan", orphan)

		// The old version's monitor begins the next life, and the new version ends it.
		first := u.life(t, again)
		rig.Must(t, unix.Kill(first.Init.PID, unix.SIGKILL))
		rig.WaitUntil(t, "it begins again", func() bool { return strings.Count(u.RunBerth(t, "logs", "again").Out, "begun") == 2 })
		u.expectMonitorOf(t, again, old)
		all("again", again)

		u.prints(t, "over\n", "logs", "ended")
		if state := u.inspect(t, "ended").Task.State; state.Status != "exited" {
			t.Errorf("ended is %+v", state)
		}
		u.prints(t, "ended\n", "rm", "ended")

		pid, _ = u.monitor(t, gang)
		rig.Must(t, unix.Kill(pid, unix.SIGKILL))
		rig.WaitUntil(t, "the gang is adopted", func() bool {
			u.RunBerth(t, "ps")
			return u.life(t, gang).Monitor.PID != pid
		})
		u.expectMonitorOf(t, gang, shared.Dir)
		u.prints(t, "2\n", "exec", "gang.rank-1", "sh", "-c", "ls /dev/nvidia? | wc -l")
		u.prints(t, "gang\n", "stop", "gang")
		u.prints(t, "gang\n", "rm", "gang")

		u.prints(t, "front\n", "stop", "front")
		if code := r.Wait(t); code != 137 {
			t.Errorf("front ended with %d", code)
		}
		if left := u.Leases(t); len(left) > 0 {
			t.Errorf("leases are left: %+v", left)
		}
	})
}

// checkVerbs has the new version do to a task what people do, to its end.
func (u upgraded) checkVerbs(t *testing.T, name, id string) {
	t.Helper()
	if got := u.RunBerth(t, "ps").Out; !strings.Contains(got, id) {
		t.Errorf("it isn't shown: %s", got)
	}
	if got := u.RunBerth(t, "exec", name, "sh", "-c", "ls /dev/nvidia? | wc -l"); got != (rig.Said{Out: "1\n"}) {
		t.Errorf("exec: %+v", got)
	}
	attach := u.Command(u.Berth, "attach", name)
	attach.Stdin = strings.NewReader("hello\n")
	var shown strings.Builder
	attach.Stdout = &shown
	rig.Must(t, attach.Start())
	follow := u.Command(u.Berth, "logs", "-f", name)
	var followed strings.Builder
	follow.Stdout = &followed
	rig.Must(t, follow.Start())
	rig.WaitUntil(t, "it has heard", func() bool { return strings.Contains(u.RunBerth(t, "logs", name).Out, "heard hello") })
	u.prints(t, name+"\n", "kill", "-s", "USR1", name)
	rig.WaitUntil(t, "it was signalled", func() bool { return strings.Contains(u.RunBerth(t, "logs", name).Out, "usr") })
	if u.inspect(t, name).Task.State.Status != "running" {
		t.Error("it doesn't run")
	}
	if got := u.RunBerth(t, "stats", "--no-stream", name); got.Code != 0 || !strings.Contains(got.Out, name) {
		t.Errorf("stats: %+v", got)
	}
	waited := make(chan rig.Said, 1)
	go func() { waited <- u.RunBerth(t, "wait", name) }()
	u.prints(t, name+"\n", "stop", name)
	if got := <-waited; got != (rig.Said{Out: "7\n"}) {
		t.Errorf("wait: %+v", got)
	}
	_ = attach.Wait() // its code says it
	if code := attach.ProcessState.ExitCode(); code != 7 || !strings.Contains(shown.String(), "heard hello\nusr\nasked\n") {
		t.Errorf("attach: code %d, %q", code, shown.String())
	}
	rig.Must(t, follow.Wait())
	const want = "begun\nheard hello\nusr\nasked\n"
	if got := u.RunBerth(t, "logs", name).Out; !strings.HasSuffix(got, want) || followed.String() != got {
		t.Errorf("its log is %q, followed %q; want %q", got, followed.String(), want)
	}
	u.prints(t, name+"\n", "rm", name)
}
