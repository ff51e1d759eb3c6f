package tasks

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// Both ways to have a task: in the foreground of a process, and detached.
type way struct {
	name string
	// begin starts a task of that name with a shell's line that says when it runs.
	begin func(t *testing.T, s server, name, line string, flags ...string)
}

func startWays() []way {
	return []way{
		{"foreground", func(t *testing.T, s server, name, line string, flags ...string) {
			t.Helper()
			s.run(t, append(append([]string{"--name", name}, flags...), rig.ImagePath(t, "busybox"), "sh", "-c", announceReady(line))...)
		}},
		{"detached", func(t *testing.T, s server, name, line string, flags ...string) {
			t.Helper()
			s.detach(t, append(append([]string{"--name", name}, flags...), rig.ImagePath(t, "busybox"), "sh", "-c", line)...)
		}},
	}
}

// detach starts a detached task, which goes with the test, and returns its id.
func (s server) detach(t *testing.T, words ...string) string {
	t.Helper()
	id := strings.TrimSpace(s.Do(t, s.Berth, append([]string{"run", "-d", "--runtime", s.runtime}, words...)...))
	t.Cleanup(func() { s.RunBerth(t, "rm", "-f", id) })
	return id
}

func (s server) state(t *testing.T, name string) string {
	t.Helper()
	return s.inspect(t, name).Task.State.Status
}

func bothWays(t *testing.T, test func(*testing.T, server, way)) {
	t.Helper()
	everywhere(t, func(t *testing.T, s server) {
		for _, w := range startWays() {
			t.Run(w.name, func(t *testing.T) { test(t, s, w) })
		}
	})
}

// awaitTraps waits until the shell has made /tmp/set, behind its traps.
func (s server) awaitTraps(t *testing.T, name string) {
	t.Helper()
	rig.WaitUntil(t, name+" waits for signals", func() bool { return s.RunBerth(t, "exec", name, "cat", "/tmp/set").Code == 0 })
}

const asks = "echo > /tmp/set; while :; do sleep 0.01; done"

// TestStop: a task that heeds its signal ends by itself, one that doesn't is killed, and
// what had ended before is no error.
func TestStop(t *testing.T) {
	bothWays(t, func(t *testing.T, s server, w way) {
		w.begin(t, s, "polite", "trap 'exit 5' TERM; "+asks)
		w.begin(t, s, "own", "trap 'exit 6' USR1; trap '' TERM; "+asks, "--stop-signal", "USR1")
		w.begin(t, s, "deaf", "trap '' TERM; "+asks)
		w.begin(t, s, "dull", "exec sleep 1000") // the first process has no handler
		for _, name := range []string{"polite", "own", "deaf"} {
			s.awaitTraps(t, name)
		}
		got := make(chan rig.Said, 1)
		go func() { got <- s.RunBerth(t, "wait", "polite", "own", "deaf", "dull") }()
		rig.WaitUntil(t, "somebody waits", func() bool { return len(s.listCommands(t, "wait")) > 0 })
		s.prints(t, "polite\nown\npolite\n", "stop", "polite", "own", "polite")
		s.prints(t, "deaf\n", "stop", "-t", "0", "deaf")
		s.prints(t, "dull\n", "stop", "dull", "-t", "-1")
		if said := <-got; said != (rig.Said{Out: "5\n6\n137\n137\n"}) {
			t.Errorf("berth wait: %+v", said)
		}
		if w.name == "detached" {
			s.prints(t, "polite\n", "stop", "polite")
			s.prints(t, "5\n", "wait", "polite")
			if state := s.state(t, "polite"); state != "exited" {
				t.Error(state)
			}
		}
	})
}

// listCommands returns the processes of berth with that verb, by their command lines.
func (s server) listCommands(t *testing.T, verb string) []string {
	t.Helper()
	out := s.Run(t, s.Command("pgrep", "-a", "-f", "^"+s.Berth+" "+verb)).Out
	return slices.DeleteFunc(lines(out), func(l string) bool { return l == "" })
}

