package ledger

import (
	"errors"
	"hash/fnv"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lockQueue makes the wait for the lock fair. flock alone isn't: whoever has just
// unlocked takes the lock again before the one that was woken runs, and each time
// the kernel wakes all who wait, one by one (64 processes then spend four times
// the CPU, and some starve for half a second). A System V semaphore is handed to
// whoever has waited longest, without a moment in which it is free, and SEM_UNDO
// gives it back when its holder is killed.
//
// It is a courtesy, not a lock, and decides nothing: other IPC namespaces have
// another semaphore, strangers can have made this one before us, and whoever is
// root in a container of our IPC namespace can hold it for ever. So a semaphore
// that isn't ours is left alone, nobody waits for long, and then everybody just
// goes on to flock.
type lockQueue struct{ id uintptr }

// openLockQueue finds or makes the semaphore that belongs to a file. It is false if
// there is none that only root and this user can hold.
func openLockQueue(st unix.Stat_t) (lockQueue, bool) {
	h := fnv.New32a()
	_, _ = h.Write([]byte("berth " + strconv.FormatUint(st.Dev, 16) + " " + strconv.FormatUint(st.Ino, 16))) // never fails
	const create = 0o1000                                                                                    // IPC_CREAT
	id, _, errno := unix.Syscall(unix.SYS_SEMGET, uintptr(h.Sum32()|1), 1, create|0o600)
	if errno != 0 || !isOwnSemaphore(id) {
		return lockQueue{}, false
	}
	return lockQueue{id}, true
}

func isOwnSemaphore(semaphore uintptr) bool {
	const stat = 2 // IPC_STAT
	var buf struct {
		unix.SysvIpcPerm           // of all 64-bit machines: struct semid64_ds begins with it
		_                [128]byte // and the rest, with room to spare
	}
	_, _, errno := unix.Syscall6(unix.SYS_SEMCTL, semaphore, 0, stat, uintptr(unsafe.Pointer(&buf)), 0, 0)
	me := uint32(os.Geteuid())
	trusted := func(uid uint32) bool { return uid == 0 || uid == me }
	return errno == 0 && trusted(buf.Uid) && trusted(buf.Cuid) && buf.Mode&0o777 == 0o600
}

// semaphoreStep is struct sembuf of semop(2).
type semaphoreStep struct {
	num   uint16
	op    int16
	flags int16
}

const (
	semUndo = 0x1000 // SEM_UNDO
	semNow  = 0x800  // IPC_NOWAIT
)

// enter waits until everybody who came before has left, at most for so long; 0
// means not at all. It returns unix.EAGAIN if the time was too short.
func (q lockQueue) enter(limit time.Duration) error {
	// 0 is free, so that a new semaphore needs no preparation.
	steps := [2]semaphoreStep{{op: 0}, {op: 1, flags: semUndo}}
	if limit == 0 {
		steps[0].flags = semNow
	}
	end := time.Now().Add(limit)
	for {
		ts := unix.NsecToTimespec(int64(max(time.Until(end), 0)))
		_, _, errno := unix.Syscall6(unix.SYS_SEMTIMEDOP, q.id, uintptr(unsafe.Pointer(&steps[0])), 2,
			uintptr(unsafe.Pointer(&ts)), 0, 0)
		if errno == 0 {
			return nil
		}
		if !errors.Is(errno, unix.EINTR) {
			return errno
		}
	}
}

// leave lets the next one in, and removes the semaphore if there is none: so none
// is left behind by a ledger that isn't used any more. Whoever comes just then
// finds it gone, and goes on without.
func (q lockQueue) leave() {
	step := semaphoreStep{op: -1, flags: semUndo | semNow}
	// It can fail only if an admin removed the semaphore: then nobody is in line.
	_, _, _ = unix.Syscall6(unix.SYS_SEMTIMEDOP, q.id, uintptr(unsafe.Pointer(&step)), 1, 0, 0, 0)
	const countWaiting, remove = 15, 0 // GETZCNT, IPC_RMID
	if n, _, errno := unix.Syscall(unix.SYS_SEMCTL, q.id, 0, countWaiting); errno == 0 && n == 0 {
		_, _, _ = unix.Syscall(unix.SYS_SEMCTL, q.id, 0, remove) // somebody else was quicker
	}
}
