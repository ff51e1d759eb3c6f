package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/launcher"
)

// runFlags are what is said of a container, in docker's words.
func runFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "gpus", Usage: "lease what `REQUEST` says"},
		&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "set `NAME=VALUE`, or pass NAME on; can be repeated"},
		&cli.StringSliceFlag{Name: "volume", Aliases: []string{"v"}, Usage: "bind `SRC:DST[:ro]`; can be repeated"},
		&cli.StringFlag{Name: "workdir", Aliases: []string{"w"}, Usage: "start in `DIR`"},
		&cli.StringFlag{Name: "user", Aliases: []string{"u"}, Usage: "run as `USER[:GROUP]`, names of the image or numbers"},
		&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "give the container a terminal"},
		&cli.BoolFlag{Name: "interactive", Aliases: []string{"i"}, Usage: "connect standard input"},
		&cli.StringFlag{Name: "name", Usage: "`NAME` for people, also the hostname"},
		&cli.StringFlag{Name: "memory", Aliases: []string{"m"}, Usage: "at most `SIZE` of memory, such as 512m or 64g"},
		&cli.StringFlag{Name: "cpus", Usage: "at most the time of `N` CPUs, such as 1.5"},
		&cli.StringFlag{Name: "shm-size", Usage: "`SIZE` of /dev/shm (default: half of the memory)"},
		&cli.StringFlag{Name: "network", Usage: "`NETWORK` is host or none", Value: "host"},
		&cli.BoolFlag{Name: "read-only", Usage: "let nothing be written to the root file system"},
		&cli.BoolFlag{Name: "rm", Usage: "remove the container at its end, as is always done"},
		&cli.BoolFlag{Name: "rw", Usage: "write to the image itself, which must be a directory"},
	}
}

func launchOptions(c *cli.Context, conf berth.Config) (launcher.Options, error) {
	command := c.Args().Tail()
	if len(command) > 0 && command[0] == "--" { // as in berth alloc
		command = command[1:]
	}
	o := launcher.Options{
		Image: c.Args().First(), Command: command,
		Volumes: c.StringSlice("volume"), Dir: c.String("workdir"), User: c.String("user"),
		Terminal: c.Bool("tty"), Interactive: c.Bool("interactive"), Name: c.String("name"), Network: c.String("network"),
		ReadOnly: c.Bool("read-only"), ReadWrite: c.Bool("rw"),
		Runtime: conf.Runtime, State: conf.State, Data: conf.Data, Cgroup: conf.Host.Cgroup,
		Progress: sayUnpacking(time.Now()),
	}
	for _, kv := range c.StringSlice("env") {
		if !strings.Contains(kv, "=") {
			value, ok := os.LookupEnv(kv)
			if !ok {
				continue // as docker does: what isn't set here isn't set there
			}
			kv += "=" + value
		}
		o.Env = append(o.Env, kv)
	}
	var err error
	if o.Memory, err = bytesOf(c, "memory"); err != nil {
		return o, err
	}
	if o.Shm, err = bytesOf(c, "shm-size"); err != nil {
		return o, err
	}
	if s := c.String("cpus"); s != "" {
		var ok bool
		if o.CPUQuota, ok = positive(s); !ok {
			return o, fmt.Errorf("--cpus %q is not a number of CPUs, such as 2 or 1.5", s)
		}
	}
	return o, nil
}

// positive reads a decimal number: neither "NaN", "Inf", "1e9" nor "1_000".
func positive(s string) (n float64, ok bool) {
	n, err := strconv.ParseFloat(s, 64)
	return n, err == nil && n > 0 && strings.Trim(s, "0123456789.") == ""
}

// bytesOf reads a size in docker's manner: b, k, m, g and t are powers of 1024.
func bytesOf(c *cli.Context, flag string) (int64, error) {
	s := strings.ToLower(c.String(flag))
	if s == "" {
		return 0, nil
	}
	digits := strings.TrimRight(s, "bkmgti")
	shift, known := map[string]int{"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}[strings.TrimSuffix(strings.TrimSuffix(s[len(digits):], "b"), "i")]
	n, ok := positive(digits)
	if !ok || !known || n*float64(int64(1)<<shift) >= 1<<62 {
		return 0, fmt.Errorf("--%s %q is not a size, such as 512m or 64g", flag, c.String(flag))
	}
	return int64(n * float64(int64(1)<<shift)), nil
}
