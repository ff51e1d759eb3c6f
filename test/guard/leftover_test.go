package guard

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// leftoverTest is a node on which a holder passes an open device to another process.
type leftoverTest struct {
	node
	dir     string // seen by all as dir
	busybox string
	berth   []string // the command, with its configuration
}

func startLeftover(t *testing.T) leftoverTest {
	t.Helper()
	l := leftoverTest{node: start(t)}
	var err error
	l.dir, err = os.MkdirTemp("", "berth-pass-")
	rig.Must(t, err)
	t.Cleanup(func() { rig.Must(t, os.RemoveAll(l.dir)) })
	rig.Must(t, os.Chmod(l.dir, 0o777))
	build := exec.Command("go", "build", "-o", filepath.Join(l.dir, "pass"), "./testdata/pass")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l.busybox, err = filepath.Abs("../../.cache/image/busybox")
	rig.Must(t, err)
	l.berth = []string{l.Berth}
	// The number of /dev/full, which can be opened: no driver is behind those of simulated GPUs.
	node := func(major, minor string) {
		l.Do(t, "rm", "/dev/nvidia0")
		l.Do(t, "mknod", "-m", "666", "/dev/nvidia0", "c", major, minor)
	}
	node("1", "7")
	t.Cleanup(func() { node("195", "0") })
	return l
}

// configured returns l with another configuration.
func (l leftoverTest) configured(t *testing.T, text string) leftoverTest {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	l.berth = []string{l.Berth, "--config", path}
	return l
}

// ask asks for GPU 0.
func (l leftoverTest) ask(t *testing.T) rig.Said {
	t.Helper()
	return l.Run(t, l.Command(l.berth[0], append(l.berth[1:], "alloc", "device=0", "--", "true")...))
}

func (l leftoverTest) socket() string { return filepath.Join(l.dir, "socket") }

// run returns the words that run pass in a container.
func (l leftoverTest) run(flags ...string) []string {
	words := append([]string{l.Berth, "run", "-v", l.dir + ":" + l.dir}, flags...)
	return append(words, l.busybox, filepath.Join(l.dir, "pass"))
}

