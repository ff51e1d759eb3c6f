package tasks

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestLowLimits: where the machine doesn't let berth raise what RDMA needs, people are told
// so, once, and see it later.
func TestLowLimits(t *testing.T) {
	s := startApart(t, "v1", "runc")
	weak := func(words ...string) []string {
		return append([]string{
			"--memlock=65536:65536", "--nofile=4096:4096", "setpriv", "--bounding-set=-sys_resource", "--inh-caps=-all",
			s.Berth, "run", "--runtime", s.runtime,
		}, words...)
	}
	lines := []string{
		"memlock is 65536 bytes, and this process may not raise it (CAP_SYS_RESOURCE): RDMA needs it unlimited",
		"nofile is 4096, and this process may not raise it (CAP_SYS_RESOURCE): NCCL wants 131072 on a large node",
	}
	both := "berth: " + strings.Join(lines, "\nberth: ") + "\n"
	for _, tt := range []struct {
		name, want string
		words      []string
	}{
		{"a task", both, []string{"--gpus", "1", "--nics", "auto"}},
		{"without NICs", "", []string{"--gpus", "1"}},
		{"a gang", both, []string{"-n", "3", "--gpus-per-rank", "1", "--nics", "auto", "--network", "none"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := s.Run(t, s.Command("prlimit", weak(append(tt.words, rig.ImagePath(t, "busybox"), "true")...)...))
			if got.Code != 0 || got.Err != tt.want {
				t.Errorf("%+v, want %q", got, tt.want)
			}
		})
	}
	got := s.Run(t, s.Command("prlimit", weak("-d", "--name", "low", "--gpus", "1", "--nics", "auto", rig.ImagePath(t, "busybox"), "sleep", "1000")...))
	defer s.RunBerth(t, "rm", "-f", "low")
	if got.Code != 0 || got.Err != both {
		t.Errorf("%+v", got)
	}
	why := s.RunBerth(t, "inspect", "--why", "low").Out
	for _, line := range lines {
		if !strings.Contains(why, line) {
			t.Errorf("inspect doesn't say %q:\n%s", line, why)
		}
	}
}
