package gangs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

const pipeline = `
name = "pipeline"
image = %q
shm-size = "256m"
volumes = [%q]

[[role]]
name = "decode"
command = ["python3", "/mnt/stage.py"]

[[role]]
name = "infer"
replicas = 2
gpus = "2"
command = ["python3", "/mnt/stage.py"]

[[role]]
name = "encode"
gpus = "1g.10gb"
command = ["python3", "/mnt/stage.py"]
`

// TestPipeline: three stages on different accelerators pass frames through shared memory.
func TestPipeline(t *testing.T) {
	for _, cgroup := range []string{"v1", "v2"} {
		t.Run(cgroup, func(t *testing.T) {
			n := startSlicedServer(t, cgroup)
			file := filepath.Join(t.TempDir(), "pipeline.toml")
			rig.Must(t, os.WriteFile(file, fmt.Appendf(nil, pipeline, torch, scripts+":/mnt:ro"), 0o600))
			said := n.mustRun(t, "run", "--gang", file)
			if got := rankLines(said, "encode-0"); len(got) == 0 || got[len(got)-1] != "encoded 24 frames" {
				t.Errorf("the last stage said %q", got)
			}
			for _, infer := range []string{"infer-0", "infer-1"} {
				if got := rankLines(said, infer); len(got) != 13 {
					t.Errorf("%s has done %d frames of 12: %q", infer, len(got)-1, got)
				}
			}
			for rank, count := range map[string]int{"decode-0": 0, "infer-0": 4, "infer-1": 4, "encode-0": 1} {
				seen := regexp.MustCompile(`nvidia\d+`).FindAllString(strings.Join(rankLines(said, rank), " "), -1)
				if len(seen) != count {
					t.Errorf("%s sees %q, and not %d", rank, seen, count)
				}
			}
			n.expectNothingLeft(t)
		})
	}
}

// startSlicedServer is a server of which one GPU is cut into slices.
func startSlicedServer(t *testing.T, cgroup string) node {
	t.Helper()
	sharedServer(t, "dgx-h100", cgroup) // asks whether tests of gangs are wanted
	n := startOwnServer(t, "dgx-h100", cgroup)
	pid := strings.Split(n.Path("/"), "/")[2]
	rig.Must(t, sim.ControlNode(pid, "mig", "7", "1g.10gb,1g.10gb,3g.40gb"))
	n.Do(t, n.Berth, "discover")
	return n
}
