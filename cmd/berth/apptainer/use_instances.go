package apptainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/sealed"
	"github.com/berth-gpu/berth/isolation/hostprocess"
	"github.com/berth-gpu/berth/launcher/enter"
)

// joinInstance runs a command in an instance. Flags for the container itself have no effect, as with Apptainer.
func joinInstance(c *cli.Context, conf berth.Config, name string) error {
	if c.IsSet("gpus") {
		return errors.New("--gpus: an instance has the devices that it was started with")
	}
	all, err := openInstances(conf)
	if err != nil {
		return err
	}
	defer all.closeDirectory()
	i, err := all.findInstance(c.Context, name)
	if err != nil {
		return err
	}
	first, err := i.openFirst()
	if err != nil {
		return err
	}
	defer first.Close() // a pidfd
	plan, err := newPlan(c, len(i.Environment) > 0)
	if err != nil {
		return err
	}
	plan.instance, plan.joins, plan.image, plan.content, plan.home.inside = name, true, i.Image, i.Content, i.Home
	if plan.contained && !plan.mustCwd {
		plan.cwd = i.Home
	}
	root, err := inroot.OpenRoot(fmt.Sprintf("/proc/%d/root", i.PID))
	if err != nil {
		return err
	}
	defer root.Close() // an O_PATH descriptor
	has := func(path string) bool { return enter.HasFile(root, path) }
	argv, env, err := plan.findCommand(has, i.Environment)
	if err != nil {
		return err
	}
	dirs := []string{plan.cwd}
	if !plan.mustCwd {
		dirs = append(dirs, i.Home, "/")
	}
	if isOn(c, "no-umask") || isOn(c, "compat") {
		unix.Umask(0o022)
	}
	program := join{
		first: first, pid: i.PID, request: joinRequest{Argv: argv, Env: env, Dirs: dirs, AsRoot: i.FakeRoot},
		place: func(pid int) error { return placeBeside(c.Context, conf, pid, i.PID) },
	}
	runtime.LockOSThread() // the processes that enter the container end with the thread
	return verb.RunProcess(c.Context, func() (*os.Process, error) {
		child, at, err := program.startProgram()
		if err == nil && at > 0 {
			plan.remarkDirectory(dirs[at])
		}
		return child, err
	}, nil)
}

// placeBeside moves a process into the cgroup of the lease that another one belongs to, if it belongs to one. The broker moves a user's, if the lease is the user's.
func placeBeside(ctx context.Context, conf berth.Config, pid, beside int) error {
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	group, err := node.Cgroups().ProcessPath("/proc", beside)
	if err != nil {
		return err
	}
	if group = berth.FindCommandCgroup(group); group == "" {
		return nil
	}
	if os.Geteuid() != 0 {
		_, err := client.New(conf.State).Place(ctx, protocol.Cgroup{Descendant: pid, Join: group})
		return backend.AdviseBroker(err)
	}
	p, err := hostprocess.Open(pid, 0)
	if err != nil {
		return err
	}
	defer p.Close()
	return node.JoinPlace(ctx, p, group)
}

// listedInstance is an instance in the list's JSON, with Apptainer's keys.
type listedInstance struct {
	Instance string `json:"instance"`
	PID      int    `json:"pid"`
	Image    string `json:"img"`
	IP       string `json:"ip"`
	LogErr   string `json:"logErrPath"`
	LogOut   string `json:"logOutPath"`
}

