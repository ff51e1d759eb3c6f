package cdi

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/internal/inroot"
)

// RootOptions are the options of [PrepareRoot].
type RootOptions struct {
	// Compat lets libraries of a newer driver that the image has in [CompatDir] come first in the
	// loader's cache. [AllowsCompat] decides whether they may.
	Compat bool
	// Shared is the directory that the driver directory is in, and how containers have
	// files of it bound. Loader caches that several containers have bound lie in it too.
	Shared shared.Dir
	// Mounts are those of [Services] and [Views]. They are left out where the container
	// has no place for them.
	Mounts []specs.Mount
}

// Prepared is what [PrepareRoot] found and did.
type Prepared struct {
	// Edits bind the driver's files into the container.
	Edits edits.Edits
	// Target is where the driver directory appears in the container.
	Target string
	// Notes are remarks for the user: that another target was chosen, or why the loader doesn't
	// learn of the libraries.
	Notes []string
}

// PrepareRoot makes a container's root ready for the driver directory, so that its
// programs find libcuda.so.1 as if it had been installed. root is the root file
// system, opened by [inroot.OpenRoot]; spec is the container's, and only read.
//
// Into a root with glibc it writes, by descriptor and in one step each, the merged
// loader cache and a line in ld.so.conf.d, which makes a later ldconfig inside
// keep it. A root that can't be written gets the merged cache as a bind of a file
// in with.Shared. Merged caches are remembered below state, an absolute path on the host
// that only root can write to. A root without glibc isn't touched, and gets the
// driver directory and its programs alone.
//
// Whatever the image holds, nothing outside the root is read or written, and what
// should be a file and isn't one is an error. Calling it twice is the same as once.
func PrepareRoot(root *os.File, spec *specs.Spec, dir driver.Dir, state string, with RootOptions) (Prepared, error) {
	p := preparation{root: root, spec: spec, dir: dir, state: state, shared: with.Shared, writable: isWritable(root), compatible: with.Compat}
	p.newer = p.findCompat()
	p.chooseTarget()
	if !slices.ContainsFunc(thisMachine().loaders, p.pathExists) {
		dir.Extras = nil // the files name libraries that no loader of this root can load
	}
	p.Edits = Files(dir, p.Target, p.shared)
	p.Edits.Mounts = append(p.Edits.Mounts, with.Mounts...)
	p.dropBlockedBinds()
	if err := p.configureLoader(); err != nil {
		return Prepared{}, fmt.Errorf("prepare root of container: %w", err)
	}
	return p.Prepared, nil
}

// preparation is one call of PrepareRoot.
type preparation struct {
	Prepared
	root     *os.File
	spec     *specs.Spec
	dir      driver.Dir
	state    string
	shared   shared.Dir
	writable bool

	compatible bool // set if newer libraries of the image may be used
	newer      compat

	kinds map[string]pathKind // results of fileKind, by path
}

func (p *preparation) addNote(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// isWritable reports whether files can be created in the root. It is false for the host's own root,
// which berth never writes to.
func isWritable(root *os.File) bool {
	var host, here unix.Stat_t
	if unix.Stat("/", &host) != nil || unix.Fstat(int(root.Fd()), &here) != nil {
		return false
	}
	same := host.Dev == here.Dev && host.Ino == here.Ino
	return !same && unix.Faccessat(int(root.Fd()), ".", unix.W_OK, 0) == nil
}

// chooseTarget chooses the mount point of the driver directory: one that hides no file of the image
// or the user and that the runtime can create.
func (p *preparation) chooseTarget() {
	candidates := []string{Target, OtherTarget}
	aside := p.newer.entries != nil && p.isSearched(Target)
	if aside { // the search path of CUDA images would find the older library there first
		candidates = []string{OtherTarget}
	}
	for _, tmpfs := range []string{"/run", "/dev"} {
		if !p.writable && slices.ContainsFunc(p.spec.Mounts, func(m specs.Mount) bool {
			return m.Type == "tmpfs" && path.Clean(m.Destination) == tmpfs
		}) {
			candidates = append(candidates, tmpfs+"/berth/nvidia")
		}
	}
	p.Target = OtherTarget
	for _, c := range candidates {
		onTmpfs := c != Target && c != OtherTarget
		if !p.hasMount(c) && (onTmpfs || p.isVacant(c) && (p.writable || p.pathExists(c))) {
			p.Target = c
			break
		}
	}
	if p.Target != Target && !aside {
		p.addNote("the driver is at %s, for %s is in use or can't be made", p.Target, Target)
	}
}

// isSearched reports whether LD_LIBRARY_PATH contains dir or a directory below it.
func (p *preparation) isSearched(dir string) bool {
	if p.spec.Process == nil {
		return false
	}
	return slices.ContainsFunc(p.spec.Process.Env, func(v string) bool {
		value, ok := strings.CutPrefix(v, "LD_LIBRARY_PATH=")
		return ok && slices.ContainsFunc(strings.Split(value, ":"), func(d string) bool {
			return strings.HasPrefix(path.Clean(d)+"/", dir+"/")
		})
	})
}

// mountsAt reports whether a mount of the spec is at exactly this path.
func (p *preparation) mountsAt(dest string) bool {
	return slices.ContainsFunc(p.spec.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == dest })
}

// hasMount reports whether a mount of the spec, other than ours, is at the path or below.
func (p *preparation) hasMount(dest string) bool {
	return slices.ContainsFunc(p.spec.Mounts, func(m specs.Mount) bool {
		d := path.Clean(m.Destination)
		ours := d == dest && m.Source == p.shared.PathForContainers(p.dir.Path)
		return !ours && (d == dest || strings.HasPrefix(d, dest+"/"))
	})
}

func (p *preparation) pathExists(name string) bool {
	_, err := inroot.Kind(p.root, name)
	return err == nil
}

// isVacant reports whether there is nothing at the path, or an empty directory, such as a
// mount point that an earlier start left.
func (p *preparation) isVacant(dest string) bool {
	f, err := inroot.Open(p.root, dest, unix.O_NOFOLLOW)
	if err != nil {
		return true // missing, or below something that is no directory
	}
	defer f.Close() // an O_PATH descriptor
	d, err := inroot.OpenDir(f, ".")
	if err != nil {
		return false
	}
	defer d.Close() // only read from
	_, err = d.Readdirnames(1)
	return errors.Is(err, io.EOF)
}
