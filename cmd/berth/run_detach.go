package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// lastingFlags say how long a task lasts.
func lastingFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "print the task's id once it runs, and leave it alone"},
		&cli.BoolFlag{Name: "rm", Usage: "keep nothing of the task at its end, as is usual without -d; --rm=false keeps it"},
		&cli.StringFlag{Name: "restart", Usage: "start a detached task again: `POLICY` is no, N or on-failure[:N], always or unless-stopped", Value: "no"},
		&cli.StringFlag{Name: "timeout", Usage: "end the task after `TIME`, such as 90s or 2h; a number is of seconds"},
		&cli.StringSliceFlag{Name: "log-opt", Usage: "bound a detached task's log: max-size=`SIZE` of a file (default: 10m), max-file=N files (default: 3)"},
	}
}

// detachedVariable is in the environment of the half of berth run -d that launches: the
// number of the descriptor by which it says how that went.
const detachedVariable = "BERTH_DETACHED"

// readLasting reads the flags of lastingFlags.
func readLasting(c *cli.Context, o *launcher.Options) (err error) {
	o.Keep = c.Bool("detach") && !c.Bool("rm") || c.IsSet("rm") && !c.Bool("rm")
	if o.Restart, err = tasks.ParseRestart(c.String("restart")); err != nil {
		return fmt.Errorf("--restart: %w", err)
	}
	if o.Timeout, err = secondsOf(c.String("timeout")); err != nil {
		return fmt.Errorf("--timeout %q: %w", c.String("timeout"), err)
	}
	for _, opt := range c.StringSlice("log-opt") {
		if err := readLogOption(opt, &o.LogLimit); err != nil {
			return fmt.Errorf("--log-opt %q: %w", opt, err)
		}
	}
	return nil
}

// secondsOf reads a duration; a bare number is of seconds.
func secondsOf(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if n, e := strconv.ParseInt(s, 10, 32); e == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < 0 {
		return 0, errors.New("not a time, such as 90s or 2h")
	}
	return d, nil
}

func readLogOption(opt string, limit *tasks.LogLimit) error {
	name, value, _ := strings.Cut(opt, "=")
	switch name {
	case "max-size":
		n, err := spec.ParseSize(value)
		if err != nil {
			return err
		}
		if n < logs.MinSize {
			return fmt.Errorf("a file of the log has at least %dk", logs.MinSize>>10)
		}
		limit.Size = n
	case "max-file":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > 1000 {
			return errors.New("not a number of files from 1 to 1000")
		}
		limit.Files = n
	default:
		return fmt.Errorf("there are max-size and max-file%s", didYouMean(name, []string{"max-size", "max-file"}))
	}
	return nil
}

// detachedStatus is the descriptor that this process got if it is the half that launches;
// nil if it isn't. The variable goes no further.
func detachedStatus() (*os.File, error) {
	return inheritedFile(detachedVariable)
}

// detached has the launch go on as the task's monitor.
func detached(ctx context.Context, status *os.File, o *launcher.Options) (context.Context, error) {
	if l, ok := o.Berths.(shared); ok {
		return nil, fmt.Errorf("a detached task would outlive the lease %s of the berth alloc around this process; unset BERTH_LEASE to take one of its own", l.outer.ID)
	}
	o.Detach = &launcher.Detach{Status: status}
	return untilHangUp(ctx, status), nil
}

// untilHangUp returns a context that ends when the other half does: then nobody wants
// the task any more.
func untilHangUp(ctx context.Context, status *os.File) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		var one [1]byte
		if _, err := status.Read(one[:]); err != nil { // nothing is ever sent this way
			cancel(&launcher.Interrupted{Signal: unix.SIGHUP})
		}
	}()
	return ctx
}

// detach starts this program once more, without a terminal and in a session of its own,
// to launch the task, and passes on what it says until the task runs.
func detach(c *cli.Context) error {
	id, err := launch(c, nil)
	if err == nil {
		fmt.Println(id)
	}
	return err
}

// launch starts the other half, and waits until the task runs.
func launch(c *cli.Context, leash *os.File) (id string, err error) {
	half, err := startHalf(leash)
	if err != nil {
		return "", exitError{exitBerth, fmt.Errorf("start the launcher: %w", err)}
	}
	stop := context.AfterFunc(c.Context, half.giveUp)
	defer stop()
	line, err := half.result()
	code, text, ok := launcher.ParseStatus(line)
	switch {
	case c.Err() != nil && (!ok || code != 0):
		return "", exitAs(c.Err())
	case err != nil && !errors.Is(err, io.EOF):
		return "", exitError{exitBerth, fmt.Errorf("hear of the launcher: %w", err)}
	case !ok:
		return "", half.end()
	case code != 0:
		return "", exitError{code, hinted(c, code, errors.New(text))}
	}
	return text, nil
}

// half is the process that launches.
type half struct {
	cmd    *exec.Cmd
	status *os.File
	said   chan struct{} // closed when it says nothing more
}

// startHalf starts it; leash, if there is one, is what ends with this process.
func startHalf(leash *os.File) (*half, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "status")
	defer theirs.Close()
	h := &half{status: os.NewFile(uintptr(pair[0]), "status"), said: make(chan struct{})}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	h.cmd = exec.Command("/proc/self/exe", os.Args[1:]...)
	h.cmd.Args[0] = os.Args[0]
	h.cmd.Env = append(os.Environ(), detachedVariable+"=3") // the first of ExtraFiles
	h.cmd.ExtraFiles = []*os.File{theirs}
	if leash != nil {
		h.cmd.Env = append(h.cmd.Env, leashVariable+"=4")
		h.cmd.ExtraFiles = append(h.cmd.ExtraFiles, leash)
	}
	h.cmd.Stderr = w
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	go func() {
		defer close(h.said)
		_, _ = io.Copy(os.Stderr, r) // who doesn't listen misses it
		r.Close()
	}()
	return h, h.cmd.Start()
}

// giveUp tells the other half that nobody wants the task. It then ends.
func (h *half) giveUp() {
	raw, err := h.status.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	if err != nil {
		_ = h.cmd.Process.Kill() // it may have ended
	}
}

// result is the line that says how the launch went, and comes after all else that is said.
func (h *half) result() (string, error) {
	line, err := bufio.NewReader(h.status).ReadString('\n')
	<-h.said
	return line, err
}

// end is how the other half ended that didn't get to start the task; it has said why.
func (h *half) end() error {
	var exit *exec.ExitError
	if err := h.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return exitError{exitBerth, err}
	}
	if exit != nil && exit.Exited() {
		return exitError{exit.ExitCode(), nil}
	}
	return exitError{exitBerth, errors.New("the launcher was killed before the task started")}
}

// adoptOrphans gives tasks whose monitor was killed a new one, before anything is said of
// them or done to them. That it can't keeps nobody from the other tasks. What is to be
// removed by force needs none.
func adoptOrphans(c *cli.Context, store tasks.Store) {
	if c.Command.Name == "rm" && c.Bool("force") {
		return
	}
	if err := launcher.Adopt(c.Context, store, ""); err != nil {
		fmt.Fprintln(os.Stderr, "berth: "+oneLine(err.Error()))
	}
}
