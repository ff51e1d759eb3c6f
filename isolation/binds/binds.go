// Package binds restricts bind mounts of what all tasks of the host share: the kernel's file
// systems (cgroups, sysfs, procfs, and what is mounted in them) and the driver's files.
//
// Root in a container needs no capability to write to these through a writable bind mount: it could
// move itself into a cgroup without device rules, write a GPU's PCI configuration, unbind its
// driver, or write to another task's memory.
//
// The restrictions hold for a container that can't mount. A container with CAP_SYS_ADMIN can
// remount what is read-only here. The sources of the mounts are trusted: an engine's user chooses
// them, and an image can't.
package binds

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// Host describes what Restrict protects.
type Host struct {
	// Table is a mountinfo of proc(5). What is mounted in a kernel file system counts as one.
	Table []byte
	// Files is a directory that containers get only from the mount FilesMount, which has the
	// same content. FilesMount is "" if there is no such mount.
	Files, FilesMount string
	// HideProcesses refuses bind mounts of processes' directories, and has an empty directory
	// in place of a procfs below a source. Otherwise these are read-only, as the rest of a
	// procfs is.
	HideProcesses bool
	// KeepCgroups leaves bind mounts of cgroups on /sys/fs/cgroup and below it, by which
	// engines give containers their cgroups.
	KeepCgroups bool
	// Bundle is the directory to which relative sources are joined, as runc does. Without one
	// they are an error.
	Bundle string
}

// maxTable is more than the mount tables of thousands of containers have.
const maxTable = 64 << 20

// ReadTable reads the mount table of the caller's mount namespace, for Host.
func ReadTable() ([]byte, error) {
	table, err := smallfile.Read("/proc/self/mountinfo", maxTable)
	if err != nil {
		return nil, fmt.Errorf("find the host's mounts: %w", err)
	}
	return table, nil
}

// Restrict returns the mounts, in their order, with those that have to be read-only, and with mounts
// after each bind mount that cover protected directories below its source. notes describe the
// changes, for people. A bind mount that can't be restricted is an error, and so is a mount that changes
// another one (remount). Restrict is idempotent.
func (h Host) Restrict(mounts []specs.Mount) (all []specs.Mount, notes []string, err error) {
	if h.FilesMount != "" {
		if h.Files, err = resolve(h.Files); err != nil {
			return nil, nil, fmt.Errorf("find the driver's files: %w", err)
		}
	}
	points := kernelMounts(h.Table)
	for i, m := range mounts {
		if isRemount(m) {
			return nil, nil, fmt.Errorf("mount at %s: the option remount would make a read-only mount writable; leave it out", m.Destination)
		}
		if !IsBind(m) {
			all = append(all, m)
			continue
		}
		if !path.IsAbs(m.Source) {
			if h.Bundle == "" {
				return nil, nil, fmt.Errorf("volume %s: the source is not an absolute path", m.Source)
			}
			m.Source = path.Join(h.Bundle, m.Source)
		}
		src, err := resolve(m.Source)
		if err != nil {
			return nil, nil, fmt.Errorf("volume %s: %w", m.Source, err)
		}
		if h.KeepCgroups && isBelow(path.Clean(m.Destination), "/sys/fs/cgroup") && isInCgroups(src, points) {
			all = append(all, m)
			continue
		}
		restricted, err := h.restrictBind(m, src, points)
		if err != nil {
			return nil, nil, err
		}
		// A cover of an earlier call is there already. Another mount at its place is no cover: the caller may remove it.
		covers := slices.DeleteFunc(h.listCovers(m, src, points), func(c specs.Mount) bool {
			return slices.ContainsFunc(mounts[i+1:], func(o specs.Mount) bool { return isSame(o, c) })
		})
		if shared := slices.Contains(m.Options, "shared") || slices.Contains(m.Options, "rshared"); shared && len(covers) > 0 {
			return nil, nil, fmt.Errorf("volume %s: mounts of the task would appear on the host's %s; leave out shared, or bind a directory below", m.Source, strings.TrimPrefix(covers[0].Destination, path.Clean(m.Destination)))
		}
		if restricted.Source != m.Source || !slices.Equal(restricted.Options, m.Options) {
			notes = append(notes, fmt.Sprintf("the bind mount of %s at %s is read-only", m.Source, m.Destination))
		}
		for _, c := range covers {
			notes = append(notes, fmt.Sprintf("%s at %s is read-only or empty", strings.TrimPrefix(c.Destination, path.Clean(m.Destination)), c.Destination))
		}
		all = append(append(all, restricted), covers...)
	}
	return all, notes, nil
}