// TestSeveral: each task has its own error, and none keeps the others from being done.
func TestSeveral(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "crun")
	s.detach(t, "--name", "one", rig.ImagePath(t, "busybox"), "sleep", "1000")
	id := s.detach(t, "--name", "two", rig.ImagePath(t, "busybox"), "sleep", "1000")
	want := rig.Said{Code: 1, Out: "one\n" + id[:7] + "\n", Err: `berth: task "noe": there is no such task (did you mean one?); berth ps -a lists all` + "\n" +
		`berth: task "xyz": there is no such task; berth ps -a lists all` + "\n"}
	if got := s.RunBerth(t, "stop", "one", "noe", id[:7], "xyz"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := s.RunBerth(t, "rm", "one", "noe", "two"); got.Code != 1 || got.Out != "one\ntwo\n" || len(lines(got.Err)) != 1 {
		t.Errorf("%+v", got)
	}
	s.prints(t, "", "rm", "-f", "one", "xyz")
}

func TestKill(t *testing.T) {
	bothWays(t, func(t *testing.T, s server, w way) {
		w.begin(t, s, "told", "trap 'echo > /tmp/one' USR1; trap 'echo > /tmp/two' USR2; trap 'exit 4' HUP; "+asks)
		s.awaitTraps(t, "told")
		for _, signal := range []string{"USR1", "usr2", "SIGUSR1", "10"} {
			s.prints(t, "told\n", "kill", "-s", signal, "told")
		}
		rig.WaitUntil(t, "both signals have come", func() bool { return s.RunBerth(t, "exec", "told", "cat", "/tmp/one", "/tmp/two").Code == 0 })
		s.fails(t, 2, `signal "USR9" is not known (did you mean USR1?): names such as TERM or SIGINT and numbers are; berth kill --help shows the usage`, "kill", "-s", "USR9", "told")
		s.fails(t, 2, `there is no flag -9: berth kill -s 9 sends that signal; berth kill --help shows the usage`, "kill", "-9", "told")
		code := make(chan rig.Said, 1)
		go func() { code <- s.RunBerth(t, "wait", "told") }()
		rig.WaitUntil(t, "somebody waits", func() bool { return len(s.listCommands(t, "wait")) > 0 })
		s.prints(t, "told\n", "kill", "told", "--signal=HUP")
		if got := <-code; got != (rig.Said{Out: "4\n"}) {
			t.Errorf("berth wait: %+v", got)
		}
		if w.name == "detached" {
			s.fails(t, 1, "task told: it isn't running: exited (4)", "kill", "told")
		}
	})
}

// TestKillEndsRestarts: SIGKILL means the end, whatever --restart says.
func TestKillEndsRestarts(t *testing.T) {
	everywhere(t, func(t *testing.T, s server) {
		s.detach(t, "--name", "always", "--restart", "always", rig.ImagePath(t, "busybox"), "sleep", "1000")
		s.prints(t, "always\n", "kill", "always")
		s.prints(t, "137\n", "wait", "always")
		if seen := s.inspect(t, "always"); seen.Task.State.Status != "exited" || *seen.Task.State.Code != 137 {
			t.Errorf("%+v", seen.Task.State)
		}
	})
}

// TestStopWhileRestarting: a task that waits for its restart, and has no process, can be stopped.
func TestStopWhileRestarting(t *testing.T) {
	everywhere(t, func(t *testing.T, s server) {
		s.detach(t, "--name", "again", "--restart", "always", rig.ImagePath(t, "busybox"), "sh", "-c", "exit 3")
		rig.WaitUntil(t, "it is between two lives, the pause being long", func() bool {
			seen := s.inspect(t, "again")
			return seen.Task.State.Restarts > 2 && seen.Task.State.Status == "restarting"
		})
		s.prints(t, "again\n", "stop", "again")
		seen := s.inspect(t, "again").Task.State
		// Its code is that of the life before, unless the next had just begun.
		if seen.Status != "exited" || seen.Code == nil || *seen.Code == 0 {
			t.Errorf("%+v", seen)
		}
		s.prints(t, "again\n", "rm", "again")
	})
}

