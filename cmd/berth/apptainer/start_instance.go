package apptainer

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/username"
)

// An instance is a command with --pid whose processes have left the session of the caller. The command that starts it runs the same command line again
// in a process outside of the instance (startOutside), and ends when the init process inside runs. An end of any of the processes outside ends all of it.

// instanceScheme begins the name of an instance in the place of an image.
const instanceScheme = "instance://"

// instanceVariable is the environment variable of the processes of an instance outside of its container: see instanceFiles.
const instanceVariable = "BERTH_INSTANCE"

// instanceFiles are the numbers of the file descriptors that the processes of an instance outside of its container have from the command that has started it.
type instanceFiles struct {
	record  int // of the instance; these processes share its lock
	starter int // a socket to the command
}

// findInstanceFiles returns those of the environment variable instanceVariable.
func findInstanceFiles() (f instanceFiles, err error) {
	if _, err := fmt.Sscanf(os.Getenv(instanceVariable), "%d:%d", &f.record, &f.starter); err != nil {
		return f, fmt.Errorf("environment variable %s: only berth apptainer instance sets it", instanceVariable)
	}
	return f, nil
}

// closeOnExec keeps the processes in the container from having the files.
func (f instanceFiles) closeOnExec() {
	unix.CloseOnExec(f.record)
	unix.CloseOnExec(f.starter)
}

// endWithStarter ends this process unless the command that has started the instance says that it knows of it.
func (f instanceFiles) endWithStarter() {
	for {
		n, err := unix.Read(f.starter, make([]byte, 1))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case n != 1:
			_ = unix.Kill(os.Getpid(), unix.SIGTERM)
		}
		return
	}
}

// announceInstance completes the record when the first process has started the command, and tells the command that has started the instance. pid is the first process.
func (f instanceFiles) announceInstance(ready *os.File, pid int) error {
	from := bufio.NewReader(ready)
	line, err := from.ReadBytes('\n')
	if err != nil {
		return err
	}
	var i instance
	if err := json.Unmarshal(line, &i); err != nil {
		return err
	}
	if _, err := from.ReadByte(); err != nil {
		return err
	}
	i.PID = pid
	if i.Start, err = process.Start("/proc", pid); err != nil {
		return err
	}
	i.LogOut, i.LogErr = logPath(unix.Stdout), logPath(unix.Stderr)
	data, err := json.Marshal(i)
	if err != nil {
		return err
	}
	if n, err := unix.Pwrite(f.record, data, 0); err != nil || n < len(data) {
		return fmt.Errorf("write the record of the instance: %w", cmp.Or(err, error(unix.ENOSPC)))
	}
	_, err = unix.Write(f.starter, []byte{0})
	return err
}

// logPath returns the path of the log file that is open as fd.
func logPath(fd int) string {
	name, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)) // only shown
	return name
}

// describeInstance writes what the first process knows of its instance to the file descriptor of firstVariable, which the init process gets.
func describeInstance(ready string, p *plan, devices []string) error {
	fd, err := strconv.Atoi(ready)
	if err != nil {
		return fmt.Errorf("environment variable %s: %w", firstVariable, err)
	}
	i := instance{Image: p.findImagePath(), Home: p.home.inside, FakeRoot: p.fakeroot, Environment: devices, Content: p.content}
	line, err := json.Marshal(i)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, append(line, '\n')) // of a pipe: all of it is written
	return err
}

func instanceVerbs() *cli.Command {
	start := func(name, usage string, more ...cli.Flag) *cli.Command {
		v := newVerb(name, usage, "IMAGE NAME [ARG…]")
		v.Flags = append(withoutFlags(v.Flags, "pwd", "shell", "pid", "no-pid", "no-init"), append(more,
			&cli.BoolFlag{Name: "no-init", Hidden: true}, // without effect, as there
			&cli.StringFlag{Name: "pid-file", Usage: "write the pid of the first process to `FILE`"})...)
		v.Action = func(c *cli.Context) error { return withCode(startInstance(c)) }
		return v
	}
	user := func(what string) cli.Flag {
		return &cli.StringFlag{Name: "user", Aliases: []string{"u"}, Usage: "as root, " + what + " instances of the user `NAME`"}
	}
	return &cli.Command{
		Name: "instance", Usage: "containers in the background", OnUsageError: wrongUsage,
		Description: "An instance is a container that lives on in the background, with processes that it starts and that\n" +
			"exec, run and shell add: instance://NAME is an IMAGE of these verbs. Devices that it leases are those of all\n" +
			"its processes, until it ends.",
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return cli.ShowSubcommandHelp(c)
			}
			if c.Args().First() == "stats" {
				return withCode(errors.New("apptainer instance stats: berth apptainer exec instance://NAME top shows an instance's processes"))
			}
			return withCode(verb.WrongCommandLine(c, fmt.Sprintf("there is no verb \"apptainer instance %s\"", c.Args().First())))
		},
		Subcommands: []*cli.Command{
			start("start", "start an instance, and in it the image's startscript"),
			start("run", "start an instance, and in it the image's runscript or entry point", &cli.StringFlag{Name: "runscript-timeout", Hidden: true}), // it is started at once
			{
				Name: "list", Usage: "list instances", ArgsUsage: "[PATTERN]", OnUsageError: wrongUsage,
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "json", Aliases: []string{"j"}, Usage: "print JSON"},
					&cli.BoolFlag{Name: "logs", Aliases: []string{"l"}, Usage: "print the paths of the log files"},
					&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Hidden: true}, // as always
					user("list"),
				},
				Action: func(c *cli.Context) error { return withCode(listInstances(c)) },
			},
			{
				Name: "stop", Usage: "end instances", ArgsUsage: "PATTERN", OnUsageError: wrongUsage,
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "end all instances"},
					&cli.BoolFlag{Name: "force", Aliases: []string{"F"}, Usage: "kill the processes at once"},
					&cli.StringFlag{Name: "signal", Aliases: []string{"s"}, Usage: "send `SIGNAL` instead of SIGINT"},
					&cli.IntFlag{Name: "timeout", Aliases: []string{"t"}, Value: 10, Usage: "kill what is left after `SECONDS`"},
					user("end"),
				},
				Action: func(c *cli.Context) error { return withCode(stopInstances(c)) },
			},
		},
	}
}

