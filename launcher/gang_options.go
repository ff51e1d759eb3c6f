package launcher

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/launcher/gang/ranks"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// GangOptions describe a gang: tasks that start together on devices near each other, and that fail
// together. The ranks share one lease, the PID, IPC, UTS and network namespaces, and /dev/shm; each
// has its own root, cgroup and CPUs.
type GangOptions struct {
	// Options of the gang: name, labels, lifecycle, network ("private", the default, "rdma", "none"
	// or "host"), size of /dev/shm, request and DeviceSource. Detach is required. With Place, the network
	// is "none" or "host". Ranks have the options of each task, such as image and command.
	Options
	// Ranks must not be empty.
	Ranks []Rank
	// Viewer is the berth run in the foreground that shows the gang's output, and ViewerPipe the end
	// of a pipe whose other end Viewer holds. The gang ends when Viewer does. nil for a detached gang.
	ViewerPipe *os.File `json:"-"`
	Viewer     tasks.Process
	// Stores are the key-value stores for Horovod, and Server is the program that serves one.
	Stores []tasks.GangStore
	Server string
	// Ports are leased with a file that the gang's monitor holds open; nil for none.
	Ports *ranks.Leased
	// Worlds are the groups of ranks that find each other. The launch fills in the gang's name, and
	// each rank's GPUs and CPUs once the lease is known.
	Worlds []ranks.World
}

// Rank is one task of a gang.
type Rank struct {
	// Options are the task's own: image, command, environment, volumes, limits, settings.
	Options
	// Role and Index name the rank: "infer-1".
	Role  string
	Index int
	// Part is the index of the rank's part in the gang's request, -1 for a rank without devices.
	// Sees are the parts whose devices the rank sees, its own among them.
	Part int
	Sees []int
	// World is the index of the rank's world in GangOptions.Worlds, -1 for none, and InWorld the
	// rank's index in World.Ranks. The world sets environment variables; Options.Env overrides them.
	World, InWorld int
}

// Networks returns the kinds of network that a gang can have.
func Networks() []string { return []string{"private", "rdma", "none", "host"} }

// forbiddenCapabilities returns the capabilities with which a rank could leave its container: the
// ranks share a PID namespace, and a private network has an interface to the host. Asking for one of
// them with CapAdd is an error.
func (o GangOptions) forbiddenCapabilities() ([]string, error) {
	forbidden := map[string]string{
		"SYS_PTRACE": "the ranks share a PID namespace, so a rank could trace another's container while it is created",
	}
	if o.Network == "private" || o.Network == "rdma" {
		forbidden["NET_ADMIN"] = "through the gang's uplink it would reach the host's interfaces and other gangs; --network none allows it"
	}
	for _, given := range o.CapAdd {
		if why, ok := forbidden[strings.TrimPrefix(strings.ToUpper(given), "CAP_")]; ok {
			return nil, fmt.Errorf("--cap-add %s: no rank of a gang has it: %s", given, why)
		}
	}
	return slices.Sorted(maps.Keys(forbidden)), nil
}

// checkName returns an error if the name of a rank, NAME.ROLE-INDEX, would be too long.
func (o GangOptions) checkName(name string) error {
	var last string
	for _, r := range o.Ranks {
		if member := (tasks.Member{Role: r.Role, Index: r.Index}).Name(); len(member) > len(last) {
			last = member
		}
	}
	if most := tasks.MaxName - len("."+last); len(name) > most {
		return fmt.Errorf("name %q has %d characters, and this gang's can have %d at most: the name of a rank (NAME.%s) has at most %d",
			name, len(name), most, last, tasks.MaxName)
	}
	return nil
}
