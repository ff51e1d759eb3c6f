package devicerules

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// container is a container that runs the probe, which waits for commands.
type container struct {
	t      *testing.T
	w      *world
	id     string
	env    []string // environment of the programs that act on it
	global []string // the runtime's global flags
	bundle string
	// written identifies config.json as the engine wrote it.
	written string
	// launched by berth run, in whose root no node of the image can be opened, because it is
	// mounted with nodev unless the runtime changes that
	launched bool
	tries    int // how often the probe has made nodes

	commands *os.File
	answers  *bufio.Scanner
}

var counter atomic.Int32

func newContainer(t *testing.T, w *world, config string) *container {
	id := fmt.Sprintf("rules-%d-%d", os.Getpid(), counter.Add(1))
	return &container{t: t, w: w, id: id, env: append(os.Environ(), "BERTH_CONFIG="+config)}
}

// root makes a root file system with the probe, and with a node of each accelerator, as in a
// hostile image.
func (w *world) root(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "rootfs")
	for _, dir := range []string{"bin", "proc", "sys", "dev", "tmp", "nodes", "host/dev", "stolen"} {
		rig.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	rig.Must(t, os.Link(probe, filepath.Join(root, "probe")))
	for _, d := range w.devices {
		mknod(t, filepath.Join(root, "nodes", d.number()), d)
	}
	return root
}

func mknod(t *testing.T, path string, d device) {
	t.Helper()
	rig.Must(t, unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))))
	rig.Must(t, unix.Chmod(path, 0o666))
}

// pipes gives a command the container's standard input and output.
func (c *container) pipes(cmd *exec.Cmd) (done func()) {
	c.t.Helper()
	in, commands, err := os.Pipe()
	rig.Must(c.t, err)
	answers, out, err := os.Pipe()
	rig.Must(c.t, err)
	cmd.Stdin, cmd.Stdout, cmd.Env = in, out, c.env
	c.commands, c.answers = commands, bufio.NewScanner(answers)
	c.t.Cleanup(func() { commands.Close(); answers.Close() })
	return func() { in.Close(); out.Close() }
}

// create makes and starts a container of the spec by the wrapper, as engines do.
func create(t *testing.T, w *world, config string, spec *specs.Spec) *container {
	t.Helper()
	c := newContainer(t, w, config)
	c.bundle = t.TempDir()
	spec.Linux.CgroupsPath = "/" + c.id
	data, err := json.MarshalIndent(spec, "", "\t")
	rig.Must(t, err)
	rig.Must(t, os.WriteFile(c.config(), data, 0o600))
	c.written = c.identifyConfig()
	c.global = []string{"--root", filepath.Join(c.bundle, "state")}
	t.Cleanup(func() { _ = c.act("delete", "--force", c.id) })
	cmd := w.Command(w.Runtime, append(c.global, "create", "--bundle", c.bundle, "--pid-file", c.bundle+"/pid", c.id)...)
	done := c.pipes(cmd)
	said := w.Run(t, cmd)
	done()
	if said.Code != 0 {
		t.Fatalf("create: exit code %d: %s", said.Code, said.Err)
	}
	c.must("start", c.id)
	return c
}

func (c *container) config() string { return filepath.Join(c.bundle, "config.json") }

// run runs a container of the root by the launcher.
func run(t *testing.T, w *world, root, request string, flags ...string) *container {
	t.Helper()
	c := newContainer(t, w, w.configure(t, ""))
	c.launched = true
	args := append([]string{"run", "--interactive", "--network", "none", "--name", c.id, "--gpus", request}, flags...)
	cmd := w.Command(w.Berth, append(args, root, "/probe")...)
	done := c.pipes(cmd)
	var said strings.Builder
	cmd.Stderr = &said
	rig.Must(t, cmd.Start())
	done()
	ended := false
	end := func() error {
		if ended {
			return nil
		}
		ended = true
		return errors.Join(c.commands.Close(), cmd.Wait())
	}
	t.Cleanup(func() { _ = end() })
	if got := c.ask("end"); !slices.Equal(got, []string{"end"}) {
		t.Fatalf("berth run: %v: %s", errors.Join(end(), c.answers.Err()), said.String())
	}
	l := c.lease()
	c.global, c.id = []string{"--root", l.Owner.RuntimeRoot}, l.Owner.Container
	return c
}

// act calls the wrapper for the container.
func (c *container) act(words ...string) rig.Said {
	cmd := c.w.Command(c.w.Runtime, append(slices.Clone(c.global), words...)...)
	cmd.Env = c.env
	return c.w.Run(c.t, cmd)
}

func (c *container) must(words ...string) {
	c.t.Helper()
	if said := c.act(words...); said.Code != 0 {
		c.t.Fatalf("%v: exit code %d: %s%s", words, said.Code, said.Out, said.Err)
	}
}

// lease returns the container's lease, the zero Lease if it has none.
func (c *container) lease() rig.Lease {
	c.t.Helper()
	for _, l := range c.w.Leases(c.t) {
		if l.Owner.Container == c.id || l.Owner.Name == c.id {
			return l
		}
	}
	return rig.Lease{}
}

// delete deletes a container of the wrapper.
func (c *container) delete() {
	c.t.Helper()
	rig.Must(c.t, c.commands.Close())
	c.must("delete", "--force", c.id)
	if l := c.lease(); l.ID != "" {
		c.t.Errorf("lease %s is still there after the delete", l.ID)
	}
}

