package entry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu/request"
)

// annotationPrefix and a container's name are the key of an annotation for one container
// of a pod: Kubernetes copies a pod's annotations to all of its containers.
const annotationPrefix = Annotation + "/"

// addAnnotation adds the request in the container's annotations. Under podman, which takes
// annotations from images too, one is an error unless trust allows it or the container asks in
// another way: if the annotation is the user's, the container would get no devices, and the
// user no explanation.
func (a *RequestSet) addAnnotation(spec *specs.Spec, trust Trust) error {
	key, text, err := findAnnotation(spec)
	if MadeByPodman(spec) && !trust.PodmanAnnotation {
		if key == "" && err == nil || len(a.Requests) > 0 {
			return nil
		}
		return fmt.Errorf("annotation %s: podman takes it from images too, so it is no request: "+
			"use --device berth/gpus=%s, or have policy.podman_annotation set", cmp.Or(key, annotationPrefix+"…"), printableRequest(text))
	}
	if err != nil || key == "" {
		return err
	}
	return a.addRequest("annotation "+key, text)
}

// printableRequest returns an untrusted text in a form that is safe in an error: a short, valid
// request, or "N".
func printableRequest(text string) string {
	if r, err := request.Parse(text); err == nil && len(text) < 32 {
		return r.String()
	}
	return "N"
}

// findAnnotation returns the annotation with the container's request, "" if there is
// none: the one with the container's name, or else the one for all containers of the
// pod. "0" under the container's name means no request. Where the engine does not pass
// on the container's name, an annotation for any name is an error: it may be meant for
// this container.
func findAnnotation(spec *specs.Spec) (key, text string, err error) {
	if isSandbox(spec.Annotations) {
		return "", "", nil
	}
	name := nameInPod(spec.Annotations)
	if text, ok := spec.Annotations[annotationPrefix+name]; ok && name != "" {
		if strings.TrimSpace(text) == "0" {
			return "", "", nil
		}
		return annotationPrefix + name, text, nil
	}
	for _, key := range slices.Sorted(maps.Keys(spec.Annotations)) {
		if name == "" && strings.HasPrefix(key, annotationPrefix) {
			return "", "", fmt.Errorf("annotation %s: whether it is for this container can't be told, since the engine doesn't say what its name in a pod is: use --device berth/gpus=N, or the annotation %s",
				printable(key), Annotation)
		}
	}
	text, ok := spec.Annotations[Annotation]
	if !ok {
		return "", "", nil
	}
	return Annotation, text, nil
}

// nameInPod returns the container's name in Kubernetes. containerd writes one key, CRI-O
// the other; both overwrite what the pod's author has set.
func nameInPod(annotations map[string]string) string {
	if name := annotations["io.kubernetes.cri.container-name"]; name != "" {
		return name
	}
	return annotations["io.kubernetes.container.name"]
}
