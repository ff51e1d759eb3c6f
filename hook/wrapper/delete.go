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

// deletion is one container on its way out.
type deletion struct {
	root, id string
	rt       Runtime
	node     Node
	lease    *ledger.Lease
	dir      string         // of the bundle, "" if it isn't known, or nothing is to be put back
	bundle   *bundle.Bundle // nil if it can't be read
	outer    string         // cgroup around the container's own, "" if there is none
}

// deleteContainer deletes a container by the real runtime, and gives back what it held.
// If it held nothing, it becomes the real runtime.
//
// Nothing stands in the way of a delete: what can't be read is left to the
// ledger's proof of life, and to the next create of the bundle.
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

// releaseAfterDelete gives back what a container held, unless the runtime that was to delete it
// has failed and still knows it.
func (o Options) releaseAfterDelete(ctx context.Context, r *deletion, code int) {
	if r.lease == nil && r.dir == "" || code != 0 && r.rt.hasContainer(r.root, r.id) {
		return
	}
	if err := r.releaseHoldings(context.WithoutCancel(ctx)); err != nil {
		// The container is gone, and that is what the engine asked for.
		fmt.Fprintln(o.Stderr, "berth: "+message.OneLine(err.Error()))
	}
}

// findHoldings finds out what the container holds, before it is gone. The errors of what
// cannot be read are dropped: see [Options.remove].
func (r *deletion) findHoldings() {
	dir := r.rt.readBundlePath(r.root, r.id)
	leases, err := r.node.Held()
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
	notes := readAnnotations(r.bundle)
	if notes != nil && !r.ownsRewrite(notes) {
		r.dir = ""
		return
	}
	r.outer = notes[outerAnnotation]
	if r.lease == nil {
		find(r.tookOverLease(notes))
	}
}

func (r *deletion) close() {
	if r.bundle != nil {
		_ = r.bundle.Close() // a directory, of which nothing is lost
	}
}

// ownsLease says whose a lease is: ids are only unique within a state directory.
func (r *deletion) ownsLease(l ledger.Lease) bool {
	return l.Owner.Container == r.id && l.Owner.RuntimeRoot == r.root
}

// tookOverLease knows the lease that the container's bundle was prepared for, if it is one
// that the wrapper took over from a hook: those know no state directory.
func (r *deletion) tookOverLease(notes map[string]string) func(ledger.Lease) bool {
	return func(l ledger.Lease) bool {
		return l.ID == notes[LeaseAnnotation] && l.Owner.RuntimeRoot == "" && (l.Owner.Container == r.id || l.Owner.Container == "")
	}
}

// readAnnotations reads from a rewritten bundle what berth has noted of its container: the
// lease, and the outer cgroup that was made. None if it can't be read.
func readAnnotations(b *bundle.Bundle) map[string]string {
	if b == nil {
		return nil
	}
	notes, err := b.RewrittenAnnotations()
	if err != nil {
		return nil
	}
	return notes
}

// rereadAnnotations reads what is noted in the bundle now, which may be another life's.
func (r *deletion) rereadAnnotations() map[string]string {
	b, err := bundle.Open(r.dir, "")
	if err != nil {
		return nil
	}
	defer func() { _ = b.Close() }() // only read from
	return readAnnotations(b)
}

// releaseHoldings ends what look has found. A late delete can meet the next life of the
// same id, which is only just being made: nothing of it may be touched. And that
// the runtime has deleted a container doesn't say that its processes have ended:
// the lease of one that lives stays.
func (r *deletion) releaseHoldings(ctx context.Context) error {
	if r.lease == nil {
		return errors.Join(r.restoreBundle(), r.removeOuterCgroup(ctx))
	}
	leases, err := r.node.Held()
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
		if making, err := r.isBeingMade(); err != nil || making {
			return err
		}
	}
	err = errors.Join(r.restoreBundle(), r.node.ReleaseIfDead(ctx, r.lease.ID))
	return errors.Join(err, r.removeOuterCgroup(ctx))
}

// isBeingMade says that whoever makes the container is still at it. Of a bound lease that is
// never so; to ask costs a look at the processes of all leases.
func (r *deletion) isBeingMade() (bool, error) {
	leases, err := r.node.Leases()
	return slices.ContainsFunc(leases, func(l ledger.Status) bool { return l.ID == r.lease.ID && l.Making }), err
}

// removeOuterCgroup removes the outer cgroup, which is of this life alone.
func (r *deletion) removeOuterCgroup(ctx context.Context) error {
	if r.outer == "" {
		return nil
	}
	return r.node.Unclose(ctx, r.outer)
}

// restoreBundle leaves the bundle as the engine has made it, unless the engine has removed it
// meanwhile, or it is another life's by now.
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

// readBundlePath reads a container's bundle from its runtime's state; "" if it can't.
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

// parseBundlePath reads the state of crun, which names the bundle, or of runc, which adds a label
// for it to those that it makes of the container's annotations.
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
	for _, label := range slices.Backward(s.Config.Labels) { // annotations come first
		if dir, ok := strings.CutPrefix(label, "bundle="); ok {
			return dir
		}
	}
	return s.Bundle
}
