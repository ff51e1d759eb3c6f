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

// GangOptions say what a gang is: tasks that start together, near each other, on a network
// of their own, and that fail together. All of them share the namespaces of processes, IPC,
// the host's name and the network, and one /dev/shm; each has a root, a cgroup and CPUs of
// its own. One lease is for all.
type GangOptions struct {
	// Options of the whole: name, labels, how long it lasts, the network ("private", the
	// default, "rdma", "none" or "host"), the size of /dev/shm, the gang's request and where
	// devices come from. It is always detached. What a single task runs is said by Ranks.
	Options
	// Ranks, of which there is at least one.
	Ranks []Rank
	// ViewerPipe is the end of a pipe whose other end Viewer holds, the berth run that is attached to
	// the gang. The gang ends with it. nil for a detached gang.
	ViewerPipe *os.File `json:"-"`
	Viewer     tasks.Process
	// Stores are offered to the ranks, and Server is the program that serves one.
	Stores []tasks.GangStore
	Server string
	// Ports are leased with a file that the gang's monitor holds open; nil for none.
	Ports *ranks.Leased
	// Worlds are the groups of ranks that find each other. What is only known when the gang
	// has its lease is filled in then: the gang's name, and each rank's GPUs and CPUs.
	Worlds []ranks.World
}

// Rank is one task of a gang.
type Rank struct {
	// Options are the task's own: image, command, environment, volumes, limits, settings.
	Options
	// Role and Index name the rank: "infer-1".
	Role  string
	Index int
	// Part is the rank's among the parts of the gang's request, -1 for one without devices.
	// Sees are the parts whose devices it sees, its own among them.
	Part int
	Sees []int
	// World is the number of the rank's world among GangOptions.Worlds, -1 for a rank in none,
	// and InWorld the rank's number among the world's ranks. From it the rank gets variables
	// by which it finds the others; those of Options.Env win.
	World, InWorld int
}

// Networks are the kinds of network that a gang can have.
func Networks() []string { return []string{"private", "rdma", "none", "host"} }

// forbiddenCapabilities are capabilities that lead out of a gang, which shares a namespace of processes
// and has an interface of the host's besides. To ask for one by its name is an error.
func (o GangOptions) forbiddenCapabilities() ([]string, error) {
	never := map[string]string{
		"SYS_PTRACE": "it would be that of the others' containers, too, before they have given up root's",
	}
	if o.Network == "private" || o.Network == "rdma" {
		never["NET_ADMIN"] = "by the gang's way out it would reach the host's interfaces and other gangs; it is there with --network none"
	}
	for _, given := range o.CapAdd {
		if why, ok := never[strings.TrimPrefix(strings.ToUpper(given), "CAP_")]; ok {
			return nil, fmt.Errorf("--cap-add %s: no rank of a gang has it: %s", given, why)
		}
	}
	return slices.Sorted(maps.Keys(never)), nil
}

// checkName fails for a gang's name of which those of its ranks get too long.
func (o GangOptions) checkName(name string) error {
	var last string
	for _, r := range o.Ranks {
		if member := (tasks.Member{Role: r.Role, Index: r.Index}).Name(); len(member) > len(last) {
			last = member
		}
	}
	if most := tasks.MaxName - len("."+last); len(name) > most {
		return fmt.Errorf("name %q: this gang's can be %d letters long at most, and not %d: its ranks are called by it (NAME.%s), in %d letters",
			name, most, len(name), last, tasks.MaxName)
	}
	return nil
}
