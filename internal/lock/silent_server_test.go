package lock

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// Requests of FUSE, from linux/fuse.h.
const (
	fuseGetattr = 3
	fuseInit    = 26
	fuseOpendir = 27
)

// mountSilent mounts a file system at dir whose server answers no request after its root was opened.
func mountSilent(t *testing.T, dir string) {
	t.Helper()
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		testutil.SkipOrFail(t, "needs /dev/fuse")
	}
	t.Cleanup(func() { _ = unix.Close(server) }) // ends the requests without an answer
	testutil.Must(t, unix.Mount("silent", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", server)))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	go func() {
		in := make([]byte, 1<<20)
		for silent := false; !silent; {
			n, err := unix.Read(server, in)
			if err != nil || n < 16 {
				return
			}
			answer := make([]byte, 16)
			copy(answer[8:], in[8:16]) // the request's number
			switch binary.NativeEndian.Uint32(in[4:]) {
			case fuseInit:
				answer = append(answer, make([]byte, 64)...)
				binary.NativeEndian.PutUint32(answer[16:], 7)
				binary.NativeEndian.PutUint32(answer[20:], 31)
				binary.NativeEndian.PutUint32(answer[36:], 1<<16) // max_write
			case fuseGetattr:
				answer = append(answer, make([]byte, 104)...)
				binary.NativeEndian.PutUint64(answer[32:], 1)       // inode
				binary.NativeEndian.PutUint32(answer[92:], 0o40755) // mode
				binary.NativeEndian.PutUint32(answer[96:], 2)       // links
			case fuseOpendir:
				answer, silent = append(answer, make([]byte, 16)...), true
			default:
				answer = binary.NativeEndian.AppendUint32(answer[:0], 16)
				answer = binary.NativeEndian.AppendUint32(answer, ^uint32(unix.ENOSYS)+1)
				answer = append(answer, in[8:16]...)
			}
			binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
			if _, err := unix.Write(server, answer); err != nil {
				return
			}
		}
	}()
}

// TestSilentFileServer: a lock that a process holds on a file system that doesn't answer delays no search for holders.
func TestSilentFileServer(t *testing.T) {
	testutil.NeedRoot(t)
	dir := t.TempDir()
	silent, path := filepath.Join(dir, "silent"), filepath.Join(dir, "lock")
	testutil.Must(t, os.Mkdir(silent, 0o755))
	testutil.Must(t, os.WriteFile(path, nil, 0o600))
	mountSilent(t, silent)
	other, err := os.Open(silent)
	testutil.Must(t, err)
	t.Cleanup(func() { _ = other.Close() })
	testutil.Must(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))
	h := startHolder(t, path)
	file, err := os.Open(path)
	testutil.Must(t, err)
	defer file.Close()
	found := make(chan []int, 1)
	go func() {
		found <- searchDescriptors("/proc", []lockedFile{describeFile(int(file.Fd()))}, nil)[0]
	}()
	select {
	case all := <-found:
		if !slices.Contains(all, h.Process.Pid) {
			t.Errorf("process %d isn't among the holders %v", h.Process.Pid, all)
		}
	case <-time.After(5 * time.Second):
		t.Error("the search waits for the file server")
	}
}
