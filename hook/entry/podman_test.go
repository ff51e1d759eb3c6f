package entry

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// An image that says under podman that another engine has made the spec gains nothing.
func TestPodman(t *testing.T) {
	note := func(key, value string) *specs.Spec { return &specs.Spec{Annotations: map[string]string{key: value}} }
	place := func(path string) *specs.Spec { return &specs.Spec{Linux: &specs.Linux{CgroupsPath: path}} }
	told := func(path string) *specs.Spec {
		s := place(path)
		s.Mounts = []specs.Mount{{Destination: "/run/.containerenv"}}
		return s
	}
	for _, tt := range []struct {
		name string
		spec *specs.Spec
		want bool
	}{
		{"nothing", &specs.Spec{}, false},
		{"its name", note("io.container.manager", "libpod"), true},
		{"another's", note("io.container.manager", "cri-o"), false},
		{"one of its annotations", note("io.podman.annotations.autoremove", "FALSE"), true},
		{"cgroupfs", place("/libpod_parent/libpod-0a"), true},
		{"systemd", place("machine.slice:libpod:0a"), true},
		{"split", place("/user.slice/libpod-payload-0a"), true},
		{"a parent of that name", place("/libpod-0a/docker-0b"), false},
		{"docker", place("system.slice:docker:0a"), false},
		{"without a cgroup", told(""), true},
		{"CRI-O", told("kubepods.slice:crio:0a"), false},
		{"CRI-O, cgroupfs", told("/kubepods/crio-0a"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := podman(tt.spec); got != tt.want {
				t.Errorf("got %v", got)
			}
			if tt.spec.Annotations == nil {
				tt.spec.Annotations = map[string]string{}
			}
			tt.spec.Annotations[Annotation] = "2"
			if _, ok, err := RequestOf(tt.spec, Asked{}, Trust{}, nil); ok == tt.want || (err != nil) != tt.want {
				t.Errorf("the annotation asks: %v, %v", ok, err)
			}
			tt.spec.Annotations["run.oci.hooks.stderr"] = "/etc/passwd"
			if Strip(tt.spec); (tt.spec.Annotations["run.oci.hooks.stderr"] == "") != tt.want {
				t.Errorf("annotations: %v", tt.spec.Annotations)
			}
		})
	}
}
