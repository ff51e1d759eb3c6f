package cdi

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
)

// Where NCCL looks for the machine's configuration and, unless a variable names
// another, for its topology.
const (
	NCCLConf     = "/etc/nccl.conf"
	NCCLTopology = "/var/run/nvidia-topologyd/virtualTopology.xml"
)

// NCCLFiles brings an admin's files for NCCL to where it looks for them; "" is none. A
// file that isn't there is an error: somebody counts on it.
func NCCLFiles(conf, topology string) (e edits.Edits, err error) {
	for _, f := range []struct{ source, destination string }{{conf, NCCLConf}, {topology, NCCLTopology}} {
		if f.source == "" {
			continue
		}
		if !isKind(f.source, unix.S_IFREG) {
			return edits.Edits{}, fmt.Errorf("NCCL's file %s isn't there, or is no regular file", f.source)
		}
		e.Mounts = append(e.Mounts, bindView(f.source, f.destination))
	}
	return e, nil
}
