package wrapper

import (
	"fmt"
	"maps"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
)

const (
	// RequestAnnotation carries a request: docker run --annotation berth.gpus=2.
	RequestAnnotation = "berth.gpus"
	// RequestVariable does so in the container's environment, where policy allows.
	RequestVariable = "BERTH_GPUS"
	// LeaseAnnotation is in a spec that berth has prepared for a lease.
	LeaseAnnotation = "dev.berth.lease"
	// reserved begins the annotations that berth writes. Whoever else wrote one,
	// it means nothing.
	reserved = "dev.berth."
)

// request finds what the container asks for; ok is false if it asks for nothing.
// The variable counts only if environment allows it: image authors write it too.
func request(spec *specs.Spec, environment bool) (r gpu.Request, ok bool, err error) {
	if infra(spec.Annotations) {
		return gpu.Request{}, false, nil
	}
	text, ok := spec.Annotations[RequestAnnotation]
	if ok {
		if r, err = gpu.ParseRequest(text); err != nil {
			return r, false, fmt.Errorf("annotation %s: %w", RequestAnnotation, err)
		}
	}
	value, set := variable(spec, RequestVariable)
	if !environment || !set || value == "" {
		return r, ok, nil
	}
	other, err := gpu.ParseRequest(value)
	switch {
	case err != nil:
		return r, false, fmt.Errorf("environment variable %s: %w", RequestVariable, err)
	case ok && other.String() != r.String():
		return r, false, fmt.Errorf("contradicting requests: annotation %s says %q, variable %s says %q",
			RequestAnnotation, text, RequestVariable, value)
	}
	return other, true, nil
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

// strip takes out the annotations that only berth may write.
func strip(spec *specs.Spec) {
	maps.DeleteFunc(spec.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, reserved) })
}
