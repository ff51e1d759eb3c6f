package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// What is too little: a driver's files are half a GiB, an image is several.
const (
	mib        = 1 << 20
	littleData = 2 << 10 // MiB
	noData     = 64      // MiB
	noState    = 4       // MiB
	fewFiles   = 10_000
)

// holding is the nearest directory above a path that is there.
func holding(path string) string {
	for ; path != "/"; path = filepath.Dir(path) {
		if unix.Access(path, unix.F_OK) == nil {
			break
		}
	}
	return path
}

func statfs(path string) (dir string, st unix.Statfs_t, err error) {
	dir = holding(path)
	if err := unix.Statfs(dir, &st); err != nil {
		return dir, st, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return dir, st, nil
}

// mountOf is where the file system is mounted that a path is on.
func (e *exam) mountOf(path string) string {
	const most = 16 << 20
	table, err := smallfile.Read(e.host.ProcPath("self/mountinfo"), most)
	if err != nil {
		return path
	}
	if real, err := filepath.EvalSymlinks(holding(path)); err == nil {
		path = real
	}
	return mountIn(string(table), path)
}

// mountIn finds in a mountinfo the last mount on the longest part of a path.
func mountIn(table, path string) string {
	best := "/"
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(f[4])
		if path == at || strings.HasPrefix(path, strings.TrimSuffix(at, "/")+"/") {
			if len(at) >= len(best) {
				best = at
			}
		}
	}
	return best
}

// dataMount: what is kept can be written, and programs in it be run: containers' roots
// and the driver's libraries are there.
func (e *exam) dataMount(r *result) error {
	before := len(r.findings)
	for _, path := range slices.Compact([]string{e.Config.State, e.Config.Data}) {
		dir, st, err := statfs(path)
		if err != nil {
			return err
		}
		if st.Flags&unix.ST_RDONLY != 0 {
			r.fail("mount -o remount,rw "+e.mountOf(dir), "%s is on a file system that is mounted read-only", path)
		}
		if path == e.Config.Data && st.Flags&unix.ST_NOEXEC != 0 {
			r.fail("mount -o remount,exec "+e.mountOf(dir), "%s is on a file system that is mounted with noexec: no program runs in a container of berth run", path)
		}
	}
	_, st, err := statfs(e.Config.Data)
	if err != nil {
		return err
	}
	if kind := unfit()[int64(st.Type)]; kind != "" { //nolint:unconvert // it is narrower on other machines
		r.warn("set data in "+e.ConfigPath+" to a directory on ext4, xfs or tmpfs", "%s is on %s, on which no container of berth run can write: overlayfs can't", e.Config.Data, kind)
	}
	r.fine(before, "%s and %s can be written", e.Config.State, e.Config.Data)
	return nil
}

// unfit are file systems that the kernel takes as no upper layer of an overlay, by the
// numbers of statfs(2).
func unfit() map[int64]string {
	return map[int64]string{
		unix.OVERLAYFS_SUPER_MAGIC: "an overlay", unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", unix.SMB2_SUPER_MAGIC: "SMB",
		unix.CIFS_SUPER_MAGIC: "SMB", unix.V9FS_MAGIC: "9p", unix.MSDOS_SUPER_MAGIC: "FAT", unix.EXFAT_SUPER_MAGIC: "exFAT", unix.SQUASHFS_MAGIC: "squashfs",
	}
}

// dataSpace: there is room.
func (e *exam) dataSpace(r *result) error {
	before, left := len(r.findings), ""
	for _, of := range []struct {
		path         string
		little, none uint64
		mend         string
	}{
		{e.Config.State, 0, noState, "umount what fills " + e.mountOf(e.Config.State) + ", or make it larger: mount -o remount,size=64m"},
		{e.Config.Data, littleData, noData, e.berth("prune --all") + ", or a larger disk for " + e.mountOf(e.Config.Data)},
	} {
		_, st, err := statfs(of.path)
		if err != nil {
			return err
		}
		free := st.Bavail * uint64(st.Bsize) / mib //nolint:gosec // a block's size
		left = fmt.Sprintf("%d GiB free for %s", free>>10, of.path)
		text := fmt.Sprintf("%d MiB are free for %s", free, of.path)
		switch {
		case free < of.none:
			r.fail(of.mend, "%s", text)
		case free < of.little:
			r.warn(of.mend, "%s, and an image or a new driver may need more", text)
		case st.Files > 0 && st.Ffree < min(fewFiles, st.Files/100):
			r.warn(of.mend, "%d more files can be made in %s, and an image has thousands", st.Ffree, of.path)
		}
	}
	r.fine(before, "%s", left)
	return nil
}

// calls: what berth asks of the kernel, by the newest of each kind. They are made so that
// they can do nothing.
func (e *exam) calls(r *result) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("ask for the kernel's release: %w", err)
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
	release := unix.ByteSliceToString(name.Release[:])
	if len(missing) > 0 {
		r.fail("boot Linux 5.12 or newer", "Linux %s is without %s", release, strings.Join(missing, ", "))
		return nil
	}
	r.ok("Linux %s", release)
	return nil
}

// overlay: a module that is there is loaded by the first mount.
func (e *exam) overlay(r *result) error {
	known, err := smallfile.Read(e.host.ProcPath("filesystems"), mib)
	if err != nil {
		return err
	}
	if slices.Contains(strings.Fields(string(known)), "overlay") {
		r.ok("overlayfs is there")
		return nil
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("ask for the kernel's release: %w", err)
	}
	const most = 16 << 20
	all, err := smallfile.Read(filepath.Join("/lib/modules", unix.ByteSliceToString(name.Release[:]), "modules.dep"), most)
	if err == nil && strings.Contains(string(all), "/overlay.ko") {
		r.ok("overlayfs is a module, which the first mount loads")
		return nil
	}
	r.warn("modprobe overlay, or a kernel with CONFIG_OVERLAY_FS", "there is no overlayfs, so berth run can't make roots%s", cmp.Or(because(err), ""))
	return nil
}

func because(err error) string {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return ": " + err.Error()
}