func TestRemove(t *testing.T) {
	bothWays(t, func(t *testing.T, s server, w way) {
		w.begin(t, s, "kept", "exec sleep 1000")
		said := s.RunBerth(t, "rm", "kept")
		if said.Code != 1 || said.Err != "berth: task kept: it still runs (running); berth stop ends it, or --force kills it\n" {
			t.Errorf("%+v", said)
		}
		dir := s.inspect(t, "kept").Task.Paths.Bundle
		s.prints(t, "kept\n", "rm", "kept", "-f")
		if _, err := s.Run(t, s.Command("ls", dir)), error(nil); err != nil {
			t.Error(err)
		}
		s.fails(t, 1, `task "kept": there is no such task; berth ps -a lists all`, "rm", "kept")
		if got := s.Run(t, s.Command("ls", dir)); got.Code == 0 {
			t.Errorf("left behind: %s", got.Out)
		}
	})
}

// TestRemoveWhileStarting: a task that is removed by force while other commands make, stop and
// remove it leaves nothing, and its GPU is free.
func TestRemoveWhileStarting(t *testing.T) {
	everywhere(t, func(t *testing.T, s server) {
		for range 5 {
			done := make(chan rig.Said, 1)
			go func() {
				done <- s.RunBerth(t, "run", "-d", "--gpus", "1", "--runtime", s.runtime, "--name", "brief", rig.ImagePath(t, "busybox"), "sleep", "1000")
			}()
			ends := make(chan rig.Said, 3)
			rig.WaitUntil(t, "it has a name", func() bool { return s.RunBerth(t, "ps", "-a", "-q", "--filter", "name=brief").Out != "" })
			for _, words := range [][]string{{"rm", "-f", "brief"}, {"stop", "brief"}, {"rm", "-f", "brief"}} {
				go func() { ends <- s.RunBerth(t, words...) }()
			}
			for range 3 {
				if got := <-ends; got.Err != "" && !strings.Contains(got.Err, "no such task") {
					t.Errorf("%+v", got)
				}
			}
			<-done // whether it had started or not
			s.RunBerth(t, "rm", "-f", "brief")
			s.prints(t, "", "ps", "-a", "-q", "--filter", "name=brief")
		}
		if left := s.Leases(t); len(left) > 0 {
			t.Errorf("leases are left: %+v", left)
		}
	})
}

// TestKilledMonitor: the verbs find a task whose monitor was killed as it was.
func TestKilledMonitor(t *testing.T) {
	everywhere(t, func(t *testing.T, s server) {
		for _, verb := range []string{"exec", "stop", "kill", "wait", "rm", "stats"} {
			s.detach(t, "--name", verb, "--gpus", "1", rig.ImagePath(t, "busybox"), "sh", "-c", "trap 'exit 5' TERM; "+asks)
			s.awaitTraps(t, verb)
			s.killMonitor(t, verb)
			switch verb {
			case "exec":
				s.prints(t, "x\n", "exec", verb, "echo", "x")
			case "stats":
				if got := s.RunBerth(t, "stats", "--no-stream", verb); got.Code != 0 || len(lines(got.Out)) != 2 {
					t.Errorf("%+v", got)
				}
			case "stop":
				s.prints(t, "stop\n", "stop", verb)
				s.prints(t, "5\n", "wait", verb)
			case "kill":
				s.prints(t, "kill\n", "kill", verb)
				s.prints(t, "137\n", "wait", verb)
			case "wait":
				got := make(chan rig.Said, 1)
				go func() { got <- s.RunBerth(t, "wait", verb) }()
				rig.WaitUntil(t, "somebody waits", func() bool { return len(s.listCommands(t, "wait")) > 0 })
				s.killMonitor(t, verb)
				s.prints(t, "wait\n", "stop", verb)
				if said := <-got; said != (rig.Said{Out: "5\n"}) {
					t.Errorf("berth wait: %+v", said)
				}
			}
			s.prints(t, verb+"\n", "rm", "-f", verb)
		}
		if left := s.Leases(t); len(left) > 0 {
			t.Errorf("leases are left: %+v", left)
		}
	})
}

