// Command simnode runs a command on a simulated GPU server: see README.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/simnode/sim"
)

const usage = `usage: simnode -profile NAME [-cgroup host|v1|v2] [-driver auto|stub|debian] [-driver-root DIR] [-bare-nodes] [-no-uvm] -- CMD…
       simnode ctl [-node ID|PID|auto] ACTION…   change a running node
       simnode profiles | nodes | fetch
`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "simnode:", err)
		os.Exit(exitCode(err))
	}
}

// exitCode follows the shell: 127 for a command that isn't there, 126 for one
// that can't be run; 125 is simnode's own failure.
func exitCode(err error) int {
	switch {
	case !errors.Is(err, sim.ErrCommand):
		return 125
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return 127
	}
	return 126
}

func run(args []string) error {
	if was, err := sim.Loader(os.Args); was {
		return err
	}
	if len(args) > 0 {
		switch args[0] {
		case "ctl", "set":
			return control(args[1:])
		case "fetch":
			dir, err := sim.Fetch()
			if err == nil {
				fmt.Println(dir)
			}
			return err
		case "nodes":
			return nodes()
		case "profiles":
			for _, p := range sim.Profiles() {
				fmt.Printf("%-14s %d × %s\n", p.Name, len(p.GPUs), p.GPUs[0].Model.Name)
			}
			return nil
		}
	}
	return start(args)
}

func start(args []string) error {
	flags := flag.NewFlagSet("simnode", flag.ExitOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	var o sim.Options
	profile := flags.String("profile", "", "")
	flags.StringVar(&o.Cgroup, "cgroup", "host", "")
	flags.StringVar(&o.Driver, "driver", "auto", "")
	flags.StringVar(&o.DriverRoot, "driver-root", "", "")
	flags.BoolVar(&o.BareNodes, "bare-nodes", false, "")
	flags.BoolVar(&o.NoUVM, "no-uvm", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("no command: simnode -profile NAME -- CMD…")
	}
	if o.Cgroup == "v2" {
		if err := enterOwnCgroup(); err != nil {
			return err
		}
	}
	return sim.Exec(*profile, o, flags.Args(), os.Environ())
}

// enterOwnCgroup makes a cgroup of its own the root of the tree that the node shows, on a machine that
// has cgroup v2 beside v1: a device guard that is turned on in the node then concerns that node alone.
// The node's processes are in a cgroup below: with processes in the root, runtimes couldn't pass on controllers.
func enterOwnCgroup() error {
	const mount, processes = "/sys/fs/cgroup/unified", "/node"
	if _, err := os.Stat(mount + "/cgroup.procs"); err != nil {
		return nil
	}
	ended, err := filepath.Glob(mount + "/simnode-*")
	if err != nil {
		return err
	}
	for _, dir := range ended {
		removeUnpopulated(dir)
	}
	dir, err := os.MkdirTemp(mount, "simnode-")
	if err != nil {
		return fmt.Errorf("make the node's cgroup: %w", err)
	}
	// Users see the cgroups of a server.
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(dir+processes, 0o755)); err != nil {
		return fmt.Errorf("make the node's cgroup: %w", err)
	}
	if err := os.WriteFile(dir+"/cgroup.procs", []byte("0"), 0); err != nil {
		return fmt.Errorf("enter the node's cgroup: %w", err)
	}
	runtime.LockOSThread() // the namespace is this thread's until exec
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a cgroup namespace: %w", err)
	}
	if err := os.WriteFile(dir+processes+"/cgroup.procs", []byte("0"), 0); err != nil {
		return fmt.Errorf("enter the node's cgroup: %w", err)
	}
	return nil
}

// removeUnpopulated removes a cgroup with those below it, unless there is a process in one of them.
func removeUnpopulated(dir string) {
	if events, err := os.ReadFile(dir + "/cgroup.events"); err != nil || !strings.Contains(string(events), "populated 0") {
		return
	}
	var all []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for _, path := range slices.Backward(all) {
		_ = unix.Rmdir(path) // a node that starts meanwhile keeps its own
	}
}

func control(args []string) error {
	flags := flag.NewFlagSet("simnode ctl", flag.ExitOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage, "actions:\n", sim.Actions) }
	node := flags.String("node", "auto", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return errors.New("no action")
	}
	return sim.ControlNode(*node, flags.Args()...)
}

func nodes() error {
	all, err := sim.Nodes()
	if err != nil {
		return err
	}
	for _, n := range all {
		fmt.Printf("%s pid %d\n", n.ID, n.PID)
	}
	return nil
}
