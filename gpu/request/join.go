package request

import (
	"slices"
	"strings"
)

// Join is both requests as one: the same one, or all that two lists of devices name,
// with the features of both. ok is false if they contradict each other, as two
// counts do, and a gang and anything else.
func (r Request) Join(o Request) (joined Request, ok bool) {
	if r.kind == kindGang || o.kind == kindGang {
		return r, r == o
	}
	cdi := slices.Concat(r.CDI(), o.CDI())
	features := slices.Concat(r.Features(), o.Features())
	nics, ok := joinNICs(r.nics, o.nics)
	if !ok {
		return Request{}, false
	}
	r.cdi, o.cdi, r.features, o.features, r.nics, o.nics = "", "", "", "", "", ""
	switch {
	case r == o || o.kind == kindOther:
	case r.kind == kindOther:
		r = o
	case r.kind == kindIDs && o.kind == kindIDs:
		ids := r.IDs()
		for _, id := range o.IDs() {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		r.word = strings.Join(ids, ",")
	default:
		return Request{}, false
	}
	r.nics = nics
	if slices.Sort(cdi); len(cdi) > 0 {
		r.cdi = "," + strings.Join(slices.Compact(cdi), ",")
	}
	r, err := r.With(features...)
	// Read again: the limits of the language hold for what was joined, too.
	again, bad := Parse(r.String())
	return again, err == nil && bad == nil
}