// receive starts a process that receives the device of a holder that runs to its end meanwhile. end ends the process.
func (l leftoverTest) receive(t *testing.T, holder []string, words ...string) (end func()) {
	t.Helper()
	l.t = t
	_ = os.Remove(l.socket())
	cmd := l.Command(words[0], words[1:]...)
	in, err := cmd.StdinPipe()
	rig.Must(t, err)
	out, err := cmd.StdoutPipe()
	rig.Must(t, err)
	cmd.Stderr = os.Stderr
	rig.Must(t, cmd.Start())
	end = func() {
		_ = in.Close() // it ends with its input
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	l.Run(t, l.Command(holder[0], append(holder[1:], "send", l.socket(), "/dev/full")...)) // some are killed
	got := make([]byte, len("received\n"))
	if _, err := io.ReadFull(out, got); err != nil || string(got) != "received\n" {
		t.Fatalf("%q, %v", got, err)
	}
	return end
}

// refused checks that GPU 0 can't be leased because of a process with this name.
func (l leftoverTest) refused(t *testing.T) {
	t.Helper()
	if said := l.ask(t); said.Code != 75 || !strings.Contains(said.Err, "in use by pass (") {
		t.Errorf("code %d, %s; want 75 and the process that has the GPU open", said.Code, said.Err)
	}
}

// granted checks that GPU 0 can be leased.
func (l leftoverTest) granted(t *testing.T) {
	t.Helper()
	if said := l.ask(t); said.Code != 0 {
		t.Errorf("code %d, %s", said.Code, said.Err)
	}
}

// TestLeftover: a device that another process has got from its holder isn't leased before that process has
// ended, whether the end of the lease was noticed or not.
func TestLeftover(t *testing.T) {
	l := startLeftover(t)
	pass := filepath.Join(l.dir, "pass")
	foreground := l.run("--rm", "--gpus", "device=0")
	alloc := []string{l.Berth, "alloc", "device=0", "--", pass}
	for name, tt := range map[string]struct{ holder, receiver []string }{
		"container to container":       {foreground, append(l.run("-i", "--rm"), "receive", l.socket())},
		"container with another GPU":   {foreground, append(l.run("-i", "--rm", "--gpus", "device=3"), "receive", l.socket())},
		"container to a user's thread": {foreground, append(user, pass, "receive", l.socket(), "own")},
		"command to a user's threads":  {alloc, append(user, pass, "receive", l.socket(), "threads")},
		"command to a user":            {alloc, append(user, pass, "receive", l.socket())},
		"user to a namespace":          {append(append(alloc[:4:4], user...), pass), append(user, "unshare", "--user", "--map-root-user", "--pid", "--fork", pass, "receive", l.socket())},
	} {
		t.Run(name, func(t *testing.T) {
			end := l.receive(t, tt.holder, tt.receiver...)
			l.refused(t)
			l.Do(t, l.Berth, "discover", "--if-stale", "--processes") // NVML does not see it
			l.refused(t)
			l.Do(t, l.Berth, "alloc", "1", "--", "true") // another one is free
			end()
			l.granted(t)
		})
	}
	t.Run("detached", func(t *testing.T) {
		end := l.receive(t, l.run("-d", "--name", "passer", "--gpus", "device=0"), append(user, pass, "receive", l.socket())...)
		l.Do(t, l.Berth, "wait", "passer") // its monitor ends the lease
		defer l.Do(t, l.Berth, "rm", "passer")
		l.refused(t)
		end()
		l.granted(t)
	})
	t.Run("killed", func(t *testing.T) { // the next request finds the end of the lease
		killed := []string{l.Berth, "alloc", "device=0", "--", "sh", "-c", `"$0" "$@"; kill -9 $PPID`, pass}
		end := l.receive(t, killed, append(user, pass, "receive", l.socket())...)
		l.refused(t)
		end()
		l.granted(t)
	})
	t.Run("passed on again", func(t *testing.T) {
		end := l.receive(t, alloc, append(user, pass, "receive", l.socket(), "child")...)
		l.refused(t)
		end()
		if said := l.ask(t); said.Code != 75 || !strings.Contains(said.Err, "in use by sleep (") {
			t.Errorf("code %d, %s; want 75 and the process that has the GPU open now", said.Code, said.Err)
		}
		l.Do(t, "pkill", "-u", "4711", "-x", "sleep")
		l.granted(t)
	})
	t.Run("the host's root", func(t *testing.T) {
		l.receive(t, foreground, pass, "receive", l.socket())
		l.granted(t)
	})
	t.Run("an exempt cgroup", func(t *testing.T) {
		l := l.configured(t, "[guard]\nexempt = [\"/exempt-from-guard\"]\n")
		join := `mkdir -p /sys/fs/cgroup/exempt-from-guard && echo $$ >/sys/fs/cgroup/exempt-from-guard/cgroup.procs && exec "$0" "$@"`
		l.receive(t, alloc, append([]string{"sh", "-c", join}, append(user, pass, "receive", l.socket())...)...)
		l.granted(t)
	})
	t.Run("policy.leftover", func(t *testing.T) {
		l := l.configured(t, "[policy]\nleftover = \"end\"\n")
		l.receive(t, append(slices.Clone(l.berth), "alloc", "device=0", "--", pass), append(user, pass, "receive", l.socket())...)
		l.granted(t)
	})
	t.Run("without the device guard", func(t *testing.T) {
		l.Do(t, l.Berth, "guard", "off")
		end := l.receive(t, foreground, append(l.run("-i", "--rm"), "receive", l.socket())...)
		l.refused(t)
		end()
		l.receive(t, foreground, append(user, pass, "receive", l.socket())...) // it could open the GPU itself
		l.granted(t)
	})
}
