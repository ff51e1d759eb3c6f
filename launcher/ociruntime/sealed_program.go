package ociruntime

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/sealed"
)

// Program is a runtime's program, sealed or not, that can be started any number of times. The zero value
// is not sealed.
type Program struct{ sealed *os.File }

// Seal opens crun on a read-only mount, so that crun doesn't have to make one itself, which takes half of
// its start. For other programs, and if that fails, the result is not sealed.
func Seal(path string) Program {
	if filepath.Base(path) != "crun" {
		return Program{}
	}
	f, err := sealed.Open(path)
	if err != nil {
		return Program{} // crun seals itself
	}
	return Program{f}
}

// Start calls start with cmd, or with an equivalent command that runs the sealed program, and returns the
// command that it used. cmd.Env must be set.
//
// The runtime inherits only the descriptors of cmd: it enters the container with its open descriptors,
// through which links of procfs could lead it to directories of the host.
func (p Program) Start(cmd *exec.Cmd, start func(*exec.Cmd) error) (*exec.Cmd, error) {
	if err := process.CloseDescriptorsOnExec(); err != nil {
		return cmd, err
	}
	if p.sealed == nil {
		return cmd, start(cmd)
	}
	quick := &exec.Cmd{
		Path: sealed.Path(p.sealed), Args: cmd.Args, Dir: cmd.Dir,
		// Some versions of crun check this variable to see that they are sealed.
		Env:   append(cmd.Env[:len(cmd.Env):len(cmd.Env)], "_LIBCONTAINER_CLONED_BINARY=1"),
		Stdin: cmd.Stdin, Stdout: cmd.Stdout, Stderr: cmd.Stderr,
		ExtraFiles: cmd.ExtraFiles, SysProcAttr: cmd.SysProcAttr,
	}
	if err := start(quick); err == nil || quick.Process != nil {
		return quick, err
	}
	// Security software may identify programs by their paths.
	return cmd, start(cmd)
}

// Close closes the program. It can't be started afterwards.
func (p Program) Close() {
	if p.sealed != nil {
		_ = p.sealed.Close() // an O_PATH descriptor
	}
}
