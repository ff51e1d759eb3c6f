package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// TestSIFProcesses: with --pid, --containall and --compat a command sees its own processes alone, in a /proc of their own, and ends as without.
func TestSIFProcesses(t *testing.T) {
	h, image := sifHome(t, nil)
	for _, tt := range []struct {
		what  string
		words []string
		want  rig.Said
	}{
		{"processes", []string{"--pid", image, "sh", "-c", "ps -o comm; :"}, rig.Said{Out: "COMMAND\n.berth-init\nsh\nps\n"}},
		{"first process", []string{"--pid", "--no-init", image, "sh", "-c", "echo $$; ps -o comm; :"}, rig.Said{Out: "1\nCOMMAND\nsh\nps\n"}},
		{
			"procfs",
			[]string{"--pid", image, "sh", "-c", "grep -c ' /proc proc rw,nosuid,nodev' /proc/mounts; [ $(readlink /proc/1/ns/pid) = $(readlink /proc/self/ns/pid) ] && echo own"},
			rig.Said{Out: "1\nown\n"},
		},
		{
			"all",
			[]string{"--containall", image, "sh", "-c", "ps -o comm; [ -w /tmp ] && echo ${D-unset}; umask"},
			rig.Said{Out: "COMMAND\n.berth-init\nsh\nps\nunset\n0027\n"},
		},
		{"compat", []string{"--compat", image, "sh", "-c", "echo $$ ${D-unset} $APPTAINER_NO_EVAL; umask; echo >/x"}, rig.Said{Out: "1 unset 1\n0022\n"}},
		{"root inside", []string{"--pid", "--fakeroot", image, "sh", "-c", "id -u; ps -o comm; :"}, rig.Said{Out: "0\nCOMMAND\n.berth-init\nsh\nps\n"}},
		{
			"all namespaces",
			[]string{"--pid", "--ipc", "--hostname", "other", "--net", "--network", "none", "--writable-tmpfs", image, "sh", "-c", "hostname; grep -c : /proc/net/dev; ifconfig lo | grep -c UP; ps -o comm; echo >/x"},
			rig.Said{Out: "other\n1\n1\nCOMMAND\n.berth-init\nsh\nps\n"},
		},
		{
			"orphans",
			[]string{"--pid", image, "sh", "-c", "sh -c 'exit 3 & exec sleep 0.1'; n=0; while grep -q -s '^State:.Z' /proc/[0-9]*/status && [ $n != 300 ]; do sleep 0.01; n=$((n + 1)); done; [ $n != 300 ] && echo reaped"},
			rig.Said{Out: "reaped\n"},
		},
		{"exit code", []string{"--pid", image, "sh", "-c", "exit 7"}, rig.Said{Code: 7}},
		{"exit code of the first process", []string{"--pid", "--no-init", image, "sh", "-c", "exit 7"}, rig.Said{Code: 7}},
		{"signal", []string{"--pid", image, "sh", "-c", "kill -9 $$"}, rig.Said{Code: 137}},
		{"no program", []string{"--pid", image, "nosuch"}, rig.Said{Code: 255, Err: "berth: nosuch: executable file not found in $PATH\n"}},
		{"another network", []string{"--net", image, "true"}, rig.Said{Code: 255, Err: "berth: --net: the only network of its own is none: --network none\n"}},
	} {
		words := append([]string{"sh", "-c", `umask 027; exec "$@"`, "sh", "env", "D=host"}, h.apptainer(append([]string{"exec"}, tt.words...)...)[1:]...)
		h.wantSaid(tt.what, h.run(alice, words...), tt.want)
	}
	for variable, want := range map[string]string{"APPTAINER_PID=1": ".berth-init\nsh\n", "SINGULARITY_CONTAINALL=1": ".berth-init\nsh\n", "APPTAINER_COMPAT=1": "sh\n", "APPTAINER_NETWORK=none": ""} {
		got := h.run(alice, append([]string{"env", variable}, h.apptainer("exec", image, "sh", "-c", "[ $(grep -c : /proc/net/dev) = 1 ] || ps -o comm; :")...)...)
		if want != "" {
			want = "COMMAND\n" + want + "ps\n"
		}
		h.wantSaid(variable, got, rig.Said{Out: want})
	}
	hidden := append([]string{
		"unshare", "--user", "--map-current-user", "--keep-caps", "--mount",
		"sh", "-c", `mount -t tmpfs none /run/simnode/procfs/irq && exec "$@"`, "sh",
	}, h.apptainer("exec", "--pid", image, "true")...)
	h.wantSaid("a hidden part of /proc", h.run(alice, hidden...),
		rig.Said{Code: 255, Err: "berth: --pid: this machine's /proc is hidden in part, as in a container, so that the kernel allows no other one\n"})
	fromPipe := append([]string{"sh", "-c", `echo A=piped | "$@"`, "sh"}, h.apptainer("exec", "--pid", "--env-file", "/dev/stdin", image, "sh", "-c", "echo $A")...)
	h.wantSaid("variables of a pipe", h.run(alice, fromPipe...), rig.Said{Out: "piped\n"})
	const one = openNodes + "; ps -o comm; :"
	for what, got := range map[string]rig.Said{
		"user":               h.run(alice, h.apptainer("exec", "--pid", "--nv", image, "sh", "-c", one)...),
		"user, in an alloc":  h.run(alice, h.words("alloc", "1", "--", h.Berth, "apptainer", "exec", "--pid", image, "sh", "-c", one)...),
		"root":               h.Run(t, h.Command(h.Berth, "apptainer", "exec", "--pid", "--nv", image, "sh", "-c", one)),
		"root, in an alloc":  h.Run(t, h.Command(h.Berth, "alloc", "1", "--", h.Berth, "apptainer", "exec", "-C", image, "sh", "-c", one)),
		"user, with request": h.run(alice, h.apptainer("exec", "--compat", "--gpus", "1", image, "sh", "-c", one)...),
	} {
		if number, processes, _ := strings.Cut(got.Out, "\n"); got.Code != 0 || len(number) != 1 || !strings.HasSuffix(processes, "sh\nps\n") || strings.Count(processes, "\n") > 4 {
			t.Errorf("%s: %+v", what, got)
		}
	}
	h.waitForLeases(0)
}

