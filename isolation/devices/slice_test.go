package devices

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

func TestWriteOuterSlice(t *testing.T) {
	dir := t.TempDir()
	list := func(want ...string) {
		t.Helper()
		if got, err := ListOuterSlices(dir); err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	list()
	testutil.Must(t, WriteUnitRules(dir, "told.slice", nil))
	for range 2 {
		testutil.Must(t, WriteOuterSlice(dir, "a-berth1.slice", rulesOfLease()))
	}
	testutil.Must(t, WriteOuterSlice(dir, "b-berth2.slice", nil))
	list("a-berth1.slice", "b-berth2.slice")
	got, err := os.ReadFile(filepath.Join(dir, "a-berth1.slice.d", outerDropIn))
	if want := "# Written by berth; gone when the container is.\n[Unit]\nStopWhenUnneeded=yes\n"; string(got) != want || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "a-berth1.slice.d", dropIn)); !strings.Contains(string(got), "\nDevicePolicy=strict\nDeviceAllow=\nDeviceAllow=/dev/char/195:3 rw\n") || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	for range 2 {
		testutil.Must(t, RemoveUnitFiles(dir, "a-berth1.slice"))
	}
	list("b-berth2.slice")
	if err := WriteOuterSlice(dir, "../a.slice", nil); err == nil || err.Error() != `write drop-ins of ../a.slice: "../a.slice" is neither a scope nor a slice of systemd` {
		t.Errorf("got %v", err)
	}
	none := filepath.Join(dir, "none")
	testutil.Must(t, WriteOuterSlice(none, "a.slice", nil))
	if got, err := ListOuterSlices(none); len(got) > 0 || err != nil {
		t.Errorf("where no systemd runs: %q, %v", got, err)
	}
}

// machine is a systemd of the test's own, with the cgroups that it manages.
type machine struct {
	h    cgroup.Hierarchy
	top  string // its root cgroup
	in   func(words ...string) *exec.Cmd
	dir  string // the directory of its unit files
	name string // the runtime
}

// commandContainer is a container that executes commands.
type commandContainer struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	stderr  *strings.Builder
	machine machine
}

const outerUnit = "system-berth1.2.00000003.slice"

// start runs a container of root with all capabilities in a scope of the slice.
func (m machine) start(t *testing.T, slice string) *commandContainer {
	t.Helper()
	spec := privileged(rulesOfLease(), slice+":docker:c1", specs.PIDNamespace, specs.CgroupNamespace)
	cmd := m.in(m.name, "--root", "/run/"+m.name, "--systemd-cgroup", "run", "--bundle", makeBundle(t, spec), "c1")
	cmd.Env = environ(t, m.name)
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	c := &commandContainer{cmd, in, bufio.NewScanner(out), &strings.Builder{}, m}
	cmd.Stderr = c.stderr
	testutil.Must(t, cmd.Start())
	return c
}

func (c *commandContainer) opens(t *testing.T, when string, commands, want []string) {
	t.Helper()
	var got []string
	for _, command := range commands {
		got = append(got, c.ask(t, command))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", when, got, want)
	}
}

func (c *commandContainer) ask(t *testing.T, command string) string {
	t.Helper()
	if _, err := fmt.Fprintln(c.in, command); err != nil || !c.out.Scan() {
		t.Fatalf("%s: the container ended: %v, %s", command, err, c.stderr)
	}
	return c.out.Text()
}

func (c *commandContainer) end(t *testing.T) {
	t.Helper()
	testutil.Must(t, c.in.Close())
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, c.stderr)
	}
}

