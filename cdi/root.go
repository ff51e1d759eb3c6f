package cdi

import (
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/inroot"
)

// Prepared is what [PrepareRoot] found and did.
type Prepared struct {
	// Edits bind the driver's files into the container.
	Edits edits.Edits
	// Target is where the driver directory appears in the container.
	Target string
	// Notes say, for people, what is remarkable: that another target was chosen,
	// or why the loader can't be told of the libraries.
	Notes []string
}

// PrepareRoot makes a container's root ready for the driver directory, so that its
// programs find libcuda.so.1 as if it had been installed. root is the root file
// system, opened by [inroot.OpenRoot]; spec is the container's, and only read.
//
// Into a root with glibc it writes, by descriptor and in one step each, the merged
// loader cache and a line in ld.so.conf.d, which makes a later ldconfig inside
// keep it. A root that can't be written gets the merged cache as a bind of a file
// below state, a directory of the host. A root without glibc isn't touched.
//
// Whatever the image holds, nothing outside the root is read or written. Calling
// it twice is the same as once.
func PrepareRoot(root *os.File, spec *specs.Spec, dir driver.Dir, state string) (Prepared, error) {
	p := preparation{root: root, spec: spec, dir: dir, state: state}
	p.chooseTarget()
	p.Edits = Files(dir, p.Target)
	if err := p.tellLoader(); err != nil {
		return Prepared{}, fmt.Errorf("prepare root of container: %w", err)
	}
	return p.Prepared, nil
}

// preparation is one call of PrepareRoot.
type preparation struct {
	Prepared
	root  *os.File
	spec  *specs.Spec
	dir   driver.Dir
	state string
}

func (p *preparation) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// chooseTarget finds a place where nothing of the image or the user is hidden.
func (p *preparation) chooseTarget() {
	p.Target = Target
	if p.mounted(Target) || !p.vacant(Target) {
		p.Target = OtherTarget
		p.note("%s is in use: the driver is at %s", Target, OtherTarget)
	}
}

// mounted says that a mount of the spec, other than ours, is at the path or below.
func (p *preparation) mounted(dest string) bool {
	for _, m := range p.spec.Mounts {
		d := path.Clean(m.Destination)
		ours := d == dest && m.Source == p.dir.Path
		if !ours && (d == dest || strings.HasPrefix(d, dest+"/")) {
			return true
		}
	}
	return false
}

// vacant says that there is nothing at the path, or an empty directory, such as a
// mount point that an earlier start left.
func (p *preparation) vacant(dest string) bool {
	f, err := inroot.Open(p.root, dest, unix.O_NOFOLLOW)
	if err != nil {
		return true // not there, or below something that is no directory
	}
	defer f.Close() // an O_PATH descriptor
	d, err := inroot.OpenDir(f, ".")
	if err != nil {
		return false
	}
	defer d.Close() // only read from
	_, err = d.Readdirnames(1)
	return err == io.EOF
}
