package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// Limits of free space. A driver's files take half a GiB, an image several GiB.
const (
	mib          = 1 << 20
	littleData   = 2 << 10 // MiB
	minimalData  = 64      // MiB
	minimalState = 4       // MiB
	fewFiles     = 10_000
)

// fileSystem is the file system of one of berth's directories.
type fileSystem struct {
	// path is the directory, which may not exist yet.
	path string
	// mount is where the file system is mounted, kind its name in mountinfo.
	mount, kind string
	// refused is the error of creating a file in the directory, nil if it works.
	refused error
	unix.Statfs_t
}

// readFileSystem reads the file system that a path is on, or will be on.
func (e *examination) readFileSystem(path string) (fileSystem, error) {
	f := fileSystem{path: path}
	dir := existingAncestor(path)
	if err := unix.Statfs(dir, &f.Statfs_t); err != nil {
		return f, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	f.mount, f.kind = e.mountOf(dir)
	f.refused = tryFile(dir)
	return f, nil
}

// tryFile creates an unnamed file (O_TMPFILE) in a directory and closes it. A file system that
// the kernel made read-only after an error may not show that in statfs(2). File systems without
// O_TMPFILE, and directories of other users, aren't tried.
func tryFile(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EACCES), errors.Is(err, unix.EOVERFLOW):
		return nil
	case err != nil:
		return err
	}
	return unix.Close(fd)
}

// existingAncestor returns a path, or the nearest directory above it that exists.
func existingAncestor(path string) string {
	for ; path != "/"; path = filepath.Dir(path) {
		if unix.Access(path, unix.F_OK) == nil {
			break
		}
	}
	return path
}

// mountOf returns where the file system of a path is mounted, and its kind, for messages.
func (e *examination) mountOf(path string) (mount, kind string) {
	const most = 16 << 20
	table, err := smallfile.Read(e.host.ProcPath("self/mountinfo"), most)
	if err != nil {
		return path, ""
	}
	if real, err := filepath.EvalSymlinks(existingAncestor(path)); err == nil {
		path = real
	}
	return findMount(string(table), path)
}

// findMount finds in a mountinfo the last mount on the longest part of a path.
func findMount(table, path string) (mount, kind string) {
	mount = "/"
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(f[4])
		if path == at || strings.HasPrefix(path, strings.TrimSuffix(at, "/")+"/") {
			if len(at) >= len(mount) {
				_, rest, _ := strings.Cut(line, " - ") // before it are optional fields
				kind, _, _ = strings.Cut(rest, " ")
				mount = at
			}
		}
	}
	return mount, kind
}

func (e *examination) checkDataMounts(r *report) error {
	state, err := e.readFileSystem(e.Config.State)
	if err != nil {
		return err
	}
	data, err := e.readFileSystem(e.Config.Data)
	if err != nil {
		return err
	}
	decideDataMounts(r, state, data)
	return nil
}

// decideDataMounts reports file systems on which berth can't write, from which containers can't
// load libraries, or on which containers of berth run can't write. Programs in containers of
// berth run start in spite of noexec: overlayfs doesn't inherit it, and runtimes drop it.
func decideDataMounts(r *report, state, data fileSystem) {
	all := []fileSystem{state, data}
	if state.path == data.path {
		all = all[1:]
	}
	for _, f := range all {
		switch {
		case f.Flags&unix.ST_RDONLY == 0 && errors.Is(f.refused, unix.EROFS):
			r.fail("repair the file system at "+f.mount+" with fsck: dmesg has the error", "%s is on a file system that the kernel has made read-only after an error", f.path)
		case f.Flags&unix.ST_RDONLY == 0 && f.refused != nil && !errors.Is(f.refused, unix.ENOSPC):
			r.fail("repair the file system at "+f.mount+": dmesg has the error", "no file can be created in %s: %v", f.path, f.refused)
		case f.Flags&unix.ST_RDONLY != 0:
			r.fail("mount -o remount,rw "+f.mount, "%s is on a file system that is mounted read-only", f.path)
		}
	}
	if data.Flags&unix.ST_NOEXEC != 0 {
		r.warn("mount -o remount,exec "+data.mount, "%s is on a file system that is mounted with noexec: containers that berth-hook prepares, and those of engines without root, can't load the driver's libraries", data.path)
	}
	kind := noUpperLayer()[int64(data.Type)]  //nolint:unconvert // it is narrower on other machines
	if strings.HasPrefix(data.kind, "fuse") { // virtiofs has the same number and can
		kind = "FUSE"
	}
	if kind != "" {
		r.warn("set data in "+r.configPath+" to a directory on ext4, xfs, btrfs or tmpfs", "%s is on %s, on which no container of berth run can write: overlayfs can't", data.path, kind)
	}
	r.okUnlessReported("%s and %s can be written", state.path, data.path)
}

// noUpperLayer returns the file systems that can't be the upper layer of an overlay, by
// their numbers in statfs(2).
func noUpperLayer() map[int64]string {
	return map[int64]string{
		unix.OVERLAYFS_SUPER_MAGIC: "an overlay", unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", unix.SMB2_SUPER_MAGIC: "SMB",
		unix.CIFS_SUPER_MAGIC: "SMB", unix.V9FS_MAGIC: "9p", unix.MSDOS_SUPER_MAGIC: "FAT", unix.EXFAT_SUPER_MAGIC: "exFAT", unix.SQUASHFS_MAGIC: "squashfs",
	}
}

func (e *examination) checkDataSpace(r *report) error {
	state, err := e.readFileSystem(e.Config.State)
	if err != nil {
		return err
	}
	data, err := e.readFileSystem(e.Config.Data)
	if err != nil {
		return err
	}
	decideSpace(r, state, 0, minimalState, "umount what fills "+state.mount+", or make it larger: mount -o remount,size=64m")
	decideSpace(r, data, littleData, minimalData, r.command("prune --all")+", or a larger disk for "+data.mount)
	r.okUnlessReported("%d GiB free for %s", data.freeMiB()>>10, data.path)
	return nil
}

func (f fileSystem) freeMiB() uint64 {
	return f.Bavail * uint64(f.Bsize) / mib //nolint:gosec // a block's size
}

// decideSpace reports a file system with fewer free MiB than little or minimal, or with
// few free inodes.
func decideSpace(r *report, f fileSystem, little, minimal uint64, fix string) {
	text := fmt.Sprintf("%d MiB are free for %s", f.freeMiB(), f.path)
	switch {
	case f.freeMiB() < minimal:
		r.fail(fix, "%s", text)
	case errors.Is(f.refused, unix.ENOSPC):
		r.fail(fix, "no more files can be made in %s: its file system has no inodes left", f.path)
	case f.freeMiB() < little:
		r.warn(fix, "%s, and an image or a new driver may need more", text)
	case f.Files > 0 && f.Ffree < min(fewFiles, f.Files/100):
		r.warn(fix, "%d more files can be made in %s, and an image has thousands", f.Ffree, f.path)
	}
}
