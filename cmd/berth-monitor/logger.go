package main

import (
	"errors"
	"os"
	"strings"

	"github.com/berth-gpu/berth/launcher/monitor"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// isLogger reports whether a shim of containerd has started this program as a logger: the
// arguments are keys and values, without flags.
func isLogger(args []string) bool {
	return len(args) > 0 && len(args)%2 == 0 && !strings.HasPrefix(args[0], "-")
}

// runLogger logs the output of a task that containerd runs. The shim has started this
// process in the container's bundle, with keys and values in any order as arguments, and with
// pipes from descriptor 3 on.
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
		return errors.New("exactly one task id has to be given")
	}
	return l.Run()
}