// ask sends commands to the container's process and returns its answers.
func (c *container) ask(commands ...string) (answers []string) {
	c.t.Helper()
	text := strings.Join(commands, "\n") + "\n"
	// Commands and answers can exceed a pipe's buffer, so they are written and read at once.
	failed := make(chan error, 1)
	go func() {
		_, err := c.commands.WriteString(text + "end\n")
		failed <- err
	}()
	for len(answers) < len(commands)+1 && c.answers.Scan() {
		answers = append(answers, c.answers.Text())
	}
	if err := <-failed; err != nil && !errors.Is(err, syscall.EPIPE) {
		c.t.Fatal(err)
	}
	if len(answers) == 0 {
		return nil
	}
	return answers[:len(answers)-1]
}

// askOther sends the commands to a new process in the container (exec).
func (c *container) askOther(flags []string, commands ...string) []string {
	c.t.Helper()
	words := append(append(slices.Clone(c.global), "exec"), append(flags, c.id, "/probe")...)
	cmd := c.w.Command(c.w.Runtime, words...)
	cmd.Env = c.env
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	said := c.w.Run(c.t, cmd)
	if said.Code != 0 {
		c.t.Fatalf("exec: exit code %d: %s", said.Code, said.Err)
	}
	return strings.Split(strings.TrimSpace(said.Out), "\n")
}

// attempt is one way of opening a device.
type attempt struct {
	name, command string
}

// attempts are all ways of opening all accelerators, and some other devices.
func (c *container) attempts() []attempt {
	c.tries++
	var all []attempt
	for _, d := range c.w.devices {
		made := fmt.Sprintf("/dev/made-%d-%s", c.tries, d.number())
		all = append(all,
			attempt{"node " + d.path, "open " + d.path},
			attempt{"host's " + d.path, "open /host" + d.path},
			attempt{"image's " + d.path, "open /nodes/" + d.number()},
			attempt{"bound " + d.path, "open /stolen" + d.path},
			attempt{"mknod of " + d.path, fmt.Sprintf("mknod %s %d %d", made, d.major, d.minor)},
			attempt{"made " + d.path, "open " + made},
		)
	}
	for _, path := range ordinary {
		all = append(all, attempt{"ordinary " + path, "open " + path})
	}
	return all
}

// ordinary devices work as in any container: there is no terminal behind tty
var ordinary = []string{"/dev/null", "/dev/zero", "/dev/urandom", "/dev/tty", "/host/dev/null", "/host/dev/fuse"}

// ways are the properties of a container that decide the expected results.
type ways struct {
	own map[string]bool // paths of nodes that may be opened
	// bound: every node was bound at /stolen/dev, and foreign ones stay. mknod: the process has the
	// capability to make nodes. fuse: the spec allows it.
	bound, kept, mknod, fuse bool
}

// expected returns the results of the attempts if the rules hold.
func (c *container) expected(x ways) map[string]string {
	all := map[string]string{}
	pick := func(b bool, yes, no string) string {
		if b {
			return yes
		}
		return no
	}
	for _, d := range c.w.devices {
		own := x.own[d.path]
		all["node "+d.path] = pick(own, "ENXIO", "ENOENT")
		all["host's "+d.path] = pick(own, "ENXIO", "EPERM")
		all["image's "+d.path] = pick(own, "ENXIO", "EPERM")
		all["bound "+d.path] = pick(own && x.bound, "ENXIO", pick(x.kept, "EPERM", "ENOENT"))
		all["mknod of "+d.path] = pick(x.mknod, "ok", "EPERM")
		all["made "+d.path] = pick(x.mknod, pick(own, "ENXIO", "EPERM"), "ENOENT")
	}
	for _, path := range ordinary {
		all["ordinary "+path] = "ok"
	}
	all["ordinary /dev/tty"] = "ENXIO"
	all["ordinary /host/dev/fuse"] = pick(x.fuse, "ok", "EPERM")
	return all
}

// compareResults compares the results with the expected ones.
func (c *container) compareResults(when string, x ways, tries []attempt, answers []string) {
	c.t.Helper()
	if len(answers) != len(tries) {
		c.t.Fatalf("%s: %d answers to %d commands: %q", when, len(answers), len(tries), answers)
	}
	want, got := c.expected(x), map[string]string{}
	for i, a := range tries {
		got[a.name] = answers[i]
		// A root mounted with nodev would hide that the rules fail.
		if c.launched && strings.HasPrefix(a.name, "image's ") && answers[i] == "EACCES" {
			want[a.name] = "EACCES"
		}
	}
	if d := differences(want, got); d != "" {
		c.t.Errorf("%s: the rules don't hold:%s", when, d)
	}
}

// differences returns the first few differences; without rules there are hundreds.
func differences(want, got map[string]string) (text string) {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if want[name] != got[name] {
			lines = append(lines, fmt.Sprintf("\n\t%s: %s instead of %s", name, got[name], want[name]))
		}
	}
	if n := len(lines) - 12; n > 0 {
		lines = append(lines[:12], fmt.Sprintf("\n\tand %d more", n))
	}
	return strings.Join(lines, "")
}

func commandsOf(tries []attempt) (commands []string) {
	for _, a := range tries {
		commands = append(commands, a.command)
	}
	return commands
}

// checkDevices makes the container's own process try everything.
func (c *container) checkDevices(when string, x ways) {
	c.t.Helper()
	tries := c.attempts()
	c.compareResults(when, x, tries, c.ask(commandsOf(tries)...))
}

// checkDevicesOfExec makes a new process in the container try everything.
func (c *container) checkDevicesOfExec(when string, x ways, flags ...string) {
	c.t.Helper()
	tries := c.attempts()
	c.compareResults(when, x, tries, c.askOther(flags, commandsOf(tries)...))
}
