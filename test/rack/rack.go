// Package rack starts simulated GPU servers with container engines, each in namespaces of its own:
// test/engines/tree.sh makes their root file systems, and test/engines/host.sh starts them. Tests
// and the benchmark use them.
//
// A host ends with the process that started it, however that ends. The package starts no engine.
package rack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Options describe a host.
type Options struct {
	// Tree is its root file system: see Tree. It isn't changed.
	Tree string
	// Cgroup is the host's version of cgroups: "v1" or "v2".
	Cgroup string
	// Simnode is the program of test/simnode, static, whose cache is full: see Simnode.
	Simnode string
	// Share is a directory that is the same inside and outside.
	Share string
	// Key distinguishes the hosts of one process.
	Key string
	// Systemd makes the tree's own init the first process. It starts the units of a server at boot:
	// docker and containerd among them, docker with the systemd cgroup driver on version 2. On
	// version 1 it needs the bookworm tree, because later ones support only 2.
	Systemd bool
}

// Host is a server that runs.
type Host struct {
	name    string // of the cgroup that is its root
	cmd     *exec.Cmd
	hold    io.Closer // the host lives as long as this is open
	systemd bool
}

// Tree returns the root file system of a suite of Debian's with engines: "forky" or
// "bookworm". It takes minutes when none is there.
func Tree(suite string) (string, error) {
	top, err := top()
	if err != nil {
		return "", err
	}
	var said bytes.Buffer
	cmd := exec.Command(filepath.Join(top, "test/engines/tree.sh"), suite)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("make engines of %s: %w: %s", suite, err, &said)
	}
	return strings.TrimSpace(string(out)), nil
}

// Simnode builds the program for hosts, which runs with any C library, and has it
// fill its cache, for which there is no compiler in a host.
func Simnode(path string) error {
	build := exec.Command("go", "build", "-o", path, "github.com/berth-gpu/berth/test/simnode")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build simnode: %w\n%s", err, out)
	}
	if out, err := exec.Command(path, "-profile", "dgx-h100", "-driver", "stub", "--", "true").CombinedOutput(); err != nil {
		return fmt.Errorf("simnode: %w: %s", err, out)
	}
	return nil
}

// top returns the directory of the module.
func top() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, e := os.Stat(filepath.Join(dir, "go.mod")); e == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// Start makes a host, and returns when it is there.
func Start(o Options) (*Host, error) {
	top, err := top()
	if err != nil {
		return nil, err
	}
	h := &Host{name: fmt.Sprintf("%s%d-%s", prefix, os.Getpid(), o.Key), systemd: o.Systemd}
	h.cmd = exec.Command(filepath.Join(top, "test/engines/host.sh"), o.Tree, o.Cgroup, h.name, o.Simnode, top, o.Share)
	if o.Systemd {
		h.cmd.Args = append(h.cmd.Args, "systemd")
	}
	h.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	var said bytes.Buffer
	h.cmd.Stderr = &said
	if h.hold, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	word := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(out, word); err != nil {
		return nil, errors.Join(fmt.Errorf("start host %s: %w", h.name, err), h.Stop(), errors.New(said.String()))
	}
	return h, nil
}

// enter starts a command in the namespaces and in the cgroups of a host.
const enter = `for dir in /sys/fs/cgroup /sys/fs/cgroup/*; do
	at=$dir/$0
	[ ! -d "$at/init.scope" ] || at=$at/init.scope # systemd wants none in its root
	[ ! -e "$at/cgroup.procs" ] || echo 0 >"$at/cgroup.procs"
done
target=$1; shift
exec nsenter --mount --uts --ipc --net --pid --cgroup --target "$target" -- "$@"`

// Command is exec.Command inside the host, with an environment of the host's.
func (h *Host) Command(words ...string) *exec.Cmd {
	cmd := exec.Command("sh", append([]string{"-c", enter, h.name, strconv.Itoa(h.cmd.Process.Pid)}, words...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	return cmd
}

// Path returns the path from outside of a path of the host.
func (h *Host) Path(name string) string {
	return fmt.Sprintf("/proc/%d/root%s", h.cmd.Process.Pid, name)
}

// Stop ends the host with all its processes, and removes its cgroups. It is idempotent.
func (h *Host) Stop() error {
	if h.cmd.Process == nil || h.cmd.ProcessState != nil {
		return nil
	}
	err, end := h.hold.Close(), h.cmd.Wait()
	if !h.systemd { // which its reboot ends by a signal
		err = errors.Join(err, end)
	}
	return errors.Join(err, removeCgroups(h.name))
}