// waitForText waits until a file has a text, and empties it.
func waitForText(t *testing.T, name, text string) {
	t.Helper()
	rig.WaitUntil(t, name+" has "+text, func() bool {
		data, err := os.ReadFile(name)
		return err == nil && string(data) == text
	})
}

// TestSIFSignals: a signal to the launcher reaches the command in a PID namespace, and SIGKILL leaves no process and no lease.
func TestSIFSignals(t *testing.T) {
	h, image := sifHome(t, nil)
	said := filepath.Join(h.dir, "said")
	const script = "exec >said; trap 'echo INT' INT; trap 'echo TERM; exit 7' TERM; echo ready; while :; do sleep 0.01; done"
	for _, flag := range []string{"--ipc", "--no-init"} {
		launcher := h.start(alice, h.apptainer("exec", "--pid", "--nv", flag, "--pwd", h.dir, image, "sh", "-c", script)...)
		waitForText(t, said, "ready\n")
		rig.Must(t, launcher.Cmd.Process.Signal(unix.SIGINT))
		waitForText(t, said, "ready\nINT\n")
		rig.Must(t, launcher.Cmd.Process.Signal(unix.SIGTERM))
		if code := launcher.Wait(t); code != 7 {
			t.Errorf("%s: exit code %d", flag, code)
		}
		waitForText(t, said, "ready\nINT\nTERM\n")
		rig.Must(t, os.Remove(said))
	}
	h.waitForLeases(0)
	for i := range 30 { // whenever it comes
		launcher := h.start(alice, h.apptainer("exec", "--pid", image, "sleep", "1000")...)
		time.Sleep(time.Duration(i) * 5 * time.Millisecond)
		rig.Must(t, launcher.Cmd.Process.Signal(unix.SIGTERM))
		if code := launcher.Wait(t); code != 143 && code != -1 { // -1: before berth runs
			t.Errorf("SIGTERM after %d ms: exit code %d", i*5, code)
		}
	}
	sleep := fmt.Sprintf("sleep 1%07d", os.Getpid()) // of this test alone
	stubborn := "trap '' INT TERM HUP; setsid " + sleep + " & exec " + sleep
	for _, flag := range []string{"--ipc", "--no-init", "--fakeroot"} {
		launcher := h.start(alice, h.apptainer("exec", "--pid", "--nv", flag, image, "sh", "-c", stubborn)...)
		left := func(count int) func() bool {
			return func() bool {
				return len(strings.Fields(h.Do(t, "sh", "-c", "pgrep -f '^"+sleep+"' || true"))) == count
			}
		}
		rig.WaitUntil(t, "the command runs", left(2))
		rig.Must(t, launcher.Cmd.Process.Kill())
		rig.WaitUntil(t, flag+": no process is left", left(0))
		h.waitForLeases(0)
	}
}