func listInstances(c *cli.Context) error {
	if c.NArg() > 1 {
		return verb.WrongCommandLine(c, "instance list takes one pattern")
	}
	if c.Bool("json") && c.Bool("logs") {
		return errors.New("instance list: --json has the paths of --logs")
	}
	if c.IsSet("user") {
		return runForUser(c, "json", "logs")
	}
	all, in, err := findInstances(c, c.Args().First())
	if err != nil {
		return err
	}
	defer in.closeDirectory()
	if c.Bool("json") {
		listed := []listedInstance{}
		for _, i := range all {
			listed = append(listed, listedInstance{i.Name, i.PID, i.Image, "", i.LogErr, i.LogOut})
		}
		text, err := json.MarshalIndent(map[string]any{"instances": listed}, "", "\t")
		if err == nil {
			_, err = fmt.Println(output.EscapeJSON(string(text)))
		}
		return err
	}
	const gap = 4
	table := tabwriter.NewWriter(os.Stdout, 0, 0, gap, ' ', 0)
	row := func(cells ...string) {
		for i := range cells {
			cells[i] = printable.Escape(cells[i])
		}
		_, _ = fmt.Fprintln(table, strings.Join(cells, "\t")) // Flush reports it
	}
	if c.Bool("logs") {
		row("INSTANCE NAME", "PID", "LOGS")
	} else {
		row("INSTANCE NAME", "PID", "IP", "IMAGE")
	}
	for _, i := range all {
		if c.Bool("logs") {
			row(i.Name, strconv.Itoa(i.PID), i.LogErr)
			row("", "", i.LogOut)
		} else {
			row(i.Name, strconv.Itoa(i.PID), "", i.Image)
		}
	}
	return table.Flush()
}

// findInstances returns the instances that a pattern names, all if it is empty.
func findInstances(c *cli.Context, pattern string) (found []instance, in instances, err error) {
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return nil, in, err
	}
	if in, err = openInstances(conf); err != nil {
		return nil, in, err
	}
	if pattern == "" {
		pattern = "*"
	}
	if found, err = in.findInstances(c.Context, pattern); err != nil {
		in.closeDirectory()
	}
	return found, in, err
}

