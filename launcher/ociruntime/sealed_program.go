package ociruntime

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/sealed"
)

// Program is a runtime that is about to be started, any number of times. The zero value is
// any.
type Program struct{ sealed *os.File }

// Seal spares crun the half of its start in which it makes itself read-only, where that
// can be done for it. Any other program is started as it is.
func Seal(path string) Program {
	if filepath.Base(path) != "crun" {
		return Program{}
	}
	f, err := sealed.Open(path)
	if err != nil {
		return Program{} // and crun does it
	}
	return Program{f}
}

// Start calls start with cmd, or with an equivalent command that runs the sealed program, and
// returns the command that it used. cmd.Env must be set.
//
// The runtime inherits nothing but what cmd says: it enters the container with what it
// has open, and what is in there may lead it to a directory of the host's by a link of
// procfs to a descriptor.
func (p Program) Start(cmd *exec.Cmd, start func(*exec.Cmd) error) (*exec.Cmd, error) {
	if err := process.CloseDescriptorsOnExec(); err != nil {
		return cmd, err
	}
	if p.sealed == nil {
		return cmd, start(cmd)
	}
	quick := &exec.Cmd{
		Path: sealed.Path(p.sealed), Args: cmd.Args, Dir: cmd.Dir,
		// By this word crun tells that it has made itself anew; some versions ask for it.
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

// Close is for a program that isn't started any more.
func (p Program) Close() {
	if p.sealed != nil {
		_ = p.sealed.Close() // a handle; there is nothing to lose
	}
}
