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
	lease    *ledger.Status
	bundle   string // "" if it isn't known, or nothing is to be put back
	outer    string // cgroup around the container's own, "" if there is none
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
	if r.lease == nil && r.bundle == "" {
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
	leases, err := r.node.Leases()
	if err == nil {
		r.lease = leaseOf(leases, r.root, r.id)
	}
	dir := r.rt.bundleOf(r.root, r.id)
	if dir == "" && r.lease != nil {
		dir = r.lease.Owner.Bundle
	}
	if dir == "" || !bundle.Kept(dir) {
		return
	}
	notes := notesOf(dir)
	r.bundle, r.outer = dir, notes[outerAnnotation]
	if r.lease == nil {
		r.lease = takenOver(leases, r.id, notes)
	}
}

// notesOf reads from a rewritten bundle what berth has noted of its container: the
// lease, and the outer cgroup that was made. None if it can't be read.
func notesOf(dir string) map[string]string {
	b, err := bundle.Open(dir, "")
	if err != nil {
		return nil
	}
	spec, err := b.Rewritten()
	if err = errors.Join(err, b.Close()); err != nil || spec == nil {
		return nil
	}
	return spec.Annotations
}

// takenOver finds the lease that the container's bundle was prepared for, if it is one
// that the wrapper took over from a hook: those know no state directory.
func takenOver(leases []ledger.Status, id string, notes map[string]string) *ledger.Status {
	i := slices.IndexFunc(leases, func(l ledger.Status) bool {
		return l.ID == notes[LeaseAnnotation] && l.Owner.RuntimeRoot == "" && (l.Owner.Container == id || l.Owner.Container == "")
	})
	if i < 0 {
		return nil
	}
	return &leases[i]
}

// giveBack ends what look has found. A late delete can meet the next life of the
// same id, which is only just being made: nothing of it may be touched. And that
// the runtime has deleted a container doesn't say that its processes have ended:
// the lease of one that lives stays.
func (r *removal) giveBack(ctx context.Context) error {
	if r.lease == nil {
		return errors.Join(putBack(r.bundle), r.unclose(ctx))
	}
	leases, err := r.node.Leases()
	if err != nil {
		return err
	}
	now := leaseOf(leases, r.root, r.id)
	if now == nil && r.bundle != "" {
		now = takenOver(leases, r.id, notesOf(r.bundle))
	}
	if now != nil && (now.Making || now.ID != r.lease.ID) {
		return nil
	}
	if r.bundle != "" {
		err = putBack(r.bundle)
	}
	err = errors.Join(err, r.node.ReleaseIfDead(ctx, r.lease.ID))
	return errors.Join(err, r.unclose(ctx))
}

// unclose removes the outer cgroup, which is of this life alone.
func (r *removal) unclose(ctx context.Context) error {
	if r.outer == "" {
		return nil
	}
	return r.node.Unclose(ctx, r.outer)
}

func putBack(dir string) (err error) {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	b, err := bundle.Open(dir, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if _, err := b.Lock(); err != nil {
		return err
	}
	return b.Restore()
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
