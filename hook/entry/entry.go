// Package entry reads what a container asks for from its OCI spec, and reads and writes
// berth's own entries among the spec's hooks:
//
//	berth-hook [--config FILE] createRuntime [--request 2] [--with gds]...
//
// Such an entry is a request that counts. Engines add it because their user has asked
// for one of berth's CDI devices, or because the admin has configured it; no image can.
// Under a plain runtime the hook runs and takes the lease. The wrapper and the precreate
// hook run before: they read the entry and remove it.
//
// The package also reads requests in NVIDIA's form: the hook that Docker's --gpus adds,
// and the devices of a CDI spec of NVIDIA's. They are removed with all else that
// NVIDIA's tools have added to the spec. An environment variable alone is a request only
// if the admin's policy says so: see [Trust].
//
// The package is pure. Of the meaning of requests it knows only that several requests of
// one container have to agree.
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

// Program is the base name of the hook's path in berth's own entries.
const Program = "berth-hook"

// Annotation carries a request, as in docker run --annotation berth.gpus=2.
const Annotation = "berth.gpus"

// Variable carries a request in the container's environment.
const Variable = "BERTH_GPUS"

// Trust is the admin's policy on requests that may come from an image. The zero Trust suits servers
// whose users run untrusted images.
type Trust struct {
	// Environment makes Variable a request. An image's author can set it.
	Environment bool
	// PodmanAnnotation makes Annotation a request under podman, which copies an image's
	// annotations into the specs of its containers.
	PodmanAnnotation bool
	// VisibleDevices is the meaning of NVIDIA_VISIBLE_DEVICES in a container without
	// another request.
	VisibleDevices Visible
	// CountIndices makes NVIDIA's CDI names nvidia.com/gpu=0 to N-1 a request for any N
	// GPUs. Newer versions of Docker translate --gpus N into these names.
	CountIndices bool
}

// DeviceResolver returns the GPUs and MIG slices to which device nodes belong. A node
// that all GPUs share belongs to none.
type DeviceResolver func(nodes []specs.LinuxDevice) ([]gpu.Device, error)

// RequestSet holds the requests of one container, as text. The zero value holds none.
type RequestSet struct {
	// Requests must be equal in meaning, or each must name its devices: then the container
	// asks for all of them.
	Requests []string
	// Indices are requests for one GPU each, by its index in NVIDIA's CDI specs:
	// "device=0".
	Indices []string
	// Additions are features ("gds") and NICs ("nics=auto").
	Additions []string
}

// Parse reads the words of an entry after the program's name and its --config. ok is
// false if they belong to another stage of berth-hook.
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

// CutConfig removes a leading --config FILE from the words. file is "" if there is none.
func CutConfig(words []string) (file string, rest []string) {
	if len(words) >= 2 && words[0] == "--config" {
		return words[1], words[2:]
	}
	return "", words
}

// RequestsIn returns the requests of all of berth's entries in a spec. It does not read
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

// BoundLease returns the lease to which an entry of the spec binds the container, "" if
// there is none. A precreate hook has taken it and written the entry.
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

// reservedPrefix begins the annotations that only berth may write. Those of others are
// removed.
const reservedPrefix = "dev.berth."

// crunPrefix begins the annotations that change what crun does: it opens files as root on the
// host, moves the container to another cgroup, or replaces its system call filter. Source:
// crun(1).
const crunPrefix = "run.oci."

// systemdPrefix begins the annotations that runc and crun make properties of the container's
// unit: some of them stop or start units of the host (Conflicts, OnFailure).
const systemdPrefix = "org.systemd.property."

// harmlessAnnotations returns the annotations for runtimes that podman itself writes, or that have no
// effect outside of the container.
func harmlessAnnotations() []string {
	return []string{
		"run.oci.keep_original_groups", "run.oci.mount_context_type", "run.oci.timens_offset",
		systemdPrefix + "KillSignal", systemdPrefix + "TimeoutStopUSec",
	}
}

