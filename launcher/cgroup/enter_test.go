package cgroup

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

func TestOOMKilled(t *testing.T) {
	for _, tt := range []struct {
		name, events string
		want         bool
	}{
		{"v2, none", "low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n", false},
		{"v2, one", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n", true},
		{"v1, none", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", false},
		{"v1, one", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", true},
		{"an old kernel", "oom_kill_disable 0\nunder_oom 1\n", false},
		{"nothing", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := oomKilled([]byte(tt.events)); got != tt.want {
				t.Errorf("%v", got)
			}
		})
	}
}

const enterVariable = "BERTH_TEST_ENTER"

// TestEnter moves a process of its own: this test, run once more.
func TestEnter(t *testing.T) {
	path := "/berth-cgroup-test-" + strconv.Itoa(os.Getpid())
	if told := os.Getenv(enterVariable); told != "" {
		version, path, _ := strings.Cut(told, " ")
		if err := trees(t)[version].Enter(path); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(readOwn(t)) {
			if version == "v2" && strings.HasPrefix(line, "0::") || version == "v1" && strings.Contains(line, ":devices:") {
				if !strings.HasSuffix(line, path+"\n") {
					t.Errorf("entered %s, and is in %s", path, line)
				}
			}
		}
		return
	}
	for version, tree := range trees(t) {
		t.Run(version, func(t *testing.T) {
			t.Cleanup(func() { tree.Remove(path) })
			cmd := exec.Command("/proc/self/exe", "-test.run", "^TestEnter$")
			cmd.Env = append(os.Environ(), enterVariable+"="+version+" "+path)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if err := tree.Remove(path); err != nil {
				t.Error(err)
			}
		})
	}
}
