// Package gpu is for machines with a GPU and no network: make gpu-bundle makes a folder
// that is carried there, and its run.sh says whether berth keeps its word.
//
// Here it runs on a simulated server, whose libcuda doesn't compute: what can be looked
// at without that has to hold, and the rest has to be skipped with the reason.
package gpu

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

var shared *rig.Rig

func TestMain(m *testing.M) {
	rig.Main(m, func(r *rig.Rig) error {
		shared = r
		return nil
	})
}

func TestWithoutCUDA(t *testing.T) {
	bundle := filepath.Join(shared.Dir, "bundle")
	if out, err := exec.Command("./bundle.sh", bundle, shared.Dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, cgroup := range []string{"v1", "v2"} {
		t.Run(cgroup, func(t *testing.T) {
			n, err := shared.Start("dgx-h100", cgroup)
			rig.Must(t, err)
			said := n.Run(t, n.Command(bundle+"/run.sh", filepath.Join(t.TempDir(), "logs")))
			if said.Code != 77 {
				t.Errorf("it ended with %d, and nothing computes here\n%s%s", said.Code, said.Out, said.Err)
			}
			for _, want := range []string{
				"PASS  container: ",
				"PASS  discover: berth knows 8 GPUs, the driver 8",
				"PASS  walls: one node of a GPU can be opened inside, and no other can be made",
				"SKIP  cuda: the machine",
				"3 passed, 0 failed, 1 skipped",
			} {
				if !strings.Contains(said.Out, want) {
					t.Errorf("it doesn't say %q:\n%s%s", want, said.Out, said.Err)
				}
			}
		})
	}
}