// HasImageAnnotations reports whether a spec has annotations for runtimes that may come from the image:
// podman 4 copies an image's annotations into the container's.
func HasImageAnnotations(spec *specs.Spec) bool {
	return MadeByPodman(spec) && slices.ContainsFunc(slices.Collect(maps.Keys(spec.Annotations)), isForRuntime)
}

// isForRuntime reports whether an annotation makes a runtime act outside of the container.
func isForRuntime(key string) bool {
	return (strings.HasPrefix(key, crunPrefix) || strings.HasPrefix(key, systemdPrefix)) && !slices.Contains(harmlessAnnotations(), key)
}

// StripSpec removes from a spec what only berth may write and what it stands in for:
// berth's requests, reserved annotations, under podman those that an image may have written
// for runtimes, and the additions of NVIDIA's tools. The notes describe the last two for the event
// log.
func StripSpec(spec *specs.Spec) (notes []string) {
	fromImage := HasImageAnnotations(spec)
	for _, key := range slices.Sorted(maps.Keys(spec.Annotations)) {
		switch {
		case strings.HasPrefix(key, reservedPrefix):
			delete(spec.Annotations, key)
		case fromImage && isForRuntime(key):
			delete(spec.Annotations, key)
			notes = append(notes, "annotation "+key+", which an image can write under podman")
		}
	}
	RemoveRequests(spec)
	return append(notes, removeNVIDIA(spec)...)
}

// Refused is the stage word of the entry that a precreate hook writes to refuse a container. The
// word after it is the reason.
const Refused = "refuse"

// RemoveRequests removes berth's requests and refusals from a spec. Other stages of
// berth-hook stay.
func RemoveRequests(spec *specs.Spec) {
	if spec.Hooks == nil {
		return
	}
	hooks := *spec.Hooks
	for _, list := range requestStages(&hooks) {
		*list = slices.DeleteFunc(slices.Clone(*list), func(h specs.Hook) bool {
			_, ok, err := parseHook(h)
			return ok || err != nil || isRefusalHook(h)
		})
	}
	spec.Hooks = &hooks
}

func isRefusalHook(h specs.Hook) bool {
	if path.Base(h.Path) != Program || len(h.Args) == 0 {
		return false
	}
	_, words := CutConfig(h.Args[1:])
	return len(words) > 0 && words[0] == Refused
}

// addAll adds the requests of b, additions only once.
func (a *RequestSet) addAll(b RequestSet) {
	a.Requests = append(a.Requests, b.Requests...)
	a.Indices = append(a.Indices, b.Indices...)
	for _, f := range b.Additions {
		if !slices.Contains(a.Additions, f) {
			a.Additions = append(a.Additions, f)
		}
	}
}

// Join returns the requests of a and of others.
func (a RequestSet) Join(others ...RequestSet) RequestSet {
	all := RequestSet{Requests: slices.Clone(a.Requests), Indices: slices.Clone(a.Indices), Additions: slices.Clone(a.Additions)}
	for _, o := range others {
		all.addAll(o)
	}
	return all
}

// Resolve returns all requests as one. ok is false if there are none. Contradicting
// requests are an error, and so are additions without a request for devices.
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

// parseHook returns the requests of a hook. ok is false if the hook is not a request of
// berth's.
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

// requestStages returns the lists of hooks in which a request counts. In a list of
// another stage the hook does nothing under a plain runtime, so it is no request here
// either.
func requestStages(h *specs.Hooks) []*[]specs.Hook {
	//nolint:staticcheck // Docker still writes prestart hooks.
	return []*[]specs.Hook{&h.Prestart, &h.CreateRuntime}
}

// NewHook returns an entry of berth's. call is how berth-hook is called: its path, and the
// words that come before the stage; words are its arguments.
func NewHook(stage edits.Stage, call []string, words ...string) edits.Hook {
	args := append([]string{Program}, call[1:]...)
	return edits.Hook{Stage: stage, Hook: specs.Hook{Path: call[0], Args: append(args, words...), Env: []string{}}}
}
