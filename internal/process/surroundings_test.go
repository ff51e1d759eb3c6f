package process

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// startFor starts a process that lives until the test's end.
func startFor(t *testing.T, attr *syscall.SysProcAttr) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
}

func TestSurroundings(t *testing.T) {
	needRoot(t)
	as := func(uid uint32) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	own, err := ReadSurroundings("/proc", "self")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name                             string
		attr                             *syscall.SysProcAttr
		contained, systemUser, sameUsers bool
	}{
		{"root", nil, false, true, true},
		{"a system account", as(999), false, true, true},
		{"a user", as(1000), false, false, true},
		{"a PID namespace", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}, true, true, true},
		{"a user namespace", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}, false, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pid := startFor(t, tt.attr)
			got, err := ReadSurroundings("/proc", strconv.Itoa(pid))
			if err != nil || (got != own) != tt.contained {
				t.Errorf("surroundings %+v, %v; own %+v", got, err, own)
			}
			if got := RunsAsSystemUser("/proc", pid); got != tt.systemUser {
				t.Errorf("a system user: %v", got)
			}
			if got := SharesUserNamespace("/proc", pid); got != tt.sameUsers {
				t.Errorf("the same user namespace: %v", got)
			}
			if IsKernelThread("/proc", pid) {
				t.Error("a thread of the kernel")
			}
		})
	}
	if _, err := ReadSurroundings("/proc", "1073741824"); err == nil {
		t.Error("a process that doesn't exist has surroundings")
	}
	if RunsAsSystemUser("/proc", 1<<30) || SharesUserNamespace("/proc", 1<<30) {
		t.Error("a process that doesn't exist has properties")
	}
	if threads := slices.DeleteFunc(List("/proc"), func(pid int) bool { return !IsKernelThread("/proc", pid) }); len(threads) == 0 {
		t.Error("there are no threads of the kernel")
	}
}

// A device stays in use by a mapping when its descriptor is closed.
func TestMappedDevices(t *testing.T) {
	needRoot(t)
	fd, err := unix.Open("/dev/zero", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	mapping, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	var m mappedDevices
	for range 2 { // the second time from memory
		if got, _, all := m.listDevices("/proc", os.Getpid(), 1<<20); !all || !slices.Contains(got, st.Rdev) {
			t.Errorf("mapped %v, want %d among them", got, st.Rdev)
		}
	}
	if err := unix.Munmap(mapping); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := m.listDevices("/proc", os.Getpid(), 1<<20); slices.Contains(got, st.Rdev) {
		t.Errorf("mapped %v after the end of the mapping", got)
	}
}

// The descriptors of a thread that has a table of its own are found.
func TestThreadsOwnFiles(t *testing.T) {
	ready, done := make(chan error), make(chan bool)
	defer close(done)
	go func() { // the thread ends with this goroutine
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FILES)
		if err == nil {
			_, err = unix.Open("/dev/full", unix.O_PATH, 0)
		}
		ready <- err
		<-done
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/dev/full", &st); err != nil {
		t.Fatal(err)
	}
	for f := range FilesOf("/proc", os.Getpid()) {
		if f.Device == st.Rdev {
			return
		}
	}
	t.Error("/dev/full isn't found")
}
