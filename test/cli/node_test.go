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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is the limit of each wait. It is long enough for any machine, because only failed tests
// reach it.
const patience = 60 * time.Second

// node is a simulated node.
type node struct {
	t      *testing.T
	keeper *exec.Cmd
	cgroup string // the node's cgroup in the unified hierarchy, "" if it has none
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

// newDiscoveredNode makes a node with an inventory snapshot.
func newDiscoveredNode(t *testing.T, profile string) *node {
	t.Helper()
	n := newNode(t, profile, options{})
	n.berth("discover", "--quiet").is(0, "", "")
	return n
}

// unified returns the mount point of the machine's unified hierarchy.
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
		_ = os.WriteFile(n.cgroup+"/cgroup.kill", []byte("1"), 0) // the keeper then ends, because its input is closed
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

// command is a command inside the node, with the built programs first in PATH. nsenter becomes the
// command, so signals reach it.
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

// list returns the names in a directory, nothing if there is none.
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

// watched lets go test see the source files of the programs, so that a cached result belongs to the
// same sources.
var watched = sync.OnceValue(func() error {
	return filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == ".cache" || d.Name() == ".git" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		return err
	})
})
