package launcher

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Adopt gives each detached task whose monitor was killed a new one, which goes on where
// the other ended, ends those that were cut off before they had started, and removes what
// was left half made. Whoever is about to act on tasks calls it first. program is the
// monitor's; "" means that it is found. A task that can't be adopted doesn't keep the
// others from it.
func Adopt(ctx context.Context, store tasks.Store, program string) error {
	all, err := store.List()
	if err != nil {
		err = fmt.Errorf("look for tasks without a monitor: %w", err)
		if all == nil {
			return err
		}
	}
	for _, t := range all {
		switch {
		case t.Orphan():
			err = errors.Join(err, adopt(ctx, store, program, t.ID))
		case t.Abandoned():
			err = errors.Join(err, discard(ctx, store, t.ID))
		}
	}
	return errors.Join(err, sweepHalfMade(ctx, store, program, all))
}

// sweepHalfMade removes what launchers left that were killed before anything of the task
// ran. A launch that goes on holds what it makes, or keeps everybody from sweeping.
func sweepHalfMade(ctx context.Context, store tasks.Store, program string, all []tasks.Task) error {
	ids, err := store.IDs()
	if err != nil {
		return err
	}
	known := map[string]tasks.Task{}
	for _, t := range all {
		known[t.ID] = t
	}
	left := map[string][]string{} // by where cgroups are mounted
	for _, id := range ids {
		t, ok := known[id]
		if !ok || t.State != tasks.Broken && t.Life == nil && t.Exit == nil && !t.Held && !t.Abandoned() {
			left[t.CgroupMount] = append(left[t.CgroupMount], id)
		}
	}
	o := Options{Data: store.Data, State: store.State}.withDefaults()
	o.Monitor = program
	for mount, ids := range left {
		tree, e := cgroup.Detect(mount)
		if e == nil {
			e = sweepSome(ctx, o, &host{Host: spec.Host{Cgroups: tree}}, func(id string) bool { return slices.Contains(ids, id) })
		}
		err = errors.Join(err, e)
	}
	return err
}

// discard ends and removes a task that was cut off before it had started: the runtime may
// still be making its container, or it was made and waits for its start.
func discard(ctx context.Context, store tasks.Store, id string) error {
	lock, err := lockEnded(ctx, store.Dir(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("task %s: %w", id, err)
	}
	t, err := store.Task(id)
	if err == nil && t.Abandoned() {
		err = removeUnstarted(ctx, store, t.Record)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // somebody was quicker
	}
	return errors.Join(err, lock.Close())
}

// removeUnstarted runs with the task's lock.
func removeUnstarted(ctx context.Context, store tasks.Store, r tasks.Record) error {
	return first(
		func() error { return endAll(ctx, r) },
		func() error { return removeRanks(ctx, store, r) },
		func() error { return removeContainer(ctx, r) },
		func() error { return giveBack(ctx, store, r.ID) },
		func() error { return store.Remove(r.ID) },
	)
}

// adopt starts a monitor that takes over a task, and waits until one has: the one before
// may still be dying, and hold the task, or another adopter was quicker. A task that
// keeps nothing may have ended since it was looked at. Monitors that can't go on, as on a
// full disk, aren't started without end.
func adopt(ctx context.Context, store tasks.Store, program, id string) error {
	const most = 3
	for try, last := 1, time.Now().Add(dying); ; {
		failed := startMonitor(ctx, store, program, id)
		if errors.Is(failed, errEnded) && try < most {
			try++
			continue // who kills monitors kills that one, too
		}
		held := errors.Is(failed, errHeld)
		t, err := store.Task(id)
		switch {
		case failed != nil && !held && !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("adopt task %s: %w", id, failed)
		case err != nil || !t.Orphan():
			return nil
		case held && time.Now().After(last):
			return fmt.Errorf("adopt task %s: it has no monitor after %v", id, dying)
		case !held && try == most:
			return fmt.Errorf("adopt task %s: %w", id, errEnded)
		case !held:
			try++
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// errEnded: nothing is known of why. errHeld: another process has the task.
var (
	errEnded = errors.New("its new monitor has ended at once")
	errHeld  = errors.New("somebody has it")
)

func startMonitor(ctx context.Context, store tasks.Store, program, id string) error {
	if program == "" {
		var err error
		if program, err = MonitorProgram(); err != nil {
			return err
		}
	}
	if err := process.KeepDescriptors(); err != nil { // it outlives whoever has them
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	const status = "3" // the first of ExtraFiles
	cmd := exec.Command(program, "--data", store.Data, "--state", store.State, "--proc", store.Proc, "--adopt", "--status", status, id)
	cmd.Env, cmd.Dir = monitorEnv(), "/"
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // it ends with its task, mostly after this process
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	line, err := bufio.NewReader(r).ReadString('\n')
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return errEnded
	case line == "held "+id+"\n":
		return errHeld
	}
	if code, text, ok := ParseStatus(line); !ok || code != 0 {
		return errors.New(or(text, "its new monitor says what nobody understands"))
	}
	return nil
}

// ParseStatus reads the line that a monitor tells of a start: 0 and the task's id, or an
// exit code and what failed.
func ParseStatus(line string) (code int, text string, ok bool) {
	line = strings.TrimSuffix(line, "\n")
	if id, ok := strings.CutPrefix(line, "started "); ok {
		return 0, id, tasks.ValidID(id)
	}
	words, ok := strings.CutPrefix(line, "failed ")
	number, text, whole := strings.Cut(words, " ")
	code, err := strconv.Atoi(number)
	if !ok || !whole || err != nil || code <= 0 || code > 255 {
		return 0, "", false
	}
	return code, text, true
}
