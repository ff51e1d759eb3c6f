package wrapper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/hook/message"
	"github.com/berth-gpu/berth/internal/json"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// deletion is a delete of one container.
type deletion struct {
	root, id string
	rt       Runtime
	node     Node
	lease    *ledger.Lease
	dir      string         // the bundle; "" if it is unknown or doesn't have to be restored
	bundle   *bundle.Bundle // nil if it cannot be read
	outer    string         // the outer cgroup, "" if there is none
}

// deleteContainer runs the real runtime's delete, and then releases what the container
// held. For a container that held nothing it execs the real runtime.
//
// A delete never fails because of berth. A lease that cannot be read is released by the
// ledger once its holder is dead; a bundle that cannot be read is restored by its next
// create.
func (o Options) deleteContainer(ctx context.Context, c call, rt Runtime) (int, error) {
	r := deletion{root: absolutePath(rt.stateDir(c)), id: c.id, rt: rt}
	var err error
	if r.node, err = o.Node(); err == nil {
		r.findHoldings()
	}
	defer r.close()
	if r.lease == nil && r.dir == "" {
		return 1, o.execRealRuntime(rt)
	}
	code, err := runRuntime(rt.Path, o.Args, o.Env)
	if err != nil {
		return 1, err
	}
	o.releaseAfterDelete(ctx, &r, code)
	return code, nil
}

// releaseAfterDelete releases what a container held, unless the delete has failed and
// the runtime still knows the container.
func (o Options) releaseAfterDelete(ctx context.Context, r *deletion, code int) {
	if r.lease == nil && r.dir == "" || code != 0 && r.rt.hasContainer(r.root, r.id) {
		return
	}
	if err := r.releaseHoldings(context.WithoutCancel(ctx)); err != nil {
		// The container is deleted, as the engine has asked: this is not an error of the delete.
		fmt.Fprintln(o.Stderr, "berth: "+message.OneLine(err.Error()))
	}
}

// findHoldings finds the lease, the rewritten bundle and the outer cgroup of the
// container, while the runtime still knows it. What cannot be read counts as not held.
func (r *deletion) findHoldings() {
	dir := r.rt.readBundlePath(r.root, r.id)
	leases, err := r.node.ReadLeases()
	if err != nil {
		leases = nil
	}
	find := func(is func(ledger.Lease) bool) {
		if i := slices.IndexFunc(leases, is); i >= 0 {
			r.lease = &leases[i]
		}
	}
	find(r.ownsLease)
	if dir == "" && r.lease != nil {
		dir = r.lease.Owner.Bundle
	}
	if dir == "" || !bundle.HasOriginal(dir) {
		return
	}
	r.dir = dir
	if r.bundle, err = bundle.Open(dir, ""); err != nil {
		r.bundle = nil
	}
	annotations := readAnnotations(r.bundle)
	if annotations != nil && !r.ownsRewrite(annotations) {
		r.dir = ""
		return
	}
	r.outer = annotations[outerAnnotation]
	if r.lease == nil {
		find(r.tookOverLease(annotations))
	}
}

func (r *deletion) close() {
	if r.bundle != nil {
		_ = r.bundle.Close() // a directory
	}
}

// ownsLease reports whether the lease is the container's. Container ids are unique only
// within a runtime's state directory.
func (r *deletion) ownsLease(l ledger.Lease) bool {
	return l.Owner.Container == r.id && l.Owner.RuntimeRoot == r.root
}

// tookOverLease returns a predicate for the lease that a rewritten bundle with these
// annotations names, if a precreate hook has taken it: such a hook knows no state
// directory.
func (r *deletion) tookOverLease(annotations map[string]string) func(ledger.Lease) bool {
	return func(l ledger.Lease) bool {
		return l.ID == annotations[LeaseAnnotation] && l.Owner.RuntimeRoot == "" && (l.Owner.Container == r.id || l.Owner.Container == "")
	}
}

