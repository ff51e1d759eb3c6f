package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
)

// Mount is a file or directory of the host that will appear in the container.
type Mount struct {
	At     string // absolute, in the container
	Source string // on the host; this path is trusted, and what is below isn't
}

// view is a root with the mounts that will be made in it. It answers questions before the mounts exist. Its
// answers are for error messages only: the runtime resolves all paths again.
type view struct {
	root   *os.File
	mounts []Mount // At has no links in it
}

// newView resolves the links in the paths of mount points. A missing mount point is no error, because the
// runtime creates it.
func newView(root *os.File, mounts []Mount) view {
	v := view{root: root}
	for _, m := range mounts {
		at, err := v.resolveLinks(m.At, true)
		if err != nil {
			continue // the runtime reports the error
		}
		v.mounts = append(v.mounts, Mount{At: at, Source: m.Source})
	}
	return v
}

// openPath opens the file that will be at an absolute path, with O_PATH.
func (v view) openPath(name string) (*os.File, error) {
	if len(v.mounts) == 0 {
		return openInRoot(v.root, name, 0)
	}
	at, err := v.resolveLinks(name, false)
	if err != nil {
		return nil, err
	}
	return v.openWithoutLinks(at)
}

// maxLinks is the kernel's limit for links in a path.
const maxLinks = 40

// resolveLinks resolves the links in a path. With missing, a missing name is no error and counts as no
// link.
func (v view) resolveLinks(name string, missing bool) (string, error) {
	at, left := "/", strings.Split(name, "/")
	for links := 0; len(left) > 0; {
		step := left[0]
		left = left[1:]
		if step == ".." {
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, step)
		target, err := v.readLink(next)
		switch {
		case errors.Is(err, fs.ErrNotExist) && (missing || v.leadsToMount(next)):
			at = next
		case err != nil:
			return "", err
		case target == "":
			at = next
		case links == maxLinks:
			return "", &fs.PathError{Op: "open", Path: name, Err: unix.ELOOP}
		default:
			links++
			left = append(strings.Split(target, "/"), left...)
			if path.IsAbs(target) {
				at = "/"
			}
		}
	}
	return at, nil
}

// leadsToMount reports whether a mount point is below at: the runtime then creates at.
func (v view) leadsToMount(at string) bool {
	for _, m := range v.mounts {
		if strings.HasPrefix(m.At, at+"/") {
			return true
		}
	}
	return false
}

// readLink returns the target of the link at a path, "" if it is no link. The parents must not be links.
func (v view) readLink(at string) (string, error) {
	f, err := v.openWithoutLinks(at)
	if err != nil {
		return "", err
	}
	defer f.Close() // an O_PATH descriptor
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", target)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // both mean: not a link
		return "", nil
	}
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: at, Err: err}
	}
	return string(target[:n]), nil
}

// openWithoutLinks opens a path whose parents are no links; a link itself isn't followed. A parent that has
// become a link meanwhile is followed, but not out of the root or the mount's source.
func (v view) openWithoutLinks(path string) (*os.File, error) {
	for i := len(v.mounts) - 1; i >= 0; i-- {
		m := v.mounts[i]
		if path == m.At {
			return openHost(m.Source)
		}
		if !strings.HasPrefix(path, m.At+"/") {
			continue
		}
		source, err := openHost(m.Source)
		if err != nil {
			return nil, err
		}
		defer source.Close() // an O_PATH descriptor
		return openInRoot(source, strings.TrimPrefix(path, m.At), unix.O_NOFOLLOW)
	}
	return openInRoot(v.root, path, unix.O_NOFOLLOW)
}

// openHost opens a path of the host as the runtime will, with O_PATH.
func openHost(name string) (*os.File, error) {
	f, err := os.OpenFile(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("look at what is to be mounted: %w", err)
	}
	return f, nil
}

// openInRoot opens a name of the container below root, with O_PATH.
func openInRoot(root *os.File, name string, flags int) (*os.File, error) {
	return inroot.Open(root, "./"+strings.TrimLeft(name, "/"), flags)
}
