// Package projectquota bounds the total size of directories, and how many files they have, by the project quotas of ext4 and
// XFS: the directories belong to a project, new files in them inherit it, and writes and new files beyond the project's
// limits fail with EDQUOT or ENOSPC.
//
// Linux 5.14 is needed, for quotactl_fd. In the first user namespace the kernel lets the owner of
// a file leave the project (FS_IOC_FSSETXATTR, FS_IOC_SETFLAGS, file_setattr; fileattr_set_prepare
// in fs/file_attr.c): processes that are to be bounded must not be able to make these calls.
package projectquota

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnsupported means that a file system has no project quotas.
var ErrUnsupported = errors.New("no project quotas")

// Projects of this package. A project is free when it has neither a limit nor files.
const (
	firstProject = 1 << 30
	lastProject  = 1<<31 - 1
)

// A project may have a file for each bytesPerFile of its limit, and minFiles at least. Without a limit, empty files could use up
// all inodes of ext4, and space of XFS that no quota of bytes counts.
const (
	bytesPerFile = 4 << 10
	minFiles     = 1024
)

// Limit puts empty directories of one file system into a new project with a limit in bytes, rounded up to KiB, and one for the
// number of files. If the file system has no project quotas, the error Is ErrUnsupported and says what is needed.
func Limit(bytes int64, dirs ...string) error {
	for _, dir := range dirs {
		if err := checkSupport(dir); err != nil {
			return err
		}
	}
	project, err := newProject(dirs[0])
	if err != nil {
		return fmt.Errorf("make project: %w", err)
	}
	for _, dir := range dirs {
		if err := setProject(dir, project); err != nil {
			return fmt.Errorf("set project of %s: %w", dir, err)
		}
	}
	if err := setLimits(dirs[0], project, bytes, max(bytes/bytesPerFile, minFiles)); err != nil {
		return fmt.Errorf("set limits of project %d: %w", project, err)
	}
	return nil
}

// Release removes the limits of a directory's project, if this package has created it. A project without files and limits is
// free again. A directory without a project is not an error.
func Release(dir string) error {
	project, err := projectOf(dir)
	if err != nil || project < firstProject || project > lastProject {
		return nil //nolint:nilerr // a file system without projects
	}
	if err := setLimits(dir, project, 0, 0); err != nil {
		return fmt.Errorf("lift limits of project %d: %w", project, err)
	}
	return nil
}

// The kernel's interface: linux/quota.h, linux/dqblk_xfs.h and linux/fs.h.
const (
	projectType  = 2
	cmdGetQuota  = 0x800007<<8 | projectType
	cmdSetQuota  = 0x800008<<8 | projectType
	cmdState     = ('X'<<8+5)<<8 | projectType // Q_XGETQSTAT
	enforced     = 1 << 5                      // FS_QUOTA_PDQ_ENFD
	validLimits  = 1 | 1<<2                    // QIF_LIMITS
	getAttr      = 0x801c581f                  // FS_IOC_FSGETXATTR
	setAttr      = 0x401c5820                  // FS_IOC_FSSETXATTR
	flagInherits = 0x200                       // FS_XFLAG_PROJINHERIT
)

// The ioctls by which the owner of a file changes its project, and by which the owner of a directory changes whether new
// files inherit its project: FS_IOC_FSSETXATTR and FS_IOC_SETFLAGS.
const (
	SetAttributes = setAttr
	SetFlags      = 0x40086602
)

// dqblk is struct if_dqblk. Blocks are KiB.
type dqblk struct {
	hardBlocks, softBlocks, space, hardFiles, softFiles, files, blockTime, fileTime uint64
	valid                                                                           uint32
	_                                                                               uint32
}

// fsxattr is struct fsxattr.
type fsxattr struct {
	flags, extentSize, extents, project, cowSize uint32
	_                                            [8]byte
}

func checkSupport(dir string) error {
	if _, err := projectOf(dir); err != nil {
		return fmt.Errorf("%w: the file system of %s has no projects; ext4 and XFS have", ErrUnsupported, dir)
	}
	var state struct {
		version, _ uint8
		flags      uint16
		_          [252]byte
	}
	err := quotactl(dir, cmdState, 0, unsafe.Pointer(&state))
	switch {
	case errors.Is(err, unix.ENOSYS) && !hasQuotactlFD():
		return fmt.Errorf("%w: Linux 5.14 or newer is needed", ErrUnsupported)
	case err != nil || state.flags&enforced == 0:
		return fmt.Errorf("%w: the file system of %s must be ext4 or XFS, mounted with -o prjquota (ext4: after tune2fs -O project,quota)", ErrUnsupported, dir)
	}
	return nil
}

// hasQuotactlFD reports whether the kernel has quotactl_fd.
func hasQuotactlFD() bool {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, ^uintptr(0), 0, 0, 0, 0, 0)
	return errno != unix.ENOSYS
}

// newProject returns a random free project. There are a billion of them, so that two processes don't choose the same one.
func newProject(dir string) (uint32, error) {
	for range 100 {
		project := firstProject + rand.Uint32N(lastProject-firstProject+1)
		q, err := readQuota(dir, project)
		if err != nil {
			return 0, err
		}
		if q.hardBlocks == 0 && q.softBlocks == 0 && q.files == 0 && q.space == 0 {
			return project, nil
		}
	}
	return 0, errors.New("there is no free one")
}

func readQuota(dir string, project uint32) (q dqblk, err error) {
	err = quotactl(dir, cmdGetQuota, project, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) { // XFS has no quota for the project
		err = nil
	}
	return q, err
}

func setLimits(dir string, project uint32, bytes, files int64) error {
	q := dqblk{hardBlocks: uint64(bytes+1023) >> 10, hardFiles: uint64(files), valid: validLimits} //nolint:gosec // not negative
	return quotactl(dir, cmdSetQuota, project, unsafe.Pointer(&q))
}

func projectOf(dir string) (project uint32, err error) {
	var a fsxattr
	err = withDir(dir, func(fd int) error { return ioctl(fd, getAttr, unsafe.Pointer(&a)) })
	return a.project, err
}

func setProject(dir string, project uint32) error {
	return withDir(dir, func(fd int) error {
		var a fsxattr
		if err := ioctl(fd, getAttr, unsafe.Pointer(&a)); err != nil {
			return err
		}
		a.project = project
		a.flags |= flagInherits
		return ioctl(fd, setAttr, unsafe.Pointer(&a))
	})
}

func withDir(dir string, do func(fd int) error) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(fd), unix.Close(fd))
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

func quotactl(dir string, command uint32, project uint32, arg unsafe.Pointer) error {
	return withDir(dir, func(fd int) error {
		_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(command), uintptr(project), uintptr(arg), 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	})
}
