// Package rootless runs verbs for users without root: in a child that is root of a user namespace of its own. This process
// stays outside, serves the child (see package helper), and ends its lease.
package rootless

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/helper"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/username"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// Wrap returns an action that runs in a user namespace if this process is not root.
func Wrap(action cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if os.Geteuid() == 0 && !verb.IsHelped() {
			return action(c)
		}
		conf, err := verb.LoadConfig(c)
		switch {
		case err != nil:
			return err
		case !verb.IsHelped():
			return Run(c, conf)
		}
		if err := explainRefusal(conf.GPUHost().ProcPath(), userns.CheckRights()); err != nil {
			return err
		}
		return action(c)
	}
}

// Run runs this process's command line in a child that is root of a new user namespace, and returns an error with its exit code. The
// namespace has the user's subordinate ids, if there are any.
func Run(c *cli.Context, conf berth.Config) error {
	var namespace *os.File
	if ociruntime.LookUp("nsenter") != "" {
		var err error
		namespace, err = userns.Create(c.Context, username.Find(os.Geteuid()), ociruntime.LookUp)
		if c.Err() != nil {
			return verb.WithBerthCode(c.Err())
		}
		if err != nil && slices.Contains([]string{"run", "pull"}, c.Command.Name) {
			verb.PrintError("subordinate ids can't be used, so containers have only user 0: " + err.Error())
		}
	}
	if namespace == nil {
		cmd := exec.Cmd{Args: os.Args}
		userns.Enter(&cmd)
		return runChild(c, conf, cmd, unix.SIGTERM, nil)
	}
	defer namespace.Close() // it is only passed on
	return runByNsenter(c, conf, namespace, mountsVariable+"=1")
}

// RunInside is Run in an existing user namespace of this user's.
func RunInside(c *cli.Context, conf berth.Config, namespace *os.File) error {
	return runByNsenter(c, conf, namespace)
}

// runByNsenter runs this process's command line in a child that is root of a user namespace. env is added to its environment.
func runByNsenter(c *cli.Context, conf berth.Config, namespace *os.File, env ...string) error {
	// A multi-threaded process can't enter a user namespace: see setns(2).
	nsenter := ociruntime.LookUp("nsenter")
	if nsenter == "" {
		return verb.WithBerthCode(fmt.Errorf("there is no nsenter in %s: install util-linux", ociruntime.Programs))
	}
	self, err := os.Executable()
	if err != nil {
		return verb.WithBerthCode(err)
	}
	passed, err := Inherit(namespace)
	if err != nil {
		return verb.WithBerthCode(err)
	}
	defer func() { _ = unix.Close(passed) }() // a copy
	args := append([]string{"nsenter", fmt.Sprintf("--user=/proc/self/fd/%d", passed), "--preserve-credentials", "--", self}, os.Args[1:]...)
	return runChild(c, conf, exec.Cmd{Path: nsenter, Args: args, Env: append(os.Environ(), env...)}, unix.SIGTERM, nil)
}

// RunAsSelf runs this process's command line in a child that has this user's id in a new user namespace, and the rights there to mount file
// systems, and returns an error with its exit code. file is called when the child asks for it by [helper.Session.ReceiveFile]. env is added
// to its environment.
func RunAsSelf(c *cli.Context, conf berth.Config, file func() (*os.File, error), env ...string) error {
	cmd := exec.Cmd{Args: os.Args, Env: append(os.Environ(), env...)}
	userns.EnterAsSelf(&cmd)
	return runChild(c, conf, cmd, unix.SIGKILL, file)
}

// Inherit returns the number of a copy of a file that programs inherit which this process starts. It is none of those that the caller of this
// process may have chosen for files of its own, such as PMI's.
func Inherit(f *os.File) (fd int, err error) {
	const first, low = 100, 10
	fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD, first)
	if errors.Is(err, unix.EINVAL) { // the limit of open files is lower
		fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD, low)
	}
	if err != nil {
		return -1, fmt.Errorf("pass on %s: %w", f.Name(), err)
	}
	return fd, nil
}

// mountsVariable is an environment variable of a child that makes a mount namespace for itself.
const mountsVariable = "BERTH_MOUNTS"

// EnterMountNamespace is the first thing that a process does: a child of [Run] that nsenter has started executes its program again in
// a mount namespace of its own. unshare(1) isn't used, because some distributions have an AppArmor profile that denies capabilities to its
// child processes.
func EnterMountNamespace() error {
	asked := os.Getenv(mountsVariable) != "" && verb.IsHelped()
	if err := os.Unsetenv(mountsVariable); err != nil || !asked {
		return err
	}
	runtime.LockOSThread() // the new namespace is this thread's until it executes the program
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return cmp.Or(explainRefusal("/proc", err), fmt.Errorf("make a mount namespace: %w", err))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", self, unix.Exec(self, os.Args, os.Environ()))
}

// MakeDataDir makes the directory of this user's tasks and images. No other user can enter it, because files of images keep their set-uid bits.
func MakeDataDir(conf berth.Config) error {
	err := os.MkdirAll(conf.TaskData(), 0o700)
	if err == nil {
		err = os.Chmod(conf.TaskData(), 0o700)
	}
	if err != nil {
		// Not wrapped: more rights are no advice.
		return verb.WithBerthCode(fmt.Errorf("there is no place for this user's tasks and images: %v; set XDG_DATA_HOME to a directory of this user's", err)) //nolint:errorlint // see above
	}
	return nil
}

// runChild runs a child in a user namespace. It gets the signal atDeath when this process is killed, and the file when it asks for it.
func runChild(c *cli.Context, conf berth.Config, cmd exec.Cmd, atDeath syscall.Signal, file func() (*os.File, error)) error {
	if err := MakeDataDir(conf); err != nil {
		return err
	}
	outside, socket, err := helper.Start(protocol.SocketPath(conf.State), file)
	if err != nil {
		return verb.WithBerthCode(err)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	passed, err := Inherit(socket)
	_ = socket.Close() // a copy
	if err != nil {
		return verb.WithBerthCode(err)
	}
	cmd.Env = append(cmd.Env, verb.HelperVariable+"="+strconv.Itoa(passed))
	err = verb.RunSelf(c.Context, cmd, atDeath)
	_ = unix.Close(passed) // a copy
	lease, left := outside.Stop()
	if refused := explainRefusal(conf.GPUHost().ProcPath(), err); refused != nil {
		return refused
	}
	if !left {
		return err
	}
	node, e := berth.Open(conf)
	switch {
	case e != nil:
	case lease.ID == "":
		if live, err := backend.HasRemaining(node.Cgroups(), lease.Group); err == nil && !live { // the next berth run here removes it
			e = node.RemoveCommandCgroup(context.WithoutCancel(c.Context), lease.Group)
		}
	default:
		e = backend.EndLease(context.WithoutCancel(c.Context), node, lease.ID, lease.Group, lease.Devices)
	}
	return errors.Join(err, e)
}

// Open returns the connection to the process outside. ok is false if this process is not a child of [Run].
func Open(conf berth.Config) (s *helper.Session, ok bool, err error) {
	if s, ok, err = helper.Open(conf); !ok {
		return s, ok, err
	}
	if err := explainRefusal(conf.GPUHost().ProcPath(), userns.CheckRights()); err != nil {
		return nil, false, errors.Join(err, s.Close())
	}
	return s, true, nil
}
