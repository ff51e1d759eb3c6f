package process

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDeviceSearch: a process of a tenant that has more files open than may be looked at counts as if it had every device
// open.
func TestDeviceSearch(t *testing.T) {
	fd, err := unix.Open("/dev/full", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	const other = 4095 << 8
	self := os.Getpid()
	look := func(left int) []uint64 {
		s := NewDeviceSearch("/proc", []uint64{st.Rdev, other})
		who, err := s.tenantOf(self)
		if err != nil {
			t.Fatal(err)
		}
		s.left[who] = left
		open := s.Search([]int{self})[self]
		if s.Searched(self) != (len(open) == 1) {
			t.Errorf("searched: %v, open %v", s.Searched(self), open)
		}
		return open
	}
	if got := look(maxFiles); !slices.Equal(got, []uint64{st.Rdev}) {
		t.Errorf("open %v, want %v", got, st.Rdev)
	}
	path, err := unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Fstat(path, &st); err != nil {
		t.Fatal(err)
	}
	if info := (OpenFile{dir: "/proc/self", descriptor: strconv.Itoa(path)}); !info.isPath() {
		t.Error("a descriptor made with O_PATH counts")
	}
	if info := (OpenFile{dir: "/proc/self", descriptor: strconv.Itoa(fd)}); info.isPath() {
		t.Error("a descriptor made without O_PATH doesn't count")
	}
	if err := unix.Close(path); err != nil {
		t.Error(err)
	}
	if got := look(2); len(got) != 2 {
		t.Errorf("of too many files %v", got)
	}
	s := NewDeviceSearch("/proc", []uint64{st.Rdev})
	who, err := s.tenantOf(self)
	if err != nil {
		t.Fatal(err)
	}
	who.user = 4711 // another user's
	s.left[who] = 0
	if s.Search([]int{self}); !s.Searched(self) {
		t.Error("one tenant's files count for another")
	}
}

// TestTenants: namespaces and root directories don't give a user another bound, nor another root directory root in a PID namespace.
func TestTenants(t *testing.T) {
	needRoot(t)
	s := NewDeviceSearch("/proc", nil)
	read := func(script string, words ...string) tenant {
		t.Helper()
		cmd := exec.Command(words[0], append(words[1:], "sh", "-c", script+"; echo $(readlink /proc/self/ns/user) >&3; exec sleep 1000")...)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cmd.ExtraFiles = []*os.File{w}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		_ = w.Close()
		if _, err := r.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		who, err := s.tenantOf(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return who
	}
	user := []string{"setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups"}
	want := read("true", user...)
	if want != (tenant{user: 4711}) {
		t.Errorf("a user's process belongs to %+v", want)
	}
	for name, words := range map[string][]string{
		"a user namespace":            {"unshare", "--user", "--map-root-user"},
		"a user namespace in another": {"unshare", "--user", "--map-root-user", "unshare", "--user"},
		"mount namespace":             {"unshare", "--user", "--map-root-user", "--mount"},
	} {
		if got := read("true", append(slices.Clone(user), words...)...); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	contained, err := s.tenantOf(startFor(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}))
	if err != nil || contained.where.namespace == "" || contained.where.inode != 0 {
		t.Errorf("root's process in a PID namespace belongs to %+v, %v", contained, err)
	}
	s.leftAll = 0
	if s.Search([]int{os.Getpid()}); s.Searched(os.Getpid()) {
		t.Error("all tenants together have no bound")
	}
	if got := read("true", "env"); got == want || got.user != 0 {
		t.Errorf("root's process belongs to %+v", got)
	}
}
