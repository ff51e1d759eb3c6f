package wrapper

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/isolation/ledger"
)

const (
	// RequestAnnotation carries a request: docker run --annotation berth.gpus=2.
	RequestAnnotation = entry.Annotation
	// RequestVariable does so in the container's environment, where policy allows.
	RequestVariable = "BERTH_GPUS"
	// LeaseAnnotation is in a spec that berth has prepared for a lease.
	LeaseAnnotation = "dev.berth.lease"
	// outerAnnotation names the outer cgroup that berth made for a container.
	outerAnnotation = "dev.berth.cgroup"
	// reserved begins the annotations that berth writes. Whoever else wrote one,
	// it means nothing.
	reserved = "dev.berth."
)

// request finds what the container asks for; ok is false if it asks for nothing.
// What counts are the annotation and berth's own hook entries, which a CDI device
// puts into a spec. The variable counts only if environment allows it: image authors
// write it too. All that asks must ask for the same.
func request(spec *specs.Spec, environment bool) (r gpu.Request, ok bool, err error) {
	if infra(spec.Annotations) {
		return gpu.Request{}, false, nil
	}
	asked, err := entry.Of(spec)
	if err != nil {
		return gpu.Request{}, false, err
	}
	add := func(source, text string) error {
		if _, err := gpu.ParseRequest(text); err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		asked = asked.Join(entry.Asked{Requests: []string{text}})
		return nil
	}
	if text, set := spec.Annotations[RequestAnnotation]; set {
		err = add("annotation "+RequestAnnotation, text)
	}
	if value, set := variable(spec, RequestVariable); environment && set && value != "" {
		err = errors.Join(err, add("environment variable "+RequestVariable, value))
	}
	if err != nil {
		return gpu.Request{}, false, err
	}
	return asked.Request()
}

// reserved is the lease that podman's precreate hook has taken for this container, nil
// if there is none. Its entry in the spec, which no image can write, binds the lease.
func (n *creation) reserved(spec *specs.Spec) (*ledger.Lease, error) {
	id := entry.Bound(spec)
	if id == "" {
		return nil, nil
	}
	leases, err := n.node.Leases()
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		theirs := l.Owner.RuntimeRoot != "" || l.Owner.Container != "" && l.Owner.Container != n.id
		if l.ID == id && l.State == ledger.Reserved && l.Making && !theirs {
			return &l.Lease, nil
		}
	}
	return nil, fmt.Errorf("lease %s, which a hook is to bind container %s to, isn't kept for it", id, n.id)
}

// infra says that the container only holds a pod's namespaces. It carries the
// annotations of the pod, the request included, and runs nothing that needs a
// device. (podman writes CRI-O's key; its own io.podman.annotations.infra.name
// is also on a pod's real containers.)
func infra(annotations map[string]string) bool {
	return annotations["io.kubernetes.cri.container-type"] == "sandbox" ||
		annotations["io.kubernetes.cri-o.ContainerType"] == "sandbox"
}

// variable looks a name up as runtimes do: the last one counts.
func variable(spec *specs.Spec, name string) (value string, ok bool) {
	if spec.Process == nil {
		return "", false
	}
	for _, entry := range spec.Process.Env {
		if v, found := strings.CutPrefix(entry, name+"="); found {
			value, ok = v, true
		}
	}
	return value, ok
}

// strip takes out the annotations that only berth may write, and the entries that
// request has read.
func strip(spec *specs.Spec) {
	maps.DeleteFunc(spec.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, reserved) })
	entry.Remove(spec)
}
