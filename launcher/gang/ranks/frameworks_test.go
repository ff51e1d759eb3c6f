package ranks

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Each of these reads a whole world as the framework does, and says what is wrong with it.
// They are written after the frameworks' own readers, not after Env.

// readTorch: torch.distributed's env:// takes four variables; a script picks its GPU by a fifth.
func readTorch(all []map[string]string) error {
	seen := map[int]bool{}
	local := map[string]map[int]bool{}
	for _, env := range all {
		rank, size, err := pair(env, "RANK", "WORLD_SIZE")
		if err != nil {
			return err
		}
		if size != len(all) || rank < 0 || rank >= size || seen[rank] {
			return fmt.Errorf("rank %d of %d in a world of %d", rank, size, len(all))
		}
		seen[rank] = true
		if env["MASTER_ADDR"] == "" || env["MASTER_ADDR"] != all[0]["MASTER_ADDR"] || env["MASTER_PORT"] != all[0]["MASTER_PORT"] {
			return fmt.Errorf("rank %d has another master: %s:%s", rank, env["MASTER_ADDR"], env["MASTER_PORT"])
		}
		l, n, err := pair(env, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
		if err != nil {
			return err
		}
		group := env["GROUP_RANK"]
		if local[group] == nil {
			local[group] = map[int]bool{}
		}
		if l < 0 || l >= n || local[group][l] || env["NODE_RANK"] != group {
			return fmt.Errorf("local rank %d of %d, node %s, group %s", l, n, env["NODE_RANK"], group)
		}
		local[group][l] = true
	}
	if env := all[0]; env["GROUP_WORLD_SIZE"] != strconv.Itoa(len(local)) {
		return fmt.Errorf("%s groups, and not %d", env["GROUP_WORLD_SIZE"], len(local))
	}
	return nil
}

// readDeepSpeed: without all five it imports mpi4py, and on two platforms it looks elsewhere.
func readDeepSpeed(all []map[string]string) error {
	for _, env := range all {
		for _, k := range []string{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"} {
			if _, ok := env[k]; !ok {
				return fmt.Errorf("it would look for MPI: no %s", k)
			}
		}
		for _, k := range []string{"AZUREML_EXPERIMENT_ID", "SM_TRAINING_ENV"} {
			if _, ok := env[k]; ok {
				return fmt.Errorf("it would take this for another platform: %s", k)
			}
		}
	}
	return nil
}

// readHorovod: in each of three scopes the ranks of 0 to size-1 must turn up exactly once,
// or the mesh never closes.
func readHorovod(all []map[string]string, scopes map[string]int) error {
	met := map[string]map[int]bool{}
	for _, env := range all {
		if env["HOROVOD_CONTROLLER"] != "gloo" || env["HOROVOD_CPU_OPERATIONS"] != "gloo" {
			return fmt.Errorf("another controller: %v", env)
		}
		if env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "" {
			return fmt.Errorf("each would be alone: no rendezvous")
		}
		for scope, keys := range map[string][2]string{
			"global":                             {"HOROVOD_RANK", "HOROVOD_SIZE"},
			"local_" + env["HOROVOD_HOSTNAME"]:   {"HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"},
			"cross_" + env["HOROVOD_LOCAL_RANK"]: {"HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"},
		} {
			rank, size, err := pair(env, keys[0], keys[1])
			if err != nil {
				return err
			}
			if met[scope] == nil {
				met[scope] = map[int]bool{}
			}
			if rank < 0 || rank >= size || met[scope][rank] || scopes[scope] != size {
				return fmt.Errorf("%s: rank %d of %d, the rendezvous expects %d", scope, rank, size, scopes[scope])
			}
			met[scope][rank] = true
		}
	}
	for scope, ranks := range met {
		if len(ranks) != scopes[scope] {
			return fmt.Errorf("%d meet in %s, of %d", len(ranks), scope, scopes[scope])
		}
	}
	return nil
}

// readTensorFlow: the resolver loads the JSON, and a server listens at its own task's address.
func readTensorFlow(all []map[string]string) error {
	served := map[string]bool{}
	for i, env := range all {
		var config struct {
			Cluster map[string][]string
			Task    struct {
				Type  string
				Index *int
			}
		}
		if err := json.Unmarshal([]byte(env["TF_CONFIG"]), &config); err != nil {
			return err
		}
		tasks := config.Cluster[config.Task.Type]
		if len(config.Cluster) != 1 || len(tasks) != len(all) || config.Task.Index == nil || *config.Task.Index != i {
			return fmt.Errorf("rank %d reads %s", i, env["TF_CONFIG"])
		}
		own := tasks[i]
		if _, err := port(own); err != nil || served[own] {
			return fmt.Errorf("rank %d can't listen at %q: %w", i, own, err)
		}
		served[own] = true
	}
	return nil
}

// readJAX: the first process serves at every address on the port behind the last colon.
func readJAX(all []map[string]string) error {
	for i, env := range all {
		id, size, err := pair(env, "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")
		if err != nil {
			return err
		}
		if id != i || size != len(all) || env["JAX_COORDINATOR_ADDRESS"] != all[0]["JAX_COORDINATOR_ADDRESS"] {
			return fmt.Errorf("process %d of %d at %s", id, size, env["JAX_COORDINATOR_ADDRESS"])
		}
		if _, err := port(env["JAX_COORDINATOR_ADDRESS"]); err != nil {
			return err
		}
		for _, word := range strings.Split(env["JAX_LOCAL_DEVICE_IDS"], ",") {
			if _, err := strconv.Atoi(word); err != nil && env["JAX_LOCAL_DEVICE_IDS"] != "" {
				return err
			}
		}
	}
	return nil
}

func pair(env map[string]string, a, b string) (x, y int, err error) {
	if x, err = strconv.Atoi(env[a]); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", a, err)
	}
	if y, err = strconv.Atoi(env[b]); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", b, err)
	}
	return x, y, nil
}