// Reaches reports whether the source of a bind mount is dir, lies below it, or contains it. bundle is the
// base of relative sources. A source that can't be resolved doesn't count: Restrict refuses it.
func Reaches(mounts []specs.Mount, bundle, dir string) bool {
	dir, err := resolve(dir)
	return err == nil && slices.ContainsFunc(mounts, func(m specs.Mount) bool {
		if !IsBind(m) {
			return false
		}
		if !path.IsAbs(m.Source) {
			m.Source = path.Join(bundle, m.Source)
		}
		src, err := resolve(m.Source)
		return err == nil && (isBelow(src, dir) || isBelow(dir, src))
	})
}

// resolve returns the path of the file or directory to which source leads, without symbolic links,
// or the cleaned source if nothing exists there: the runtime then refuses or creates it. The links
// of procfs to processes' files (/proc/PID/root, /proc/PID/fd/N) are an error: the kernel follows
// them elsewhere than their text says.
func resolve(source string) (string, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, source, &how)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Openat2(unix.AT_FDCWD, source, &how)
	}
	switch {
	case errors.Is(err, unix.ELOOP):
		return "", errors.New("it leads through a link to a process's files, or in a circle: bind the directory itself")
	case errors.Is(err, fs.ErrNotExist):
		return path.Clean(source), nil
	case err != nil:
		return "", err
	}
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return name, errors.Join(err, unix.Close(fd))
}

// isInCgroups reports whether a path lies in a cgroup file system, or in the tmpfs in which those
// of version 1 are mounted.
func isInCgroups(name string, points []point) (is bool) {
	for _, p := range points { // parents come first
		if isBelow(name, p.path) {
			is = p.isCgroup
		}
	}
	return is
}

// restrictBind restricts a bind mount whose source lies in a protected directory.
func (h Host) restrictBind(m specs.Mount, src string, points []point) (specs.Mount, error) {
	for _, p := range points {
		// The path as written is checked too, because /proc/PID/root can't be resolved by its text.
		for _, name := range []string{path.Clean(m.Source), src} {
			if !isBelow(name, p.path) {
				continue
			}
			if h.HideProcesses && p.isProc && isProcessPath(strings.TrimPrefix(name, p.path)) {
				return m, fmt.Errorf("volume %s: a task that sees others' processes could take their memory, files and devices; see them with berth ps and on the host", m.Source)
			}
			m.Options = withReadOnly(m.Options)
		}
	}
	if h.FilesMount != "" && isBelow(src, h.Files) {
		m.Source = path.Join(h.FilesMount, strings.TrimPrefix(src, h.Files))
	}
	return m, nil
}

// listCovers returns the mounts that cover what a bind mount has below its source.
func (h Host) listCovers(m specs.Mount, src string, points []point) (covers []specs.Mount) {
	at := func(point string) string { return path.Join(m.Destination, strings.TrimPrefix(point, src)) }
	hidden := ""
	for _, p := range points {
		switch {
		case !isRecursive(m) || p.path == src || !isBelow(p.path, src):
		case hidden != "" && isBelow(p.path, hidden):
		case p.isProc && h.HideProcesses:
			hidden = p.path
			covers = append(covers, specs.Mount{
				Destination: at(p.path), Type: "tmpfs", Source: "tmpfs",
				Options: []string{"ro", "nosuid", "nodev", "noexec", "size=4k", "mode=555"},
			})
		default:
			covers = append(covers, specs.Mount{
				Destination: at(p.path), Type: "bind", Source: p.path,
				Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev", "noexec"},
			})
		}
	}
	if h.FilesMount != "" && h.Files != src && isBelow(h.Files, src) {
		covers = append(covers, specs.Mount{
			Destination: at(h.Files), Type: "bind", Source: h.FilesMount,
			Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev"},
		})
	}
	return covers
}