func (s server) killMonitor(t *testing.T, name string) {
	t.Helper()
	pid := 0
	rig.WaitUntil(t, "it has a monitor", func() bool {
		var list []struct {
			Life struct{ Monitor struct{ PID int } }
		}
		rig.Decode(t, s.Do(t, s.Berth, "ps", "--json", "--filter", "name="+name), &list)
		if len(list) != 1 {
			t.Fatalf("%+v", list)
		}
		pid = list[0].Life.Monitor.PID
		return isRunning(pid)
	})
	rig.Must(t, syscall.Kill(pid, syscall.SIGKILL))
	rig.WaitUntil(t, "it is gone", func() bool { return !isRunning(pid) })
}

// isRunning is false of what has ended and is only not buried yet: of a process that was
// killed, the first thread can be a while before the others.
func isRunning(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	return err == nil && len(fields) > 17 && (!strings.ContainsAny(fields[0], "ZX") || fields[17] > "1")
}

func TestPs(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "crun")
	s.run(t, "--name", "fore", "--gpus", "2", "--label", "team=vision", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec sleep 1000"))
	id := s.detach(t, "--name", "back", "--gpus", "1", rig.ImagePath(t, "busybox"), "sleep", "1000")
	s.detach(t, "--name", "over", rig.ImagePath(t, "busybox"), "sh", "-c", "exit 3")
	s.prints(t, "3\n", "wait", "over")
	table := lines(s.Do(t, s.Berth, "ps"))
	if len(table) != 3 || !strings.HasPrefix(table[0], "ID            IMAGE") || !strings.HasSuffix(table[1], "  2     back") || !strings.HasSuffix(table[2], "  0,1   fore") || !strings.Contains(table[1], " ago   up ") {
		t.Errorf("berth ps:\n%s", strings.Join(table, "\n"))
	}
	all := lines(s.Do(t, s.Berth, "ps", "-a"))
	if len(all) != 4 || !strings.Contains(all[1], "exited (3) ") || !strings.HasSuffix(all[1], " -     over") {
		t.Errorf("berth ps -a:\n%s", strings.Join(all, "\n"))
	}
	s.prints(t, id+"\n", "ps", "-q", "--filter", "name=back")
	s.prints(t, id+"\n", "ps", "-qf", "gpu=2")
	for want, words := range map[string][]string{
		"over":      {"-l"},
		"over back": {"-n", "2"},
		"back fore": {},
		"fore":      {"-f", "label=team", "-f", "status=running", "-f", "status=exited"},
	} {
		var list []struct{ Name string }
		rig.Decode(t, s.Do(t, s.Berth, append([]string{"ps", "--json"}, words...)...), &list)
		var names []string
		for _, l := range list {
			names = append(names, l.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("berth ps %q shows %q, want %q", words, got, want)
		}
	}
	s.prints(t, "", "ps", "-aq", "--filter", "label=team=audio")
	s.fails(t, 2, `there is no filter "nmae" (did you mean name?): id, name, image, label, status, exited, gpu are known; berth ps --help shows the usage`, "ps", "-f", "nmae=x")
	s.fails(t, 2, `ps takes no argument, got "train"; berth ps --help shows the usage`, "ps", "train")
}

func TestStats(t *testing.T) {
	everywhere(t, func(t *testing.T, s server) {
		flags, limit := []string{"--memory", "512m", "--pids-limit", "100"}, uint64(512<<20)
		if s.Run(t, s.Command("test", "-d", "/sys/fs/cgroup/memory")).Code != 0 {
			flags, limit = nil, 0 // the machine's version 2 may have few controllers
		}
		s.run(t, append(flags, "--name", "busy", "--gpus", "2", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec dd if=/dev/zero of=/dev/null"))...)
		var all []struct {
			Name        string
			CPU         float64 `json:"cpu_percent"`
			Memory      uint64
			MemoryLimit uint64 `json:"memory_limit"`
			PIDs        uint64
			PIDLimit    uint64 `json:"pids_limit"`
			Devices     []struct {
				UUID   string
				Total  uint64
				Memory uint64
				Busy   *int
				Error  string
			}
		}
		rig.Decode(t, s.Do(t, s.Berth, "stats", "--no-stream", "--json", "busy"), &all)
		if len(all) != 1 {
			t.Fatalf("%+v", all)
		}
		got := all[0]
		if got.Name != "busy" || got.CPU <= 0 || limit > 0 && (got.Memory == 0 || got.MemoryLimit != limit || got.PIDs != 1 || got.PIDLimit != 100) {
			t.Errorf("%+v", got)
		}
		for _, d := range got.Devices {
			if !strings.HasPrefix(d.UUID, "GPU-") || d.Total == 0 || d.Busy == nil || d.Error != "" {
				t.Errorf("%+v", d)
			}
		}
		if len(got.Devices) != 2 {
			t.Errorf("%+v", got.Devices)
		}
		table := lines(s.Do(t, s.Berth, "stats", "--no-stream"))
		if len(table) != 2 || !strings.HasPrefix(table[0], "ID            NAME  CPU %  MEMORY") {
			t.Errorf("%q", table)
		}
		s.fails(t, 1, `task "bsuy": there is no such task (did you mean busy?); berth ps -a lists all`, "stats", "--no-stream", "bsuy")
	})
}

// TestStatsInATerminal: the table is drawn anew each second, until ^C.
func TestStatsInATerminal(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "crun")
	s.detach(t, "--name", "watched", rig.ImagePath(t, "busybox"), "sleep", "1000")
	tty := newTerminal(t, 33, 200)
	cmd := s.Command(s.Berth, "stats")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty.slave, tty.slave, tty.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	rig.Must(t, cmd.Start())
	var said strings.Builder
	for range 2 {
		said.Reset()
		tty.awaitText(t, &said, "watched")
		if !strings.Contains(said.String(), "\x1b[H\x1b[J") {
			t.Errorf("%q", said.String())
		}
	}
	tty.typeText(t, "\x03")
	_ = cmd.Wait() // the code says it
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d", code)
	}
}

// TestTasksOfRoot: records hold environments, and a user sees none of root's.
func TestTasksOfRoot(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "crun")
	id := s.detach(t, rig.ImagePath(t, "busybox"), "sleep", "1000")
	home := t.TempDir()
	rig.Must(t, os.Chmod(filepath.Dir(home), 0o755))
	rig.Must(t, os.Chmod(filepath.Dir(s.Berth), 0o755)) // the user runs it too
	rig.Must(t, os.Chown(home, 1000, 1000))
	user := []string{"--reuid", "1000", "--clear-groups", "env", "HOME=" + home, s.Berth}
	for _, words := range [][]string{{"stop", id}, {"kill", id}, {"exec", id, "ls"}, {"inspect", id}, {"stats", id}, {"logs", id}, {"attach", id}, {"rm", "-f", id}} {
		got := s.Run(t, s.Command("setpriv", slices.Concat(user, words)...))
		if missing := strings.Contains(got.Err, "there is no such task"); got.Code == 0 && words[0] != "rm" || words[0] != "rm" && !missing || strings.Contains(got.Out, "sleep") {
			t.Errorf("berth %q: %+v", words, got)
		}
	}
	if got := s.Run(t, s.Command("setpriv", slices.Concat(user, []string{"ps", "-aq"})...)); got != (rig.Said{}) {
		t.Errorf("berth ps: %+v", got)
	}
	if got := s.RunBerth(t, "ps", "-q", "--no-trunc"); got.Out != id+"\n" {
		t.Errorf("root's task is gone: %+v", got)
	}
}
