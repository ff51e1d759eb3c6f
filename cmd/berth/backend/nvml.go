package backend

import (
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/launcher/control"
)

// NVMLChild returns the child process that calls NVML on this machine: a call that hangs in the driver can't
// be interrupted. word is the verb of berth-nvml.
func NVMLChild(c *cli.Context, node *berth.Node, word string, timeout time.Duration) probe.Child {
	program, err := control.FindProgram("berth-nvml")
	if err != nil {
		program = filepath.Join(control.InstallDir, "berth-nvml") // starting it reports if it is missing
	}
	return probe.Child{Path: program, Args: []string{word, c.String("config")}, Cgroup: node.NVMLCgroup(), Timeout: timeout}
}
