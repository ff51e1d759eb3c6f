// Package entry reads and writes berth's own entries in the list of hooks of a
// spec:
//
//	berth-hook [--config FILE] createRuntime [--request 2] [--with gds]...
//
// Such an entry is a request that counts: engines put it there, because their user
// asked for one of berth's CDI devices or because the admin has said so, and no
// image can. Under a plain runtime the program runs and does what it says. The
// wrapper and a precreate hook, which come first, read the entry and take it out.
//
// So is what people's habits leave in a spec: the hook that Docker's --gpus puts there,
// and the devices of a CDI spec of NVIDIA's. They are read, and taken out with all else
// that NVIDIA's tools have put there. A variable of the environment is never enough,
// unless the admin has said so: [Trust].
//
// The package is pure, and knows nothing of what a request means but that two of
// them have to be the same one.
package entry

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// Program is the base name by which an entry is known as berth's.
const Program = "berth-hook"

// Annotation carries a request: docker run --annotation berth.gpus=2.
const Annotation = "berth.gpus"

// Variable carries one in the container's environment.
const Variable = "BERTH_GPUS"

// Trust says which words of strangers are requests. The zero Trust is right for a
// server whose users don't write their images themselves.
type Trust struct {
	// Environment lets Variable count: an image's author writes it too.
	Environment bool
	// PodmanAnnotation lets Annotation count under podman, which copies an image's
	// annotations into its containers' specs.
	PodmanAnnotation bool
	// VisibleDevices is what NVIDIA_VISIBLE_DEVICES means where nothing else asks.
	VisibleDevices Visible
	// CountIndices has NVIDIA's CDI names nvidia.com/gpu=0 to N-1 mean N GPUs, whichever
	// they are: newer versions of Docker make these names of --gpus N.
	CountIndices bool
}

// DeviceResolver says which GPUs and slices device nodes belong to; other nodes, those that all
// GPUs share too, belong to none.
type DeviceResolver func(nodes []specs.LinuxDevice) ([]gpu.Device, error)

// RequestSet is what entries ask for. The zero value asks for nothing.
type RequestSet struct {
	// Requests have to say the same, in whichever words, or each name its devices:
	// then all of them are asked for.
	Requests []string
	// Indices are requests for one GPU each, by the index that is its name in NVIDIA's
	// CDI specs: "device=0".
	Indices []string
	// Additions are features that are added ("gds"), and NICs ("nics=auto").
	Additions []string
}

// Parse reads the words of an entry after the program's name and its --config. ok
// is false if they are no request's: another stage of berth's.
func Parse(words []string) (a RequestSet, ok bool, err error) {
	if len(words) == 0 || words[0] != string(edits.CreateRuntime) && words[0] != string(edits.Prestart) {
		return RequestSet{}, false, nil
	}
	rest := words[1:]
	for ; len(rest) >= 2; rest = rest[2:] {
		switch rest[0] {
		case "--request":
			a.Requests = append(a.Requests, rest[1])
		case "--nvidia":
			a.Indices = append(a.Indices, rest[1])
		case "--with":
			a.Additions = append(a.Additions, rest[1])
		default:
			return RequestSet{}, true, fmt.Errorf("unknown word %q: --request, --nvidia and --with are known", rest[0])
		}
	}
	if len(rest) > 0 {
		return RequestSet{}, true, fmt.Errorf("%q stands alone: --request, --nvidia and --with are known, with a value each", rest[0])
	}
	return a, true, nil
}

// CutConfig takes a leading --config FILE off the words; file is "" if there is none.
func CutConfig(words []string) (file string, rest []string) {
	if len(words) >= 2 && words[0] == "--config" {
		return words[1], words[2:]
	}
	return "", words
}

// RequestsIn collects what all of berth's entries of a spec ask for. It doesn't read
// annotations.
func RequestsIn(spec *specs.Spec) (all RequestSet, err error) {
	if spec.Hooks == nil {
		return RequestSet{}, nil
	}
	for _, list := range requestStages(spec.Hooks) {
		for _, h := range *list {
			a, _, err := parseHook(h)
			if err != nil {
				return RequestSet{}, fmt.Errorf("hook %s: %w", h.Path, err)
			}
			all.addAll(a)
		}
	}
	return all, nil
}

// BoundLease is the lease that an entry of the spec binds the container to: one that a
// precreate hook has taken for it. "" if there is none.
func BoundLease(spec *specs.Spec) (lease string) {
	if spec.Hooks == nil {
		return ""
	}
	for _, h := range spec.Hooks.CreateRuntime {
		if path.Base(h.Path) != Program || len(h.Args) == 0 {
			continue
		}
		if _, words := CutConfig(h.Args[1:]); len(words) == 3 && words[0] == "bind" && words[1] == "--lease" {
			lease = words[2]
		}
	}
	return lease
}

// reservedPrefix begins the annotations that berth writes. Whoever else wrote one, it means
// nothing.
const reservedPrefix = "dev.berth."

// crunOutputPrefix begins crun's annotations that name files for what hooks say. crun opens
// them as root on the host; under podman an image may have written them.
const crunOutputPrefix = "run.oci.hooks."

