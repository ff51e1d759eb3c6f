package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what must happen: long enough for any
// machine, since it only ends tests that have failed.
const patience = 60 * time.Second

// node is a simulated node.
type node struct {
	t      *testing.T
	keeper *exec.Cmd
	cgroup string // the node's own on the unified hierarchy, "" if it has none
}

// options of newNode. The zero value is a pure cgroup v2 machine.
type options struct {
	v1         bool
	driverRoot string
	bare       bool
}

func newNode(t *testing.T, profile string, o options) *node {
	t.Helper()
	check(t, watched())
	n := &node{t: t}
	version, bare := "v2", "-"
	if o.v1 {
		version = "v1"
	}
	if o.bare {
		bare = "-bare"
	}
	n.keeper = exec.Command("/proc/self/exe")
	n.keeper.Env = append(os.Environ(), fmt.Sprintf("%s=enter %s %s -%s %s", part, profile, version, o.driverRoot, bare))
	n.keeper.SysProcAttr = &syscall.SysProcAttr{}
	stderr := newOutput(t)
	n.keeper.Stderr = stderr.File
	if !o.v1 {
		n.ownCgroup(n.keeper.SysProcAttr)
	}
	in, err := n.keeper.StdinPipe()
	check(t, err)
	out, err := n.keeper.StdoutPipe()
	check(t, err)
	check(t, n.keeper.Start())
	t.Cleanup(func() {
		n.killAll()
		_ = in.Close()
		_ = n.keeper.Wait() // killed with the others
		n.removeCgroups()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("start node: %v\n%s", err, stderr.String())
	}
	return n
}

// discovered is a node with an inventory snapshot.
func discovered(t *testing.T, profile string) *node {
	t.Helper()
	n := newNode(t, profile, options{})
	n.berth("discover", "--quiet").is(0, "", "")
	return n
}

// unified is where the unified hierarchy is mounted, on whatever machine.
func unified() string {
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return path
		}
	}
	return ""
}

// ownCgroup makes a cgroup for the node, and its first process start there.
func (n *node) ownCgroup(attr *syscall.SysProcAttr) {
	dir, err := os.MkdirTemp(unified(), "berth-cli-test-")
	check(n.t, err)
	n.cgroup = dir
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(n.t, err)
	n.t.Cleanup(func() { _ = unix.Close(fd) })
	attr.UseCgroupFD, attr.CgroupFD = true, fd
}

func (n *node) killAll() {
	if n.cgroup != "" {
		_ = os.WriteFile(n.cgroup+"/cgroup.kill", []byte("1"), 0) // then the keeper ends by its input
	}
}

func (n *node) removeCgroups() {
	if n.cgroup == "" {
		return
	}
	deadline := time.Now().Add(patience)
	for removeTree(n.cgroup) != nil && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, unix.Rmdir(dir))
}

