// Command soak tests that no two live tasks ever hold one device.
//
// Many worker processes take leases from one real ledger, become containers in
// real control groups (a process of their own that outlives them), release, or
// don't. They are killed with SIGKILL all the time: from outside at any moment,
// and by themselves at each point where the ledger is half changed. File locks
// that are independent of the ledger check its promise: a process that was granted a
// device locks a file of that device for as long as it lives. If the file is locked
// already, another process with the device is still alive.
//
// At the end everything is killed, and the next acquire must get every device.
//
// With -bench no process is killed, and the time of acquire and release is measured.
// With -burst it is measured for processes that all start at the same moment, once.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == roleArg {
		os.Exit(playRole(os.Args[2:]))
	}
	var o options
	var bench, rush bool
	flag.IntVar(&o.ops, "ops", 100_000, "calls of acquire and release to make (with -bench: pairs)")
	flag.IntVar(&o.procs, "procs", 64, "worker processes")
	flag.StringVar(&o.dir, "dir", "", "directory for the ledger (default: a new one on a tmpfs)")
	flag.BoolVar(&bench, "bench", false, "measure acquire + release, kill nobody")
	flag.BoolVar(&rush, "burst", false, "measure one acquire + release of each process, all at once")
	flag.IntVar(&o.held, "held", 0, "with -burst: leases that are held meanwhile")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o.out = os.Stdout
	o.progress = 10 * time.Second
	do := soak
	switch {
	case bench:
		do = benchmark
	case rush:
		do = burst
	}
	if err := do(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// roleArg marks a process that the soak started from its own program.
const roleArg = "soak-role"

// playRole runs such a process; the result is its exit status.
func playRole(args []string) int {
	var err error
	switch {
	case len(args) == 3 && args[0] == "worker":
		err = work(args[1], args[2], (*worker).soak)
	case len(args) == 3 && args[0] == "bench":
		err = work(args[1], args[2], (*worker).measure)
	case len(args) == 3 && args[0] == "burst":
		err = work(args[1], args[2], func(w *worker) error { return w.pair(os.Stdin, os.Stdout) })
	case len(args) > 2 && args[0] == "container":
		err = runContainer(args[1], args[2:])
	default:
		err = fmt.Errorf("unknown role %q", args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 1
	}
	return 0
}
