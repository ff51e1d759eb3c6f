package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestTaskCgroup(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, path string) {
		path += "/task"
		wantPopulated(t, h, path, false)
		for range 2 { // a second call changes nothing
			if err := h.CreateTask(path); err != nil {
				t.Fatal(err)
			}
		}
		wantPopulated(t, h, path, false)
		cmd := exec.Command("cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		before := readOwn(t)
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			done <- h.StartRuntime(cmd, path)
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		wantPopulated(t, h, path, true)
		groups, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "cgroup"))
		if err != nil || !strings.Contains(string(groups), path+"/runtime\n") {
			t.Errorf("the child is in %s, %v", groups, err)
		}
		if after := readOwn(t); after != before {
			t.Errorf("this process moved:\n%s\nto\n%s", before, after)
		}
		if err := h.RemoveAll(path); err == nil {
			t.Error("a populated cgroup was removed")
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a second call changes nothing
			if err := h.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
		wantPopulated(t, h, path, false)
	})
}

func TestCreateTaskEnablesControllers(t *testing.T) {
	eachVersion(t, func(t *testing.T, h Hierarchy, parent string) {
		if h.Version == V1 {
			return // version 1 has nothing to enable
		}
		path := parent + "/task"
		if err := h.CreateTask(path); err != nil {
			t.Fatal(err)
		}
		want, err := h.Controllers()
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{"", parent, path} {
			data, err := os.ReadFile(filepath.Join(h.Root, dir, "cgroup.subtree_control"))
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Fields(string(data))
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("children of %q have the controllers %q, want %q", dir, got, want)
			}
		}
	})
}

func readOwn(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestDetectNothing(t *testing.T) {
	if _, err := Detect(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no cgroup file system at") {
		t.Errorf("error %v", err)
	}
}

func TestHasController(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"devices", "cpu,cpuacct", "memory"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := Hierarchy{Version: V1, Mount: dir}
	for name, want := range map[string]bool{"memory": true, "cpu": true, "cpuacct": true, "cpuset": false} {
		if got := h.HasController(name); got != want {
			t.Errorf("has %s: %v, want %v", name, got, want)
		}
	}
}

const enterVariable = "BERTH_TEST_ENTER"

// TestEnterAll moves a process of its own: the test binary, run again.
func TestEnterAll(t *testing.T) {
	if told := os.Getenv(enterVariable); told != "" {
		mount, path, _ := strings.Cut(told, " ")
		h, err := Detect(mount)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.EnterAll(path); err != nil {
			t.Fatal(err)
		}
		if got, err := h.ProcessPath("/proc", os.Getpid()); err != nil || got != path {
			t.Errorf("entered %s, and is in %s, %v", path, got, err)
		}
		return
	}
	eachVersion(t, func(t *testing.T, h Hierarchy, path string) {
		path += "/entered"
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestEnterAll$")
		cmd.Env = append(os.Environ(), enterVariable+"="+h.Mount+" "+path)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if err := h.RemoveAll(path[:strings.LastIndexByte(path, '/')]); err != nil {
			t.Error(err)
		}
	})
}
