// Package setup plans what an engine's configuration needs so that its containers get
// GPUs by berth, and how that is taken back.
//
// It reads through an [fs.FS] and writes nothing: a [Plan] is the files as they are and
// as they shall be, for somebody else to show and to write. What is in a file stays as
// it is written there; only berth's own keys come and go. A [Record] remembers what they
// replaced.
//
// It never starts, stops or asks an engine. What an engine says of itself (its version,
// its containers) is told to it.
package setup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Name is what the runtime is called in every engine.
const Name = "berth"

// ErrNotInstalled: there is no trace of the engine.
var ErrNotInstalled = errors.New("isn't installed here")

// Engines are the names of those that can be set up.
func Engines() []string { return []string{"docker", "containerd", "podman"} }

// For plans berth in an engine's configuration. record is what was kept the last time,
// nil if nothing was.
func For(engine string, h Host, o Options, record *Record) (Plan, error) {
	switch engine {
	case "docker":
		return Docker(h, o, record)
	case "containerd":
		return Containerd(h, o, record)
	case "podman":
		return Podman(h, o, record)
	}
	return Plan{}, fmt.Errorf("engine %q is not known: %s", engine, strings.Join(Engines(), ", "))
}

// Host is the machine as it is.
type Host struct {
	// FS is its file system from the root on.
	FS fs.FS
	// Find looks for a program where PATH says; "" if it isn't there. nil finds none.
	Find func(name string) string
	// Version is what the engine says of its version, "" if it says nothing.
	Version string
	// Dump is what the engine says of its whole configuration, "" if it says nothing.
	Dump string
	// Refusal is what it says against it, "" if nothing.
	Refusal string
	// Path is the PATH that systemd gives to services, "" for the usual one.
	Path string
}

// Options are what shall be set up.
type Options struct {
	// Runtime is the path of berth-runtime, Hook that of berth-hook.
	Runtime, Hook string
	// Config is the configuration that they shall read, "" for the usual one.
	Config string
	// Data is the directory of what stays.
	Data string
	// Crun says that the runtime becomes crun.
	Crun bool
	// Count says that policy has NVIDIA's CDI names mean a count.
	Count bool
	// Default makes berth the engine's default runtime.
	Default bool
}

// Plan is what has to be done.
type Plan struct {
	// Changes have to be made in this order. None means that all is as it should be.
	Changes []Change
	// Dirs have to be there, with nothing in them if they are new.
	Dirs []string
	// Record is to be kept before the changes are made. After a removal there is none.
	Record *Record
	// Check is how the engine itself looks at what shall be written, nil if it can't.
	Check *Check
	// Apply is the command that makes the changes take effect, "" if none is needed.
	Apply string
	// Notes are sentences for the admin.
	Notes []string
}

// Check is a call of an engine that reads a configuration and says whether it is right.
type Check struct {
	// Command is what is called. In it, and in the files, Dir stands for the directory
	// that the files are put into.
	Command []string
	// Before and After are files by name, as they are and as they shall be.
	Before, After map[string][]byte
	// Judge looks at what the engine then prints of After. nil is content.
	Judge func(said string) error
}

// Dir stands for a directory that isn't known yet.
const Dir = "{dir}"

func (p *Plan) note(format string, values ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, values...))
}

// Change is what becomes of one file.
type Change struct {
	// Path is absolute, and its last part no symbolic link unless that is what the
	// change is about.
	Path          string
	Before, After File
}

// File is a regular file, a symbolic link, or nothing.
type File struct {
	Exists bool
	// Link is where a symbolic link points to, "" for a regular file.
	Link string
	Data []byte
	Mode fs.FileMode
	// UID and GID are its owner.
	UID, GID int
}

// Same says that two files are the same for a reader.
func (f File) Same(g File) bool {
	return f.Exists == g.Exists && f.Link == g.Link && bytes.Equal(f.Data, g.Data)
}

