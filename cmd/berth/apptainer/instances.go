package apptainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// instance is the record of an instance. It says where the instance is, and no more: only the kernel and the broker decide which users may enter a container,
// signal its processes and join the cgroup of its lease. So what a user, or a container with the user's directories, writes into a record of that user's leads to
// containers of the same user alone.
type instance struct {
	Name string `json:"-"`
	// PID and Start are the first process of the instance's PID namespace.
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	Image string `json:"image"`
	// Home is the home directory inside.
	Home     string `json:"home"`
	FakeRoot bool   `json:"fake_root,omitempty"`
	LogErr   string `json:"log_err"`
	LogOut   string `json:"log_out"`
	// Environment has the variables of the lease.
	Environment []string `json:"environment,omitempty"`
	// Content is that of an image of the store.
	Content *content `json:"content,omitempty"`
}

// instances is the directory of the records of this user's instances on this host: instances/HOST below the directory of the user's tasks, because hosts can
// share home directories. XDG_RUNTIME_DIR ends with the user's last session, and an instance doesn't. The file NAME is locked (flock(2)) by the
// processes outside of the instance, which end with it, and removed by the next command that finds it unlocked. Commands look at the locks under
// the lock of the file ".lock".
type instances struct {
	dir *os.File // an O_PATH descriptor
	at  string   // its path, for this process
}

// recordsLock is no instance's name.
const recordsLock = ".lock"

// openInstances opens the directory, which it makes if it is missing. No link of it is followed.
func openInstances(conf berth.Config) (s instances, err error) {
	if os.Geteuid() == 0 {
		err = os.MkdirAll(conf.TaskData(), 0o755)
	} else {
		err = rootless.MakeDataDir(conf)
	}
	if err != nil {
		return s, err
	}
	host, err := os.Hostname()
	if err != nil {
		return s, err
	}
	dir, err := inroot.OpenRoot(conf.TaskData())
	if err != nil {
		return s, err
	}
	for _, name := range []string{"instances", path.Base("/" + host)} {
		sub, err := inroot.MakeDir(dir, name, 0o700)
		if err = errors.Join(err, dir.Close()); err != nil {
			return s, err
		}
		dir = sub
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(dir.Fd()), &st); err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0) {
		err = fmt.Errorf("%s: others may write to the directory of this user's instances", filepath.Join(conf.TaskData(), "instances", host))
	}
	if err != nil {
		return s, errors.Join(err, dir.Close())
	}
	return instances{dir, fmt.Sprintf("/proc/self/fd/%d", dir.Fd())}, nil
}

func (s instances) closeDirectory() { _ = s.dir.Close() } // an O_PATH descriptor

// errTaken means that there is an instance of a name.
var errTaken = errors.New("there is an instance of this name already")

// checkInstanceName returns an error for a name that isn't one. Source: apptainer(1) 1.4 as it behaves.
func checkInstanceName(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	if name == "" || len(name) > 255 || strings.Trim(name, letters+"._-") != "" || strings.Trim(name, ".") == "" || name == recordsLock {
		return fmt.Errorf("%q is no name of an instance: it has letters, digits, \"_\", \"-\" and \".\"", name)
	}
	return nil
}

// reserveName creates and locks the file of a name. Its error Is errTaken if there is an instance of that name. It waits for the processes outside of an instance
// whose first process has ended.
func (s instances) reserveName(ctx context.Context, name string) (*os.File, error) {
	for deadline := time.Now().Add(killTime); ; {
		f, err := s.tryReserve(ctx, name)
		if !errors.Is(err, errTaken) || !s.isEnding(name) || time.Now().After(deadline) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(endPause):
		}
	}
}

