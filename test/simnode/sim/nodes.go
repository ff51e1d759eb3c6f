package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Running is a node that runs on this machine, and a process in it.
type Running struct {
	Node
	PID int
}

// Nodes lists the nodes that run on this machine, by a process of each.
func Nodes() ([]Running, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Running
	for _, proc := range processes {
		r, ok := inNode(proc)
		if ok && !slices.ContainsFunc(found, func(f Running) bool { return f.ID == r.ID }) {
			found = append(found, r)
		}
	}
	return found, nil
}

// inNode returns the node of a process. A process that ends meanwhile, and one inside a container,
// is in none.
func inNode(proc string) (r Running, ok bool) {
	b, err := os.ReadFile(filepath.Join(proc, "root", Dir, "node.json"))
	if err != nil || json.Unmarshal(b, &r.Node) != nil {
		return r, false
	}
	r.PID, err = strconv.Atoi(filepath.Base(proc))
	return r, err == nil
}

// ControlNode changes a running node from outside: it is named by its id, by
// the pid of a process in it, by its profile, or "auto" where there is one alone.
// Inside a node "auto" is that node.
func ControlNode(name string, args ...string) error {
	if _, err := os.Stat(Dir); name == "auto" && err == nil {
		return Control(args...)
	}
	for {
		all, err := Nodes()
		if err != nil {
			return err
		}
		r, err := choose(all, name)
		if err != nil {
			return err
		}
		err = inside(r.PID, func() error { return Control(args...) })
		if !errors.Is(err, errEnded) { // else another process of the node will do
			return err
		}
	}
}

// errEnded means that the process of a node has ended before its namespace was entered.
var errEnded = errors.New("the process has ended")

func choose(all []Running, name string) (Running, error) {
	if _, err := strconv.Atoi(name); err == nil {
		if r, ok := inNode(filepath.Join("/proc", name)); ok {
			return r, nil
		}
		return Running{}, fmt.Errorf("process %s isn't in a simulated node", name)
	}
	var ids []string
	fit := slices.DeleteFunc(slices.Clone(all), func(r Running) bool {
		ids = append(ids, r.ID)
		return name != "auto" && name != r.ID && name != r.Profile
	})
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(all) == 0:
		return Running{}, errors.New("no simulated node runs here")
	case len(fit) == 0:
		return Running{}, fmt.Errorf("no simulated node %q: there are %s", name, strings.Join(ids, ", "))
	}
	return Running{}, fmt.Errorf("several simulated nodes run: choose one of %s", strings.Join(ids, ", "))
}

// inside runs do on a thread that is in the mount namespace of a process.
func inside(pid int, do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		done <- func() error {
			ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
			if errors.Is(err, fs.ErrNotExist) {
				return errEnded
			}
			if err != nil {
				return fmt.Errorf("open namespace: %w", err)
			}
			defer ns.Close()
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("leave shared working directory: %w", err)
			}
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("enter node of process %d: %w", pid, err)
			}
			return do()
		}()
	}()
	return <-done
}