// isProcessPath reports whether a path below a procfs is the procfs itself or that of a process.
func isProcessPath(below string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(below, "/"), "/")
	_, err := strconv.Atoi(first)
	return err == nil || slices.Contains([]string{"", "self", "thread-self"}, first)
}

// Concerns reports whether Restrict has anything to do for m.
func Concerns(m specs.Mount) bool { return IsBind(m) || isRemount(m) }

// isRemount reports whether m changes the mount that is at its destination.
func isRemount(m specs.Mount) bool { return slices.Contains(m.Options, "remount") }

func isSame(a, b specs.Mount) bool {
	return a.Destination == b.Destination && a.Type == b.Type && a.Source == b.Source && slices.Equal(a.Options, b.Options)
}

// IsBind reports whether runtimes treat m as a bind mount.
func IsBind(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// isRecursive reports whether a bind mount may bring in what is mounted below its source. Without
// an option runtimes differ.
func isRecursive(m specs.Mount) bool {
	return slices.Contains(m.Options, "rbind") || !slices.Contains(m.Options, "bind")
}

// withReadOnly returns the options of a mount that is to be read-only. Runtimes apply rrw, which makes a mount and
// those below it writable, after ro.
func withReadOnly(options []string) []string {
	writable := func(o string) bool { return o == "rw" || o == "rrw" }
	if slices.Contains(options, "ro") && !slices.ContainsFunc(options, writable) {
		return options
	}
	return append(slices.DeleteFunc(slices.Clone(options), func(o string) bool { return writable(o) || o == "ro" }), "ro")
}

// isBelow reports whether path is dir or lies below it.
func isBelow(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// point is one mount point of a kernel file system.
type point struct {
	path   string
	isProc bool
	// isCgroup: a cgroup file system, or the tmpfs in sysfs in which those of version 1 are.
	isCgroup bool
}

// kernelMounts returns the mount points of cgroups, sysfs and procfs in a mountinfo of
// proc(5), and of what is mounted in them, parents first.
func kernelMounts(table []byte) (all []point) {
	add := func(p point) {
		if !slices.ContainsFunc(all, func(o point) bool { return o.path == p.path }) {
			all = append(all, p)
		}
	}
	var others []string
	for line := range bytes.Lines(table) {
		before, after, _ := bytes.Cut(line, []byte(" - "))
		fields := bytes.SplitN(before, []byte(" "), 6) // id, parent's id, device, root, mount point, options
		kind, _, found := bytes.Cut(after, []byte(" "))
		if len(fields) < 5 || !found {
			continue
		}
		at := unescapeMountinfo(string(fields[4]))
		switch string(kind) {
		case "proc":
			// A single file or directory of one, as LXCFS and sandboxes bind it, shows no process.
			add(point{path: at, isProc: string(fields[3]) == "/"})
		case "sysfs":
			add(point{path: at})
		case "cgroup", "cgroup2":
			add(point{path: at, isCgroup: true})
		default:
			others = append(others, at)
		}
	}
	roots := slices.Clone(all)
	for _, at := range others {
		if slices.ContainsFunc(roots, func(p point) bool { return at != p.path && isBelow(at, p.path) }) {
			holdsCgroups := slices.ContainsFunc(roots, func(p point) bool { return p.isCgroup && isBelow(p.path, at) })
			add(point{path: at, isCgroup: holdsCgroups})
		}
	}
	slices.SortFunc(all, func(a, b point) int { return strings.Compare(a.path, b.path) })
	return all
}

// unescapeMountinfo decodes the octal escapes of a mountinfo.
func unescapeMountinfo(text string) string {
	if !strings.Contains(text, `\`) { // of thousands of mount points hardly any has an escape
		return text
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}
