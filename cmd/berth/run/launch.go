package run

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/helper"
	"github.com/berth-gpu/berth/cmd/berth/leasing"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// launchRequest is the command line of a detached task or a gang. This process parses the
// command line and passes the request to another process, which has no terminal. That one
// launches the task and then replaces itself by the task's monitor.
type launchRequest struct {
	Config string                // the configuration's file
	Task   *launcher.Options     `json:",omitempty"`
	Gang   *launcher.GangOptions `json:",omitempty"`
	// Devices are the words of a request, "" for none.
	Devices string
	Lease   leasing.Terms
	Hint    commandHint
}

// Descriptors of the process that launches, behind the first three.
const (
	statusFD     = iota + 3 // the result of the launch; closed by a berth run that gives up
	requestFD               // a launchRequest in JSON
	viewerPipeFD            // closed when the berth run that is attached to a gang ends
	portsFD                 // the lock of a gang's ports
	helperFD                // the socket of a helper.Session
)

// newLaunchRequest returns the request of a command line for the devices of r. With devices, a detached task or gang can't
// have those of the lease of a berth alloc around this process.
func newLaunchRequest(c *cli.Context, r request.Request) (launchRequest, error) {
	terms := leasing.Terms{Wait: waiting.Limit(c), Outer: os.Getenv("BERTH_LEASE"), Detached: c.Bool("detach")}
	if terms.Detached && terms.Outer != "" {
		if !r.IsZero() {
			return launchRequest{}, fmt.Errorf("a detached task would outlive the lease %s of the berth alloc around this process; unset BERTH_LEASE to take one of its own", terms.Outer)
		}
		terms.Outer = ""
	}
	return launchRequest{Config: c.String("config"), Devices: r.String(), Lease: terms, Hint: newCommandHint(c)}, nil
}

// commandHint has the parts of a command line for hints in errors: that a command isn't in the image, and that the
// node doesn't have a model.
type commandHint struct {
	Command string
	Flag    bool // it has the form of a flag of berth run
	Devices bool // devices are asked for
	// Alone: the command has no arguments.
	Alone bool
	// Count is the hint of [leasing.SuggestCount].
	Count string
}

func newCommandHint(c *cli.Context) commandHint {
	h := commandHint{Command: c.Args().Get(1), Devices: c.IsSet("gpus") || c.IsSet("device") || os.Getenv("BERTH_LEASE") != "", Count: leasing.SuggestCount(c.String("gpus"))}
	h.Flag, h.Alone = verb.IsFlag(h.Command), c.NArg() == 2
	if h.Command == "--" {
		h.Command, h.Flag, h.Alone = c.Args().Get(2), false, c.NArg() == 3
	}
	return h
}

// add adds the hint to an error of a launch.
func (h commandHint) add(code int, err error) error {
	switch {
	case errors.Is(err, match.ErrUnknown) && h.Count != "":
		return fmt.Errorf("%w%s", err, h.Count)
	case code != verb.ExitNotFound || err == nil:
	case h.Flag:
		return fmt.Errorf("%w; flags of berth run stand before the image", err)
	case h.Alone && strings.ContainsAny(h.Command, " \t"):
		return fmt.Errorf("%w; %s", err, verb.ShellHint)
	case path.Base(h.Command) == "nvidia-smi" && !h.Devices:
		return fmt.Errorf("%w; it comes with GPUs: berth run --gpus 1", err)
	}
	return err
}

// launchAndPrint launches a task or a gang, and prints its id when it runs. session is that of a user without root, nil for
// root.
func launchAndPrint(c *cli.Context, req launchRequest, session *helper.Session) error {
	id, _, err := runLauncher(c, req, nil, session)
	if err == nil {
		fmt.Println(id)
	}
	return err
}

