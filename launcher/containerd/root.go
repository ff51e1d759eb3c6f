package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/overlay"
	"github.com/berth-gpu/berth/launcher/rootfs"
)

// root describes a container's root file system.
type root struct {
	// mounts are those of containerd's snapshot, or of a directory.
	mounts []mount.Mount
	// dir is the path of a directory image, "" for other images.
	dir string
}

// viewRoot mounts the root in a new mount namespace, calls f with it, and unmounts it. A process that
// is killed meanwhile leaves no mount. The container must not run.
func (r root) viewRoot(at string, f func(*os.File) error) error {
	if err := os.MkdirAll(at, 0o700); err != nil {
		return fmt.Errorf("make task directory: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this goroutine
		done <- r.viewInNamespace(at, f)
	}()
	return errors.Join(<-done, removeIfExists(at))
}

func (r root) viewInNamespace(at string, f func(*os.File) error) (err error) {
	if err := overlay.UnshareMounts(); err != nil {
		return err
	}
	for _, m := range r.mounts {
		if err := mountSnapshot(m, at); err != nil {
			return err
		}
	}
	defer func() {
		// An upper directory must not be used by two overlay mounts at a time.
		if e := unix.Unmount(at, 0); e != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", at, e))
		}
	}()
	dir, err := rootfs.Open(at)
	if err != nil {
		return err
	}
	return errors.Join(f(dir), dir.Close())
}

// mountSnapshot mounts an overlay, or a bind mount of a single layer. containerd's package
// mount is not used: it may mount from another thread, which has another mount namespace.
func mountSnapshot(m mount.Mount, at string) error {
	switch m.Type {
	case "bind":
		return overlay.BindMount(at, m.Source)
	case "overlay":
	default:
		return fmt.Errorf("mount root of type %s: only overlay and bind are known", m.Type)
	}
	layers := overlay.Layers{Lasting: true}
	for _, o := range m.Options {
		switch key, value, _ := strings.Cut(o, "="); key {
		case "lowerdir":
			layers.Lower = strings.Split(value, ":")
		case "upperdir":
			layers.Upper = value
		case "workdir":
			layers.Work = value
		}
	}
	return overlay.Mount(at, layers)
}

// directoryRoot returns the root of a directory image: an overlay with a writable layer of the task's
// own, or with writable the directory itself.
func directoryRoot(dir, task string, writable bool) (root, error) {
	if writable {
		return root{[]mount.Mount{{Type: "bind", Source: dir, Options: []string{"rbind", "rw"}}}, dir}, nil
	}
	if strings.ContainsAny(dir, ":,\\") {
		return root{}, fmt.Errorf("open image %s: the path of a directory can't have \":\", \",\" or \"\\\" under containerd", dir)
	}
	upper, work := filepath.Join(task, "upper"), filepath.Join(task, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return root{}, fmt.Errorf("make task directory: %w", err)
		}
	}
	options := []string{"lowerdir=" + dir, "upperdir=" + upper, "workdir=" + work}
	return root{[]mount.Mount{{Type: "overlay", Source: "overlay", Options: options}}, dir}, nil
}

// snapshotRoot returns the root of a container's snapshot.
func (e *Engine) snapshotRoot(ctx context.Context, key string) (root, error) {
	mounts, err := e.c.SnapshotService(snapshotter).Mounts(ctx, key)
	if err != nil {
		return root{}, fmt.Errorf("find root of container %s: %w", key, simplifyError(err))
	}
	return root{mounts: mounts}, nil
}
