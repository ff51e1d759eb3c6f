package ranks

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func world(n int) World {
	w := World{Gang: "train", Port: DefaultPort, Interface: "eth0", HostID: "node-7", Rendezvous: true}
	for i := range n {
		w.Ranks = append(w.Ranks, Rank{Host: fmt.Sprintf("rank-%d", i), Role: "rank", Index: i, CPUs: 6, GPUs: []int{i}})
	}
	return w
}

func table(env []string) map[string]string {
	all := map[string]string{}
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		all[k] = v
	}
	return all
}

func TestEnv(t *testing.T) {
	got := Env(world(2), 1)
	want := []string{
		"BERTH_GANG=train", "BERTH_RANK_GPUS=1", "BERTH_ROLE=rank", "BERTH_ROLE_RANK=1",
		"GLOO_SOCKET_IFNAME=eth0", "GROUP_RANK=0", "GROUP_WORLD_SIZE=1",
		"HOROVOD_CONTROLLER=gloo", "HOROVOD_CPU_OPERATIONS=gloo", "HOROVOD_CROSS_RANK=0", "HOROVOD_CROSS_SIZE=1",
		"HOROVOD_GLOO_IFACE=eth0", "HOROVOD_GLOO_RENDEZVOUS_ADDR=rank-0", "HOROVOD_GLOO_RENDEZVOUS_PORT=29502",
		"HOROVOD_HOSTNAME=rank-0", "HOROVOD_LOCAL_RANK=1", "HOROVOD_LOCAL_SIZE=2", "HOROVOD_RANK=1", "HOROVOD_SIZE=2",
		"JAX_COORDINATOR_ADDRESS=rank-0:29501", "JAX_LOCAL_DEVICE_IDS=1", "JAX_NUM_PROCESSES=2", "JAX_PROCESS_ID=1",
		"LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=rank-0", "MASTER_PORT=29500",
		"NCCL_HOSTID=node-7", "NCCL_SOCKET_IFNAME==eth0", "NODE_RANK=0", "NUM_PROCESSES=2", "OMP_NUM_THREADS=6",
		"PROCESS_ID=1", "RANK=1",
		`TF_CONFIG={"cluster":{"worker":["rank-0:29504","rank-1:29505"]},"task":{"type":"worker","index":1}}`,
		"WORLD_SIZE=2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the second of two ranks (-want +got):\n%s", diff)
	}
}

func TestEnvVaries(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(*World)
		want    map[string]string
		without []string
	}{
		{
			"each rank sees only its own GPU", func(w *World) {
				w.Apart = true
				w.Ranks[2].GPUs = []int{0}
			},
			map[string]string{
				"RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "2", "GROUP_WORLD_SIZE": "4", "NODE_RANK": "2",
				"HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1", "HOROVOD_CROSS_RANK": "2", "HOROVOD_CROSS_SIZE": "4",
				"HOROVOD_HOSTNAME": "rank-2", "JAX_LOCAL_DEVICE_IDS": "0",
			},
			nil,
		},
		{
			"the host's network", func(w *World) {
				w.Shared, w.Port, w.Interface = true, 61200, ""
				w.Ranks[0].Host = "127.0.0.1"
			},
			map[string]string{
				"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "61200", "JAX_COORDINATOR_ADDRESS": "127.0.0.1:61201",
				"NCCL_RAS_ADDR": "localhost:61203", "NCCL_HOSTID": "node-7",
			},
			[]string{"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"},
		},
		{
			"no server for Horovod's rendezvous", func(w *World) { w.Rendezvous = false },
			map[string]string{"RANK": "2"},
			[]string{"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR"},
		},
		{
			"nothing known", func(w *World) {
				w.HostID, w.Interface = "", ""
				w.Ranks[2] = Rank{Host: "rank-2", Role: "rank", Index: 2}
			},
			map[string]string{"RANK": "2", "LOCAL_RANK": "2"},
			[]string{"NCCL_HOSTID", "NCCL_RAS_ADDR", "OMP_NUM_THREADS", "BERTH_RANK_GPUS", "JAX_LOCAL_DEVICE_IDS"},
		},
		{
			"an IPv6 address", func(w *World) { w.Ranks[0].Host = "fd00::1" },
			map[string]string{"MASTER_ADDR": "fd00::1", "JAX_COORDINATOR_ADDRESS": "[fd00::1]:29501"},
			nil,
		},
		{
			"two GPUs each", func(w *World) { w.Ranks[2].GPUs = []int{4, 5} },
			map[string]string{"BERTH_RANK_GPUS": "4,5", "JAX_LOCAL_DEVICE_IDS": "4,5", "LOCAL_RANK": "2"},
			nil,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := world(4)
			tc.change(&w)
			env := table(Env(w, 2))
			for k, v := range tc.want {
				if env[k] != v {
					t.Errorf("%s is %q, want %q", k, env[k], v)
				}
			}
			for _, k := range tc.without {
				if v, ok := env[k]; ok {
					t.Errorf("%s is set, to %q", k, v)
				}
			}
		})
	}
}