// runLauncher has another process launch a task or a gang, and copies its standard error
// until the task runs. viewerPipe is set for a gang in the foreground. The launcher has become the monitor then.
func runLauncher(c *cli.Context, req launchRequest, viewerPipe *os.File, session *helper.Session) (id string, l *launcherProcess, err error) {
	l, err = startLauncher(req, viewerPipe, session)
	if err != nil {
		return "", nil, verb.WithCode(verb.ExitBerth, fmt.Errorf("start the launcher: %w", err))
	}
	stop := context.AfterFunc(c.Context, l.giveUp)
	defer stop()
	line, err := l.result()
	code, text, ok := control.ParseStatus(line)
	switch {
	case c.Err() != nil && (!ok || code != 0):
		return "", l, verb.WithBerthCode(c.Err())
	case err != nil && !errors.Is(err, io.EOF):
		return "", l, verb.WithCode(verb.ExitBerth, fmt.Errorf("read the launcher's result: %w", err))
	case !ok:
		return "", l, l.wait()
	case code != 0:
		return "", l, verb.WithCode(code, req.nameLargestTask(req.Hint.add(code, errors.New(text))))
	}
	return text, l, nil
}

// launcherProcess is the process that launches a task.
type launcherProcess struct {
	cmd    *exec.Cmd
	status *os.File
	copied chan struct{} // closed when its standard error was copied to the end
}

// startLauncher starts this program again, without a terminal and in a session of its own.
func startLauncher(req launchRequest, viewerPipe *os.File, session *helper.Session) (*launcherProcess, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "status")
	defer theirs.Close()
	l := &launcherProcess{status: os.NewFile(uintptr(pair[0]), "status"), copied: make(chan struct{})}
	errs, errsEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer errsEnd.Close()
	asked, asks, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer asked.Close()
	// The last word is only for lists of processes.
	l.cmd = exec.Command("/proc/self/exe", "launch", "--", req.title())
	l.cmd.Args[0] = os.Args[0]
	l.cmd.ExtraFiles = []*os.File{theirs, asked, viewerPipe, nil}
	if session != nil {
		helper, env, err := session.Share(helperFD)
		if err != nil {
			return nil, err
		}
		defer helper.Close() // a copy
		l.cmd.ExtraFiles, l.cmd.Env = append(l.cmd.ExtraFiles, helper), append(os.Environ(), env)
	}
	if req.Gang != nil && req.Gang.Ports != nil {
		l.cmd.ExtraFiles[portsFD-statusFD] = req.Gang.Ports.File
	}
	l.cmd.Stderr = errsEnd
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = json.NewEncoder(asks).Encode(req) // a launcher that was killed reads nothing
		asks.Close()
	}()
	go func() {
		defer close(l.copied)
		_, _ = io.Copy(os.Stderr, errs) // a closed standard error is no error
		errs.Close()
	}()
	return l, nil
}

// title returns the task's name or image, for lists of processes.
func (r launchRequest) title() string {
	switch {
	case r.Gang != nil:
		return r.Gang.Name
	case r.Task.Name != "":
		return r.Task.Name
	}
	return r.Task.Image
}

// giveUp makes the launcher end without starting the task.
func (l *launcherProcess) giveUp() {
	raw, err := l.status.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	if err != nil {
		_ = l.cmd.Process.Kill() // it may have ended
	}
}

// result returns the line with the result of the launch, after all of the launcher's standard
// error was copied.
func (l *launcherProcess) result() (string, error) {
	line, err := bufio.NewReader(l.status).ReadString('\n')
	<-l.copied
	return line, err
}

// wait returns the exit status of a launcher that hasn't started the task as an error without
// text: the launcher has printed one.
func (l *launcherProcess) wait() error {
	var exit *exec.ExitError
	if err := l.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return verb.WithCode(verb.ExitBerth, err)
	}
	if exit != nil && exit.Exited() {
		return verb.WithCode(exit.ExitCode(), nil)
	}
	return verb.WithCode(verb.ExitBerth, errors.New("the launcher was killed before the task started"))
}

