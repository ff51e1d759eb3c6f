package tasks

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestGangNICs: a gang's ranks see the adapters that the gang leases, and the network
// interface of one that is RoCE's comes into the gang's network, or the gang isn't made.
func TestGangNICs(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		conf := filepath.Join(t.TempDir(), "config.toml")
		rig.Must(t, os.WriteFile(conf, []byte("[policy]\nnics = \"exclusive\"\n"), 0o600))
		run := func(words ...string) rig.Said {
			t.Helper()
			all := append([]string{"--config", conf, "run", "--runtime", s.runtime, "-n", "2", "--gpus-per-rank", "1"}, words...)
			return s.Run(t, s.Command(s.Berth, append(all, rig.ImagePath(t, "busybox"), "sh", "-c",
				"ls /sys/class/infiniband /dev/infiniband; ip -o link | grep -o eth1; env | grep ^NCCL_IB")...))
		}
		ranks := func(lines ...string) (all []string) {
			for _, rank := range []string{"rank-0 | ", "rank-1 | "} {
				for _, line := range lines {
					all = append(all, rank+line)
				}
			}
			slices.Sort(all)
			return all
		}
		got := run("--network", "rdma")
		want := ranks("/dev/infiniband:", "rdma_cm", "uverbs0", "uverbs1", "", "/sys/class/infiniband:", "mlx5_0", "mlx5_3", "NCCL_IB_HCA==mlx5_0:1,mlx5_3:1")
		if have := sortLines(got.Out); got.Code != 0 || !slices.Equal(have, want) {
			t.Errorf("InfiniBand: %d %s\n%q, want %q", got.Code, got.Err, have, want)
		}

		s.Do(t, "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "peer1")
		t.Cleanup(func() { _ = s.Run(t, s.Command("ip", "link", "del", "peer1")) })
		for _, network := range []string{"private", "none"} {
			if got := run("--network", network, "--nics", "mlx5_1"); got.Code != 125 || !strings.Contains(got.Err, "RDMA device mlx5_1 is RoCE and uses the addresses of eth1") {
				t.Errorf("RoCE in %s: %+v", network, got)
			}
		}
		got = run("--network", "rdma", "--nics", "mlx5_1")
		if have := sortLines(got.Out); got.Code != 0 || !slices.Contains(have, "rank-0 | eth1") || !slices.Contains(have, "rank-1 | eth1") ||
			!slices.Contains(have, "rank-1 | NCCL_IB_HCA==mlx5_1:1") {
			t.Errorf("RoCE: %d %s\n%q", got.Code, got.Err, have)
		}
	})
}
