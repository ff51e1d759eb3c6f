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

// trees returns the versions of cgroups that can be seen from here. On a hybrid
// machine both are there, in different places.
func trees(t *testing.T) map[string]Tree {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("BERTH_TEST_ROOT") == "1" {
			t.Fatal("root tests were asked for, but this isn't root")
		}
		t.Skip("needs root")
	}
	all := map[string]Tree{}
	tree, err := Detect("")
	if err != nil {
		t.Fatal(err)
	}
	if tree.Unified {
		all["v2"] = tree
		return all
	}
	all["v1"] = tree
	if unified, err := Detect("/sys/fs/cgroup/unified"); err == nil && unified.Unified {
		all["v2"] = unified
	}
	return all
}

func TestLife(t *testing.T) {
	for name, tree := range trees(t) {
		t.Run(name, func(t *testing.T) {
			path := "/berth-cgroup-test-" + strconv.Itoa(os.Getpid())
			t.Cleanup(func() { tree.Remove(path) })
			populated := func(want bool) {
				t.Helper()
				if got, err := tree.Populated(path); got != want || err != nil {
					t.Errorf("populated %v, %v, want %v", got, err, want)
				}
			}
			populated(false)
			for range 2 { // making twice is the same as once
				if err := tree.Make(path); err != nil {
					t.Fatal(err)
				}
			}
			populated(false)
			cmd := exec.Command("cat")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			before := readOwn(t)
			done := make(chan error)
			go func() {
				runtime.LockOSThread()
				done <- tree.Start(cmd, path)
			}()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			populated(true)
			groups, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "cgroup"))
			if err != nil || !strings.Contains(string(groups), path+"/runtime\n") {
				t.Errorf("the child is in %s, %v", groups, err)
			}
			if after := readOwn(t); after != before {
				t.Errorf("this process moved:\n%s\nto\n%s", before, after)
			}
			if err := tree.Remove(path); err == nil {
				t.Error("a populated cgroup was removed")
			}
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			for range 2 { // removing twice is the same as once
				if err := tree.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			populated(false)
		})
	}
}

func TestMakeHandsControllersDown(t *testing.T) {
	tree, ok := trees(t)["v2"]
	if !ok {
		return // v1 has nothing to hand down
	}
	parent := "/berth-cgroup-test-" + strconv.Itoa(os.Getpid())
	path := parent + "/task"
	t.Cleanup(func() { tree.Remove(parent) })
	if err := tree.Make(path); err != nil {
		t.Fatal(err)
	}
	want, err := tree.Controllers()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", parent, path} {
		data, err := os.ReadFile(filepath.Join(tree.root, dir, "cgroup.subtree_control"))
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Fields(string(data))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("children of %q have the controllers %q, want %q", dir, got, want)
		}
	}
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

func TestHas(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"devices", "cpu,cpuacct", "memory"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tree := Tree{root: dir}
	for name, want := range map[string]bool{"memory": true, "cpu": true, "cpuacct": true, "cpuset": false} {
		if got := tree.Has(name); got != want {
			t.Errorf("has %s: %v, want %v", name, got, want)
		}
	}
}