// command is any command inside the node, where the built programs come first in
// PATH. A signal to it is a signal to the command: nsenter has become it.
func (n *node) command(args ...string) *exec.Cmd {
	pid := strconv.Itoa(n.keeper.Process.Pid)
	words := []string{"--target", pid, "--mount", "--uts", "--wdns=/"}
	attr := &syscall.SysProcAttr{}
	if n.cgroup != "" {
		words = append(words, "--cgroup")
		fd, err := unix.Open(n.cgroup, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		check(n.t, err)
		n.t.Cleanup(func() { _ = unix.Close(fd) })
		attr.UseCgroupFD, attr.CgroupFD = true, fd
	}
	cmd := exec.Command("nsenter", append(append(words, "--"), args...)...)
	cmd.Env = []string{"PATH=" + programs + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "IMAGE=" + image()}
	cmd.SysProcAttr = attr
	return cmd
}

// path is a path of the node as seen from the test.
func (n *node) path(path string) string {
	return filepath.Join("/proc", strconv.Itoa(n.keeper.Process.Pid), "root", path)
}

func (n *node) read(path string) string {
	n.t.Helper()
	data, err := os.ReadFile(n.path(path))
	check(n.t, err)
	return string(data)
}

// list names what is in a directory, nothing if it isn't there.
func (n *node) list(path string) (names []string) {
	n.t.Helper()
	entries, err := os.ReadDir(n.path(path))
	if !errors.Is(err, fs.ErrNotExist) {
		check(n.t, err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// control changes the node: see sim.Actions.
func (n *node) control(words ...string) {
	n.t.Helper()
	self, err := os.Executable()
	check(n.t, err)
	cmd := n.command(self)
	cmd.Env = append(cmd.Env, part+"=control "+strings.Join(words, " "))
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("control %s: %v\n%s", strings.Join(words, " "), err, out)
	}
}

// berth runs the command to its end.
func (n *node) berth(args ...string) result {
	n.t.Helper()
	return n.run(append([]string{"berth"}, args...)...)
}

// sh runs a shell script to its end.
func (n *node) sh(script string) result {
	n.t.Helper()
	return n.run("sh", "-c", script)
}

func (n *node) run(args ...string) result {
	n.t.Helper()
	return n.start(args...).wait()
}

// result is how a command ended.
type result struct {
	t              *testing.T
	args           []string
	code           int
	stdout, stderr string
}

// is compares exit code, standard output and standard error, the last two with
// what differs from run to run replaced (see same).
func (r result) is(code int, stdout, stderr string) {
	r.t.Helper()
	stdout, stderr = same(stdout), same(stderr)
	if r.code != code || same(r.stdout) != stdout || same(r.stderr) != stderr {
		r.t.Errorf("%s\n got code %d, stdout:\n%s\nstderr:\n%s\nwant code %d, stdout:\n%s\nstderr:\n%s",
			strings.Join(r.args, " "), r.code, same(r.stdout), same(r.stderr), code, stdout, stderr)
	}
}

// fails is is for a failure that says one line and nothing else.
func (r result) fails(code int, line string) {
	r.t.Helper()
	r.is(code, "", line+"\n")
}

// ok is the standard output of a command that must have succeeded.
func (r result) ok() string {
	r.t.Helper()
	if r.code != 0 {
		r.t.Fatalf("%s: code %d\nstdout: %s\nstderr: %s", strings.Join(r.args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`(?m)^ERROR: ld\.so: object .*\n`), ""}, // the node's preload, out of a user's sight
	{regexp.MustCompile(`20\d\d-\d\d-\d\d \d\d:\d\d`), "TIME"},
	{regexp.MustCompile(`20\d{6}T\d{6}\.\d{3}`), "STAMP"},
	{regexp.MustCompile(`(^|[^-0-9a-f])[0-9a-f]{12}\b`), "${1}ID"},
	{regexp.MustCompile(`  (\d+s|\d+m\d\ds)  `), "  AGE  "},
	{regexp.MustCompile(`(process|maker \(process|init \(process) \d+`), "$1 PID"},
	{regexp.MustCompile(`(waited|for|FOR) \d+(ms|s|m\d\ds|\.\d+s)`), "$1 AGE"},
}

// same replaces times, ids and paths of this run.
func same(text string) string {
	text = strings.ReplaceAll(text, image(), "IMAGE")
	text = strings.ReplaceAll(text, programs, "PROGRAMS")
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.with)
	}
	return text
}

// process is a command that runs.
type process struct {
	*exec.Cmd
	n              *node
	args           []string
	stdout, stderr output
	done           chan struct{}
}

func (n *node) start(args ...string) *process {
	n.t.Helper()
	return n.startWith(nil, args...)
}

// startWith lets prepare change the command before it starts.
func (n *node) startWith(prepare func(*exec.Cmd), args ...string) *process {
	n.t.Helper()
	p := &process{Cmd: n.command(args...), n: n, args: args, stdout: newOutput(n.t), stderr: newOutput(n.t), done: make(chan struct{})}
	p.Stdout, p.Stderr = p.stdout.File, p.stderr.File
	if prepare != nil {
		prepare(p.Cmd)
	}
	check(n.t, p.Start())
	go func() {
		_ = p.Wait() // ProcessState has the outcome
		close(p.done)
	}()
	n.t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.done
	})
	return p
}

func (p *process) wait() result {
	p.n.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.n.t.Fatalf("%s doesn't end\nstdout: %s\nstderr: %s", strings.Join(p.args, " "), p.stdout.String(), p.stderr.String())
	}
	code := p.ProcessState.ExitCode()
	if s := p.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
		code = -int(s.Signal())
	}
	return result{p.n.t, p.args, code, p.stdout.String(), p.stderr.String()}
}

func (p *process) signal(s syscall.Signal) {
	p.n.t.Helper()
	check(p.n.t, p.Process.Signal(s))
}

// says waits until standard output contains the text.
func (p *process) says(text string) {
	p.n.t.Helper()
	eventually(p.n.t, fmt.Sprintf("%s says %q", strings.Join(p.args, " "), text), func() bool {
		return strings.Contains(p.stdout.String(), text) || p.ended()
	})
	if !strings.Contains(p.stdout.String(), text) {
		p.n.t.Fatalf("%s ended without saying %q: %s%s", strings.Join(p.args, " "), text, p.stdout.String(), p.stderr.String())
	}
}

// warns waits until standard error contains the text.
func (p *process) warns(text string) {
	p.n.t.Helper()
	eventually(p.n.t, fmt.Sprintf("%s warns %q", strings.Join(p.args, " "), text), func() bool {
		return strings.Contains(p.stderr.String(), text) || p.ended()
	})
	if !strings.Contains(p.stderr.String(), text) {
		p.n.t.Fatalf("%s ended without warning %q: %s%s", strings.Join(p.args, " "), text, p.stdout.String(), p.stderr.String())
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// output is a file that is read while a command writes to it. With a pipe, what
// the command leaves in the background would have to be waited for.
type output struct {
	t *testing.T
	*os.File
}

func newOutput(t *testing.T) output {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "output-")
	check(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return output{t, f}
}

func (o output) String() string {
	o.t.Helper()
	data, err := os.ReadFile(o.Name())
	check(o.t, err)
	return string(data)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until something is true.
func eventually(t *testing.T, what string, true func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !true() {
		select {
		case <-ctx.Done():
			t.Fatalf("in vain waited for: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// watched lets go test see what the programs are built from: a cached result is
// then one of the same sources.
var watched = sync.OnceValue(func() error {
	return filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == ".cache" || d.Name() == ".git" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		return err
	})
})
