package main

import (
	"errors"
	"os"
	"strings"

	"github.com/berth-gpu/berth/launcher/monitor"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// isLogger: a shim of containerd's has keys and values, and no flags.
func isLogger(args []string) bool {
	return len(args) > 0 && len(args)%2 == 0 && !strings.HasPrefix(args[0], "-")
}

// runLogger writes down the output of a task that a container engine runs, whose shim has
// started us: with keys and values in any order, with pipes from the third descriptor on,
// and in the container's bundle.
func runLogger(args []string) error {
	given := map[string]string{}
	for i := 0; i < len(args); i += 2 {
		given[args[i]] = args[i+1]
	}
	l := monitor.Logger{
		Store: tasks.Store{Data: given["data"], State: given["state"]}, ID: given["id"], Shim: os.Getppid(),
		Out: openInherited(3, "stdout"), Err: openInherited(4, "stderr"), Ready: openInherited(5, "ready"),
		Ended: []string{given["program"], "ended", given["address"], given["config"], given["id"]},
	}
	if !tasks.ValidID(l.ID) {
		return errors.New("the id of one task is wanted")
	}
	return l.Run()
}
