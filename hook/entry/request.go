package entry

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
)

// RequestOf finds what a container asks for, ok is false if it asks for nothing: by
// berth's entries (own are those that the spec doesn't have), by Docker's --gpus, by
// devices of NVIDIA's CDI specs (unless named is nil), by the annotation, and by what
// else is trusted. All that asks must ask for the same. A container that only
// holds a pod's namespaces carries the pod's annotation, and asks for nothing by it.
func RequestOf(spec *specs.Spec, own Asked, trust Trust, named Named) (r gpu.Request, ok bool, err error) {
	asked, err := Of(spec)
	if err != nil {
		return gpu.Request{}, false, err
	}
	asked = asked.Join(own)
	told, err := asked.flags(spec)
	if err := errors.Join(err, asked.cdi(spec, trust, named)); err != nil {
		return gpu.Request{}, false, err
	}
	asked.settle(trust)
	if err := asked.annotated(spec, trust); err != nil {
		return gpu.Request{}, false, err
	}
	if value, set := variable(spec, Variable); trust.Environment && set && value != "" && !infra(spec.Annotations) {
		err = errors.Join(err, asked.also("environment variable "+Variable, value))
	}
	if err == nil && !told {
		err = asked.visible(spec, trust.VisibleDevices)
	}
	if err != nil {
		return gpu.Request{}, false, err
	}
	return asked.Request()
}

// also adds a request of another source, which the error names.
func (a *Asked) also(source, text string) error {
	if _, err := parse(text); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	a.add(Asked{Requests: []string{text}})
	return nil
}

// parse reads the request of one container: several parts are a gang's.
func parse(text string) (gpu.Request, error) {
	r, err := gpu.ParseRequest(text)
	if err == nil && r.Parts() != nil {
		return gpu.Request{}, fmt.Errorf("request %q: this is one container, and the parts are those of a gang", r)
	}
	return r, err
}

// infra says that the container only holds a pod's namespaces, and runs nothing that
// needs a device. (podman writes CRI-O's key; its own io.podman.annotations.infra.name
// is also on a pod's real containers.)
func infra(annotations map[string]string) bool {
	return annotations["io.kubernetes.cri.container-type"] == "sandbox" ||
		annotations["io.kubernetes.cri-o.ContainerType"] == "sandbox"
}

// variable looks a variable up as runtimes do: the last one counts.
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
