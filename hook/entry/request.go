package entry

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu/request"
)

// FindRequest finds what a container asks for, ok is false if it asks for nothing: by
// berth's entries (own are those that the spec doesn't have), by Docker's --gpus, by
// devices of NVIDIA's CDI specs (unless named is nil), by the annotation, and by what
// else is trusted. All that asks must ask for the same. A container that only
// holds a pod's namespaces carries the pod's annotation, and asks for nothing by it.
func FindRequest(spec *specs.Spec, own RequestSet, trust Trust, named DeviceResolver) (r request.Request, ok bool, err error) {
	asked, err := RequestsIn(spec)
	if err != nil {
		return request.Request{}, false, err
	}
	asked = asked.Join(own)
	told, err := asked.addGPUFlags(spec)
	if err := errors.Join(err, asked.addCDIDevices(spec, trust, named)); err != nil {
		return request.Request{}, false, err
	}
	asked.resolveIndices(trust)
	if err := asked.addAnnotation(spec, trust); err != nil {
		return request.Request{}, false, err
	}
	if value, set := lookUpVariable(spec, Variable); trust.Environment && set && value != "" && !isSandbox(spec.Annotations) {
		err = errors.Join(err, asked.addRequest("environment variable "+Variable, value))
	}
	if err == nil && !told {
		err = asked.addVisibleDevices(spec, trust.VisibleDevices)
	}
	if err != nil {
		return request.Request{}, false, err
	}
	return asked.Resolve()
}

// addRequest adds a request of another source, which the error names.
func (a *RequestSet) addRequest(source, text string) error {
	if _, err := parseRequest(text); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	a.addAll(RequestSet{Requests: []string{text}})
	return nil
}

// parseRequest reads the request of one container: several parts are a gang's.
func parseRequest(text string) (request.Request, error) {
	r, err := request.Parse(text)
	if err == nil && r.Parts() != nil {
		return request.Request{}, fmt.Errorf("request %q: this is one container, and the parts are those of a gang", r)
	}
	return r, err
}

// isSandbox says that the container only holds a pod's namespaces, and runs nothing that
// needs a device. (podman writes CRI-O's key; its own io.podman.annotations.infra.name
// is also on a pod's real containers.)
func isSandbox(annotations map[string]string) bool {
	return annotations["io.kubernetes.cri.container-type"] == "sandbox" ||
		annotations["io.kubernetes.cri-o.ContainerType"] == "sandbox"
}

// lookUpVariable looks a variable up as runtimes do: the last one counts.
func lookUpVariable(spec *specs.Spec, name string) (value string, ok bool) {
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
