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

// lockQueue orders the processes that wait for the lock. flock alone is unfair: a process that
// has just unlocked takes the lock again before the process that was woken runs, and each
// unlock wakes all waiting processes (64 processes then use four times the CPU time, and some
// wait for half a second). The kernel hands a System V semaphore directly to the process that
// has waited longest, and SEM_UNDO returns it when its holder is killed.
//
// Only flock protects the ledger. The semaphore may be ineffective: other IPC namespaces have
// another one, another user may have created it first, and root in a container that shares the
// IPC namespace can hold it for ever. A semaphore of another user is therefore not used,
// waiting for it is limited, and flock follows in any case.
type lockQueue struct{ id uintptr }

// openLockQueue finds or makes the semaphore that belongs to a file. It is false if
// there is none that only root and this user can hold.
func openLockQueue(st unix.Stat_t) (lockQueue, bool) {
	h := fnv.New32a()
	_, _ = h.Write([]byte("berth " + strconv.FormatUint(st.Dev, 16) + " " + strconv.FormatUint(st.Ino, 16))) // never fails
	const create = 0o1000                                                                                    // IPC_CREAT
	id, _, errno := unix.Syscall(unix.SYS_SEMGET, uintptr(h.Sum32()|1), 1, create|0o600)
	if errno != 0 || !isPrivateSemaphore(id) {
		return lockQueue{}, false
	}
	return lockQueue{id}, true
}

func isPrivateSemaphore(semaphore uintptr) bool {
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

// enter waits for the semaphore until limit has passed; 0 does not wait. The error is
// unix.EAGAIN if the semaphore is still held.
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

// leave releases the semaphore, and removes it if no process waits, so that an unused ledger
// leaves none behind. A process that is about to enter then finds it missing and continues
// without it.
func (q lockQueue) leave() {
	step := semaphoreStep{op: -1, flags: semUndo | semNow}
	// It can fail only if an admin removed the semaphore: then no process waits.
	_, _, _ = unix.Syscall6(unix.SYS_SEMTIMEDOP, q.id, uintptr(unsafe.Pointer(&step)), 1, 0, 0, 0)
	const countWaiting, remove = 15, 0 // GETZCNT, IPC_RMID
	if n, _, errno := unix.Syscall(unix.SYS_SEMCTL, q.id, 0, countWaiting); errno == 0 && n == 0 {
		_, _, _ = unix.Syscall(unix.SYS_SEMCTL, q.id, 0, remove) // another process may have removed it
	}
}
