// Command berth-nvml calls NVIDIA's management library for berth, in a process that can
// be killed when a call hangs in the driver. It is the only program of berth's that
// needs the C library, and so the only one that starts slowly.
//
// It is run as "berth-nvml probe CONFIG" by berth discover and "berth-nvml meter CONFIG"
// by berth stats. Users don't run it.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/nvml"
	"github.com/berth-gpu/berth/gpu/probe"
)

// callTimeout is how long one call may take: without persistence mode the driver first
// initialises every GPU, which takes seconds.
const callTimeout = 10 * time.Second

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "berth-nvml: only the berth command starts it, with a verb and the path of the configuration")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "berth-nvml: "+err.Error())
		os.Exit(1)
	}
}

func serve(word, config string) error {
	conf, err := berth.LoadConfig(config)
	if err != nil {
		return err
	}
	source := nvml.Source{Library: nvml.Find(conf.Host.NVML, conf.GPUHost()), Timeout: callTimeout}
	switch word {
	case "probe":
		return probe.Serve(context.Background(), os.Stdout, source)
	case "meter":
		m, err := source.Meter(context.Background()) // the parent ends this process
		if err != nil {
			return err
		}
		defer m.Close()
		return probe.ServeUse(os.Stdin, os.Stdout, m)
	}
	return fmt.Errorf("%q is neither probe nor meter", word)
}
