package rig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/simnode/sim"
)

// Node is a running simulated node with berth's programs.
type Node struct {
	*Rig
	State sim.Node
	cmd   *exec.Cmd
	options
	hold io.Closer // the node lives as long as this is open
	host Host      // instead of cmd, for a node that another package has started
}

// Host is a simulated server with its own ways of running commands.
type Host interface {
	Command(words ...string) *exec.Cmd
	Path(name string) string
}

// Join makes a Node of a host, which outlives it.
func (r *Rig) Join(h Host) *Node { return &Node{Rig: r, host: h} }

// Shared returns the node of this profile and version of cgroups that all tests of the binary
// share. The first call starts it.
func (r *Rig) Shared(t testing.TB, profile, cgroup string) *Node {
	t.Helper()
	return r.Once(t, profile+" "+cgroup, func() (*Node, error) { return r.Start(profile, cgroup) })
}

// Once returns the node that start has returned for this key before, and calls start if there
// is none. Calls wait for each other.
func (r *Rig) Once(t testing.TB, key string, start func() (*Node, error)) *Node {
	t.Helper()
	r.sharing.Lock()
	defer r.sharing.Unlock()
	if n, ok := r.shared[key]; ok {
		return n
	}
	n, err := start()
	Must(t, err)
	if r.shared == nil {
		r.shared = map[string]*Node{}
	}
	r.shared[key] = n
	return n
}

// Start makes a node and has berth discover it. It shares the network of this machine.
func (r *Rig) Start(profile, cgroup string) (*Node, error) {
	return r.start(profile, cgroup, options{})
}

// StartRooted is Start for a node with cgroup version 2 whose root of the tree is a cgroup of its
// own: what is attached to it concerns this node alone.
func (r *Rig) StartRooted(profile string) (*Node, error) {
	mount := "/sys/fs/cgroup"
	if _, err := os.Stat(mount + "/unified/cgroup.procs"); err == nil {
		mount += "/unified"
	}
	dir, err := os.MkdirTemp(mount, "berth-rig-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // as the root of a tree
		return nil, err
	}
	root, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	n, err := r.start(profile, "v2", options{root: root})
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	return n, nil
}

// options of a node.
type options struct {
	apart bool     // with a network of its own
	root  *os.File // the cgroup that is the root of its tree, nil for that of the machine
}

// StartApart is Start for a node with a network of its own, which has only lo.
func (r *Rig) StartApart(profile, cgroup string) (*Node, error) {
	n, err := r.start(profile, cgroup, options{apart: true})
	if err != nil {
		return nil, err
	}
	if out, err := n.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("set lo up: %w: %s", err, out)
	}
	return n, nil
}

// Serve starts an HTTP server on the loopback address of the node's network, and returns
// its address. The server ends with the test program.
func (n *Node) Serve(handler http.Handler) (address string, err error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", n.cmd.Process.Pid))
	if err != nil {
		return "", err
	}
	defer ns.Close()
	type result struct {
		listener net.Listener
		err      error
	}
	listening := make(chan result)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine: its namespace is another
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			listening <- result{nil, fmt.Errorf("enter the node's network: %w", err)}
			return
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		listening <- result{l, err}
	}()
	r := <-listening
	if r.err != nil {
		return "", r.err
	}
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close() // it is replaced before it has served
	server.Listener = r.listener
	server.Start()
	return r.listener.Addr().String(), nil
}

func (r *Rig) start(profile, cgroup string, o options) (*Node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	if o.root != nil {
		cmd = exec.Command("unshare", "--cgroup", "--", self)
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(o.root.Fd())}
	}
	cmd.Env = append(os.Environ(), nodeVariable+"="+profile+" "+cgroup)
	if o.apart {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	hold, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	n := &Node{Rig: r, cmd: cmd, hold: hold, options: o}
	r.nodes = append(r.nodes, n)
	if err := n.ready(); err != nil {
		return nil, errors.Join(fmt.Errorf("start node %s: %w", profile, err), n.stop(), errors.New(said.String()))
	}
	if out, err := n.Command(r.Berth, "discover").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("berth discover: %w: %s", err, out)
	}
	return n, nil
}