// StripSpec takes out of a spec what has been read, and what only berth may write: berth's
// requests, the annotations that aren't the user's to set, and what NVIDIA's tools have
// put there. The notes say, for a log, what of the last went.
func StripSpec(spec *specs.Spec) (notes []string) {
	podman := madeByPodman(spec)
	maps.DeleteFunc(spec.Annotations, func(key, _ string) bool {
		return strings.HasPrefix(key, reservedPrefix) || podman && strings.HasPrefix(key, crunOutputPrefix)
	})
	RemoveRequests(spec)
	return removeNVIDIA(spec)
}

// Refused is the stage of an entry that ends its container, with the word that follows
// as the reason: a precreate hook has refused it.
const Refused = "refuse"

// RemoveRequests takes berth's requests and refusals out of a spec: whoever reads the requests
// decides anew. Other stages of berth's stay.
func RemoveRequests(spec *specs.Spec) {
	if spec.Hooks == nil {
		return
	}
	hooks := *spec.Hooks
	for _, list := range requestStages(&hooks) {
		*list = slices.DeleteFunc(slices.Clone(*list), func(h specs.Hook) bool {
			_, ok, err := parseHook(h)
			return ok || err != nil || isRefusal(h)
		})
	}
	spec.Hooks = &hooks
}

func isRefusal(h specs.Hook) bool {
	if path.Base(h.Path) != Program || len(h.Args) == 0 {
		return false
	}
	_, words := CutConfig(h.Args[1:])
	return len(words) > 0 && words[0] == Refused
}

// addAll joins two sets of wishes.
func (a *RequestSet) addAll(b RequestSet) {
	a.Requests = append(a.Requests, b.Requests...)
	a.Indices = append(a.Indices, b.Indices...)
	for _, f := range b.Additions {
		if !slices.Contains(a.Additions, f) {
			a.Additions = append(a.Additions, f)
		}
	}
}

// Join adds what others ask for.
func (a RequestSet) Join(others ...RequestSet) RequestSet {
	all := RequestSet{Requests: slices.Clone(a.Requests), Indices: slices.Clone(a.Indices), Additions: slices.Clone(a.Additions)}
	for _, o := range others {
		all.addAll(o)
	}
	return all
}

// Resolve is all that is asked for as one request; ok is false if that is nothing.
// Contradicting requests are an error, and so are features alone.
func (a RequestSet) Resolve() (r request.Request, ok bool, err error) {
	a.resolveIndices(Trust{})
	if len(a.Requests)+len(a.Additions) == 0 {
		return request.Request{}, false, nil
	}
	if len(a.Requests) == 0 {
		return request.Request{}, false, fmt.Errorf("%s is asked for, and no GPU that it would be for", strings.Join(a.Additions, ", "))
	}
	for _, text := range a.Requests {
		one, err := parseRequest(text)
		if err != nil {
			return request.Request{}, false, err
		}
		if r != (request.Request{}) {
			if one, ok = r.Join(one); !ok {
				return request.Request{}, false, fmt.Errorf("contradicting requests: %q and %q", a.Requests[0], text)
			}
		}
		r = one
	}
	var features []gpu.Feature
	var nics []string
	for _, text := range a.Additions {
		if words, ok := strings.CutPrefix(text, "nics="); ok {
			nics = append(nics, words)
			continue
		}
		f, err := request.ParseFeature(text)
		if err != nil {
			return request.Request{}, false, err
		}
		features = append(features, f)
	}
	if r, err = r.With(features...); err == nil && len(nics) > 0 {
		r, err = r.WithNICs(strings.Join(nics, ","))
	}
	return r, err == nil, err
}

// parseHook says what a hook asks for; ok is false if it isn't one of berth's requests.
func parseHook(h specs.Hook) (RequestSet, bool, error) {
	if path.Base(h.Path) != Program {
		return RequestSet{}, false, nil
	}
	if len(h.Args) == 0 {
		return RequestSet{}, false, errors.New("it has no arguments")
	}
	_, words := CutConfig(h.Args[1:])
	return Parse(words)
}

// requestStages are the stages at which a request can stand, and all others, where it does
// nothing under a plain runtime, and so nothing here.
func requestStages(h *specs.Hooks) []*[]specs.Hook {
	//nolint:staticcheck // Docker still writes prestart hooks.
	return []*[]specs.Hook{&h.Prestart, &h.CreateRuntime}
}

// DeferToHooks moves what no spec can bring with every runtime (mounts below /proc, network
// devices) into entries of berth's that do it at createRuntime. call is how the hook
// is called: its path, and words that come first.
func DeferToHooks(e edits.Edits, call ...string) edits.Edits {
	return e.DeferProc(call...).DeferNet(call...)
}

// NewHook is an entry of berth's: its path and words, and what it shall do.
func NewHook(stage edits.Stage, call []string, words ...string) edits.Hook {
	args := append([]string{Program}, call[1:]...)
	return edits.Hook{Stage: stage, Hook: specs.Hook{Path: call[0], Args: append(args, words...), Env: []string{}}}
}
