package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// eachVersion runs the test in a real tree of each version that the machine has.
func eachVersion(t *testing.T, test func(t *testing.T, h Hierarchy, path string)) {
	testutil.NeedRoot(t)
	first, err := Detect("")
	if err != nil {
		testutil.SkipOrFail(t, err.Error())
	}
	trees := []Hierarchy{first}
	if first.Hybrid {
		second, err := Detect("/sys/fs/cgroup/unified")
		if err != nil {
			t.Fatal(err)
		}
		trees = append(trees, second)
	}
	for _, h := range trees {
		t.Run(fmt.Sprintf("v%d", h.Version), func(t *testing.T) {
			path := fmt.Sprintf("/berth-test/%d-%s", os.Getpid(), t.Name()[:8])
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if err := errors.Join(h.Kill(ctx, path), h.Remove(ctx, path)); err != nil {
					t.Error(err)
				}
				_ = unix.Rmdir(h.Root + "/berth-test") // other processes may be in it
			})
			if err := h.Create(path); err != nil {
				t.Fatal(err)
			}
			test(t, h, path)
		})
	}
}

// start runs a shell in the cgroup, which it joins itself before the command.
func start(t *testing.T, h Hierarchy, path, command string) *exec.Cmd {
	t.Helper()
	dir, err := h.Dir(path)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", fmt.Sprintf("echo 0 >%s/cgroup.procs; echo ready >&3; exec 3>&-; %s", dir, command))
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		_ = r.Close()
	})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(r, new(string)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func wantPopulated(t *testing.T, h Hierarchy, path string, want bool) {
	t.Helper()
	got, err := h.Populated(path)
	if err != nil || got != want {
		t.Errorf("populated(%s) = %v, %v; want %v", path, got, err, want)
	}
}

// exists reports whether there is a cgroup at path.
func exists(h Hierarchy, path string) (bool, error) {
	_, err := os.Stat(filepath.Join(h.Root, path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func TestRealCgroups(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, path string) {
		if ok, err := exists(h, path); !ok || err != nil {
			t.Fatalf("made cgroup doesn't exist: %v", err)
		}
		wantPopulated(t, h, path, false)
		wantPopulated(t, h, path+"/none", false)
		if err := h.Create(path + "/inner/leaf"); err != nil {
			t.Fatal(err)
		}
		cmd := start(t, h, path+"/inner/leaf", "exec sleep 1000")
		wantPopulated(t, h, path, true)
		wantPopulated(t, h, "/", true)
		if pids, err := h.PIDs(path); err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
			t.Errorf("pids %v, %v", pids, err)
		}
		if got, err := h.ProcessPath("/proc", cmd.Process.Pid); err != nil || got != path+"/inner/leaf" {
			t.Errorf("cgroup of the process: %q, %v", got, err)
		}
		if err := h.Remove(t.Context(), path); !errors.Is(err, unix.EBUSY) {
			t.Errorf("removed with a process in it: %v", err)
		}
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitZombie(t, cmd.Process.Pid)
		wantPopulated(t, h, path, false) // the zombie isn't reaped yet
	})
}

// waitZombie waits, without reaping, until the child has ended.
func waitZombie(t *testing.T, pid int) {
	t.Helper()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
}

func TestKill(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, path string) {
		if err := h.Create(path + "/leaf"); err != nil {
			t.Fatal(err)
		}
		start(t, h, path+"/leaf", "trap '' TERM INT; while :; do sleep 1000 & sleep 0.01; done")
		start(t, h, path, "setsid sleep 1000 & exec setsid sleep 1000")
		if err := h.Kill(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		wantPopulated(t, h, path, false)
		if err := h.Remove(t.Context(), path); err != nil {
			t.Error(err)
		}
		if ok, err := exists(h, path); ok || err != nil {
			t.Errorf("exists after removal: %v, %v", ok, err)
		}
		if err := errors.Join(h.Kill(t.Context(), path), h.Remove(t.Context(), path)); err != nil {
			t.Errorf("not idempotent: %v", err)
		}
	})
}

// TestKillMany: a cgroup of more processes than this one can have files open is killed, also without cgroup.kill (Linux
// 5.14, version 2). So is one of as many processes as this one can still open files.
func TestKillMany(t *testing.T) {
	const processes = 201
	for name, free := range map[string]int{"few files": 50, "a file for each process": processes} {
		t.Run(name, func(t *testing.T) {
			eachVersion(t, func(t *testing.T, h Hierarchy, path string) {
				cmd := start(t, h, path, "for i in $(seq 200); do sleep 1000 & done; exec sleep 1000")
				for pids := []int(nil); len(pids) < processes; {
					var err error
					pids, err = h.PIDs(path)
					testutil.Must(t, err)
				}
				limitFiles(t, free)
				testutil.Must(t, h.killOnce(path))
				testutil.Must(t, h.Kill(t.Context(), path))
				_ = cmd.Wait() // killed
				wantPopulated(t, h, path, false)
			})
		})
	}
}

