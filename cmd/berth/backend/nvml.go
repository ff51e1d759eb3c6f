package backend

import (
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/gpu/probe"
)

// NVMLChild returns the child process that calls NVML: a call that hangs in the driver can't
// be interrupted. word is the verb of berth-nvml.
func NVMLChild(c *cli.Context, word string, timeout time.Duration) probe.Child {
	program, err := findProgram("berth-nvml")
	if err != nil {
		program = "/usr/lib/berth/berth-nvml" // starting it reports if it is missing
	}
	return probe.Child{Path: program, Args: []string{word, c.String("config")}, Timeout: timeout}
}
