package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// kernelRelease returns the release of the running kernel: "6.12.0-1-amd64".
func kernelRelease() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("read the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}

// checkSystemCalls makes the newest system calls that berth needs, with arguments for which
// they have no effect.
func (e *examination) checkSystemCalls(r *report) error {
	release, err := kernelRelease()
	if err != nil {
		return err
	}
	_, openat2 := unix.Openat2(-1, "", &unix.OpenHow{})
	_, tree := unix.OpenTree(-1, "", unix.OPEN_TREE_CLOEXEC)
	_, pidfd := unix.PidfdOpen(-1, 0)
	var missing []string
	for _, call := range []struct {
		name string
		err  error
	}{
		{"openat2", openat2},
		{"open_tree", tree},
		{"pidfd_open", pidfd},
		{"mount_setattr", unix.MountSetattr(-1, "", 0, &unix.MountAttr{})},
	} {
		if errors.Is(call.err, unix.ENOSYS) {
			missing = append(missing, call.name)
		}
	}
	decideSystemCalls(r, release, missing)
	return nil
}

func decideSystemCalls(r *report, release string, missing []string) {
	if len(missing) > 0 {
		r.fail("boot Linux 5.12 or newer", "Linux %s is without %s", release, strings.Join(missing, ", "))
		return
	}
	r.ok("Linux %s", release)
}

// checkOverlay looks for overlayfs, which berth run needs for root file systems.
func (e *examination) checkOverlay(r *report) error {
	known, err := smallfile.Read(e.host.ProcPath("filesystems"), mib)
	if err != nil {
		return err
	}
	release, err := kernelRelease()
	if err != nil {
		return err
	}
	const most = 16 << 20
	modules, err := smallfile.Read(filepath.Join("/lib/modules", release, "modules.dep"), most)
	decideOverlay(r, string(known), string(modules), err)
	return nil
}

// decideOverlay reports whether overlayfs is among the known file systems or the modules.
// modulesErr is why the list of modules can't be read.
func decideOverlay(r *report, known, modules string, modulesErr error) {
	reason := ""
	if modulesErr != nil && !errors.Is(modulesErr, fs.ErrNotExist) {
		reason = ": " + modulesErr.Error()
	}
	switch {
	case slices.Contains(strings.Fields(known), "overlay"):
		r.ok("overlayfs is there")
	case strings.Contains(modules, "/overlay.ko"):
		r.ok("overlayfs is a module, and the first mount loads it")
	default:
		r.warn("modprobe overlay, or a kernel with CONFIG_OVERLAY_FS", "there is no overlayfs, so berth run can't make roots%s", reason)
	}
}