// limitFiles lets this process open so many more files until the test ends.
func limitFiles(t *testing.T, free int) {
	t.Helper()
	var limit unix.Rlimit
	testutil.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	files, err := os.ReadDir("/proc/self/fd")
	testutil.Must(t, err)
	few := limit
	few.Cur = uint64(len(files) - 1 + free) // one is the directory itself
	testutil.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	t.Cleanup(func() { testutil.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) })
}

// TestDeepTree: a tree with paths that are too long for the kernel is listed, killed and removed,
// with fewer open files than it has levels.
func TestDeepTree(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, path string) {
		limitFiles(t, 50)
		cmd := start(t, h, path, "exec sleep 1000")
		moveDeep(t, h, path, cmd.Process.Pid)

		wantPopulated(t, h, path, true)
		if pids, err := h.PIDs(path); err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
			t.Errorf("pids %v, %v", pids, err)
		}
		if err := h.Remove(t.Context(), path); !errors.Is(err, unix.EBUSY) {
			t.Errorf("removed with a process in it: %v", err)
		}
		h.Thaw(path)
		testutil.Must(t, h.Kill(t.Context(), path))
		wantPopulated(t, h, path, false)
		_ = cmd.Wait() // killed
		testutil.Must(t, h.Remove(t.Context(), path))
		if ok, err := exists(h, path); ok || err != nil {
			t.Errorf("exists after removal: %v, %v", ok, err)
		}
	})
}

// moveDeep makes a hundred nested cgroups, the last of which has a path that is too long, and moves
// the process there.
func moveDeep(t *testing.T, h Hierarchy, path string, pid int) {
	t.Helper()
	dir, err := h.Dir(path)
	testutil.Must(t, err)
	at, err := os.OpenRoot(dir)
	testutil.Must(t, err)
	for range 100 {
		name := strings.Repeat("d", 180)
		testutil.Must(t, at.Mkdir(name, 0o755))
		below, err := at.OpenRoot(name)
		testutil.Must(t, errors.Join(err, at.Close()))
		at = below
	}
	f, err := at.OpenFile("cgroup.procs", os.O_WRONLY, 0)
	testutil.Must(t, err)
	_, err = fmt.Fprint(f, pid)
	testutil.Must(t, errors.Join(err, f.Close(), at.Close()))
}

func TestKillRefuses(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, _ string) {
		for _, path := range []string{"/", "//", "", "..", "/a/../..", "/./"} {
			if err := h.Kill(t.Context(), path); !errors.Is(err, ErrPath) {
				t.Errorf("kill %q: %v", path, err)
			}
		}
	})
}

func TestStartInside(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, path string) {
		dir, err := h.OpenDir(path)
		if h.Version == V1 {
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("got %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = dir.Close() }()
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		wantPopulated(t, h, path, true)
		if err := h.Kill(t.Context(), path); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // killed
	})
}

func TestJoin(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, path string) {
		cmd := start(t, h, path, "exec sleep 1000")
		if err := h.Create(path + "/other"); err != nil {
			t.Fatal(err)
		}
		if err := h.Join(path+"/other", cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		if got, err := h.ProcessPath("/proc", cmd.Process.Pid); err != nil || got != path+"/other" {
			t.Errorf("got %q, %v", got, err)
		}
		if err := h.Join(path+"/none", cmd.Process.Pid); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("joined a cgroup that isn't there: %v", err)
		}
	})
}

func TestDetectNone(t *testing.T) {
	if _, err := Detect(t.TempDir()); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
}

func TestControllers(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, _ string) {
		if h.HasController("no-such-controller") {
			t.Error("found a controller that isn't")
		}
		if h.Version == V1 && !h.HasController("devices") {
			t.Error("the devices controller is missing")
		}
	})
}

// TestCreateWhileRemoved: Create succeeds while other processes remove the cgroup.
func TestCreateWhileRemoved(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, path string) {
		ended := make(chan error)
		for range 4 {
			go func() {
				var err error
				for range 2000 {
					err = errors.Join(err, h.Create(path+"/a/b"), h.Remove(t.Context(), path+"/a"))
				}
				ended <- err
			}()
		}
		for range 4 {
			if err := <-ended; err != nil {
				t.Error(err.Error()[:min(300, len(err.Error()))])
			}
		}
	})
}

func TestListTrees(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, path string) {
		trees, err := h.ListTrees()
		if err != nil {
			t.Fatal(err)
		}
		if h.Version == V2 {
			if !slices.Equal(trees, []Hierarchy{h}) {
				t.Errorf("got %+v", trees)
			}
			return
		}
		if !slices.Contains(trees, h) {
			t.Errorf("%+v isn't among %+v", h, trees)
		}
		devices := map[uint64]string{}
		for _, tree := range trees {
			var st unix.Stat_t
			if err := unix.Stat(tree.Root, &st); err != nil {
				t.Fatal(err)
			}
			if other, twice := devices[st.Dev]; twice {
				t.Errorf("%s is %s", tree.Root, other)
			}
			devices[st.Dev] = tree.Root
			if tree.Version == V2 && tree.Controller != "" || tree.Version == V1 && tree.Controller == "" {
				t.Errorf("%+v", tree)
			}
		}
	})
}
