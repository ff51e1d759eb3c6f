package setup

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Host is the machine: its files, and what the engine and systemd print.
type Host struct {
	// FS is the file system from the root on.
	FS fs.FS
	// Find looks for a program in PATH; "" if there is none. nil finds none.
	Find func(name string) string
	// Version is the engine's version, "" if it is not known.
	Version string
	// Dump is the whole configuration as the engine prints it, "" if it prints none.
	Dump string
	// Refusal is the engine's error about its configuration, "" if it has none.
	Refusal string
	// Path is the PATH that systemd gives to services, "" for systemd's default.
	Path string
}

// File is a regular file, a symbolic link, or nothing.
type File struct {
	Exists bool
	// Link is the target of a symbolic link, "" for a regular file.
	Link string
	Data []byte
	Mode fs.FileMode
	// UID and GID are the owner.
	UID, GID int
}

// Same reports whether two files have the same content or target.
func (f File) Same(g File) bool {
	return f.Exists == g.Exists && f.Link == g.Link && bytes.Equal(f.Data, g.Data)
}

// withData returns the file with another content. A new file has mode 0644.
func (f File) withData(data []byte) File {
	if !f.Exists {
		f.Mode = 0o644
	}
	f.Exists, f.Link, f.Data = true, "", data
	return f
}

// maxFileSize bounds what is read of a configuration file.
const maxFileSize = 1 << 20

// maxLinks is the number of links that Linux follows.
const maxLinks = 40

// ReadFile returns the file that a path leads to, without following a link at its end. A
// missing file is not an error.
func (h Host) ReadFile(name string) (File, error) {
	info, err := fs.Lstat(h.FS, fsPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, nil
	}
	if err != nil {
		return File{}, fmt.Errorf("read %s: %w", name, withoutPath(err))
	}
	f := File{Exists: true, Mode: info.Mode().Perm()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.UID, f.GID = int(st.Uid), int(st.Gid)
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		f.Link, err = fs.ReadLink(h.FS, fsPath(name))
	case !info.Mode().IsRegular():
		return File{}, fmt.Errorf("read %s: it is no regular file", name)
	case info.Size() > maxFileSize:
		return File{}, fmt.Errorf("read %s: it has %d bytes, the limit is %d", name, info.Size(), maxFileSize)
	default:
		f.Data, err = fs.ReadFile(h.FS, fsPath(name))
	}
	if err != nil {
		return File{}, fmt.Errorf("read %s: %w", name, withoutPath(err))
	}
	return f, nil
}

// readTarget returns the file that a path leads to, and the path of that file: links at
// the end are followed, because an edit changes their target.
func (h Host) readTarget(name string) (File, string, error) {
	name, err := h.resolve(name)
	if err != nil {
		return File{}, "", err
	}
	f, err := h.ReadFile(name)
	return f, name, err
}

// resolve follows the links at the end of a path.
func (h Host) resolve(name string) (string, error) {
	for range maxLinks {
		target, err := fs.ReadLink(h.FS, fsPath(name))
		if err != nil {
			return name, nil // no link
		}
		if !path.IsAbs(target) {
			target = path.Join(h.resolveDir(path.Dir(name), maxLinks), target)
		}
		if _, err := fs.Lstat(h.FS, fsPath(target)); err != nil {
			return "", fmt.Errorf("read %s: it is a link to %s: %w", name, target, withoutPath(err))
		}
		name = path.Clean(target)
	}
	return "", fmt.Errorf("read %s: too many links", name)
}

// resolveDir returns a directory by a path without links. Only from there does ".." lead
// to the parent that the kernel finds.
func (h Host) resolveDir(dir string, links int) string {
	if dir == "/" || dir == "." || links == 0 {
		return dir
	}
	dir = path.Join(h.resolveDir(path.Dir(dir), links), path.Base(dir))
	target, err := fs.ReadLink(h.FS, fsPath(dir))
	if err != nil {
		return dir // no link
	}
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(dir), target)
	}
	return h.resolveDir(target, links-1)
}

// exists reports whether a path exists; links are followed.
func (h Host) exists(name string) bool {
	_, err := fs.Stat(h.FS, fsPath(name))
	return err == nil
}

// ModTime returns when a file was changed last; the zero time for a missing file.
func (h Host) ModTime(name string) time.Time {
	info, err := fs.Stat(h.FS, fsPath(name))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// listDir returns the sorted names in a directory. A missing directory is empty.
func (h Host) listDir(dir string) (names []string) {
	entries, err := fs.ReadDir(h.FS, fsPath(dir))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

func (h Host) findProgram(name string) string {
	if h.Find == nil {
		return ""
	}
	return h.Find(name)
}

// checkInstalled returns [ErrNotInstalled] unless an engine's program or one of its paths
// is there.
func (h Host) checkInstalled(engine, program string, paths ...string) error {
	if h.findProgram(program) != "" || slices.ContainsFunc(paths, h.exists) {
		return nil
	}
	and := ""
	if len(paths) > 0 {
		and = ", and no " + strings.Join(paths, " or ")
	}
	return fmt.Errorf("%s %w: there is no %s in PATH%s", engine, ErrNotInstalled, program, and)
}

// fsPath turns an absolute path into one of an [fs.FS].
func fsPath(name string) string {
	if name = strings.TrimPrefix(path.Clean(name), "/"); name != "" {
		return name
	}
	return "."
}

// withoutPath strips the path from an error whose caller names it.
func withoutPath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// Version is the first two numbers of an engine's version.
type Version struct {
	Known        bool
	Major, Minor int
}

// ParseVersion reads a version such as "28.5.2". Text without one is not [Version.Known].
func ParseVersion(text string) (v Version) {
	if m := regexp.MustCompile(`\d+\.\d+`).FindString(text); m != "" {
		n, err := fmt.Sscanf(m, "%d.%d", &v.Major, &v.Minor)
		v.Known = n == 2 && err == nil
	}
	return v
}

// Before reports whether a version is known to be older than another.
func (v Version) Before(other string) bool {
	o := ParseVersion(other)
	return v.Known && cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor)) < 0
}

// AtLeast reports whether a version is known not to be older than another.
func (v Version) AtLeast(other string) bool { return v.Known && !v.Before(other) }

// FindVersion returns the first version number in an engine's version output, without a
// distribution's suffix; "" if there is none.
func FindVersion(text string) string {
	return regexp.MustCompile(`\d+\.\d+(\.\d+)*(-[a-z0-9.]+)?`).FindString(text)
}