// terminal is a user's shell in a terminal.
type terminal struct {
	h      home
	socket string
}

// openTerminal starts a shell, in which $berth and $image are set.
func (h home) openTerminal(image string) terminal {
	h.t.Helper()
	x := terminal{h, filepath.Join(h.dir, "tmux")}
	x.tmux("-f", "/dev/null", "new-session", "-d", "-x", "150", "-y", "50", "env", "HOME="+h.dir, "PS1=out> ", "berth="+h.Berth, "image="+image, "bash", "--norc", "--noprofile")
	h.t.Cleanup(func() { x.tmux("kill-server") })
	x.waitForText("out>")
	return x
}

func (x terminal) tmux(words ...string) string {
	x.h.t.Helper()
	words = as(alice, append([]string{"tmux", "-S", x.socket}, words...)...)
	return x.h.Do(x.h.t, words[0], words[1:]...)
}

// waitForText waits until the terminal shows a text.
func (x terminal) waitForText(text string) {
	x.h.t.Helper()
	seen := ""
	defer func() {
		if x.h.t.Failed() {
			x.h.t.Log(seen)
		}
	}()
	rig.WaitUntil(x.h.t, "the terminal shows "+text, func() bool {
		seen = x.tmux("capture-pane", "-p", "-J", "-S", "-")
		return strings.Contains(seen, text)
	})
}

func (x terminal) typeLine(line string) {
	x.h.t.Helper()
	x.tmux("send-keys", "-l", line)
	x.tmux("send-keys", "Enter")
}

// controlJob checks that a command is interrupted, stopped and continued by the terminal's keys, and gets each signal once. exec is the command line before
// a command.
func (x terminal) controlJob(exec string) {
	x.h.t.Helper()
	x.typeLine(`clear; ` + exec + ` sh -c 'n=0; trap "n=\$((n + 1))" INT; trap "echo go""t \$n; exit 9" QUIT; echo be""gun; while :; do sleep 0.01; done'`)
	x.waitForText("begun")
	x.tmux("send-keys", "C-z")
	x.waitForText("Stopped")
	x.typeLine("fg; echo code $? en''d")
	x.waitForText("fg;")
	x.tmux("send-keys", "C-c")
	x.tmux("send-keys", "C-\\")
	x.waitForText("got 1")
	x.waitForText("code 9 end")
}

// TestSIFTerminal: a shell's job with a PID namespace is interrupted, stopped and continued by the terminal's keys, and gets each signal once.
func TestSIFTerminal(t *testing.T) {
	h, image := sifHome(t, nil)
	x := h.openTerminal(image)
	for _, flag := range []string{"--pid", "--compat"} {
		x.controlJob("$berth apptainer exec " + flag + " $image")
	}
	x.typeLine("$berth apptainer exec --pid $image sh -c 'echo a''gain; exec sleep 1000'; echo code $? en''d")
	x.waitForText("again")
	x.tmux("send-keys", "C-c")
	x.waitForText("code 130 end")
	x.typeLine("$berth apptainer exec --pid $image sh -c 'sleep 0.5; echo b''ack' & echo fr''ont; wait; echo code $? wait''ed")
	x.waitForText("front")
	x.waitForText("back")
	x.waitForText("code 0 waited")
}
