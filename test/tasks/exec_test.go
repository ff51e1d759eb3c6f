package tasks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/rig"
)

func TestExec(t *testing.T) {
	everywhere(t, func(t *testing.T, s server) {
		s.run(t, "--name", "train", "-e", "OWN=1", "-w", "/tmp", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec sleep 1000"))
		file := filepath.Join(t.TempDir(), "env")
		rig.Must(t, os.WriteFile(file, []byte("# of a file\nFROM_FILE=x y\nBOTH=file\n"), 0o600))
		for _, c := range []struct {
			name  string
			words []string
			want  rig.Said
		}{
			{"output", []string{"train", "sh", "-c", "echo out; echo err >&2"}, rig.Said{Out: "out\n", Err: "err\n"}},
			{"exit code", []string{"train", "sh", "-c", "exit 7"}, rig.Said{Code: 7}},
			{"a signal", []string{"train", "sh", "-c", "kill -9 $$"}, rig.Said{Code: 137}},
			{"behind --", []string{"train", "--", "echo", "x"}, rig.Said{Out: "x\n"}},
			{"the command's flags are its own", []string{"train", "echo", "-e", "-d"}, rig.Said{Out: "-d\n"}},
			{"the task's environment and directory", []string{"train", "sh", "-c", "echo $OWN $PWD"}, rig.Said{Out: "1 /tmp\n"}},
			{"another", []string{"-w", "/bin", "-e", "OWN=2", "-e", "MORE=3", "train", "sh", "-c", "echo $OWN $MORE $PWD"}, rig.Said{Out: "2 3 /bin\n"}},
			{"environment of a file", []string{"--env-file", file, "-e", "BOTH=flag", "train", "sh", "-c", "echo $FROM_FILE $BOTH"}, rig.Said{Out: "x y flag\n"}},
			{"a user", []string{"-u", "1000:2000", "train", "id"}, rig.Said{Out: "uid=1000(user) gid=2000 groups=2000\n"}},
			{"no input", []string{"train", "cat"}, rig.Said{}},
			{"no such command", []string{"train", "nosuch"}, rig.Said{Code: 127, Err: "berth: task train: command not found: \"nosuch\" is nowhere in PATH (/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)\n"}},
			{"a directory", []string{"train", "/bin"}, rig.Said{Code: 126, Err: "berth: task train: command can't be executed: /bin is a directory\n"}},
			{"no such user", []string{"-u", "nobodyatall", "train", "id"}, rig.Said{Code: 125, Err: "berth: task train: user \"nobodyatall\": not in the image's /etc/passwd\n"}},
			{"no such directory", []string{"-w", "/nosuch", "train", "id"}, rig.Said{Code: 125, Err: "berth: task train: working directory /nosuch isn't in the container\n"}},
			{"a relative directory", []string{"-w", "bin", "train", "id"}, rig.Said{Code: 125, Err: "berth: task train: working directory \"bin\" is not an absolute path\n"}},
			{"a terminal at which nobody sits", []string{"-t", "train", "sh", "-c", "printf %s $(tty); exit 3"}, rig.Said{Code: 3, Out: "/dev/pts/0"}},
			{"a terminal without one", []string{"-it", "train", "sh"}, rig.Said{Code: 125, Err: "berth: task train: standard input is no terminal: leave out -t (--tty) to pass it on as it is, or -i (--interactive)\n"}},
			{"more than the task", []string{"--privileged", "train", "sh"}, rig.Said{Code: 125, Err: "berth: --privileged: a command gets no more than its task, or it could open GPUs of other tasks; commands that need more can run on the host; berth exec --help shows the usage\n"}},
			{"no command", []string{"train"}, rig.Said{Code: 125, Err: "berth: exec takes a task and a command: berth exec -it TASK bash; berth exec --help shows the usage\n"}},
			{"a wrong name", []string{"trian", "sh"}, rig.Said{Code: 125, Err: "berth: task \"trian\": there is no such task (did you mean train?); berth ps -a lists all\n"}},
			{"a wrong flag", []string{"--interactiv", "train", "sh"}, rig.Said{Code: 125, Err: "berth: there is no flag --interactiv (did you mean --interactive?); berth exec --help shows the usage\n"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				if got := s.RunBerth(t, append([]string{"exec"}, c.words...)...); got != c.want {
					t.Errorf("%+v, want %+v", got, c.want)
				}
			})
		}
		t.Run("input", func(t *testing.T) {
			cmd := s.Command(s.Berth, "exec", "-i", "train", "cat")
			cmd.Stdin = strings.NewReader(strings.Repeat("all of it\n", 100000))
			if got := s.Run(t, cmd); got.Code != 0 || len(got.Out) != 1000000 {
				t.Errorf("exit code %d, %d bytes: %s", got.Code, len(got.Out), got.Err)
			}
		})
		t.Run("detached, with a terminal", func(t *testing.T) {
			const script = "tty >/tmp/tty; while ! test -e /tmp/seen; do sleep 0.01; done; echo none reads it; echo $? >/tmp/end"
			if got := s.RunBerth(t, "exec", "-d", "-t", "train", "sh", "-c", script); got != (rig.Said{}) {
				t.Errorf("%+v", got)
			}
			s.until(t, "/dev/pts/0\n", "cat", "/tmp/tty")
			if got := s.RunBerth(t, "exec", "train", "touch", "/tmp/seen"); got.Code != 0 {
				t.Errorf("%+v", got)
			}
			s.until(t, "0\n", "cat", "/tmp/end")
			if got := s.RunBerth(t, "exec", "-dt", "train", "nosuch"); got.Code != 127 {
				t.Errorf("%+v", got)
			}
		})
		t.Run("detached", func(t *testing.T) {
			s.prints(t, "", "exec", "-d", "train", "sh", "-c", "echo x > /tmp/made")
			rig.WaitUntil(t, "it has been made", func() bool { return s.RunBerth(t, "exec", "train", "cat", "/tmp/made").Out == "x\n" })
		})
		s.leavesNothing(t)
	})
}

// leavesNothing: what a command needed goes with it.
func (s server) leavesNothing(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(s.Path("/run/berth/exec"))
	rig.Must(t, err)
	if len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestExecHasTheSameDeviceRules: a command can open the GPUs of its task and no others, as any user,
// and has no capability that its task doesn't have.
func TestExecHasTheSameDeviceRules(t *testing.T) {
	everywhere(t, func(t *testing.T, s server) {
		s.run(t, "--name", "walled", "--gpus", "2", "-u", "1000", "-v", "/dev:/host/dev", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec sleep 1000"))
		var leased []string
		for _, d := range s.Leases(t)[0].Devices {
			leased = append(leased, d.UUID)
		}
		const try = `for n in 0 1 2 3 4 5 6 7; do cat /host/dev/nvidia$n; done 2>&1; cat /proc/self/status`
		for _, user := range []string{"0", "1000"} {
			got := s.RunBerth(t, "exec", "-u", user, "walled", "sh", "-c", try)
			if open, closed := strings.Count(got.Out, "No such device or address"), strings.Count(got.Out, "Operation not permitted"); open != 2 || closed != 6 || len(leased) != 2 {
				t.Errorf("user %s: %d GPUs could be opened, %d not: %+v", user, open, closed, got)
			}
			init := s.RunBerth(t, "exec", "-u", user, "walled", "cat", "/proc/1/status").Out
			for _, name := range []string{"CapBnd", "NoNewPrivs", "Seccomp"} {
				if own, its := statusField(got.Out, name), statusField(init, name); own != its || own == "" {
					t.Errorf("user %s: %s is %s, and %s of the task's first process", user, name, own, its)
				}
			}
			if caps := statusField(got.Out, "CapEff"); user == "1000" && caps != "0000000000000000" || user == "0" && caps != statusField(got.Out, "CapBnd") {
				t.Errorf("user %s has the capabilities %s", user, caps)
			}
		}
	})
}

func statusField(status, name string) string {
	for _, line := range lines(status) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// TestExecWithPtrace: no command is started in a task with CAP_SYS_PTRACE, which could trace the OCI runtime.
func TestExecWithPtrace(t *testing.T) {
	everywhere(t, func(t *testing.T, s server) {
		for i, flags := range [][]string{{"--cap-add", "SYS_PTRACE"}, {"--cap-add", "sys_ptrace"}, {"--cap-add", "ALL"}, {"--privileged"}} {
			name := fmt.Sprint("ptrace-", i)
			s.detach(t, append(append([]string{"--name", name}, flags...), rig.ImagePath(t, "busybox"), "sleep", "1000")...)
			s.fails(t, 125, "task "+name+": a task with CAP_SYS_PTRACE could trace the OCI runtime when it joins the container, and get root on the host; "+
				"run the command as part of the task, or start the task without CAP_SYS_PTRACE, which --privileged and --cap-add ALL include", "exec", name, "true")
		}
		s.detach(t, "--name", "none", "--cap-add", "ALL", "--cap-drop", "SYS_PTRACE", rig.ImagePath(t, "busybox"), "sleep", "1000")
		s.Do(t, s.Berth, "exec", "none", "true")
	})
}

// TestExecWithoutFirstThread: a task whose first thread has ended runs, and no OCI runtime can execute a command in it:
// the kernel has no namespaces and no root for the process any more.
func TestExecWithoutFirstThread(t *testing.T) {
	program, err := shared.Compile("first_thread_ends", "testdata/first_thread_ends.c", "-static", "-pthread")
	rig.Must(t, err)
	everywhere(t, func(t *testing.T, s server) {
		s.detach(t, "--name", "threads", "-v", program+":/threads", rig.ImagePath(t, "busybox"), "/threads")
		pid := strings.TrimSpace(s.Do(t, s.Berth, "inspect", "--format", "{{.State.Pid}}", "threads"))
		rig.WaitUntil(t, "the first thread has ended", func() bool {
			_, err := os.Readlink("/proc/" + pid + "/root")
			return err != nil
		})
		if list := s.RunBerth(t, "ps", "--filter", "name=threads"); !strings.Contains(list.Out, " up ") {
			t.Errorf("%+v", list)
		}
		s.fails(t, 125, "task threads: it runs, but the first thread of its first process has ended; the kernel lets no command into such a container",
			"exec", "threads", "true")
		s.prints(t, "threads\n", "stop", "threads")
	})
}

// TestExecPassesSignalsOn: what asks berth exec to end asks the command.
func TestExecPassesSignalsOn(t *testing.T) {
	everywhere(t, func(t *testing.T, s server) {
		s.run(t, "--name", "signalled", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec sleep 1000"))
		cmd := s.Command(s.Berth, "exec", "signalled", "sh", "-c", `trap 'echo ended; exit 9' TERM; echo > /tmp/trapped; while :; do sleep 0.01; done`)
		done := make(chan rig.Said, 1)
		go func() { done <- s.Run(t, cmd) }()
		rig.WaitUntil(t, "the command waits for signals", func() bool { return s.RunBerth(t, "exec", "signalled", "cat", "/tmp/trapped").Code == 0 })
		rig.Must(t, cmd.Process.Signal(unix.SIGTERM))
		if got := <-done; got != (rig.Said{Code: 9, Out: "ended\n"}) {
			t.Errorf("%+v", got)
		}
	})
}

// TestExecIsTraced checks that a command whose tracer suppresses its signals is killed by the second SIGTERM or
// SIGINT.
func TestExecIsTraced(t *testing.T) {
	program, err := shared.Compile("traced", "testdata/traced.c", "-static")
	rig.Must(t, err)
	everywhere(t, func(t *testing.T, s server) {
		s.run(t, "--name", "tracer", "-v", program+":/traced", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec sleep 1000"))
		cmd := s.Command(s.Berth, "exec", "tracer", "/traced")
		p, out := rig.StartReading(t, cmd)
		if line, err := out.ReadString('\n'); line != "traced\n" {
			t.Fatalf("%q, %v", line, err)
		}
		rig.Must(t, cmd.Process.Signal(unix.SIGTERM))
		rig.Must(t, cmd.Process.Signal(unix.SIGINT))
		if code := p.Wait(t); code != 137 {
			t.Errorf("exit code %d", code)
		}
	})
}

// TestExecIsFrozen: the command is in a frozen cgroup, where version 1 lets no process end; the second signal that asks it
// to end ends berth exec.
func TestExecIsFrozen(t *testing.T) {
	for _, on := range testutil.Pairs(t) {
		t.Run(on.Runtime+" "+on.Cgroup, func(t *testing.T) {
			s := startServer(t, "dgx-h100", on.Cgroup, on.Runtime)
			mount, freeze, state, frozen := "-t cgroup -o freezer", "echo FROZEN >/c/below/freezer.state", "/c/below/freezer.state", "FROZEN"
			if on.Cgroup == "v2" {
				mount, freeze, state, frozen = "-t cgroup2", "echo 1 >/c/below/cgroup.freeze", "/c/below/cgroup.events", "frozen 1"
			}
			r := s.run(t, "--name", "freezer", "--cap-add", "SYS_ADMIN", rig.ImagePath(t, "busybox"), "sh", "-c",
				"mkdir /c && mount "+mount+" none /c && mkdir /c/below && "+announceReady("exec sleep 1000"))
			cmd := s.Command(s.Berth, "exec", "freezer", "sh", "-c", "exec 2>/dev/null; echo $$ >/c/below/cgroup.procs; echo joined; "+freeze+"; exec sleep 1000")
			p, out := rig.StartReading(t, cmd)
			if line, err := out.ReadString('\n'); line != "joined\n" {
				t.Fatalf("%q, %v", line, err)
			}
			rig.WaitUntil(t, "the command is frozen", func() bool { return strings.Contains(s.RunBerth(t, "exec", "freezer", "cat", state).Out, frozen) })
			rig.Must(t, cmd.Process.Signal(unix.SIGTERM))
			if err := cmd.Process.Signal(unix.SIGINT); !errors.Is(err, os.ErrProcessDone) { // on version 2 the first one ends the command
				rig.Must(t, err)
			}
			// berth may get the two in either order, and the last one when the command has ended and it no longer catches signals.
			if code := p.Wait(t); code != 130 && code != 143 && code != -1 {
				t.Errorf("exit code %d", code)
			}
			s.prints(t, "freezer\n", "stop", "-t", "0", "freezer")
			r.Wait(t)
			s.leavesNothing(t)
		})
	}
}

// TestExecEndsWithTheTask: and what it was told is no error of berth's.
func TestExecEndsWithTheTask(t *testing.T) {
	everywhere(t, func(t *testing.T, s server) {
		r := s.run(t, "--name", "short", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec sleep 1000"))
		cmd := s.Command(s.Berth, "exec", "short", "sh", "-c", "echo > /tmp/there; exec sleep 1000")
		done := make(chan rig.Said, 1)
		go func() { done <- s.Run(t, cmd) }()
		rig.WaitUntil(t, "the command runs", func() bool { return s.RunBerth(t, "exec", "short", "cat", "/tmp/there").Code == 0 })
		s.prints(t, "short\n", "kill", "short")
		if got := <-done; got.Code != 137 || got.Err != "" {
			t.Errorf("%+v", got)
		}
		if code := r.Wait(t); code != 137 {
			t.Errorf("the task ended with %d", code)
		}
		s.fails(t, 125, `task "short": there is no such task; berth ps -a lists all`, "exec", "short", "true")
		s.leavesNothing(t)
	})
}

// TestExecThatIsKilled leaves what the next one removes.
func TestExecThatIsKilled(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "crun")
	s.run(t, "--name", "killed", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec sleep 1000"))
	cmd := s.Command(s.Berth, "exec", "killed", "sh", "-c", "echo > /tmp/there; exec sleep 1000")
	rig.Must(t, cmd.Start())
	rig.WaitUntil(t, "the command runs", func() bool { return s.RunBerth(t, "exec", "killed", "cat", "/tmp/there").Code == 0 })
	rig.Must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	s.prints(t, "", "exec", "killed", "true")
	s.leavesNothing(t)
}

// terminal is a pseudo-terminal: what a person has (master) and what a program has.
type terminal struct{ master, slave *os.File }

func newTerminal(t *testing.T, rows, columns uint16) terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	rig.Must(t, err)
	t.Cleanup(func() { master.Close() })
	rig.Must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	rig.Must(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	rig.Must(t, err)
	t.Cleanup(func() { slave.Close() })
	tty := terminal{master, slave}
	tty.resize(t, rows, columns)
	return tty
}

func (tty terminal) resize(t *testing.T, rows, columns uint16) {
	t.Helper()
	rig.Must(t, unix.IoctlSetWinsize(int(tty.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}))
}

// awaitText waits until one of the texts has come out.
func (tty terminal) awaitText(t *testing.T, all *strings.Builder, texts ...string) {
	t.Helper()
	buf := make([]byte, 4096)
	for !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(all.String(), text) }) {
		n, err := tty.master.Read(buf)
		if err != nil {
			t.Fatalf("%q doesn't come: %v: %q", texts, err, all.String())
		}
		all.Write(buf[:n])
	}
}

func (tty terminal) typeText(t *testing.T, text string) {
	t.Helper()
	_, err := tty.master.WriteString(text)
	rig.Must(t, err)
}

// TestExecInATerminal: a shell in a task has a terminal of its own, as large as that
// outside, also when that changes; ^C ends what runs in it, and neither the shell,
// nor berth exec, nor the task.
func TestExecInATerminal(t *testing.T) {
	everywhere(t, func(t *testing.T, s server) {
		r := s.run(t, "--name", "shell", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec sleep 1000"))
		tty := newTerminal(t, 33, 77)
		before, err := unix.IoctlGetTermios(int(tty.slave.Fd()), unix.TCGETS)
		rig.Must(t, err)
		cmd := s.Command(s.Berth, "exec", "-it", "shell", "sh")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty.slave, tty.slave, tty.slave
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
		rig.Must(t, cmd.Start())
		var said strings.Builder
		tty.typeText(t, "stty size; tty; echo $TERM; echo fir''st\n")
		tty.awaitText(t, &said, "first")
		for _, want := range []string{"33 77", "/dev/pts/0", "xterm"} {
			if !strings.Contains(said.String(), want) {
				t.Errorf("%q is missing in %q", want, said.String())
			}
		}
		tty.resize(t, 44, 99)
		tty.typeText(t, "while test \"$(stty size)\" != '44 99'; do :; done; echo gro''wn\n")
		tty.awaitText(t, &said, "grown")
		// One process prints it and then sleeps: ^C between two commands of the shell would reach neither.
		tty.typeText(t, "sh -c 'echo slee\"\"ping; exec sleep 1000'\n")
		tty.awaitText(t, &said, "sleeping")
		tty.typeText(t, "\x03echo inter''rupted $?\n")
		tty.awaitText(t, &said, "interrupted 130")
		tty.typeText(t, "exit 5\n")
		_ = cmd.Wait() // the code says it
		if code := cmd.ProcessState.ExitCode(); code != 5 || r.HasEnded() {
			t.Errorf("berth exec ended with %d, and the task has ended: %v", code, r.HasEnded())
		}
		after, err := unix.IoctlGetTermios(int(tty.slave.Fd()), unix.TCGETS)
		rig.Must(t, err)
		if *before != *after {
			t.Errorf("the terminal is left as %+v, and was %+v", after, before)
		}
	})
}

// until waits for a command in the task to print something.
func (s server) until(t *testing.T, want string, words ...string) {
	t.Helper()
	var got rig.Said
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if got = s.RunBerth(t, append([]string{"exec", "train"}, words...)...); got.Out == want {
			return
		}
	}
	t.Fatalf("%v prints %+v, want %q", words, got, want)
}
