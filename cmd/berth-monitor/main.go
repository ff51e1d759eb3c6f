// Command berth-monitor supervises one detached task or a gang. The launcher replaces itself
// by it (exec), and a berth command starts one for a task whose monitor was killed. Users
// don't run it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/monitor"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// version is set by the linker.
var version = "unknown"

func main() {
	// Runtimes are started by this goroutine, in the mount namespace of its thread.
	runtime.LockOSThread()
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s berth-monitor: %v\n", time.Now().UTC().Format(time.RFC3339), err)
	}
	os.Exit(code)
}

// usage is the exit code of a command line that is wrong.
const usage = 2

func run(args []string) (int, error) {
	if isLogger(args) {
		return 0, runLogger(args)
	}
	o, err := parse(args)
	if err != nil {
		return usage, err
	}
	if err := errors.Join(os.Chdir("/"), process.CloseDescriptorsOnExec(), detachStdio(o)); err != nil {
		return usage, err
	}
	return monitor.Run(o)
}

// inspect returns the inspection of devices at the end of a lease. A configuration that can't be read
// counts as an empty one, so that tasks can end.
func inspect(store tasks.Store) func(context.Context, []ledger.Lease) error {
	return func(ctx context.Context, ended []ledger.Lease) error {
		conf, _ := berth.LoadConfig(cmp.Or(store.Config, berth.ConfigPath)) // other commands report the error
		conf.State, conf.Data = cmp.Or(store.State, conf.State), cmp.Or(store.Data, conf.Data)
		return conf.InspectDevices(ctx, ended)
	}
}

func parse(args []string) (monitor.Options, error) {
	var o monitor.Options
	var lock, status, viewerPipe, ports int
	var locks string
	var show bool
	f := flag.NewFlagSet("berth-monitor", flag.ContinueOnError)
	f.Usage = func() { fmt.Fprintln(os.Stderr, "berth-monitor is started by berth run --detach only") }
	f.StringVar(&o.Store.Data, "data", "", "directory of data")
	f.StringVar(&o.Store.State, "state", "", "directory of state")
	f.StringVar(&o.Store.Proc, "proc", "", "where procfs is")
	f.StringVar(&o.Store.Config, "config", "", "configuration, if it isn't the usual one")
	f.BoolVar(&o.Adopt, "adopt", false, "take over a task")
	f.IntVar(&lock, "lock", -1, "descriptor of the task's directory, locked")
	f.StringVar(&locks, "locks", "", "descriptors of the directories of a gang's ranks, locked")
	f.IntVar(&ports, "ports", -1, "descriptor of the lock of a gang's ports")
	f.IntVar(&viewerPipe, "viewer-pipe", -1, "descriptor of a pipe whose other end the attached berth run of a gang holds")
	f.IntVar(&status, "status", -1, "descriptor to which the result of the start is written")
	f.BoolVar(&show, "version", false, "print the version")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if show {
		fmt.Println("berth-monitor version " + version)
		os.Exit(0)
	}
	o.Store.Inspect = inspect(o.Store)
	o.ID = f.Arg(0)
	if f.NArg() != 1 || !tasks.ValidID(o.ID) {
		return o, errors.New("exactly one task id has to be given")
	}
	o.Lock, o.Status, o.ViewerPipe = openInherited(lock, "lock"), openInherited(status, "status"), openInherited(viewerPipe, "viewer-pipe")
	if ports >= 0 {
		unix.CloseOnExec(ports) // held as long as this process lives
	}
	for word := range strings.SplitSeq(locks, ",") {
		if word == "" {
			continue
		}
		fd, err := strconv.Atoi(word)
		if err != nil {
			return o, fmt.Errorf("--locks %s: %w", locks, err)
		}
		o.Locks = append(o.Locks, openInherited(fd, "lock"))
	}
	return o, nil
}

// openInherited returns a descriptor that this process was started with, and closes it on
// exec. It is nil for -1.
func openInherited(fd int, name string) *os.File {
	if fd < 0 {
		return nil
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}

// detachStdio replaces standard input and output by /dev/null and standard error by monitor.log in the
// task's directory, so that the monitor holds neither the terminal nor a pipe of berth run.
func detachStdio(o monitor.Options) error {
	for fd, path := range []string{os.DevNull, os.DevNull, o.Store.Path(o.ID, "monitor.log")} {
		from, err := unix.Open(path, unix.O_RDWR|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		if err := unix.Dup3(from, fd, 0); err != nil && from != fd {
			return fmt.Errorf("replace descriptor %d: %w", fd, err)
		}
		if from > 2 {
			if err := unix.Close(from); err != nil {
				return err
			}
		}
	}
	return nil
}
