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

// annotationPrefix begins the key of an annotation that is for one container of a pod, whose name
// follows: Kubernetes hands a pod's annotations to all of its containers.
const annotationPrefix = Annotation + "/"

// addAnnotation adds what the container's annotations ask for. Under podman, which takes them
// from images too, they are an error unless they are trusted: they may be the user's. Who
// has asked in another way has said what is wanted.
func (a *RequestSet) addAnnotation(spec *specs.Spec, trust Trust) error {
	key, text, err := findAnnotation(spec)
	if madeByPodman(spec) && !trust.PodmanAnnotation {
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

// printableRequest is a stranger's text that is safe and short in a line.
func printableRequest(text string) string {
	if r, err := request.Parse(text); err == nil && len(text) < 32 {
		return r.String()
	}
	return "N"
}

// findAnnotation is the one that asks for GPUs for this container, "" if none does: the one
// with its name, or else the one for each of the pod's containers. "0" with its name is
// none. Where the engine doesn't say what the container is called, one with any name is
// an error: it might be meant for this container.
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

// nameInPod is what Kubernetes calls the container: containerd writes one key, CRI-O the
// other. Both write it after what a pod says.
func nameInPod(annotations map[string]string) string {
	if name := annotations["io.kubernetes.cri.container-name"]; name != "" {
		return name
	}
	return annotations["io.kubernetes.container.name"]
}
