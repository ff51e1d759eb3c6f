package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// TestSystemCallFilters: a filter above berth, of a batch system or a sandbox, that withholds
// a system call either changes nothing or is told in one line that names it as a possible
// reason. No lease, task or mount is left.
func TestSystemCallFilters(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "runc")
	filter, err := shared.Compile("filter", "testdata/filter.c", "-static")
	rig.Must(t, err)
	mounts := s.mounts(t)
	for _, call := range []struct {
		name   string
		number int
	}{
		{"mount_setattr", unix.SYS_MOUNT_SETATTR},
		{"move_mount", unix.SYS_MOVE_MOUNT},
		{"openat2", unix.SYS_OPENAT2},
		{"clone3", unix.SYS_CLONE3},
		{"pidfd_open", unix.SYS_PIDFD_OPEN},
		{"statx", unix.SYS_STATX},
		{"close_range", unix.SYS_CLOSE_RANGE},
		{"memfd_create", unix.SYS_MEMFD_CREATE},
		{"bpf", unix.SYS_BPF},
		{"unshare", unix.SYS_UNSHARE},
		{"umount2", unix.SYS_UMOUNT2},
		{"flock", unix.SYS_FLOCK},
	} {
		for _, errno := range []unix.Errno{unix.EPERM, unix.ENOSYS} {
			t.Run(call.name+"/"+unix.ErrnoName(errno), func(t *testing.T) {
				under := []string{filter, strconv.Itoa(int(errno)), strconv.Itoa(call.number), "--"}
				s.testLimited(t, nil, under, "the system call filter (seccomp) of this process may forbid it")
				if left := s.mounts(t); left != mounts {
					t.Errorf("mounts before:\n%s\nand after:\n%s", mounts, left)
				}
			})
		}
	}
}

// TestSmallLimits: berth under a limit that is too small for it says so in one line, and
// leaves nothing behind.
func TestSmallLimits(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "runc")
	mounts := s.mounts(t)
	for _, limit := range []string{"--nofile=12", "--nofile=20", "--nofile=32", "--fsize=1000", "--fsize=20000", "--stack=65536"} {
		t.Run(limit, func(t *testing.T) { s.testLimited(t, nil, []string{"prlimit", limit, "--"}, "") })
	}
	for _, limit := range []string{"pids/pids.max 4", "pids/pids.max 12", "pids/pids.max 20", "pids/pids.max 30", "memory/memory.limit_in_bytes 2M", "memory/memory.limit_in_bytes 8M", "memory/memory.limit_in_bytes 16M"} {
		t.Run(limit, func(t *testing.T) {
			file, value, _ := strings.Cut(limit, " ")
			controller, _, _ := strings.Cut(file, "/")
			dir, err := os.MkdirTemp("/sys/fs/cgroup/"+controller, "berth-limits-")
			rig.Must(t, err)
			t.Cleanup(func() { rig.WaitUntil(t, "the cgroup is removed", func() bool { return unix.Rmdir(dir) == nil }) })
			rig.Must(t, os.WriteFile(dir+"/"+filepath.Base(file), []byte(value), 0))
			s.testLimited(t, []string{"sh", "-c", `echo 0 >"$0/cgroup.procs" && exec "$@"`, dir}, nil, "")
		})
	}
	if left := s.mounts(t); left != mounts {
		t.Errorf("mounts before:\n%s\nand after:\n%s", mounts, left)
	}
}

// mounts are the roots and mount points of the server's mounts.
func (s server) mounts(t *testing.T) string {
	t.Helper()
	return s.Do(t, "cut", "-d", " ", "-f", "4,5", "/proc/self/mountinfo")
}

// testLimited starts tasks by words that limit berth, outside and inside the server. A
// task ends well, or berth says in one line why it doesn't, with that advice where berth
// itself, in the foreground, has met the limit.
func (s server) testLimited(t *testing.T, outside, inside []string, advice string) {
	t.Helper()
	limited := func(how string) rig.Said {
		cmd := s.Command("timeout", slices.Concat([]string{"-s", "KILL", "60"}, inside, []string{
			s.Berth, "run", how,
			"--runtime", s.runtime, "--gpus", "1", "--name", "limited", rig.ImagePath(t, "busybox"), "true",
		})...)
		words := append(slices.Clone(outside), cmd.Args...)
		return s.Run(t, exec.Command(words[0], words[1:]...))
	}
	for _, how := range []string{"--rm", "-d"} {
		got := limited(how)
		lines := strings.Split(strings.TrimSpace(got.Err), "\n")
		last := lines[len(lines)-1] // in the foreground the runtime's own words come before
		switch {
		case got.Code == 0 && how == "-d":
			if got := s.Run(t, s.Command("timeout", "60", s.Berth, "wait", "limited")); got.Out != "0\n" {
				t.Errorf("berth wait: %+v", got)
			}
		case got.Code == 0, outside != nil: // berth may be killed, and the threads of a Go program can't be limited
		case !strings.HasPrefix(last, "berth: "), how != "-d" && !strings.HasPrefix(last, "berth: runc: ") && !strings.HasSuffix(last, advice):
			t.Errorf("berth run %s: %+v, want one line that ends with %q", how, got, advice)
		}
		s.Do(t, s.Berth, "rm", "-f", "limited")
		if left := s.Leases(t); len(left) > 0 {
			t.Errorf("leases %+v", left)
		}
	}
}
