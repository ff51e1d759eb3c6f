package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher"
)

// readInit finds the program of --init: beside this one, or where packages put it.
func readInit(_ *cli.Context, o *launcher.Options) error {
	if !o.Init {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program of --init: %w", err)
	}
	for _, dir := range []string{filepath.Dir(self), "/usr/lib/berth"} {
		program := filepath.Join(dir, "berth-init")
		if fi, err := os.Stat(program); err == nil && fi.Mode().IsRegular() {
			o.InitProgram = program
			return nil
		}
	}
	return errors.New("--init: there is no berth-init beside " + self + " nor in /usr/lib/berth; install it, or leave out --init")
}
