package faults

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestSharedMountIsMadeAgain: the mount of the driver's files that containers have in common is removed.
// The next start, of a task or a gang, mounts them again, where all containers see them.
func TestSharedMountIsMadeAgain(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{"crun", "runc"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			n, err := shared.Start("dgx-h100", "v2")
			rig.Must(t, err)
			n.Do(t, n.Berth, "discover", "--quiet")
			for name, words := range map[string][]string{
				"a task":          {"--gpus", "1"},
				"a detached task": {"-d", "--gpus", "1"},
				"a gang":          {"-n", "2", "--gpus-per-rank", "1", "--network", "none"},
			} {
				n.Do(t, "busybox", "umount", "/var/lib/berth/shared")
				words = append(append([]string{"run", "--rm", "--runtime", runtime}, words...), rig.ImagePath(t, "busybox"), "test", "-e", "/usr/local/nvidia/lib64/libcuda.so.1")
				if said := n.Run(t, n.Command(n.Berth, words...)); said.Code != 0 {
					t.Errorf("%s: %+v", name, said)
				}
				if mounts := n.Do(t, "cat", "/proc/self/mounts"); !strings.Contains(mounts, " /var/lib/berth/shared ") {
					t.Errorf("after %s the files aren't mounted", name)
				}
			}
		})
	}
}
