package lock

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestFindHoldersReadsFewDescriptors: descriptors are only read of processes that took a lock, except where the kernel's
// table of locks can miss a holder.
func TestFindHoldersReadsFewDescriptors(t *testing.T) {
	line := func(kind string, pid int, name string) string {
		return fmt.Sprintf("1: %s  ADVISORY  WRITE %d %s 0 EOF\n", kind, pid, name)
	}
	for _, tt := range []struct {
		name      string
		locks     string
		unnamed   bool
		namespace string
		want      []int // 7 and 8 hold the lock
		readsAll  bool
	}{
		{name: "no lock is held"},
		{name: "the process that took it has it", locks: line("FLOCK", 7, "fe:00:5"), want: []int{7}},
		{name: "it is among others", locks: line("POSIX", 9, "fe:00:5") + line("FLOCK", 9, "fe:01:5") + line("FLOCK", 8, "fe:00:5"), want: []int{8}},
		{name: "the process that took it has ended", locks: line("FLOCK", 6, "fe:00:5"), want: []int{7, 8}, readsAll: true},
		{name: "the process that took it hasn't it", locks: line("FLOCK", 9, "fe:00:5"), want: []int{7, 8}, readsAll: true},
		{name: "another pid namespace", namespace: "pid:[4026532000]", want: []int{7, 8}, readsAll: true},
		{name: "an unknown number", unnamed: true, want: []int{7, 8}, readsAll: true},
		{name: "too many locks", locks: strings.Repeat(line("FLOCK", 9, "fe:01:5"), maxLocks/40), want: []int{7, 8}, readsAll: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(path, text string) {
				t.Helper()
				testutil.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
				testutil.Must(t, os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644))
			}
			link := func(target, path string) {
				t.Helper()
				testutil.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
				testutil.Must(t, os.Symlink(target, filepath.Join(dir, path)))
			}
			if tt.namespace == "" {
				tt.namespace = firstPIDNamespace
			}
			write("lock", "")
			write("locks", tt.locks)
			link(tt.namespace, "self/ns/pid")
			for _, pid := range []string{"7", "8", "9", "10"} {
				link(dir+"/lock", pid+"/fd/3")
				write(pid+"/fdinfo/3", "pos:\t0\n")
			}
			for _, pid := range []string{"7", "8"} {
				write(pid+"/fdinfo/3", "pos:\t0\nlock:\t"+line("FLOCK", 7, "fe:00:5"))
			}
			watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
			testutil.Must(t, err)
			defer unix.Close(watch)
			_, err = unix.InotifyAddWatch(watch, dir+"/10/fd", unix.IN_OPEN)
			testutil.Must(t, err)
			var st unix.Stat_t
			testutil.Must(t, unix.Stat(dir+"/lock", &st))
			file := lockedFile{fileSystem: st.Dev, inode: st.Ino, name: "fe:00:5"}
			if tt.unnamed {
				file.name = ""
			}
			if got := findHolders(dir, []lockedFile{{name: "fe:00:4"}, file}); len(got[0]) > 0 || !slices.Equal(got[1], tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			_, err = unix.Read(watch, make([]byte, 4096))
			if read := err == nil; read != tt.readsAll {
				t.Errorf("the descriptors of a process without a lock were read: %v", read)
			}
		})
	}
}

// TestInheritedLock: a process that has a lock is found when the process that took it, which lives, has closed it.
func TestInheritedLock(t *testing.T) {
	path := newLockFile(t)
	f, err := TryOpen(path, Exclusive)
	testutil.Must(t, err)
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = []*os.File{f}
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	testutil.Must(t, f.Close())
	free := newLockFile(t)
	var fds []int
	for _, path := range []string{free, path} {
		file, err := os.OpenFile(path, unix.O_PATH, 0)
		testutil.Must(t, err)
		defer file.Close()
		fds = append(fds, int(file.Fd()))
	}
	if got := FindHolders(fds...); len(got[0]) > 0 || len(got[1]) != 1 || got[1][0].PID != cmd.Process.Pid {
		t.Errorf("got %v, want process %d for the second", got, cmd.Process.Pid)
	}
}

// TestFileName: a file's name is that of the table of locks.
func TestFileName(t *testing.T) {
	f, err := TryOpen(newLockFile(t), Exclusive)
	testutil.Must(t, err)
	defer f.Close()
	name := describeFile(int(f.Fd())).name
	table, err := os.ReadFile("/proc/self/fdinfo/" + fmt.Sprint(f.Fd()))
	testutil.Must(t, err)
	if name == "" || !strings.Contains(string(table), " "+name+" ") {
		t.Errorf("%q isn't in %s", name, table)
	}
}
