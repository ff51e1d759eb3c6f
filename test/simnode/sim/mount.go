package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// overlay mounts an overlay on target: what the node writes is below Dir and
// goes away with it. The directories of lowers lie over those of the target
// itself, if that exists.
func overlay(name, target string, lowers ...string) error {
	upper, work := upperDir(name), upperDir(name+".work")
	if err := makeDirs(upper, work); err != nil {
		return err
	}
	if _, err := os.Stat(target); err == nil {
		lowers = append(lowers, target)
	}
	list := ""
	for _, l := range lowers {
		list += ":" + l
	}
	options := "lowerdir=" + list[1:] + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", target, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay on %s: %w", target, err)
	}
	return nil
}

// upperDir returns the directory in which files of an overlay can be put before it is mounted.
func upperDir(name string) string { return filepath.Join(Dir, "overlay", name) }

func makeDirs(dirs ...string) error {
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	return nil
}

// overlayRoot is overlay for a target that is a mount itself, which it replaces together with all
// mounts below.
func overlayRoot(name, target string) error {
	upper, work, at := upperDir(name), upperDir(name+".work"), filepath.Join(Dir, name)
	if err := makeDirs(upper, work, at); err != nil {
		return err
	}
	options := "lowerdir=" + target + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", at, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay of %s: %w", target, err)
	}
	return move(at, target)
}

// move moves the mount at from to target, whose own mounts are removed.
func move(from, target string) error {
	if err := unix.Unmount(target, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	if err := unix.Mount(from, target, "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move %s to %s: %w", from, target, err)
	}
	return os.Remove(from)
}

func bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	return nil
}

// keep holds trees while something is mounted over their parent; putBack
// attaches them again. A tree that doesn't exist is left out.
func keep(paths []string) (putBack func() error, err error) {
	held := map[string]int{}
	for _, path := range paths {
		fd, err := unix.OpenTree(unix.AT_FDCWD, path,
			unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("hold %s: %w", path, err)
		}
		held[path] = fd
	}
	return func() (err error) {
		for _, path := range paths {
			fd, ok := held[path]
			if !ok {
				continue
			}
			if moveErr := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); moveErr != nil {
				err = errors.Join(err, fmt.Errorf("put back %s: %w", path, moveErr))
			}
			err = errors.Join(err, unix.Close(fd))
		}
		return err
	}, nil
}

// mountRun gives the node a fresh /run. The machine's services stay reachable, except its systemd,
// of which only name resolution stays.
func mountRun() error {
	stay := []string{"/run/systemd/resolve", "/run/dbus", "/run/udev", "/run/resolvconf", "/run/NetworkManager", "/run/user"}
	putBack, err := keep(stay)
	if err != nil {
		return err
	}
	var there []string
	for _, path := range stay {
		if _, err := os.Lstat(path); err == nil {
			there = append(there, path)
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs on /run: %w", err)
	}
	if err := makeDirs(append(there, Dir, "/run/lock")...); err != nil {
		return err
	}
	return putBack()
}

// mountState makes /etc and the state directories under /var/lib the node's own.
// The node's files are in place before anything is mounted, so that nothing is
// ever written to the machine's /etc.
func (n Node) mountState(p Profile, d driverFiles) error {
	if err := n.writeEtc(hostname(p.Name), d); err != nil {
		return err
	}
	for name, target := range map[string]string{"etc": "/etc", "varlib": "/var/lib"} {
		if err := overlay(name, target); err != nil {
			return err
		}
	}
	for _, name := range []string{"berth", "containerd", "docker", "containers"} {
		own, target := filepath.Join(Dir, "lib", name), filepath.Join("/var/lib", name)
		if err := makeDirs(own, target); err != nil {
			return err
		}
		if err := bind(own, target); err != nil {
			return err
		}
	}
	return nil
}

// writeEtc prepares what the node has in /etc: its name, an empty /etc/berth if
// the machine has one, and what crun needs.
func (n Node) writeEtc(name string, d driverFiles) error {
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read hosts: %w", err)
	}
	t := tree{files: map[string]string{}}
	t.file("hostname", name)
	t.file("hosts", string(hosts)+"127.0.1.1 "+name)
	if _, err := os.Stat("/etc/berth"); err == nil {
		t.opaque = append(t.opaque, "berth")
	}
	capped, err := n.memlockCapped()
	if err != nil {
		return err
	}
	if capped {
		t.file("ld.so.preload", d.memlock)
	}
	return t.write(upperDir("etc"))
}

// memlockCapped reports whether crun would fail on cgroup v2 because of a limit that root can't
// raise here: see stub/memlock.c.
func (n Node) memlockCapped() (bool, error) {
	v2 := n.Cgroup == "v2" || (n.Cgroup == "host" && isV2(cgroupRoot))
	if !v2 {
		return false, nil
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return false, fmt.Errorf("read limit of locked memory: %w", err)
	}
	raised := unix.Rlimit{Cur: limit.Cur, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &raised); err != nil {
		return errors.Is(err, unix.EPERM), nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return false, fmt.Errorf("restore limit of locked memory: %w", err)
	}
	return false, nil
}