// TestNeverSet: no world sets a variable that is reserved for users.
func TestNeverSet(t *testing.T) {
	allowed := []string{"NCCL_SOCKET_IFNAME", "NCCL_HOSTID", "NCCL_RAS_ADDR"}
	rapid.Check(t, func(t *rapid.T) {
		w := worlds(t)
		for rank := range w.Ranks {
			env := Env(w, rank)
			if !slices.IsSorted(env) || len(table(env)) != len(env) {
				t.Fatalf("not sorted, or twice: %q", env)
			}
			for k := range table(env) {
				if strings.HasPrefix(k, "TORCHELASTIC_") || strings.HasPrefix(k, "NCCL_") && !slices.Contains(allowed, k) {
					t.Fatalf("%s is set", k)
				}
			}
		}
	})
}

// TestScrubbedFirst: a gang that a rank of another starts finds nothing of it.
func TestScrubbedFirst(t *testing.T) {
	keep := []string{"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS"}
	rapid.Check(t, func(t *rapid.T) {
		w := worlds(t)
		for rank := range w.Ranks {
			for k := range table(Scrub(Env(w, rank))) {
				if !slices.Contains(keep, k) {
					t.Fatalf("%s of an outer gang stays", k)
				}
			}
		}
	})
}

func worlds(t *rapid.T) World {
	w := World{
		Gang:       rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "gang"),
		Port:       rapid.IntRange(1024, 60000).Draw(t, "port"),
		Interface:  rapid.SampledFrom([]string{"", "eth0", "lo"}).Draw(t, "interface"),
		HostID:     rapid.SampledFrom([]string{"", "node-7"}).Draw(t, "host id"),
		Shared:     rapid.Bool().Draw(t, "shared"),
		Rendezvous: rapid.Bool().Draw(t, "rendezvous"),
		Apart:      rapid.Bool().Draw(t, "apart"),
	}
	for i := range rapid.IntRange(1, 70).Draw(t, "size") {
		w.Ranks = append(w.Ranks, Rank{
			Host: fmt.Sprintf("rank-%d", i), Role: "rank", Index: i,
			CPUs: rapid.IntRange(0, 64).Draw(t, "cpus"),
			GPUs: rapid.SliceOfN(rapid.IntRange(0, 15), 0, 2).Draw(t, "gpus"),
		})
	}
	return w
}

func TestScrub(t *testing.T) {
	outer := []string{
		"SLURM_PROCID=3", "SLURM_JOB_ID=7", "SLURMD_NODENAME=n1", "SRUN_DEBUG=3",
		"PMI_RANK=1", "PMI_FD=9", "PMI2_X=1", "PMIX_RANK=1", "PMIX_SERVER_URI41=x", "HYDI_CONTROL_FD=6",
		"OMPI_COMM_WORLD_RANK=1", "OMPI_MCA_orte_hnp_uri=1.0;tcp://10.0.0.1:4", "PRTE_LAUNCHED=1", "ORTE_X=1",
		"MPI_LOCALRANKID=0", "MV2_COMM_WORLD_RANK=0", "PALS_RANKID=0", "FLUX_TASK_RANK=0", "JSM_NAMESPACE_RANK=0",
		"TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_USE_AGENT_STORE=True", "RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=elsewhere",
		"HOROVOD_RANK=1", "HOROVOD_GLOO_RENDEZVOUS_ADDR=elsewhere", `TF_CONFIG={}`, "JAX_COORDINATOR_ADDRESS=elsewhere:1",
		"NCCL_HOSTID=another", "BERTH_GANG=another",
	}
	own := []string{
		"PATH=/usr/bin", "HOME=/root", "OMP_NUM_THREADS=4", "NCCL_DEBUG=INFO", "NCCL_IB_DISABLE=1", "HOROVOD_FUSION_THRESHOLD=0",
		"I_MPI_FABRICS=shm", "CUDA_VISIBLE_DEVICES=0", "JAX_PLATFORMS=cuda", "TORCH_HOME=/x", "RANKS=4", "MY_RANK=1",
		"PMIDS=1", "novalue", "=odd", "",
	}
	var mixed []string
	for i, e := range own {
		mixed = append(mixed, outer[2*i%len(outer)], e)
	}
	mixed = append(mixed, outer...)
	before := slices.Clone(mixed)
	if diff := cmp.Diff(own, Scrub(mixed)); diff != "" {
		t.Errorf("what stays (-want +got):\n%s", diff)
	}
	if !slices.Equal(before, mixed) {
		t.Error("the argument was changed")
	}
}

func ExampleEnv() {
	w := World{
		Gang: "train", Port: DefaultPort, Interface: "eth0",
		Ranks: []Rank{{Host: "rank-0", Role: "rank"}, {Host: "rank-1", Role: "rank", Index: 1}},
	}
	env := table(Env(w, 1))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if strings.HasPrefix(k, "MASTER_") || strings.HasSuffix(k, "RANK") {
			fmt.Println(k + "=" + env[k])
		}
	}
	// Output:
	// BERTH_ROLE_RANK=1
	// GROUP_RANK=0
	// LOCAL_RANK=1
	// MASTER_ADDR=rank-0
	// MASTER_PORT=29500
	// NODE_RANK=0
	// RANK=1
}