// isEnding reports whether the record of a name says a first process that has ended, or that ends within endTime.
func (s instances) isEnding(name string) bool {
	f, err := s.openRecord(name, 0)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close() // only read
	var i instance
	data, err := smallfile.ReadFD(int(f.Fd()), maxRecord, maxRecord)
	if err != nil || json.Unmarshal(data, &i) != nil { // it is being started
		return false
	}
	for end := time.Now().Add(endTime); process.Lives("/proc", i.PID, i.Start); time.Sleep(endPause) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func (s instances) tryReserve(ctx context.Context, name string) (f *os.File, err error) {
	err = s.withLock(ctx, func() error {
		if f, err = s.openRecord(name, unix.O_CREAT); err != nil {
			return err
		}
		err := lock.TryAcquire(int(f.Fd()), lock.Exclusive)
		if errors.Is(err, lock.ErrBusy) {
			err = fmt.Errorf("%s: %w", name, errTaken)
		}
		if err == nil {
			err = f.Truncate(0)
		}
		if err != nil {
			err = errors.Join(err, f.Close())
		}
		return err
	})
	return f, err
}

func (s instances) withLock(ctx context.Context, f func() error) error {
	l, err := lock.Create(ctx, filepath.Join(s.at, recordsLock), 0o600, lock.Exclusive)
	if err != nil {
		return err
	}
	return errors.Join(f(), l.Close())
}

func (s instances) openRecord(name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(s.dir.Fd()), name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|flags, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(s.at, name), Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil //nolint:gosec // not negative
}

// findInstances returns the instances whose names match a pattern (path.Match), in the order of their names, without those that are starting.
func (s instances) findInstances(ctx context.Context, pattern string) (all []instance, err error) {
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, fmt.Errorf("%q: %w", pattern, err)
	}
	err = s.withLock(ctx, func() error {
		names, err := smallfile.Names(s.at)
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, name := range names {
			if matches, _ := path.Match(pattern, name); !matches || checkInstanceName(name) != nil {
				continue
			}
			i, found, err := s.readRecord(name)
			if err != nil {
				return err
			}
			if found {
				all = append(all, i)
			}
		}
		return nil
	})
	return all, err
}

// maxRecord bounds a record, in bytes.
const maxRecord = 1 << 20

// readRecord returns the record of an instance. Without an instance the file is removed.
func (s instances) readRecord(name string) (i instance, found bool, err error) {
	f, err := s.openRecord(name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return i, false, nil
	}
	if err != nil {
		return i, false, err
	}
	defer f.Close() // it is only locked
	switch err := lock.TryAcquire(int(f.Fd()), lock.Exclusive); {
	case err == nil:
		return i, false, unix.Unlinkat(int(s.dir.Fd()), name, 0)
	case !errors.Is(err, lock.ErrBusy):
		return i, false, err
	}
	data, err := smallfile.ReadFD(int(f.Fd()), maxRecord, maxRecord)
	if err != nil || json.Unmarshal(data, &i) != nil { // it is being started
		return i, false, err
	}
	i.Name = name
	return i, true, nil
}

// findInstance returns the instance of a name.
func (s instances) findInstance(ctx context.Context, name string) (i instance, err error) {
	if err := checkInstanceName(name); err != nil {
		return i, err
	}
	all, err := s.findInstances(ctx, name)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("there is no instance %s; berth apptainer instance list lists them", name)
	}
	if err != nil {
		return i, err
	}
	return all[0], nil
}

// hasEnded reports whether the processes outside of an instance have ended, too, which free its devices and its name.
func (s instances) hasEnded(name string) (bool, error) {
	f, err := s.openRecord(name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() // it is only locked
	err = lock.TryAcquire(int(f.Fd()), lock.Shared)
	if errors.Is(err, lock.ErrBusy) {
		return false, nil
	}
	return err == nil, err
}

// openFirst returns a pidfd of the first process of the instance.
func (i instance) openFirst() (*os.File, error) {
	fd, err := unix.PidfdOpen(i.PID, 0)
	if err == nil {
		f := os.NewFile(uintptr(fd), "pidfd") //nolint:gosec // not negative
		if process.Lives("/proc", i.PID, i.Start) && isFirstOfNamespace(i.PID) {
			return f, nil
		}
		err = f.Close() // it is another process
	}
	if err == nil || errors.Is(err, unix.ESRCH) {
		err = fmt.Errorf("instance %s has ended", i.Name)
	}
	return nil, err
}

// isFirstOfNamespace reports whether a process is the first one of another PID namespace than this process's.
func isFirstOfNamespace(pid int) bool {
	const maxStatus = 64 << 10
	status, err := smallfile.Read("/proc/"+strconv.Itoa(pid)+"/status", maxStatus)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if pids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			words := strings.Fields(pids)
			return len(words) > 1 && words[len(words)-1] == "1"
		}
	}
	return false
}