func (m machine) ctl(t *testing.T, words ...string) string {
	t.Helper()
	out, err := m.in(append([]string{"systemctl"}, words...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %q: %v: %s", words, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestOuterSlice: a container that systemd puts into an outer slice can remove its own rules and
// gains nothing, whatever systemd does meanwhile; and systemd leaves nothing of the slice. Without
// the slice, the container opens devices that it hasn't leased.
func TestOuterSlice(t *testing.T) {
	h := systemdTree(t)
	for _, name := range []string{"runc", "crun"} {
		t.Run(name, func(t *testing.T) {
			testutil.NeedRoot(t, name)
			m := machine{h: h, top: newOuterPath(t, h), name: name}
			testutil.Must(t, h.Create(m.top))
			var init int
			init, m.in = bootSystemd(t, h, m.top)
			m.dir = fmt.Sprintf("/proc/%d/root/run/systemd/system", init)
			m.withoutSlice(t)
			m.withSlice(t)
			m.withSliceMadeAgain(t)
		})
	}
}

func (m machine) withoutSlice(t *testing.T) {
	c := m.start(t, "system.slice")
	c.opens(t, "no outer slice", slices.Concat(tries, removalCommands(m.h.Version), tries), []string{"ENXIO", "EPERM", "ok", "ok", "ENXIO", "ENXIO"})
	c.end(t)
}

func (m machine) withSlice(t *testing.T) {
	outer := m.top + "/system.slice/" + outerUnit
	testutil.Must(t, WriteOuterSlice(m.dir, outerUnit, rulesOfLease()))
	testutil.Must(t, CreateOuterCgroup(t.Context(), m.h, outer, rulesOfLease()))
	m.ctl(t, "daemon-reload") // an existing drop-in is no error
	c := m.start(t, outerUnit)
	c.opens(t, "as it starts", slices.Concat(tries, removalCommands(m.h.Version), tries), []string{"ENXIO", "EPERM", "ok", "ok", "ENXIO", "EPERM"})
	if got := m.ctl(t, "show", "-P", "ControlGroup", "docker-c1.scope"); got != "/system.slice/"+outerUnit+"/docker-c1.scope" {
		t.Errorf("the scope is in %s", got)
	}
	for _, words := range []string{
		"daemon-reload", "set-property --runtime docker-c1.scope DevicePolicy=auto DeviceAllow=",
		"set-property --runtime " + outerUnit + " DevicePolicy=auto TasksMax=100", "daemon-reexec", "daemon-reload",
	} {
		m.ctl(t, strings.Fields(words)...)
		c.ask(t, "detach /mnt") // if systemd has set rules of the scope again
		c.opens(t, words, tries, []string{"ENXIO", "EPERM"})
	}
	c.end(t)
	m.gone(t, outer)
}

// withSliceMadeAgain removes the outer cgroup before systemd adopts it, as systemd does if the
// slice above is stopped at that moment.
func (m machine) withSliceMadeAgain(t *testing.T) {
	outer := m.top + "/system.slice/" + outerUnit
	testutil.Must(t, WriteOuterSlice(m.dir, outerUnit, rulesOfLease()))
	testutil.Must(t, CreateOuterCgroup(t.Context(), m.h, outer, rulesOfLease()))
	testutil.Must(t, RemoveOuterCgroup(t.Context(), m.h, outer))
	c := m.start(t, outerUnit)
	c.opens(t, "made again", slices.Concat(tries, removalCommands(m.h.Version), tries), []string{"ENXIO", "EPERM", "ok", "ok", "ENXIO", "EPERM"})
	m.ctl(t, "daemon-reload")
	c.ask(t, "detach /mnt")
	c.opens(t, "made again, and a reload", tries, []string{"ENXIO", "EPERM"})
	c.end(t)
	m.gone(t, outer)
}

// gone waits until systemd has removed the slice, and then removes its drop-in.
func (m machine) gone(t *testing.T, outer string) {
	t.Helper()
	dir, err := m.h.Dir(outer)
	testutil.Must(t, err)
	for range 1000 {
		if _, err = os.Stat(dir); err != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !os.IsNotExist(err) {
		t.Errorf("systemd left %s: %v", dir, err)
	}
	if left := m.ctl(t, "list-units", "--all", "--plain", "--no-legend", "*berth1*"); left != "" {
		t.Errorf("left: %s", left)
	}
	testutil.Must(t, RemoveOuterCgroup(t.Context(), m.h, outer))
	testutil.Must(t, RemoveUnitFiles(m.dir, outerUnit))
}
