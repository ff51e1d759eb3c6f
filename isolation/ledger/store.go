package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// store is the directory of a ledger:
//
//	ledger.json      the ledger, readable by its owner alone: it has the command lines of all holders
//	ledger.lock      held with flock for each change; only the owner may open it,
//	                 because any process that can open it could hold the lock for ever
//	leases/ID.json   the receipt of each lease, readable by its owner alone
//
// A receipt is written before the ledger names the lease, and removed before the ledger forgets it.
// So every lease in the ledger has a receipt, unless a process was killed while it released the
// lease. A receipt without a lease is left by a process that was killed before the lease was
// granted. If the ledger is lost or damaged, the receipts have the same leases.
type store struct {
	dir   string
	codec *codec
	// sync flushes the ledger to the disk that it is on.
	sync bool
}

func (s store) ledgerPath() string           { return filepath.Join(s.dir, "ledger.json") }
func (s store) lockPath() string             { return filepath.Join(s.dir, "ledger.lock") }
func (s store) receiptsDir() string          { return filepath.Join(s.dir, "leases") }
func (s store) receiptPath(id string) string { return filepath.Join(s.receiptsDir(), id+".json") }

// makeDirs makes the directories if they aren't there, and checks them.
func (s store) makeDirs() error {
	for _, dir := range []string{s.dir, s.receiptsDir()} {
		err := checkDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			if err := makeDir(dir); err != nil {
				return fmt.Errorf("make ledger directory: %w", err)
			}
			err = checkDir(dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func makeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(dir, 0o755) // Mkdir's mode is subject to the umask
}

// checkDir returns ErrOwnership unless only root and this user can change the directory.
func checkDir(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return &FileError{dir, ErrOwnership, "it is no directory"}
	}
	return checkOwner(dir, st)
}

func checkOwner(path string, st unix.Stat_t) error {
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return &FileError{path, ErrOwnership, fmt.Sprintf("it belongs to user %d", st.Uid)}
	}
	if st.Mode&0o022 != 0 {
		return &FileError{path, ErrOwnership, fmt.Sprintf("its mode is %04o", st.Mode&0o7777)}
	}
	return nil
}

// readOwnFile reads one of our own files. It follows no link, never blocks on a FIFO,
// and the error Is fs.ErrNotExist or one of this package's.
func readOwnFile(path string) ([]byte, error) {
	fd, st, err := openFile(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // opened for reading
	data, err := smallfile.ReadFD(fd, st.Size, maxFile)
	switch {
	case errors.Is(err, smallfile.ErrTooLarge):
		return nil, &FileError{path, ErrCorrupt, fmt.Sprintf("the file has more than %d bytes", maxFile)}
	case err != nil:
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return data, nil
}

// openFile opens a regular file that only root and this user can have written.
func openFile(path string, flags int, perm uint32) (fd int, st unix.Stat_t, err error) {
	fd, err = unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, perm)
	if errors.Is(err, unix.ELOOP) {
		return -1, st, &FileError{path, ErrOwnership, "it is a symbolic link"}
	}
	if err != nil {
		return -1, st, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, st, errors.Join(&fs.PathError{Op: "stat", Path: path, Err: err}, unix.Close(fd))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = &FileError{path, ErrOwnership, "it is no regular file"}
	} else {
		err = checkOwner(path, st)
	}
	if err != nil {
		return -1, st, errors.Join(err, unix.Close(fd))
	}
	return fd, st, nil
}

// readOutline returns the ledger's content, with leases undecoded. found is false if there is no such file.
func (s store) readOutline() (st state, found bool, err error) {
	if err := checkDir(s.dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return state{}, false, nil
		}
		return state{}, false, err
	}
	data, err := readOwnFile(s.ledgerPath())
	if errors.Is(err, fs.ErrNotExist) {
		return state{}, false, nil
	}
	if err != nil {
		return state{}, false, err
	}
	st, err = s.codec.decodeOutline(data)
	if err != nil {
		return state{}, true, fileError(s.ledgerPath(), err)
	}
	return st, true, nil
}

// checkNotLost returns an error if there are receipts: the ledger is then missing but not empty.
func (s store) checkNotLost() error {
	entries, err := os.ReadDir(s.receiptsDir())
	if err == nil && len(entries) > 0 {
		return &FileError{s.ledgerPath(), ErrCorrupt, "the file is missing"}
	}
	return err
}

// readFull returns the ledger's content with everything in it.
func (s store) readFull() (st state, found bool, err error) {
	if st, found, err = s.readOutline(); err != nil || !found {
		return st, found, err
	}
	if err := s.codec.decodeLeases(&st); err != nil {
		return state{}, true, fileError(s.ledgerPath(), err)
	}
	return st, true, nil
}

// fileError wraps a reason of the codec.
func fileError(path string, err error) error {
	var known *FileError
	if errors.As(err, &known) {
		return err
	}
	if errors.Is(err, ErrFuture) {
		why := strings.TrimPrefix(err.Error(), ErrFuture.Error()+": ")
		return &FileError{path, ErrFuture, why}
	}
	return &FileError{path, ErrCorrupt, err.Error()}
}

// writeLedger replaces the ledger; the caller holds the lock.
func (s store) writeLedger(st state) error {
	data, err := s.codec.encode(st)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(s.ledgerPath(), data, 0o600, atomicfile.Options{Sync: s.sync, FixedTemp: true}); err != nil {
		return fmt.Errorf("write ledger: %w", err)
	}
	return nil
}

// writeReceipt replaces the receipt of a lease; the caller holds the lock. It
// isn't flushed to a disk: after a power failure no lease is live.
func (s store) writeReceipt(l Lease) error {
	data, err := s.codec.encodeLease(l)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(s.receiptPath(l.ID), data, 0o600, atomicfile.Options{FixedTemp: true}); err != nil {
		return fmt.Errorf("write receipt: %w", err)
	}
	return nil
}

func (s store) removeReceipt(id string) error {
	if err := os.Remove(s.receiptPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove receipt: %w", err)
	}
	return nil
}

// sweepReceipts removes what killed processes left among the receipts; the caller holds
// the lock and names the leases that there are.
func (s store) sweepReceipts(leases []record) error {
	entries, err := os.ReadDir(s.receiptsDir())
	if err != nil {
		return err
	}
	keep := make(map[string]bool, len(leases))
	for _, l := range leases {
		keep[l.id+".json"] = true
	}
	for _, e := range entries {
		if keep[e.Name()] {
			continue
		}
		if err := os.Remove(filepath.Join(s.receiptsDir(), e.Name())); err != nil {
			return err
		}
	}
	return nil
}