// with is the file with another content.
func (f File) with(data []byte) File {
	if !f.Exists {
		f.Mode = 0o644
	}
	f.Exists, f.Link, f.Data = true, "", data
	return f
}

// maxFile is more than any configuration has.
const maxFile = 1 << 20

// maxLinks is how many links Linux follows.
const maxLinks = 40

// read returns the file that a path leads to, and that file's own path: links are
// followed, for what people edit is their target.
func (h Host) read(name string) (File, string, error) {
	name, err := h.resolve(name)
	if err != nil {
		return File{}, "", err
	}
	f, err := h.Look(name)
	return f, name, err
}

// resolve follows the links of a path's last part.
func (h Host) resolve(name string) (string, error) {
	for range maxLinks {
		target, err := fs.ReadLink(h.FS, inside(name))
		if err != nil {
			return name, nil // it is no link
		}
		if !path.IsAbs(target) {
			target = path.Join(h.realDir(path.Dir(name), maxLinks), target)
		}
		if _, err := fs.Lstat(h.FS, inside(target)); err != nil {
			return "", fmt.Errorf("read %s: it is a link to %s: %w", name, target, bare(err))
		}
		name = path.Clean(target)
	}
	return "", fmt.Errorf("read %s: too many links", name)
}

// realDir is a directory by a path without links, from which ".." leads to its parent.
func (h Host) realDir(dir string, links int) string {
	if dir == "/" || dir == "." || links == 0 {
		return dir
	}
	dir = path.Join(h.realDir(path.Dir(dir), links), path.Base(dir))
	target, err := fs.ReadLink(h.FS, inside(dir))
	if err != nil {
		return dir // it is no link
	}
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(dir), target)
	}
	return h.realDir(target, links-1)
}

// Look returns what is at a path, without following a link there.
func (h Host) Look(name string) (File, error) {
	info, err := fs.Lstat(h.FS, inside(name))
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, nil
	}
	if err != nil {
		return File{}, fmt.Errorf("read %s: %w", name, bare(err))
	}
	f := File{Exists: true, Mode: info.Mode().Perm()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.UID, f.GID = int(st.Uid), int(st.Gid)
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		f.Link, err = fs.ReadLink(h.FS, inside(name))
	case !info.Mode().IsRegular():
		return File{}, fmt.Errorf("read %s: it is no regular file", name)
	case info.Size() > maxFile:
		return File{}, fmt.Errorf("read %s: it has %d bytes, which no configuration has", name, info.Size())
	default:
		f.Data, err = fs.ReadFile(h.FS, inside(name))
	}
	if err != nil {
		return File{}, fmt.Errorf("read %s: %w", name, bare(err))
	}
	return f, nil
}

// exists says that there is something at a path.
func (h Host) exists(name string) bool {
	_, err := fs.Stat(h.FS, inside(name))
	return err == nil
}

// names lists a directory; one that isn't there is empty.
func (h Host) names(dir string) []string {
	entries, err := fs.ReadDir(h.FS, inside(dir))
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func (h Host) find(name string) string {
	if h.Find == nil {
		return ""
	}
	return h.Find(name)
}

// installed says that one of an engine's programs or paths is there.
func (h Host) installed(engine string, programs, paths []string) error {
	if slices.ContainsFunc(programs, func(p string) bool { return h.find(p) != "" }) || slices.ContainsFunc(paths, h.exists) {
		return nil
	}
	and := ""
	if len(paths) > 0 {
		and = ", and no " + strings.Join(paths, " or ")
	}
	return fmt.Errorf("%s %w: there is no %s in PATH%s", engine, ErrNotInstalled, programs[0], and)
}

// inside is a path in an fs.FS.
func inside(name string) string {
	if name = strings.TrimPrefix(path.Clean(name), "/"); name != "" {
		return name
	}
	return "."
}

// bare is an error without the path, which is named already.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
