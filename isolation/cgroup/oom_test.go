package cgroup

import (
	"testing"
)

func TestHasOOMKill(t *testing.T) {
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
			if got := hasOOMKill([]byte(tt.events)); got != tt.want {
				t.Errorf("%v", got)
			}
		})
	}
}
