// Package ranks computes the environment variables of a gang's ranks, so that unchanged scripts of
// PyTorch, DeepSpeed, Horovod, TensorFlow and JAX find each other, and removes variables of an outer
// launcher.
//
// [Env] and [Scrub] are pure. Only [Lease] touches the machine: it leases ports for a gang in the host's
// network namespace.
//
// The package tunes nothing. It never sets variables that disable a transport or choose an algorithm
// (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_IB_DISABLE, NCCL_ALGO, NCCL_PROTO, NCCL_IB_GID_INDEX), or
// that the administrator decides (NCCL_CROSS_NIC, NCCL_IB_TC, …). It doesn't set TORCHELASTIC_* either,
// with which PyTorch expects an agent that doesn't run.
package ranks

import (
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
)

// DefaultPort is the first port of a gang with its own network namespace: PyTorch's default.
const DefaultPort = 29500

// Offsets of a world's ports from World.Port.
const (
	masterPort = iota
	jaxPort
	rendezvousPort
	rasPort
	workerPort // the first of TensorFlow's servers, one for each rank
)

// Ports returns the number of consecutive ports of a world of that size. The ports of worlds in one
// network namespace must not overlap.
func Ports(size int) int { return workerPort + size }

// World is a group of ranks that communicate: those of one WORLD_SIZE.
type World struct {
	// Gang is the name of the gang that the world belongs to.
	Gang string
	// Ranks are in order; the first is the master.
	Ranks []Rank
	// Port is the first of Ports(len(Ranks)) ports that no other world uses.
	Port int
	// Interface is the network interface for traffic that uses neither shared memory nor RDMA: "eth0",
	// or "lo". "" leaves the choice to each library.
	Interface string
	// HostID is the same for all ranks on one host, and differs between hosts. "" leaves it to NCCL,
	// which uses host name and boot id.
	HostID string
	// Shared means that other programs use the network namespace too. NCCL's status server (RAS) then
	// gets a port of the world's own instead of the default one.
	Shared bool
	// Rendezvous means that a store for Horovod is served at [World.RendezvousPort]. Without it
	// Horovod's variables aren't set, because its ranks would wait for each other for ever.
	Rendezvous bool
	// Apart means that each rank sees only its own GPUs. Its variables are then those of a rank that is
	// alone on its host: its local rank is 0.
	Apart bool
}

// Rank is one member of a world.
type Rank struct {
	// Host is the name or address at which the other ranks reach this one.
	Host string
	// Role is the rank's role in the gang, and Index its number among the ranks of that role.
	Role  string
	Index int
	// CPUs is the number of threads that a library may start for numerical work; 0 leaves it open.
	CPUs int
	// GPUs are the rank's own GPUs, as indices among those that it sees.
	GPUs []int
}

// RendezvousPort returns the port of the store for Horovod.
func (w World) RendezvousPort() int { return w.Port + rendezvousPort }

// RendezvousScopes returns the scopes in which Horovod's ranks meet, with the number of ranks in each.
// The store removes the keys of a scope when all of its ranks have finished.
func (w World) RendezvousScopes() map[string]int {
	all := map[string]int{"global": len(w.Ranks)}
	for rank := range w.Ranks {
		p := w.placeOf(rank)
		all["local_"+w.groupName(rank)] = p.localSize
		all["cross_"+strconv.Itoa(p.localRank)] = p.hosts
	}
	return all
}

// Env returns the environment variables of a rank, given by its index in w.Ranks, sorted, as
// "KEY=value".
func Env(w World, rank int) []string {
	env := map[string]string{}
	for _, part := range []map[string]string{
		w.berthEnv(rank), w.torchEnv(rank), w.horovodEnv(rank), w.tensorflowEnv(rank), w.jaxEnv(rank), w.ncclEnv(),
	} {
		maps.Copy(env, part)
	}
	all := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		all = append(all, k+"="+env[k])
	}
	return all
}

// place is a rank's number among the ranks of its host, and its host's number among the hosts.
type place struct{ localRank, localSize, host, hosts int }

func (w World) placeOf(rank int) place {
	if w.Apart {
		return place{0, 1, rank, len(w.Ranks)}
	}
	return place{rank, len(w.Ranks), 0, 1}
}

func (w World) berthEnv(rank int) map[string]string {
	r := w.Ranks[rank]
	env := map[string]string{"BERTH_GANG": w.Gang, "BERTH_ROLE": r.Role, "BERTH_ROLE_RANK": strconv.Itoa(r.Index)}
	if len(r.GPUs) > 0 {
		env["BERTH_RANK_GPUS"] = joinNumbers(r.GPUs)
	}
	return env
}

