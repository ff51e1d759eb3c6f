package wrapper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation"
)

// processLimit bounds the file of --process, in bytes. It is more than the kernel takes as
// arguments and environment, with each byte of them escaped.
const processLimit = 64 << 20

// execInContainer becomes the real runtime. It refuses a process that could lift the device rules of a
// container with a lease (docker exec --privileged), unless the container is in an outer cgroup. Other
// calls of exec read neither the configuration nor the ledger.
func (o Options) execInContainer(c call, rt Runtime) error {
	if !c.canLiftDeviceRules() {
		return o.execRealRuntime(rt)
	}
	node, err := o.Node()
	if err == nil {
		_, err = node.ReadLeases() // an unreadable ledger must refuse; findHoldings would take it for an empty one
	}
	if err != nil {
		return fmt.Errorf("exec in container %s: find its lease: %w", c.id, err)
	}
	r := deletion{root: absolutePath(rt.stateDir(c)), id: c.id, rt: rt, node: node}
	r.findHoldings()
	r.close()
	if r.lease != nil && r.outer == "" && !hasOwnCapability(r.lease.Owner.Bundle) {
		return fmt.Errorf("exec in container %s: with CAP_SYS_ADMIN the process could open devices beyond lease %s: "+
			"leave out --privileged, or start the container with --cap-add SYS_ADMIN, which puts it into an outer cgroup", c.id, r.lease.ID)
	}
	return o.execRealRuntime(rt)
}

// hasOwnCapability reports whether the container of a bundle can itself lift device rules, as one without an
// outer cgroup may where systemd makes the cgroup on version 1. An exec gives such a container nothing.
func hasOwnCapability(dir string) bool {
	b, err := bundle.Open(dir, "")
	if err != nil {
		return false
	}
	defer b.Close() //nolint:errcheck // nothing was written
	spec, err := b.PartialSpec()
	return err == nil && isolation.CanLiftDeviceRules(spec)
}

// canLiftDeviceRules reports whether the process of an exec gets a capability with which it can lift
// device rules. In doubt it does: the real runtime may read what berth can't. A missing process file is
// the real runtime's to refuse, and a FIFO can be read only once, by the real runtime.
func (c call) canLiftDeviceRules() bool {
	given := specs.LinuxCapabilities{Bounding: c.capabilities}
	if c.process != "" {
		var p struct {
			Capabilities *specs.LinuxCapabilities `json:"capabilities"`
		}
		switch fi, err := os.Stat(c.process); {
		case errors.Is(err, fs.ErrNotExist):
			return false
		case err != nil || !fi.Mode().IsRegular():
			return true
		}
		data, err := smallfile.Read(c.process, processLimit)
		if err != nil || json.Unmarshal(data, &p) != nil {
			return true
		}
		if p.Capabilities == nil {
			return false
		}
		given = *p.Capabilities
	}
	return isolation.CanLiftDeviceRules(&specs.Spec{Process: &specs.Process{Capabilities: &given}})
}
