// Package ociruntime calls crun and runc, and turns their failures into errors.
package ociruntime

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/internal/runtimelog"
	"github.com/berth-gpu/berth/launcher/rootfs"
)

// Programs is the search path for programs. PATH isn't used: the caller's environment must not decide
// what root runs.
const Programs = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// LookUp returns the path of a program in Programs; "" if there is none.
func LookUp(name string) string {
	for dir := range strings.SplitSeq(Programs, ":") {
		if path := filepath.Join(dir, name); IsExecutable(path) {
			return path
		}
	}
	return ""
}

// IsExecutable reports whether path is a regular file with execute permission.
func IsExecutable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}

// Runtime is a runtime's program with its state directory.
type Runtime struct {
	Path, Root string
	// Log is the runtime's log file, in JSON; "" means none.
	Log string
}

// Command returns a command that runs the runtime. words are the arguments after the global options.
func (r Runtime) Command(words ...string) *exec.Cmd {
	args := []string{"--root", r.Root}
	if r.Log != "" {
		args = append(args, "--log", r.Log, "--log-format", "json")
	}
	cmd := exec.Command(r.Path, append(args, words...)...)
	cmd.Env = []string{"PATH=" + Programs}
	cmd.Dir = "/"
	return cmd
}

// Name returns the name of the program, such as "crun".
func (r Runtime) Name() string { return filepath.Base(r.Path) }

// Knows reports whether the runtime has a container with this id.
func (r Runtime) Knows(id string) bool {
	_, err := os.Lstat(filepath.Join(r.Root, id))
	return err == nil
}

// Delete kills a container and removes it from the runtime. An unknown container is not an error.
func (r Runtime) Delete(ctx context.Context, id string) error {
	if !r.Knows(id) {
		return nil
	}
	cmd := exec.CommandContext(ctx, r.Path, "--root", r.Root, "delete", "--force", id)
	cmd.Env, cmd.Dir = []string{"PATH=" + Programs}, "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("delete container %s: %w: %s", id, err, strings.Join(strings.Fields(string(out)), " "))
	}
	return nil
}

// Failed returns the error of a call that failed with exit: the last error in the runtime's log, if
// there is one. It Is rootfs.ErrNotFound or rootfs.ErrCantInvoke if the container's command can't be run.
func (r Runtime) Failed(exit error) error {
	msg := runtimelog.LastError(r.Log)
	if msg == "" {
		return fmt.Errorf("%s: %w", r.Name(), exit)
	}
	return BlameCommand(fmt.Errorf("%s: %s", r.Name(), msg))
}

// BlameCommand wraps an error of a runtime with rootfs.ErrNotFound or rootfs.ErrCantInvoke if its text
// says that the container's command doesn't exist or can't be executed.
func BlameCommand(err error) error {
	msg := err.Error()
	switch {
	case !strings.Contains(msg, "exec"):
	case strings.Contains(msg, "not found"), strings.Contains(msg, "o such file or directory"):
		return fmt.Errorf("%w: %w", rootfs.ErrNotFound, err)
	case strings.Contains(msg, "ermission denied"), strings.Contains(msg, "xec format error"):
		return fmt.Errorf("%w: %w", rootfs.ErrCantInvoke, err)
	}
	return err
}