func port(address string) (int, error) {
	return strconv.Atoi(address[strings.LastIndexByte(address, ':')+1:])
}

func TestFrameworksRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := worlds(t)
		var all []map[string]string
		for rank := range w.Ranks {
			all = append(all, table(Env(w, rank)))
		}
		for name, err := range map[string]error{
			"PyTorch": readTorch(all), "DeepSpeed": readDeepSpeed(all), "TensorFlow": readTensorFlow(all), "JAX": readJAX(all),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := readHorovod(all, w.RendezvousScopes()); w.Rendezvous && err != nil {
			t.Errorf("Horovod: %v", err)
		}
	})
}

// TestPortsApart: whatever of one world listens has a port to itself, inside the world's.
func TestPortsApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := worlds(t)
		w.Shared, w.Rendezvous = true, true
		var used []int
		add := func(address string) {
			p, err := port(address)
			if err != nil {
				t.Fatal(err)
			}
			used = append(used, p)
		}
		env := table(Env(w, 0))
		add(env["MASTER_PORT"])
		add(env["JAX_COORDINATOR_ADDRESS"])
		add(env["HOROVOD_GLOO_RENDEZVOUS_PORT"])
		add(env["NCCL_RAS_ADDR"])
		var config struct{ Cluster map[string][]string }
		if err := json.Unmarshal([]byte(env["TF_CONFIG"]), &config); err != nil {
			t.Fatal(err)
		}
		for _, a := range config.Cluster["worker"] {
			add(a)
		}
		slices.Sort(used)
		if len(slices.Compact(slices.Clone(used))) != len(used) || used[0] < w.Port || used[len(used)-1] >= w.Port+Ports(len(w.Ranks)) {
			t.Fatalf("from %d, %d ports: %v", w.Port, Ports(len(w.Ranks)), used)
		}
	})
}
