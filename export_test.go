package berth

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Prepare applies the edits of [Compose] to the spec.
func Prepare(spec *specs.Spec, lease *ledger.Lease, p Plan) (removed []edits.Removal, err error) {
	all, removed, err := Compose(spec, lease, p)
	if err != nil {
		return nil, err
	}
	return removed, all.Apply(spec)
}