// LaunchCommand is the hidden verb that startLauncher starts.
func LaunchCommand() *cli.Command {
	return &cli.Command{
		Name: "launch", Hidden: true, HideHelp: true, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			status, req, err := readLaunchRequest()
			if err != nil {
				return verb.WithCode(verb.ExitBerth, err)
			}
			code, err := req.launch(c, status)
			return verb.WithCode(code, req.nameLargestTask(req.Hint.add(code, err)))
		},
	}
}

// readLaunchRequest reads the request of startLauncher from requestFD.
func readLaunchRequest() (status *os.File, req launchRequest, err error) {
	status = inheritedFile(statusFD)
	asked := inheritedFile(requestFD)
	if err := json.NewDecoder(asked).Decode(&req); err != nil || req.Task == nil && req.Gang == nil {
		return nil, req, errors.New("only berth run -d starts berth launch")
	}
	if err := asked.Close(); err != nil {
		return nil, req, err
	}
	if g := req.Gang; g != nil && g.Viewer.PID != 0 {
		g.ViewerPipe = inheritedFile(viewerPipeFD)
	}
	if g := req.Gang; g != nil && g.Ports != nil {
		g.Ports.File = inheritedFile(portsFD)
	}
	return status, req, nil
}

// inheritedFile returns a descriptor that this process was started with, and closes it on exec.
func inheritedFile(fd int) *os.File {
	unix.CloseOnExec(fd)
	_ = unix.SetNonblock(fd, true) // otherwise a read blocks a thread
	return os.NewFile(uintptr(fd), "inherited")
}

// launch launches the task. It returns only on error: otherwise this process replaces itself
// by the task's monitor.
func (r launchRequest) launch(c *cli.Context, status *os.File) (int, error) {
	conf, err := verb.LoadConfigFile(r.Config)
	if err != nil {
		return verb.ExitBerth, err
	}
	o := r.Task
	if r.Gang != nil {
		o = &r.Gang.Options
	}
	o.Detach, o.Progress = &launcher.Detach{Status: status}, backend.PrintUnpacking(time.Now())
	o.Fetch = backend.NewImageFetcher(c, conf, backend.ImageStore(conf), o.Progress)
	if r.Devices != "" {
		if o.Request, err = request.Parse(r.Devices); err != nil {
			return verb.ExitBerth, err
		}
	}
	session, inNamespace, err := rootless.Open(conf)
	switch {
	case err != nil:
	case inNamespace:
		err = leasing.ConnectBroker(c.Context, conf, o, session, r.Lease)
	default:
		err = leasing.ConnectLedger(c.Context, conf, o, r.Lease)
	}
	if err != nil {
		return verb.ExitBerth, err
	}
	if err := c.Err(); err != nil { // a signal that came before the launcher handles signals
		return verb.ExitBerth, err
	}
	// From here on the launcher handles signals, and ctx must not end the task.
	ctx := untilHangUp(context.WithoutCancel(c.Context), o.Detach)
	if r.Gang != nil {
		// This process execs the monitor before it has used much memory: collecting garbage costs more.
		const lazily = 400
		debug.SetGCPercent(lazily)
		return launcher.RunGang(ctx, *r.Gang)
	}
	return launcher.Run(ctx, *r.Task)
}

// nameLargestTask adds the task that has written the most to an error of a full disk.
func (r launchRequest) nameLargestTask(err error) error {
	conf, bad := berth.LoadConfig(r.Config)
	if bad != nil {
		return err
	}
	return nameLargestTask(conf, err)
}

// untilHangUp returns a context that ends when the other end of d.Status is closed before the task's id
// was reported, because the berth run that waits for the id was killed.
func untilHangUp(ctx context.Context, d *launcher.Detach) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		var one [1]byte
		if _, err := d.Status.Read(one[:]); err != nil && !d.IsQueued() { // no data is ever sent: Read returns when the other end is closed
			cancel(&supervise.Interrupted{Signal: unix.SIGHUP})
		}
	}()
	return ctx
}
