package entry

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestMadeByPodman: under podman, an image that claims that another engine has made the spec gains
// nothing.
func TestMadeByPodman(t *testing.T) {
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
			if got := MadeByPodman(tt.spec); got != tt.want {
				t.Errorf("got %v", got)
			}
			if tt.spec.Annotations == nil {
				tt.spec.Annotations = map[string]string{}
			}
			tt.spec.Annotations[Annotation] = "2"
			if _, ok, err := FindRequest(tt.spec, RequestSet{}, Trust{}, nil); ok == tt.want || (err != nil) != tt.want {
				t.Errorf("the annotation asks: %v, %v", ok, err)
			}
			tt.spec.Annotations["run.oci.hooks.stderr"] = "/etc/passwd"
			if StripSpec(tt.spec); (tt.spec.Annotations["run.oci.hooks.stderr"] == "") != tt.want {
				t.Errorf("annotations: %v", tt.spec.Annotations)
			}
		})
	}
}

// TestCheckPod: devices of a podman pod are an error in its infrastructure container.
func TestCheckPod(t *testing.T) {
	libpod := map[string]string{"io.container.manager": "libpod"}
	asks, pause := hook("/usr/bin/berth-hook", "createRuntime", "--request", "1"), []string{"/catatonit", "-P"}
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		args        []string
		hooks       []specs.Hook
		err         string
	}{
		{"a pod's device", libpod, pause, []specs.Hook{asks}, "request 1: the device is the pod's, and podman hands it on to none"},
		{"no device", libpod, pause, []specs.Hook{hook("/usr/bin/berth-hook", "mount", "/a", "/b")}, ""},
		{"another engine's", nil, pause, []specs.Hook{asks}, ""},
		{"another program", libpod, []string{"/catatonit", "-P", "sh"}, []specs.Hook{asks}, ""},
		{"words that can't be read", libpod, pause, []specs.Hook{hook("/usr/bin/berth-hook", "createRuntime", "--frob")}, "stands alone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &specs.Spec{Annotations: tt.annotations, Process: &specs.Process{Args: tt.args}, Hooks: &specs.Hooks{CreateRuntime: tt.hooks}}
			err := CheckPod(s)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
		})
	}
	if err := CheckPod(&specs.Spec{Annotations: libpod}); err != nil {
		t.Errorf("without a process: %v", err)
	}
}

// TestCheckPodByCgroup: the infrastructure container is recognised by its cgroup too, because --infra-
// image can run any program.
func TestCheckPodByCgroup(t *testing.T) {
	id := strings.Repeat("0a", 32)
	for _, tt := range []struct {
		name, place, sandbox string
		holds                bool
	}{
		{"the pod's own", "/libpod_parent/" + id + "/libpod-" + id, "", true},
		{"the pod's own, by systemd", "machine-libpod_pod_" + id + ".slice:libpod:" + id, "", true},
		{"the pod's own, in a slice of its user's", "mine.slice/mine-libpod_pod_" + id + ".slice:libpod:" + id, "", true},
		{"a pod's", "/libpod_parent/" + id + "/libpod-" + id, id, false},
		{"a pod's, by systemd", "machine-libpod_pod_" + id + ".slice:libpod:" + id, id, false},
		{"no pod's", "/libpod_parent/libpod-" + id, "", false},
		{"no pod's, by systemd", "machine.slice:libpod:" + id, "", false},
		{"in a cgroup of its user's", "/mine/" + id + "/libpod-" + id, "", false},
		{"Docker's", "/libpod_parent/" + id + "/" + id, "", false},
		{"none", "", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &specs.Spec{
				Annotations: map[string]string{"io.container.manager": "libpod"}, Process: &specs.Process{Args: []string{"/pause"}},
				Hooks: &specs.Hooks{CreateRuntime: []specs.Hook{hook("/usr/bin/berth-hook", "createRuntime", "--request", "1")}},
				Linux: &specs.Linux{CgroupsPath: tt.place},
			}
			if tt.sandbox != "" {
				s.Annotations["io.kubernetes.cri-o.SandboxID"] = tt.sandbox
			}
			if err := CheckPod(s); (err != nil) != tt.holds {
				t.Errorf("%v, want an error: %t", err, tt.holds)
			}
		})
	}
}
