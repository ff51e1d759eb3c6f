// Package rootless runs verbs for users without root: in a child that is root of a user namespace of its own. This process
// stays outside, serves the child (see package helper), and ends its lease.
package rootless

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"

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
		if err := explainRefusal(conf, userns.CheckRights()); err != nil {
			return err
		}
		return action(c)
	}
}

// Run runs this process's command line in a child that is root of a new user namespace, and returns an error with its exit code. The
// namespace has the user's subordinate ids, if there are any.
func Run(c *cli.Context, conf berth.Config) error {
	var own *userns.Namespaces
	if ociruntime.LookUp("nsenter") != "" {
		var err error
		own, err = userns.Create(c.Context, username.Find(os.Geteuid()), ociruntime.LookUp)
		if c.Err() != nil {
			return verb.WithBerthCode(c.Err())
		}
		if err != nil && slices.Contains([]string{"run", "pull"}, c.Command.Name) {
			verb.PrintError("subordinate ids can't be used, so containers have only user 0: " + err.Error())
		}
	}
	if own == nil {
		cmd := exec.Cmd{Args: os.Args}
		userns.Enter(&cmd)
		return runChild(c, conf, cmd)
	}
	defer own.Close() // they are only passed on
	return runByNsenter(c, conf, own.User, own.Mount)
}

// RunInside is Run in an existing user namespace of this user's.
func RunInside(c *cli.Context, conf berth.Config, namespace *os.File) error {
	return runByNsenter(c, conf, namespace, nil)
}

// runByNsenter runs this process's command line in a child that is root of a user namespace, and in a mount namespace unless that is nil.
func runByNsenter(c *cli.Context, conf berth.Config, user, mount *os.File) error {
	// A multi-threaded process can't enter a user namespace: see setns(2).
	nsenter := ociruntime.LookUp("nsenter")
	if nsenter == "" {
		return verb.WithBerthCode(fmt.Errorf("there is no nsenter in %s: install util-linux", ociruntime.Programs))
	}
	self, err := os.Executable()
	if err != nil {
		return verb.WithBerthCode(err)
	}
	const fd = helperFD + 1
	cmd := exec.Cmd{Path: nsenter, Args: []string{"nsenter", fmt.Sprintf("--user=/proc/self/fd/%d", fd), "--preserve-credentials"}, Env: os.Environ()}
	files := []*os.File{user}
	if mount != nil {
		dir, err := os.Getwd()
		if err != nil {
			return verb.WithBerthCode(fmt.Errorf("find the working directory: %w", err))
		}
		cmd.Args = append(cmd.Args, fmt.Sprintf("--mount=/proc/self/fd/%d", fd+1))
		cmd.Env = append(cmd.Env, directoryVariable+"="+dir)
		files = append(files, mount)
	}
	cmd.Args = append(append(cmd.Args, "--", self), os.Args[1:]...)
	return runChild(c, conf, cmd, files...)
}

// directoryVariable is an environment variable with the working directory of a child that has entered a mount namespace.
const directoryVariable = "BERTH_DIRECTORY"

// RestoreDirectory returns a child of [Run] to the working directory of the process outside: the kernel moves to / who enters a mount
// namespace. It does nothing in other processes.
func RestoreDirectory() error {
	dir, found := os.LookupEnv(directoryVariable)
	if !found || !verb.IsHelped() {
		return nil
	}
	return errors.Join(os.Unsetenv(directoryVariable), os.Chdir(dir))
}

// helperFD is the child's file descriptor of its socket.
const helperFD = 3

// runChild runs a child in a user namespace. files are more file descriptors for it.
func runChild(c *cli.Context, conf berth.Config, cmd exec.Cmd, files ...*os.File) error {
	// Nobody else may execute files of images, which keep their set-uid bits.
	err := os.MkdirAll(conf.TaskData(), 0o700)
	if err == nil {
		err = os.Chmod(conf.TaskData(), 0o700)
	}
	if err != nil {
		// Not wrapped: more rights are no advice.
		return verb.WithBerthCode(fmt.Errorf("there is no place for this user's tasks and images: %v; set XDG_DATA_HOME to a directory of this user's", err)) //nolint:errorlint // see above
	}
	outside, socket, err := helper.Start(protocol.SocketPath(conf.State))
	if err != nil {
		return verb.WithBerthCode(err)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, verb.HelperVariable+"="+strconv.Itoa(helperFD))
	cmd.ExtraFiles = append([]*os.File{socket}, files...)
	err = verb.RunSelf(c.Context, cmd, unix.SIGTERM) // which ends the task
	_ = socket.Close()                               // a copy
	lease, left := outside.Stop()
	if refused := explainRefusal(conf, err); refused != nil {
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
	if err := explainRefusal(conf, userns.CheckRights()); err != nil {
		return nil, false, errors.Join(err, s.Close())
	}
	return s, true, nil
}
