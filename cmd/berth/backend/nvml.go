package backend

import (
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/gpu/probe"
)

// NVMLChild is a process that calls NVML: one that hangs in the driver can't be taken
// back. word says what it is asked.
func NVMLChild(c *cli.Context, word string, timeout time.Duration) probe.Child {
	program, err := programOf("berth-nvml")
	if err != nil {
		program = "/usr/lib/berth/berth-nvml" // who starts it says that it isn't there
	}
	return probe.Child{Path: program, Args: []string{word, c.String("config")}, Timeout: timeout}
}