// withoutFlags returns flags without those of the names.
func withoutFlags(flags []cli.Flag, names ...string) []cli.Flag {
	return slices.DeleteFunc(flags, func(f cli.Flag) bool {
		return slices.ContainsFunc(f.Names(), func(n string) bool { return slices.Contains(names, n) })
	})
}

// startInstance starts an instance and waits until its first process runs.
func startInstance(c *cli.Context) error {
	if os.Getenv(instanceVariable) != "" {
		return runVerb(c)
	}
	if c.NArg() < 2 {
		return verb.WrongCommandLine(c, "instance "+c.Command.Name+" takes an image and a name: berth apptainer instance "+c.Command.Name+" image.sif trainer")
	}
	name := c.Args().Get(1)
	if err := checkInstanceName(name); err != nil {
		return err
	}
	if strings.HasPrefix(c.Args().First(), instanceScheme) {
		return checkReference(c.Args().First())
	}
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	all, err := openInstances(conf)
	if err != nil {
		return err
	}
	defer all.closeDirectory()
	record, err := all.reserveName(c.Context, name)
	if err != nil {
		return err
	}
	defer record.Close() // the instance has a copy
	if err := startOutside(c, record, name); err != nil {
		return err
	}
	if file := readText(c, "pid-file"); file != "" {
		i, err := all.findInstance(c.Context, name)
		if err != nil {
			return err
		}
		return os.WriteFile(file, []byte(strconv.Itoa(i.PID)+"\n"), 0o644) //nolint:gosec // others may read it
	}
	return nil
}

// startOutside runs this process's command line in a process that lives as long as the instance. What it says until the instance runs is also said here.
func startOutside(c *cli.Context, record *os.File, name string) error {
	stdout, stderr, err := openLogs(name)
	if err != nil {
		return err
	}
	defer stdout.Close() // the instance has copies
	defer stderr.Close()
	said, err := stderr.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(pair[0], true) // otherwise it isn't closed before it has been read
	}
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	own, theirs := os.NewFile(uintptr(pair[0]), "instance"), os.NewFile(uintptr(pair[1]), "instance") //nolint:gosec // not negative
	defer own.Close()
	if err := process.CloseDescriptorsOnExec(); err != nil { // a reader of a pipe would wait for the instance
		return err
	}
	var passed [2]int
	for i, f := range []*os.File{record, theirs} {
		if passed[i], err = rootless.Inherit(f); err != nil {
			return err
		}
	}
	cmd := exec.Cmd{
		Path: "/proc/self/exe", Args: os.Args, Stdout: stdout, Stderr: stderr,
		Env:         append(os.Environ(), fmt.Sprintf("%s=%d:%d", instanceVariable, passed[0], passed[1])),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT) // instance stop couldn't end a process that ignores them as a shell's job does
	err = cmd.Start()
	_, _, _ = theirs.Close(), unix.Close(passed[0]), unix.Close(passed[1])
	if err != nil {
		return err
	}
	ready, ended, shown := make(chan bool), make(chan bool), make(chan bool)
	go func() {
		defer close(ready)
		_, _ = own.Read(make([]byte, 1)) // at the end of the process, that counts
	}()
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its state says more
	}()
	stop := make(chan bool)
	go func() {
		defer close(shown)
		showLog(os.Stderr, stderr, said, stop)
	}()
	defer func() {
		close(stop)
		<-shown
	}()
	select {
	case <-ready:
		if _, err := own.Write([]byte{0}); err == nil {
			return nil
		}
	case <-c.Done():
		_ = own.Close() // the instance ends
	case <-ended:
	}
	<-ended
	if err := c.Err(); err != nil {
		return err
	}
	return verb.ChildExit(cmd.ProcessState)
}

// showLog prints what is added to a log behind an offset until it is to stop. The image's processes write to it as well, as fast and as much as they like: a
// pause, and the end, come after at most 64 KiB.
func showLog(to io.Writer, log io.ReaderAt, at int64, stop <-chan bool) {
	buf := make([]byte, 64<<10)
	for last := false; ; {
		n, _ := log.ReadAt(buf, at) // the log has it, too
		at += int64(n)
		_, _ = io.WriteString(to, escapeText(string(buf[:n])))
		if last {
			return
		}
		select {
		case <-stop:
			last = true
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// openLogs opens the log files of an instance, which are where Apptainer has them.
func openLogs(name string) (stdout, stderr *os.File, err error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, nil, err
	}
	config := cmp.Or(os.Getenv("APPTAINER_CONFIGDIR"), filepath.Join(findAccount().dir, ".apptainer"))
	dir := filepath.Join(config, "instances", "logs", host, username.Find(os.Geteuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	const flags = os.O_CREATE | os.O_APPEND | os.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK
	if stdout, err = os.OpenFile(filepath.Join(dir, name+".out"), flags, 0o644); err != nil {
		return nil, nil, err
	}
	stderr, err = os.OpenFile(filepath.Join(dir, name+".err"), flags, 0o644)
	if err != nil {
		err = errors.Join(err, stdout.Close())
	}
	return stdout, stderr, err
}
