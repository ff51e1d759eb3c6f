package launcher

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// notInGangs are capabilities that lead out of a gang, which shares a namespace of processes
// and has an interface of the host's besides. To ask for one by its name is an error.
func (o GangOptions) notInGangs() ([]string, error) {
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