// readAnnotations returns the annotations of a rewritten bundle, nil if they cannot be
// read.
func readAnnotations(b *bundle.Bundle) map[string]string {
	if b == nil {
		return nil
	}
	annotations, err := b.RewrittenAnnotations()
	if err != nil {
		return nil
	}
	return annotations
}

// rereadAnnotations returns the annotations of the bundle as it is now. Another
// container may have been created in it meanwhile.
func (r *deletion) rereadAnnotations() map[string]string {
	b, err := bundle.Open(r.dir, "")
	if err != nil {
		return nil
	}
	defer func() { _ = b.Close() }() // only read from
	return readAnnotations(b)
}

// releaseHoldings releases what findHoldings has found. A late delete can meet the next
// container of the same id while that is created: then it changes nothing. The lease
// stays if processes of the container live on, although the runtime has deleted it.
func (r *deletion) releaseHoldings(ctx context.Context) error {
	if r.lease == nil {
		return errors.Join(r.restoreBundle(), r.removeOuterCgroup(ctx))
	}
	leases, err := r.node.ReadLeases()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(leases, r.ownsLease)
	if i < 0 && r.dir != "" {
		i = slices.IndexFunc(leases, r.tookOverLease(r.rereadAnnotations()))
	}
	if i >= 0 && leases[i].ID != r.lease.ID {
		return nil
	}
	if i >= 0 && leases[i].State == ledger.Reserved {
		if making, err := r.hasLiveCreator(); err != nil || making {
			return err
		}
	}
	err = errors.Join(r.restoreBundle(), r.node.ReleaseIfDead(ctx, r.lease.ID))
	return errors.Join(err, r.removeOuterCgroup(ctx))
}

// hasLiveCreator reports whether the process that creates the container of the lease still
// runs. It inspects the processes of all leases, so it is called only for a reserved lease.
func (r *deletion) hasLiveCreator() (bool, error) {
	leases, err := r.node.Leases()
	return slices.ContainsFunc(leases, func(l ledger.Status) bool { return l.ID == r.lease.ID && l.Making }), err
}

// removeOuterCgroup removes the outer cgroup, if there is one. Its name is unique to
// this container.
func (r *deletion) removeOuterCgroup(ctx context.Context) error {
	if r.outer == "" {
		return nil
	}
	return r.node.RemoveOuterCgroup(ctx, r.outer)
}

// restoreBundle restores the engine's config.json, unless the engine has removed the
// bundle or it belongs to another container by now.
func (r *deletion) restoreBundle() (err error) {
	if r.dir == "" {
		return nil
	}
	if _, err := os.Lstat(r.dir); errors.Is(err, fs.ErrNotExist) || r.bundle != nil && r.bundle.IsRemoved() {
		return nil
	}
	if r.bundle == nil {
		if r.bundle, err = bundle.Open(r.dir, ""); err != nil {
			r.bundle = nil
			return err
		}
	}
	if _, err := r.bundle.Lock(); err != nil || r.belongsToAnother() {
		return err
	}
	return r.bundle.Restore()
}

// readBundlePath returns a container's bundle from its runtime's state, "" if it is
// unknown.
func (r Runtime) readBundlePath(root, id string) string {
	if !r.hasContainer(root, id) {
		return ""
	}
	data, err := os.ReadFile(r.statePath(root, id))
	if err != nil {
		return ""
	}
	return parseBundlePath(data)
}

// parseBundlePath reads the state of crun, which names the bundle, or of runc, which has
// a label for it after those that it makes of the container's annotations.
func parseBundlePath(state []byte) string {
	var s struct {
		Bundle string `json:"bundle"`
		Config struct {
			Labels []string `json:"labels"`
		} `json:"config"`
	}
	if new(json.Codec).Unmarshal(state, &s) != nil {
		return ""
	}
	for _, label := range slices.Backward(s.Config.Labels) { // an annotation may be named "bundle" too
		if dir, ok := strings.CutPrefix(label, "bundle="); ok {
			return dir
		}
	}
	return s.Bundle
}
