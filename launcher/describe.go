package launcher

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/spec"
)

// describeContainer merges image and options, resolves user, groups and command in the root, and
// creates the working directory there.
func (t *task) describeContainer(img *image.Image, root *os.File) (spec.Container, error) {
	user, err := rootfs.LookupUser(root, cmp.Or(t.o.User, img.Config.User))
	if err != nil {
		return spec.Container{}, err
	}
	if err := t.checkUser(user); err != nil {
		return spec.Container{}, err
	}
	if user.Groups, err = rootfs.AddGroups(root, user.Groups, t.o.Groups); err != nil {
		return spec.Container{}, err
	}
	c := t.o.Container(img.Config, t.h.Host, t.h.privileges)
	c.User = user
	c.Console = t.o.streams().ConsoleSize()
	c.Hostname = t.o.EffectiveHostname(t.plan.name)
	c.Root, c.Cgroup = t.paths.In("rootfs"), t.paths.Cgroup()+"/container"
	c.Mounts = t.plan.mounts
	c.MaskedPaths = spec.ThermalPaths("/sys/devices/system/cpu")
	if t.plan.gang != nil {
		t.plan.gang.shareWithRank(&c)
	}
	if len(c.Args) == 0 {
		return spec.Container{}, fmt.Errorf("%w: the image %s names no command, and none was given", rootfs.ErrNotFound, t.o.Image)
	}
	if err := t.checkPaths(c, root); err != nil {
		return spec.Container{}, err
	}
	if err := t.addInit(&c); err != nil {
		return spec.Container{}, err
	}
	if t.plan.gang == nil {
		if c.Files, err = t.o.WriteEtcFiles(t.paths.In("files"), t.plan.name); err != nil {
			return spec.Container{}, err
		}
	}
	return c, spec.CheckMountPoints(root, c.Files, c.Mounts)
}

// checkUser returns an error if the user namespace doesn't have the container's user.
func (t *task) checkUser(u rootfs.User) error {
	if !t.h.UserNamespace || userns.HasUser(u.UID) && userns.HasGroup(u.GID) {
		return nil
	}
	const reason = "a task without root on the host has user 0, which is your own user outside, and others only by the subordinate ids of /etc/subuid and /etc/subgid and the program newuidmap"
	if t.o.User == "" {
		return fmt.Errorf("the image %s runs as user %d:%d, and %s: add --user 0, or ask the admin for such ids", t.o.Image, u.UID, u.GID, reason)
	}
	return fmt.Errorf("--user %s: %s", t.o.User, reason)
}

// checkPaths creates the working directory unless a volume will cover it, and returns an error if
// the command can't be executed.
func (t *task) checkPaths(c spec.Container, root *os.File) error {
	if !strings.HasPrefix(c.Dir, "/") {
		return fmt.Errorf("working directory %q is not an absolute path", c.Dir)
	}
	if !spec.IsCovered(c.Mounts, c.Dir) {
		if err := spec.MakeWorkdir(root, c.Dir); err != nil {
			return err
		}
	}
	programs, err := t.programs()
	if err != nil {
		return err
	}
	s := rootfs.Search{Path: spec.Getenv(c, "PATH"), Dir: c.Dir, Programs: programs, Execve: !t.o.Init}
	for _, m := range c.Mounts {
		s.Mounts = append(s.Mounts, rootfs.Mount{At: m.Destination, Source: m.Source})
	}
	return rootfs.FindCommand(root, c.Args[0], s)
}

// addInit makes catatonit the container's first process with Settings.Init. The container gets a
// copy: a container that may remount could write to the host's file through a bind mount.
func (t *task) addInit(c *spec.Container) error {
	if !t.o.Init {
		return nil
	}
	own := t.paths.In("init")
	if err := copyProgram(t.plan.init, own); err != nil {
		return fmt.Errorf("copy %s: %w", t.plan.init, err)
	}
	return t.o.AddInit(c, own)
}

// copyProgram copies a file to a new one that can be executed.
func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	// The container's users must be able to execute the copy, whatever the caller's umask.
	return errors.Join(err, out.Chmod(0o755), out.Close())
}
