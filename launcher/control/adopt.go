package control

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Adopt starts a monitor for each task whose monitor or launcher was killed. The monitor takes over
// the task, and has left the cgroup of the calling process when Adopt returns. Adopt also removes
// tasks whose launcher was killed before they started, and incomplete directories of tasks. It is
// called before other functions act on tasks. program is the monitor's program; "" means
// MonitorProgram. The error joins those of single tasks; the others are adopted all the same.
func Adopt(ctx context.Context, store tasks.Store, program string) error {
	all, err := store.ListUnended()
	if err != nil {
		err = fmt.Errorf("look for tasks without a monitor: %w", err)
		if all == nil {
			return err
		}
	}
	for _, t := range all {
		switch {
		case t.Orphan():
			err = errors.Join(err, startNewMonitor(ctx, store, program, t.ID))
		case t.Abandoned():
			err = errors.Join(err, removeAbandoned(ctx, store, t.ID))
		}
	}
	return errors.Join(err, sweepUnstarted(ctx, store, program, all))
}

// sweepUnstarted sweeps the tasks whose launchers were killed before anything of the task ran. A
// launcher that lives holds the lock of the task's directory, or that of the directory above.
func sweepUnstarted(ctx context.Context, store tasks.Store, program string, all []tasks.Task) error {
	_, ids, err := store.SplitEnded()
	if err != nil {
		return err
	}
	known := map[string]tasks.Task{}
	for _, t := range all {
		known[t.ID] = t
	}
	left := map[string][]string{} // ids by mount point of the cgroups
	for _, id := range ids {
		t, ok := known[id]
		if !ok || t.State != tasks.Broken && t.Life == nil && t.Exit == nil && !t.Held && !t.Abandoned() {
			left[t.CgroupMount] = append(left[t.CgroupMount], id)
		}
	}
	for mount, ids := range left {
		cgroups, e := cgroup.Detect(mount)
		if e == nil {
			s := sweeper{store: store, cgroups: cgroups, monitor: program}
			e = s.sweep(ctx, ids)
		}
		err = errors.Join(err, e)
	}
	return err
}

// startNewMonitor starts a monitor that adopts a task, and waits until the task has a monitor. The
// previous monitor may still hold the lock while it dies, or another process may have started a
// monitor first. A task that isn't kept may have ended meanwhile. A monitor that ends at once, as on a
// full disk, is started maxTries times.
func startNewMonitor(ctx context.Context, store tasks.Store, program, id string) error {
	const maxTries = 3
	for try, last := 1, time.Now().Add(killTimeout); ; {
		failed := startMonitor(ctx, store, program, id)
		if errors.Is(failed, ErrMonitorEnded) && try < maxTries {
			try++
			continue // the new monitor may have been killed as well
		}
		held := errors.Is(failed, errHeld)
		t, err := store.Task(id)
		switch {
		case failed != nil && !held && !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("adopt task %s: %w", id, failed)
		case err != nil || !t.Orphan():
			return nil
		case held && time.Now().After(last):
			return fmt.Errorf("adopt task %s: it has no monitor after %v", id, killTimeout)
		case !held && try == maxTries:
			return fmt.Errorf("adopt task %s: %w", id, ErrMonitorEnded)
		case !held:
			try++
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

var (
	// ErrMonitorEnded means that a task's new monitor has ended before its first report.
	ErrMonitorEnded = errors.New("its new monitor has ended at once")
	// errHeld means that another process holds the task's lock.
	errHeld = errors.New("another process holds it")
)

func startMonitor(ctx context.Context, store tasks.Store, program, id string) error {
	if err := unix.Access(store.Dir(id), unix.W_OK); err != nil { // the monitor couldn't record itself
		return &fs.PathError{Op: "write to", Path: store.Dir(id), Err: err}
	}
	if program == "" {
		var err error
		if program, err = MonitorProgram(); err != nil {
			return err
		}
	}
	if err := process.CloseDescriptorsOnExec(); err != nil { // the monitor outlives the processes at the other ends
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	const status = "3" // the first of ExtraFiles
	cmd := exec.Command(program, "--data", store.Data, "--state", store.State, "--proc", store.Proc, "--config", store.Config, "--adopt", "--status", status, id)
	cmd.Env, cmd.Dir = MonitorEnvironment(), "/"
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	if store.PlaceMonitor != nil {
		if t, err := store.Task(id); err == nil {
			_ = store.PlaceMonitor(ctx, cmd.Process.Pid, t.Cgroup) // without it the monitor supervises this life, and can't start the next
		}
	}
	go func() { _ = cmd.Wait() }() // it ends with its task, mostly after this process
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	line, err := bufio.NewReader(r).ReadString('\n')
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return ErrMonitorEnded
	case line == "held "+id+"\n":
		return errHeld
	}
	if code, text, ok := ParseStatus(line); !ok || code != 0 {
		return errors.New(cmp.Or(text, "its new monitor has sent an unknown report"))
	}
	return nil
}

// ParseStatus parses the line in which a launcher or a monitor reports a start. It returns 0 and the
// id of a task that has started or waits for devices, or an exit code and an error text.
func ParseStatus(line string) (code int, text string, ok bool) {
	line = strings.TrimSuffix(line, "\n")
	for _, done := range []string{"started ", "queued "} {
		if id, ok := strings.CutPrefix(line, done); ok {
			return 0, id, tasks.ValidID(id)
		}
	}
	words, ok := strings.CutPrefix(line, "failed ")
	number, text, whole := strings.Cut(words, " ")
	code, err := strconv.Atoi(number)
	if !ok || !whole || err != nil || code <= 0 || code > 255 {
		return 0, "", false
	}
	return code, text, true
}

// InstallDir is the directory in which packages install programs that users don't run.
const InstallDir = "/usr/lib/berth"

// MonitorProgram returns the path of the program that supervises detached tasks.
func MonitorProgram() (string, error) { return FindProgram("berth-monitor") }

// FindProgram returns the path of one of berth's programs: beside the running program, as after
// a build, or in InstallDir or one of the other directories.
func FindProgram(name string, others ...string) (string, error) {
	dirs := append([]string{InstallDir}, others...)
	if self, err := os.Executable(); err == nil {
		dirs = append([]string{filepath.Dir(strings.TrimSuffix(self, " (deleted)"))}, dirs...)
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, name); ociruntime.IsExecutable(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no %s in %s: install berth again", name, strings.Join(dirs, " or "))
}

// MonitorEnvironment returns the complete environment of a monitor. GOMAXPROCS and GOGC keep its
// memory small.
func MonitorEnvironment() []string {
	return []string{"PATH=" + ociruntime.Programs, "GOMAXPROCS=1", "GOGC=20"}
}