// ready waits until the node is complete, which is when its first process has
// become another program.
func (n *Node) ready() error {
	proc := fmt.Sprintf("/proc/%d/", n.cmd.Process.Pid)
	for range 1000 {
		name, err := os.ReadFile(proc + "comm")
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(name)) == "cat" {
			data, err := os.ReadFile(proc + "root" + sim.Dir + "/node.json")
			if err != nil {
				return err
			}
			return json.Unmarshal(data, &n.State)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("it doesn't become ready")
}

func (n *Node) stop() error {
	if n.cmd.ProcessState != nil {
		return nil
	}
	return errors.Join(n.hold.Close(), n.cmd.Wait())
}

// Path returns the path from outside of a path of the node.
func (n *Node) Path(name string) string {
	if n.host != nil {
		return n.host.Path(name)
	}
	return fmt.Sprintf("/proc/%d/root%s", n.cmd.Process.Pid, name)
}

// Command is exec.Command inside the node.
func (n *Node) Command(name string, args ...string) *exec.Cmd {
	if n.host != nil {
		return n.host.Command(append([]string{name}, args...)...)
	}
	words := []string{"--mount", "--uts", "--target", strconv.Itoa(n.cmd.Process.Pid), "--", name}
	if n.apart {
		words = append([]string{"--net"}, words...)
	}
	if n.root == nil {
		return exec.Command("nsenter", append(words, args...)...)
	}
	cmd := exec.Command("nsenter", append(append([]string{"--cgroup"}, words...), args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(n.root.Fd())}
	return cmd
}

// Said is the result of a command.
type Said struct {
	Code     int
	Out, Err string
}

// Run runs a command inside the node to its end. Its output must end with it: what
// is left running keeps no pipe open.
func (n *Node) Run(t testing.TB, cmd *exec.Cmd) Said {
	t.Helper()
	n.watched.Do(func() { Must(t, watch()) })
	dir := t.TempDir()
	out, err := os.OpenFile(filepath.Join(dir, "out"), os.O_RDWR|os.O_CREATE, 0o600)
	Must(t, err)
	defer out.Close()
	errs, err := os.OpenFile(filepath.Join(dir, "err"), os.O_RDWR|os.O_CREATE, 0o600)
	Must(t, err)
	defer errs.Close()
	if cmd.Stdout == nil {
		cmd.Stdout = out
	}
	cmd.Stderr = errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return Said{Code: cmd.ProcessState.ExitCode(), Out: content(t, out), Err: content(t, errs)}
}

func content(t testing.TB, f *os.File) string {
	t.Helper()
	_, err := f.Seek(0, io.SeekStart)
	Must(t, err)
	data, err := io.ReadAll(f)
	Must(t, err)
	return string(data)
}

// Do runs a command inside the node that has to succeed, and returns its output.
func (n *Node) Do(t testing.TB, name string, args ...string) string {
	t.Helper()
	said := n.Run(t, n.Command(name, args...))
	if said.Code != 0 {
		t.Fatalf("%s %s: exit code %d: %s%s", name, strings.Join(args, " "), said.Code, said.Out, said.Err)
	}
	return said.Out
}

// Lease has the needed fields of one lease of berth leases --json.
type Lease struct {
	ID      string `json:"id"`
	Live    bool   `json:"live"`
	Status  string `json:"status"`
	Devices []struct {
		UUID string `json:"uuid"`
	} `json:"devices"`
	Owner struct {
		Container   string `json:"container"`
		Name        string `json:"name"`
		UID         int    `json:"uid"`
		Bundle      string `json:"bundle"`
		RuntimeRoot string `json:"runtime_root"`
		Runtime     string `json:"runtime"`
	} `json:"owner"`
}

// Leases lists the leases.
func (n *Node) Leases(t testing.TB) []Lease {
	t.Helper()
	var view struct{ Leases []Lease }
	Must(t, json.Unmarshal([]byte(n.Do(t, n.Berth, "leases", "--json")), &view))
	return view.Leases
}

// Must ends the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
