package entry

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu/request"
)

// FindRequest returns what a container asks for; ok is false if it asks for nothing. It
// reads berth's entries (own are requests of an entry that the spec does not have),
// Docker's --gpus, devices of NVIDIA's CDI specs (unless resolve is nil), the
// annotation, and the variables that trust allows. All requests have to agree. The
// infrastructure container of a pod has the pod's annotation, which is not its request.
func FindRequest(spec *specs.Spec, own RequestSet, trust Trust, resolve DeviceResolver) (r request.Request, ok bool, err error) {
	asked, err := RequestsIn(spec)
	if err != nil {
		return request.Request{}, false, err
	}
	asked = asked.Join(own)
	told, err := asked.addGPUFlags(spec)
	if err := errors.Join(err, asked.addCDIDevices(spec, trust, resolve)); err != nil {
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

// addRequest adds a request. source names its origin in errors.
func (a *RequestSet) addRequest(source, text string) error {
	if _, err := parseRequest(text); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	a.addAll(RequestSet{Requests: []string{text}})
	return nil
}

// parseRequest parses the request of one container. A request with several parts is a
// gang's.
func parseRequest(text string) (request.Request, error) {
	r, err := request.Parse(text)
	if err == nil && r.Parts() != nil {
		return request.Request{}, fmt.Errorf("request %q: this is one container, and the parts are those of a gang", r)
	}
	return r, err
}

// isSandbox reports whether the container only holds the namespaces of a pod. podman
// writes CRI-O's key; its own io.podman.annotations.infra.name is also on the real
// containers of a pod.
func isSandbox(annotations map[string]string) bool {
	return annotations["io.kubernetes.cri.container-type"] == "sandbox" ||
		annotations["io.kubernetes.cri-o.ContainerType"] == "sandbox"
}

// lookUpVariable returns an environment variable as runtimes do: the last one counts.
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
