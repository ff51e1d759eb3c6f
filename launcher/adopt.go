package launcher

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// Adopt gives each detached task whose monitor was killed a new one, which goes on where
// the other ended. Whoever is about to act on tasks calls it first. program is the
// monitor's; "" means that it is found. A task that can't be adopted doesn't keep the
// others from it.
func Adopt(ctx context.Context, store tasks.Store, program string) error {
	all, err := store.List()
	if err != nil {
		err = fmt.Errorf("look for tasks without a monitor: %w", err)
	}
	for _, t := range all {
		if t.Orphan() {
			err = errors.Join(err, adopt(ctx, store, program, t.ID))
		}
	}
	return err
}

// adopt starts a monitor that takes over a task, and waits until one has: the one before
// may still be dying, and hold the task, or another adopter was quicker. A task that
// keeps nothing may have ended since it was looked at.
func adopt(ctx context.Context, store tasks.Store, program, id string) error {
	for last := time.Now().Add(dying); ; {
		failed := startMonitor(ctx, store, program, id)
		t, err := store.Task(id)
		if failed != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("adopt task %s: %w", id, failed)
		}
		if err != nil || !t.Orphan() || time.Now().After(last) {
			return nil
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

func startMonitor(ctx context.Context, store tasks.Store, program, id string) error {
	if program == "" {
		var err error
		if program, err = MonitorProgram(); err != nil {
			return err
		}
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
		return errors.New("its new monitor has ended at once")
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
