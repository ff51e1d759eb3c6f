package wrapper

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// createUnconfigured execs the real runtime for a container that has nothing to do with
// accelerators, and notes configError, the error of the configuration, in the event log.
// For every container that berth could have to prepare it returns configError.
//
// An engine whose default runtime is berth starts all its containers here: an error in
// berth's configuration must not stop those that berth would pass on unchanged.
func (o Options) createUnconfigured(c call, rt Runtime, configError error) (err error) {
	b, err := bundle.Open(cmp.Or(c.bundle, "."), c.configPath())
	if err != nil {
		return errors.Join(configError, err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	node, err := o.Unconfigured()
	if err != nil {
		return errors.Join(configError, err)
	}
	n := &creation{Options: o, call: c, rt: rt, bundle: b, node: node}
	if n.mayConcernBerth() {
		return fmt.Errorf("%w; until that is fixed, only containers without GPUs start", configError)
	}
	if partial, err := n.bundle.PartialSpec(); err != nil {
		return errors.Join(configError, err)
	} else if err := n.checkPlainCgroup(partial); err != nil {
		return errors.Join(configError, err)
	}
	node.LogRemovals("unconfigured", "", ledger.Owner{Container: c.id, UID: os.Getuid()}, []edits.Removal{edits.Remark("%v", configError)})
	return o.execRealRuntime(rt)
}

// mayConcernBerth reports whether berth would prepare the container under any
// configuration: whatever a policy can take for a request is one, and no container is
// exempt. It is true in doubt, and changes nothing.
func (n *creation) mayConcernBerth() bool {
	partial, err := n.bundle.PartialSpec()
	if err != nil || entry.HasNVIDIAHooks(partial) {
		return true
	}
	strictest := entry.Trust{Environment: true, PodmanAnnotation: true, VisibleDevices: entry.Refuse, CountIndices: true}
	_, asked, err := entry.FindRequest(partial, entry.RequestSet{}, strictest, nil)
	if err != nil || asked {
		return true
	}
	prepare, err := n.needsPreparation(partial, false)
	if err != nil || prepare {
		return true
	}
	rewritten, err := n.bundle.RewrittenSpec()
	return err != nil || rewritten != nil
}
