package entry

import (
	"maps"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestAnnotationOfContainer: the annotation with a container's name is for that container, other
// annotations of a pod are for all its containers.
func TestAnnotationOfContainer(t *testing.T) {
	const containerd, crio = "io.kubernetes.cri.container-name", "io.kubernetes.container.name"
	type annotations = map[string]string
	own := annotations{"berth.gpus/train": "3"}
	both := annotations{"berth.gpus/train": "h100:3", "berth.gpus": "1"}
	podman := annotations{"io.container.manager": "libpod"}
	for _, tt := range []struct {
		name        string
		annotations []annotations
		trust       Trust
		hooks       []specs.Hook
		want        string
		err         string
	}{
		{"its own", []annotations{own, {containerd: "train"}}, Trust{}, nil, "3", ""},
		{"its own, of CRI-O", []annotations{own, {crio: "train"}}, Trust{}, nil, "3", ""},
		{"another's", []annotations{own, {containerd: "side"}}, Trust{}, nil, "", ""},
		{"one whose name begins so", []annotations{own, {containerd: "train2"}}, Trust{}, nil, "", ""},
		{"its own, and the pod's", []annotations{both, {containerd: "train"}}, Trust{}, nil, "h100:3", ""},
		{"another's, and the pod's", []annotations{both, {containerd: "side"}}, Trust{}, nil, "1", ""},
		{"none, and the pod's", []annotations{{"berth.gpus/side": " 0", "berth.gpus": "1", containerd: "side"}}, Trust{}, nil, "", ""},
		{"the pod's none", []annotations{{"berth.gpus": "0", containerd: "side"}}, Trust{}, nil, "", "annotation berth.gpus: request \"0\""},
		{"what no request is", []annotations{{"berth.gpus/side": "frob=1", containerd: "side"}}, Trust{}, nil, "", "annotation berth.gpus/side: request"},
		{"the sandbox", []annotations{both, {"io.kubernetes.cri.container-type": "sandbox"}}, Trust{}, nil, "", ""},
		{"the sandbox, by the name of a container", []annotations{both, {containerd: "train", "io.kubernetes.cri.container-type": "sandbox"}}, Trust{}, nil, "", ""},
		{"an engine that tells no name", []annotations{both}, Trust{}, nil, "", "annotation berth.gpus/train: whether it is for this container can't be told"},
		{"a key that is none", []annotations{{"berth.gpus/": "1", containerd: "train"}}, Trust{}, nil, "", ""},
		{"a key that is none, of an engine that tells no name", []annotations{{"berth.gpus/": "1"}}, Trust{}, nil, "", "can't be told"},
		{"podman's", []annotations{own, podman}, Trust{}, nil, "", "annotation berth.gpus/…: podman takes it from images too"},
		{"podman's, trusted", []annotations{own, podman}, Trust{PodmanAnnotation: true}, nil, "", "can't be told"},
		{"podman's, and a device", []annotations{own, podman}, Trust{}, []specs.Hook{hook("/berth-hook", "createRuntime", "--request", "2")}, "2", ""},
		{"its own, and a device that says the same", []annotations{own, {containerd: "train"}}, Trust{}, []specs.Hook{hook("/berth-hook", "createRuntime", "--request", "3")}, "3", ""},
		{"its own, and a device that says another", []annotations{own, {containerd: "train"}}, Trust{}, []specs.Hook{hook("/berth-hook", "createRuntime", "--request", "2")}, "", "contradicting requests"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := annotations{}
			for _, some := range tt.annotations {
				maps.Copy(all, some)
			}
			asks(t, &specs.Spec{Annotations: all, Hooks: &specs.Hooks{CreateRuntime: tt.hooks}}, tt.trust, nil, tt.want, tt.err)
		})
	}
}
