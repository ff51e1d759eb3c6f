// Package ranks says what the ranks of a gang find in their environment, so that plain
// scripts of PyTorch, DeepSpeed, Horovod, TensorFlow and JAX find each other unchanged,
// and what of an outer launcher's must not reach them.
//
// [Env] and [Scrub] are pure. The one thing that touches the machine is [Lease], which
// keeps a gang's ports from others where the network namespace isn't the gang's own.
//
// It tunes nothing: what turns a transport off or picks an algorithm (NCCL_P2P_DISABLE,
// NCCL_SHM_DISABLE, NCCL_IB_DISABLE, NCCL_ALGO, NCCL_PROTO, NCCL_IB_GID_INDEX) and what
// the administrator decides (NCCL_CROSS_NIC, NCCL_IB_TC, …) is never set. TORCHELASTIC_*
// isn't either: it makes PyTorch believe in an agent that doesn't run.
package ranks

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// DefaultPort is where the ports of a gang begin that has a network namespace to itself:
// PyTorch's own habit.
const DefaultPort = 29500

// A world's ports, counted from World.Port.
const (
	masterPort = iota
	jaxPort
	rendezvousPort
	rasPort
	workerPort // TensorFlow's servers: one for each rank, from here
)

// Ports is how many ports a world of that size takes up, one after the other. Worlds that
// share a network namespace must not overlap.
func Ports(size int) int { return workerPort + size }

// World is the ranks that count each other: those of one WORLD_SIZE.
type World struct {
	// Gang is the name of the gang that the world belongs to.
	Gang string
	// Ranks are in order; the first is the master.
	Ranks []Rank
	// Port is the first of Ports(len(Ranks)) ports that are the world's alone.
	Port int
	// Interface carries what doesn't go by shared memory or RDMA: "eth0", or "lo" where
	// there is no other. "" leaves the choice to each library.
	Interface string
	// HostID is the same for all members that run on one host, and never the same on two
	// hosts; "" leaves it to NCCL, which takes host name and boot id.
	HostID string
	// Shared says that others use the network namespace too: the world then gets a port of
	// its own for NCCL's status server, which would be everybody's otherwise.
	Shared bool
	// Rendezvous says that somebody serves Horovod's rendezvous at [World.RendezvousPort].
	// Without it nothing is said to Horovod, whose ranks would wait for each other for ever.
	Rendezvous bool
	// Apart says that each rank sees no GPU but its own, and so is as if on a host by
	// itself: its local rank is 0.
	Apart bool
}

// Rank is one member of a world.
type Rank struct {
	// Host is a name, or an address, that all members resolve to where the rank listens.
	Host string
	// Role is the name of the rank's part in the gang, and Index its number among those
	// of that role.
	Role  string
	Index int
	// CPUs are how many threads a library may start for numerical work; 0 leaves it open.
	CPUs int
	// GPUs are the rank's own, as indices among those that it sees.
	GPUs []int
}

// RendezvousPort is where Horovod's ranks look for the rendezvous.
func (w World) RendezvousPort() int { return w.Port + rendezvousPort }

// RendezvousScopes are the groups in which Horovod's ranks meet, and how many meet in
// each: what the rendezvous has to know of before it may forget a group's keys.
func (w World) RendezvousScopes() map[string]int {
	all := map[string]int{"global": len(w.Ranks)}
	for rank := range w.Ranks {
		p := w.placeOf(rank)
		all["local_"+w.groupName(rank)] = p.localSize
		all["cross_"+strconv.Itoa(p.localRank)] = p.hosts
	}
	return all
}

// Env is what the rank of that number finds in its environment, as sorted "KEY=value".
// The rank must be one of the world's.
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

// place is where a rank stands among those of its host, and its host among the hosts.
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

// torchEnv is what PyTorch's env:// reads and DeepSpeed, which goes looking for MPI unless
// RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LOCAL_RANK are all there.
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

// groupName names the host on which a rank counts itself, by its first rank.
func (w World) groupName(rank int) string {
	if w.Apart {
		return w.Ranks[rank].Host
	}
	return w.Ranks[0].Host
}

// horovodEnv is what its gloo controller reads. HOROVOD_HOSTNAME is the name of the group in
// which the local ranks meet, so it is the same for all that count each other as local.
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

// tensorflowEnv gives each rank a server of its own: all may have one address, so the ports
// differ.
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

// jaxEnv is what jax.distributed.initialize reads by itself (address and devices), and under
// which names scripts look for the two numbers that it has to be told.
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
		env["NCCL_SOCKET_IFNAME"] = "=" + w.Interface // this one, and none whose name begins like it
	}
	if w.HostID != "" {
		env["NCCL_HOSTID"] = w.HostID
	}
	if w.Shared {
		env["NCCL_RAS_ADDR"] = joinHostPort("localhost", w.Port+rasPort)
	}
	return env
}

// joinHostPort puts brackets around an IPv6 address, as everybody who cuts at the last colon
// expects.
func joinHostPort(host string, port int) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(port)
}

func joinNumbers(all []int) string {
	words := make([]string, len(all))
	for i, n := range all {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}
