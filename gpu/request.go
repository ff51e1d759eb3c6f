package gpu

import "errors"

// What a request can fail of. [MatchError] says which, and the details.
var (
	// ErrUnknown: the node knows no such model, profile, index, UUID or address.
	ErrUnknown = errors.New("unknown device")
	// ErrTooMany: more than the node has, so waiting is of no use.
	ErrTooMany = errors.New("more than the node has")
	// ErrBusy: the node has them, but not enough are free now.
	ErrBusy = errors.New("not enough free")
)

// Request is what a task asks for. It is built by [ParseRequest] only.
type Request struct{ text string }

// String returns the request in canonical words: ParseRequest(r.String()) is r.
func (r Request) String() string { return r.text }

// ParseRequest reads the request language; it never touches the node.
func ParseRequest(s string) (Request, error) { return Request{s}, errors.ErrUnsupported }

// Match chooses devices for the request among those that don't conflict with
// taken: the best set by topology, the same one for the same input.
func (inv Inventory) Match(r Request, taken []Device) ([]Device, error) {
	return nil, errors.ErrUnsupported
}

// Candidates lists the devices of the node, free or not, that could be part of
// an answer to the request: two requests compete if their candidates conflict.
func (inv Inventory) Candidates(r Request) ([]Device, error) { return nil, errors.ErrUnsupported }
