package inject

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// runInside calls f on a thread that is in the container's mount namespace. The thread
// ends with f, so nothing else of this process ever runs there.
func (s *openContainer) runInside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with this goroutine
		if unix.Gettid() != unix.Getpid() {
			done <- s.enterNamespace(f)
			return
		}
		// The main thread would outlive f. While it is locked, the next goroutine gets another.
		done <- s.runInside(f)
		runtime.UnlockOSThread()
	}()
	return <-done
}

func (s *openContainer) enterNamespace(f func() error) error {
	// setns into a mount namespace demands that root, working directory and umask are not shared.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("prepare to enter the container: %w", err)
	}
	unix.Umask(0)
	if s.pidfd < 0 { // it is this process's
		return f()
	}
	if err := unix.Setns(s.pidfd, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the container's mount namespace: %w", err)
	}
	return f()
}

// runOutside calls f on another thread, on the host's side, while this one is inside.
func runOutside[T any](f func() (T, error)) (T, error) {
	var value T
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		value, err = f()
	}()
	<-done
	return value, err
}

// findRoot opens the container's root in its mount namespace.
func (s *openContainer) findRoot() (err error) {
	if s.root, err = inroot.OpenRoot(s.Root); err != nil {
		return err
	}
	var here, there unix.Stat_t
	if err := unix.Fstat(int(s.outside.Fd()), &there); err != nil {
		return fmt.Errorf("stat %s: %w", s.Root, err)
	}
	if err := unix.Fstat(int(s.root.Fd()), &here); err != nil {
		return fmt.Errorf("stat %s in the container: %w", s.Root, err)
	}
	id, isMount, err := mountOfFile(s.root)
	switch {
	case err != nil:
		return err
	case here.Dev != there.Dev || here.Ino != there.Ino:
		return fmt.Errorf("%s in the container's mount namespace is another directory than on the host: the hook has to run at createRuntime or prestart", s.Root)
	case !isMount:
		return fmt.Errorf("%s isn't mounted in the container's mount namespace", s.Root)
	}
	if s.pidfd < 0 {
		// Launchers bind the host's /proc and /dev without a change of their propagation: a mount on them would appear on the host.
		attr := unix.MountAttr{Propagation: unix.MS_SLAVE}
		if err := unix.MountSetattr(int(s.root.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return fmt.Errorf("separate the mounts below %s from the host's: %w", s.Root, err)
		}
	}
	s.rootID = id
	s.isHosts = here.Dev == s.hostRoot.Dev && here.Ino == s.hostRoot.Ino
	return nil
}

// readMounts reads what is mounted in the container and on the host, once. Edits without
// files do not need it, and mountinfo can have thousands of lines.
func (s *openContainer) readMounts() (err error) {
	if s.mounted != nil {
		return nil
	}
	if s.hosts == nil {
		if s.hosts, err = runOutside(s.readFileSystems); err != nil {
			return err
		}
	}
	_, s.mounted, err = readMountinfo(s.Proc + "/thread-self/mountinfo")
	return err
}

// readFileSystems returns the devices of the file systems in the host's mount namespace: this thread's, or if that is the container's, those
// of process 1 and of Outside. Where these are hidden, all file systems of the container's count as the host's.
func (s *openContainer) readFileSystems() (map[string]bool, error) {
	if s.pidfd < 0 {
		if outside, _, err := s.readOutside(); err == nil {
			return outside, nil
		}
	}
	all, _, err := readMountinfo(s.Proc + "/thread-self/mountinfo")
	return all, err
}

// readOutside returns the devices of the file systems, and the mounts, in the mount namespaces of process 1 and of Outside.
func (s *openContainer) readOutside() (systems map[string]bool, mounts map[uint64]string, err error) {
	systems, mounts, err = readMountinfo(s.Proc + "/1/mountinfo")
	if err != nil || s.Outside == 0 {
		return systems, mounts, err
	}
	more, ids, err := readMountinfo(fmt.Sprintf("%s/%d/mountinfo", s.Proc, s.Outside))
	maps.Copy(systems, more)
	maps.Copy(mounts, ids)
	return systems, mounts, err
}

func sharesKey[K comparable, V any](a, b map[K]V) bool {
	for key := range a {
		if _, ok := b[key]; ok {
			return true
		}
	}
	return false
}

// mountOfFile returns the id of the mount in which an open file is, and whether the file
// is the root of that mount.
func mountOfFile(f *os.File) (id uint64, isRoot bool, err error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, false, fmt.Errorf("find the mount of %s: %w", f.Name(), err)
	}
	return st.Mnt_id, st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// readMountinfo returns the devices of all mounted file systems, and the device of each
// mount. Source: proc_pid_mountinfo(5).
func readMountinfo(path string) (systems map[string]bool, byID map[uint64]string, err error) {
	const limit = 64 << 20 // by default, a namespace has at most 100,000 mounts
	data, err := smallfile.Read(path, limit)
	if err != nil {
		return nil, nil, err
	}
	systems, byID = map[string]bool{}, map[uint64]string{}
	for line := range strings.Lines(string(data)) {
		id, rest, _ := strings.Cut(line, " ")
		_, rest, _ = strings.Cut(rest, " ")
		device, _, ok := strings.Cut(rest, " ")
		n, err := strconv.ParseUint(id, 10, 64)
		if err != nil || !ok {
			return nil, nil, fmt.Errorf("read %s: unknown line %.80q", path, line)
		}
		systems[device], byID[n] = true, device
	}
	return systems, byID, nil
}
