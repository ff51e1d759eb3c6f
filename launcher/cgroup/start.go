package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Start starts cmd inside the runtime's leaf of the cgroup at path: there is no
// moment in which it lives outside. The caller must have locked its goroutine
// to its thread, for on v1 the thread itself moves there and back.
func (t Tree) Start(cmd *exec.Cmd, path string) error {
	if t.Unified {
		return t.startUnified(cmd, path)
	}
	back, err := t.ownDevices()
	if err != nil {
		return err
	}
	if err := enter(t.leaf(path)); err != nil {
		return err
	}
	return errors.Join(cmd.Start(), enter(back))
}

func (t Tree) startUnified(cmd *exec.Cmd, path string) error {
	dir, err := os.Open(t.leaf(path))
	if err != nil {
		return fmt.Errorf("open cgroup: %w", err)
	}
	defer dir.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(dir.Fd())
	return cmd.Start()
}

// ownDevices is where the calling thread is in the devices hierarchy of v1.
func (t Tree) ownDevices() (string, error) {
	data, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return "", fmt.Errorf("read own cgroup: %w", err)
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) == 3 && f[1] == "devices" {
			return filepath.Join(t.root, "devices", f[2]), nil
		}
	}
	return "", errors.New("read own cgroup: not in any cgroup of the devices hierarchy")
}

// enter moves the calling thread. Moving oneself takes no lock that waits for a
// grace period, unlike moving a process.
func enter(dir string) error {
	if err := writeTo(filepath.Join(dir, "tasks"), "0"); err != nil {
		return fmt.Errorf("enter cgroup: %w", err)
	}
	return nil
}

// writeTo writes to a control file, which must exist.
func writeTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
