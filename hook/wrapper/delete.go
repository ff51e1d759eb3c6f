package wrapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/hook/say"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// removal is one container on its way out.
type removal struct {
	root, id string
	rt       Runtime
	node     Node
	lease    *ledger.Lease
	dir      string         // of the bundle, "" if it isn't known, or nothing is to be put back
	bundle   *bundle.Bundle // nil if it can't be read
	outer    string         // cgroup around the container's own, "" if there is none
}

// remove deletes a container by the real runtime, and gives back what it held.
// If it held nothing, it becomes the real runtime.
//
// Nothing stands in the way of a delete: what can't be read is left to the
// ledger's proof of life, and to the next create of the bundle.
func (o Options) remove(ctx context.Context, c call, rt Runtime) (int, error) {
	r := removal{root: absolute(rt.root(c)), id: c.id, rt: rt}
	var err error
	if r.node, err = o.Node(); err == nil {
		r.look()
	}
	defer r.close()
	if r.lease == nil && r.dir == "" {
		return 1, o.become(rt)
	}
	code, err := child(rt.Path, o.Args, o.Env, o.Inherited)
	if err != nil {
		return 1, err
	}
	if code != 0 && rt.has(r.root, r.id) {
		return code, nil
	}
	if err := r.giveBack(context.WithoutCancel(ctx)); err != nil {
		// The container is gone, and that is what the engine asked for.
		fmt.Fprintln(o.Stderr, "berth: "+say.Line(err.Error()))
	}
	return code, nil
}

// look finds out what the container holds, before it is gone.
func (r *removal) look() {
	leases, err := r.node.Held()
	find := func(is func(ledger.Lease) bool) {
		if i := slices.IndexFunc(leases, is); i >= 0 {
			r.lease = &leases[i]
		}
	}
	if err == nil {
		find(r.isOurs)
	}
	dir := r.rt.bundleOf(r.root, r.id)
	if dir == "" && r.lease != nil {
		dir = r.lease.Owner.Bundle
	}
	if dir == "" || !bundle.Kept(dir) {
		return
	}
	r.dir = dir
	if r.bundle, err = bundle.Open(dir, ""); err != nil {
		r.bundle = nil
	}
	notes := notesOf(r.bundle)
	r.outer = notes[outerAnnotation]
	if r.lease == nil {
		find(r.takenOver(notes))
	}
}

func (r *removal) close() {
	if r.bundle != nil {
		_ = r.bundle.Close() // a directory, of which nothing is lost
	}
}

// isOurs says whose a lease is: ids are only unique within a state directory.
func (r *removal) isOurs(l ledger.Lease) bool {
	return l.Owner.Container == r.id && l.Owner.RuntimeRoot == r.root
}

// takenOver knows the lease that the container's bundle was prepared for, if it is one
// that the wrapper took over from a hook: those know no state directory.
func (r *removal) takenOver(notes map[string]string) func(ledger.Lease) bool {
	return func(l ledger.Lease) bool {
		return l.ID == notes[LeaseAnnotation] && l.Owner.RuntimeRoot == "" && (l.Owner.Container == r.id || l.Owner.Container == "")
	}
}

// notesOf reads from a rewritten bundle what berth has noted of its container: the
// lease, and the outer cgroup that was made. None if it can't be read.
func notesOf(b *bundle.Bundle) map[string]string {
	if b == nil {
		return nil
	}
	spec, err := b.Rewritten()
	if err != nil || spec == nil {
		return nil
	}
	return spec.Annotations
}

// notesAgain reads what is noted in the bundle now, which may be another life's.
func (r *removal) notesAgain() map[string]string {
	b, err := bundle.Open(r.dir, "")
	if err != nil {
		return nil
	}
	defer func() { _ = b.Close() }() // only read from
	return notesOf(b)
}

// giveBack ends what look has found. A late delete can meet the next life of the
// same id, which is only just being made: nothing of it may be touched. And that
// the runtime has deleted a container doesn't say that its processes have ended:
// the lease of one that lives stays.
func (r *removal) giveBack(ctx context.Context) error {
	if r.lease == nil {
		return errors.Join(r.putBack(), r.unclose(ctx))
	}
	leases, err := r.node.Leases()
	if err != nil {
		return err
	}
	now := func(is func(ledger.Lease) bool) int {
		return slices.IndexFunc(leases, func(l ledger.Status) bool { return is(l.Lease) })
	}
	i := now(r.isOurs)
	if i < 0 && r.dir != "" {
		i = now(r.takenOver(r.notesAgain()))
	}
	if i >= 0 && (leases[i].Making || leases[i].ID != r.lease.ID) {
		return nil
	}
	err = errors.Join(r.putBack(), r.node.ReleaseIfDead(ctx, r.lease.ID))
	return errors.Join(err, r.unclose(ctx))
}

// unclose removes the outer cgroup, which is of this life alone.
func (r *removal) unclose(ctx context.Context) error {
	if r.outer == "" {
		return nil
	}
	return r.node.Unclose(ctx, r.outer)
}

// putBack leaves the bundle as the engine has made it, unless the engine has removed it
// meanwhile.
func (r *removal) putBack() (err error) {
	if r.dir == "" {
		return nil
	}
	if _, err := os.Lstat(r.dir); errors.Is(err, fs.ErrNotExist) || r.bundle != nil && r.bundle.Removed() {
		return nil
	}
	if r.bundle == nil {
		if r.bundle, err = bundle.Open(r.dir, ""); err != nil {
			r.bundle = nil
			return err
		}
	}
	if _, err := r.bundle.Lock(); err != nil {
		return err
	}
	return r.bundle.Restore()
}

// bundleOf reads a container's bundle from its runtime's state; "" if it can't.
func (r Runtime) bundleOf(root, id string) string {
	if !r.has(root, id) {
		return ""
	}
	data, err := os.ReadFile(r.state(root, id))
	if err != nil {
		return ""
	}
	var state struct {
		Bundle string // crun
		Config struct{ Labels []string }
	}
	if json.Unmarshal(data, &state) != nil {
		return ""
	}
	for _, label := range state.Config.Labels {
		if dir, ok := strings.CutPrefix(label, "bundle="); ok {
			return dir
		}
	}
	return state.Bundle
}