// runForUser runs this verb as another user, so that root doesn't read what users write. Its output goes through this process: a user's process must not
// have root's terminal. flags are the names of those that are passed on.
func runForUser(c *cli.Context, flags ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("--user: only root may see and end instances of other users")
	}
	u, err := user.Lookup(c.String("user"))
	if err != nil {
		return err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	words := []string{"berth", "--config", c.String("config"), "apptainer", "instance", c.Command.Name}
	for _, name := range flags {
		if c.IsSet(name) {
			words = append(words, fmt.Sprintf("--%s=%v", name, c.Value(name)))
		}
	}
	limit := answerTime
	if c.Command.Name == "stop" {
		limit += time.Duration(c.Int("timeout"))*time.Second + killTime
	}
	ctx, cancel := context.WithTimeoutCause(c.Context, limit, fmt.Errorf("a process of user %s doesn't answer", u.Username))
	defer cancel()
	// The user must not have a process by it that is in this one's cgroup, which can be that of a lease.
	program, err := sealed.OpenUnreadable("/proc/self/exe")
	if err != nil {
		return err
	}
	defer program.Close() // only executed
	var out, said limitedText
	cmd := exec.CommandContext(ctx, fmt.Sprintf("/proc/self/fd/%d", program.Fd()))
	cmd.Args, cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = append(words, c.Args().Slice()...), "/", &out, &said, apartTime
	cmd.Env = []string{"HOME=" + u.HomeDir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if err := process.StartApart(cmd); err != nil {
		return err
	}
	ended := make(chan bool)
	go func() {
		_ = cmd.Wait() // its state and what it has said say more
		close(ended)
	}()
	stuck := make(chan bool)
	context.AfterFunc(ctx, func() {
		time.Sleep(2 * apartTime)
		close(stuck)
	})
	select {
	case <-ended:
	case <-stuck: // in a system call on a file system of the user's
		return context.Cause(ctx)
	}
	printLines(os.Stdout, out.String())
	printLines(os.Stderr, said.String())
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return verb.ChildExit(cmd.ProcessState)
}

// A process of another user answers within answerTime, and ends within apartTime when it is killed. Its user may stop it, or pass on its output.
const (
	answerTime = 8 * time.Second // less than a process waits for a lock
	apartTime  = time.Second
)

// limitedText is the output of another user's process.
type limitedText struct{ strings.Builder }

func (l *limitedText) Write(p []byte) (int, error) {
	const limit = 1 << 20
	if l.Len()+len(p) > limit {
		return 0, errors.New("the output is too long")
	}
	return l.Builder.Write(p)
}

// printLines prints lines of another user's process.
func printLines(to *os.File, text string) {
	for line := range strings.Lines(text) {
		_, _ = fmt.Fprintln(to, strings.ReplaceAll(printable.Escape(strings.TrimSuffix(line, "\n")), `\t`, "\t"))
	}
}

func stopInstances(c *cli.Context) error {
	pattern := c.Args().First()
	switch {
	case c.NArg() > 1:
		return verb.WrongCommandLine(c, "instance stop takes one pattern; quote it, so that the shell doesn't replace it")
	case pattern == "" && !c.Bool("all"):
		return verb.WrongCommandLine(c, "instance stop takes a name or --all: berth apptainer instance stop trainer")
	}
	sig, err := parseStopSignal(c.String("signal"))
	if err != nil {
		return err
	}
	if c.Bool("force") {
		sig = unix.SIGKILL
	}
	if c.IsSet("user") {
		return runForUser(c, "all", "force", "signal", "timeout")
	}
	all, in, err := findInstances(c, pattern)
	if err != nil {
		return err
	}
	defer in.closeDirectory()
	if len(all) == 0 {
		what := "there is no instance"
		if pattern != "" {
			what += " " + pattern
		}
		return verb.WithCode(codeUsage, errors.New(what+"; berth apptainer instance list lists them"))
	}
	kill := time.Now().Add(time.Duration(c.Int("timeout")) * time.Second)
	for _, i := range all {
		verb.PrintError(fmt.Sprintf("stopping instance %s of %s (process %d)", i.Name, i.Image, i.PID))
		if err := i.sendSignal(sig); err != nil {
			return err
		}
	}
	for _, i := range all {
		if err := in.endInstance(c.Context, i, kill); err != nil {
			return err
		}
	}
	_, err = in.findInstances(c.Context, "*") // removes the records
	return err
}

// parseStopSignal returns the signal of instance stop --signal, SIGINT if there is none.
func parseStopSignal(word string) (unix.Signal, error) {
	if word == "" {
		return unix.SIGINT, nil
	}
	if number, err := strconv.Atoi(word); err == nil && number > 0 && number <= 64 {
		return unix.Signal(number), nil
	}
	word = strings.TrimPrefix(strings.ToUpper(word), "SIG")
	if s := unix.SignalNum("SIG" + word); s != 0 {
		return s, nil
	}
	return 0, fmt.Errorf("--signal %s: there is no such signal", word)
}

// sendSignal sends a signal to the first process of an instance, which passes it on. One that has ended is no error.
func (i instance) sendSignal(sig unix.Signal) error {
	first, err := i.openFirst()
	if err != nil {
		return nil //nolint:nilerr // it has ended
	}
	defer first.Close() // a pidfd
	if err := unix.PidfdSendSignal(int(first.Fd()), sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("stop instance %s: %w", i.Name, err)
	}
	return nil
}

// killTime is how long processes that were killed may need to end.
const killTime = 10 * time.Second

// endPause is how often a command looks whether an instance has ended, and endTime how long a killed process may need to be seen as one that has ended.
const (
	endPause = 20 * time.Millisecond
	endTime  = 200 * time.Millisecond
)

// endInstance waits for the end of an instance, which it kills at a time.
func (s instances) endInstance(ctx context.Context, i instance, kill time.Time) error {
	for killed := false; ; {
		ended, err := s.hasEnded(i.Name)
		switch {
		case ended || err != nil:
			return err
		case time.Now().Before(kill):
		case killed:
			return fmt.Errorf("instance %s has processes that can't be killed", i.Name)
		default:
			verb.PrintError(fmt.Sprintf("killing instance %s of %s (process %d) after the timeout", i.Name, i.Image, i.PID))
			if err := i.sendSignal(unix.SIGKILL); err != nil {
				return err
			}
			killed, kill = true, time.Now().Add(killTime)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(endPause):
		}
	}
}