// torchEnv returns the variables of PyTorch's env:// and of DeepSpeed. DeepSpeed tries MPI unless RANK,
// WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LOCAL_RANK are all set.
func (w World) torchEnv(rank int) map[string]string {
	r, p := w.Ranks[rank], w.placeOf(rank)
	env := map[string]string{
		"RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(len(w.Ranks)),
		"LOCAL_RANK": strconv.Itoa(p.localRank), "LOCAL_WORLD_SIZE": strconv.Itoa(p.localSize),
		"GROUP_RANK": strconv.Itoa(p.host), "GROUP_WORLD_SIZE": strconv.Itoa(p.hosts), "NODE_RANK": strconv.Itoa(p.host),
		"MASTER_ADDR": w.Ranks[0].Host, "MASTER_PORT": strconv.Itoa(w.Port + masterPort),
	}
	if r.CPUs > 0 {
		env["OMP_NUM_THREADS"] = strconv.Itoa(r.CPUs)
	}
	if w.Interface != "" {
		env["GLOO_SOCKET_IFNAME"] = w.Interface
	}
	return env
}

// groupName returns the name of a rank's host in Horovod: that of the host's first rank.
func (w World) groupName(rank int) string {
	if w.Apart {
		return w.Ranks[rank].Host
	}
	return w.Ranks[0].Host
}

// horovodEnv returns the variables of Horovod's gloo controller. HOROVOD_HOSTNAME is the same for all
// ranks that count each other as local, because it names the group in which they meet.
func (w World) horovodEnv(rank int) map[string]string {
	if !w.Rendezvous {
		return nil
	}
	p := w.placeOf(rank)
	env := map[string]string{
		"HOROVOD_HOSTNAME": w.groupName(rank),
		"HOROVOD_RANK":     strconv.Itoa(rank), "HOROVOD_SIZE": strconv.Itoa(len(w.Ranks)),
		"HOROVOD_LOCAL_RANK": strconv.Itoa(p.localRank), "HOROVOD_LOCAL_SIZE": strconv.Itoa(p.localSize),
		"HOROVOD_CROSS_RANK": strconv.Itoa(p.host), "HOROVOD_CROSS_SIZE": strconv.Itoa(p.hosts),
		"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
		"HOROVOD_GLOO_RENDEZVOUS_ADDR": w.Ranks[0].Host,
		"HOROVOD_GLOO_RENDEZVOUS_PORT": strconv.Itoa(w.RendezvousPort()),
	}
	if w.Interface != "" {
		env["HOROVOD_GLOO_IFACE"] = w.Interface
	}
	return env
}

// tensorflowEnv returns TF_CONFIG. Each rank has a server with a port of its own, because ranks may share
// an address.
func (w World) tensorflowEnv(rank int) map[string]string {
	type task struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
	}
	var workers []string
	for i, r := range w.Ranks {
		workers = append(workers, joinHostPort(r.Host, w.Port+workerPort+i))
	}
	data, err := json.Marshal(struct {
		Cluster map[string][]string `json:"cluster"`
		Task    task                `json:"task"`
	}{map[string][]string{"worker": workers}, task{"worker", rank}})
	if err != nil { // strings and numbers can't fail
		return nil
	}
	return map[string]string{"TF_CONFIG": string(data)}
}

// jaxEnv returns the variables that jax.distributed.initialize reads (address and devices), and the
// usual names under which scripts look for the number of processes and their own number.
func (w World) jaxEnv(rank int) map[string]string {
	size, id := strconv.Itoa(len(w.Ranks)), strconv.Itoa(rank)
	env := map[string]string{
		"JAX_COORDINATOR_ADDRESS": joinHostPort(w.Ranks[0].Host, w.Port+jaxPort),
		"JAX_NUM_PROCESSES":       size, "NUM_PROCESSES": size,
		"JAX_PROCESS_ID": id, "PROCESS_ID": id,
	}
	if gpus := w.Ranks[rank].GPUs; len(gpus) > 0 {
		env["JAX_LOCAL_DEVICE_IDS"] = joinNumbers(gpus)
	}
	return env
}

func (w World) ncclEnv() map[string]string {
	env := map[string]string{}
	if w.Interface != "" {
		env["NCCL_SOCKET_IFNAME"] = "=" + w.Interface // "=" means the exact name instead of a prefix
	}
	if w.HostID != "" {
		env["NCCL_HOSTID"] = w.HostID
	}
	if w.Shared {
		env["NCCL_RAS_ADDR"] = joinHostPort("localhost", w.Port+rasPort)
	}
	return env
}

func joinHostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

func joinNumbers(all []int) string {
	words := make([]string, len(all))
	for i, n := range all {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}
