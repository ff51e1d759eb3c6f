// Package gpu tests on machines with a GPU and no network: make gpu-bundle makes a folder to copy
// there, and its run.sh checks berth's promises.
//
// Here it runs on simulated servers. With their own libcuda, which doesn't compute, the checks
// without computation have to pass, and the others have to be skipped with the reason; with a
// libcuda that pretends to compute, each verdict has to be right.
package gpu

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

var (
	shared *rig.Rig
	bundle string
)

func TestMain(m *testing.M) {
	rig.Main(m, func(r *rig.Rig) error {
		shared, bundle = r, filepath.Join(r.Dir, "bundle")
		return exec.Command("./bundle.sh", bundle, r.Dir).Run()
	})
}

// verdict runs the bundle on a node, and checks its exit code and some lines of output.
func verdict(t *testing.T, n *rig.Node, code int, wants ...string) {
	t.Helper()
	said := n.Run(t, n.Command(bundle+"/run.sh", "--guard", filepath.Join(t.TempDir(), "logs")))
	if said.Code != code {
		t.Errorf("exit code %d, want %d", said.Code, code)
	}
	for _, want := range wants {
		if !strings.Contains(said.Out, "\n"+want) {
			t.Errorf("it doesn't say %q", want)
		}
	}
	if t.Failed() {
		t.Log(said.Out, said.Err)
	}
}

// startNode makes a node on which the device guard concerns no other node.
func startNode(cgroup string) (*rig.Node, error) {
	if cgroup == "v2" {
		return shared.StartRooted("dgx-h100")
	}
	return shared.Start("dgx-h100", cgroup)
}

func TestWithoutCUDA(t *testing.T) {
	for cgroup, guard := range map[string]string{
		"v1": "SKIP  guard: it needs cgroup version 2 alone",
		"v2": "PASS  guard: a user without a lease opens no GPU, and with one from the broker that one",
	} {
		t.Run(cgroup, func(t *testing.T) {
			n, err := startNode(cgroup)
			rig.Must(t, err)
			verdict(t, n, 77, guard,
				"PASS  container: ",
				"PASS  discover: berth knows 8 GPUs, the driver 8",
				"PASS  rules: one node of a GPU can be opened inside, and no other can be made",
				"SKIP  leftover: no process can open /dev/nvidia0", "SKIP  cuda: the machine")
		})
	}
}

func TestVerdicts(t *testing.T) {
	for _, tc := range []struct {
		name, define string
		code         int
		want         []string
	}{
		{"all is well", "-DWELL", 0, []string{
			"PASS  guard-cuda: CUDA shows a user no device without a lease (",
			"PASS  one: CUDA opens one device inside, of 8: 0000",
			"PASS  without: CUDA doesn't start in a container that has leased nothing: library: libcuda.so.1",
			"PASS  two: two ranks with a GPU each have two",
			"PASS  product: ", "SKIP  cublas: ", "SKIP  nccl: ",
		}},
		{"another's device shows", "-DLEAK", 1, []string{"FAIL  one: CUDA shows 2 devices inside, and one was leased"}},
		{"slower inside", "-DSLOW", 1, []string{"PASS  one: ", "FAIL  product: "}},
		{"nothing works inside", "-DDEAF", 1, []string{
			"FAIL  one: CUDA doesn't work inside, as it does outside: cuInit: error 999 CUDA_ERROR_UNKNOWN",
			"FAIL  product: it works outside, and not inside: cuInit: error 999",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := startNode("v2")
			rig.Must(t, err)
			lib := n.Path("/usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01")
			out, err := exec.Command("cc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", tc.define, "-o", lib, "testdata/cuda.c").CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			n.Do(t, "ldconfig")
			verdict(t, n, tc.code, tc.want...)
		})
	}
}
