package entry

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func hook(path string, words ...string) specs.Hook {
	return specs.Hook{Path: path, Args: append([]string{"berth-hook"}, words...)}
}

func spec(hooks ...specs.Hook) *specs.Spec {
	return &specs.Spec{Hooks: &specs.Hooks{CreateRuntime: hooks}}
}

func ExampleRequestSet_Resolve() {
	s := spec(
		hook("/usr/libexec/berth/berth-hook", "createRuntime", "--request", "2"),
		hook("/usr/libexec/berth/berth-hook", "createRuntime", "--with", "gds"),
	)
	asked, err := RequestsIn(s)
	if err != nil {
		fmt.Println(err)
	}
	r, ok, err := asked.Resolve()
	fmt.Println(r, ok, err)
	// Output: 2,+gds true <nil>
}

func TestRequestsIn(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec *specs.Spec
		want RequestSet
		err  string
	}{
		{name: "no hooks", spec: &specs.Spec{}},
		{name: "others' hooks", spec: spec(hook("/bin/other", "createRuntime", "--request", "2"), specs.Hook{Path: "/x/berth-hook2"})},
		{name: "ours, elsewhere and with a configuration", spec: spec(hook("/opt/berth-hook", "--config", "/c", "prestart", "--request", "2")), want: RequestSet{Requests: []string{"2"}}},
		{name: "other stages of ours", spec: spec(hook("/berth-hook", "netdev", "a", "b"), hook("/berth-hook", "bind", "--lease", "x"))},
		{name: "two, and features once each", spec: spec(
			hook("/berth-hook", "createRuntime", "--request", "2", "--with", "gds"), hook("/berth-hook", "createRuntime", "--with", "gds", "--with", "gdrcopy"),
		), want: RequestSet{Requests: []string{"2"}, Additions: []string{"gds", "gdrcopy"}}},
		{name: "poststop asks for nothing", spec: &specs.Spec{Hooks: &specs.Hooks{Poststop: []specs.Hook{hook("/berth-hook", "createRuntime", "--request", "2")}}}},
		{name: "unknown word", spec: spec(hook("/berth-hook", "createRuntime", "--gpus", "2")), err: `unknown word "--gpus"`},
		{name: "no value", spec: spec(hook("/berth-hook", "createRuntime", "--request")), err: "stands alone"},
		{name: "no arguments", spec: spec(specs.Hook{Path: "/berth-hook"}), err: "no arguments"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := RequestsIn(tt.spec)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFindRequest(t *testing.T) {
	for _, tt := range []struct {
		name  string
		asked RequestSet
		want  string
		err   string
	}{
		{name: "nothing"},
		{name: "one", asked: RequestSet{Requests: []string{"h100:2"}}, want: "h100:2"},
		{name: "one in two ways", asked: RequestSet{Requests: []string{"2", " 2"}}, want: "2"},
		{name: "two", asked: RequestSet{Requests: []string{"2", "1"}}, err: `contradicting requests: "2" and "1"`},
		{name: "features alone", asked: RequestSet{Additions: []string{"gds"}}, err: "no GPU"},
		{name: "with a feature", asked: RequestSet{Requests: []string{"2"}, Additions: []string{"gds", "gdrcopy"}}, want: "2,+gdrcopy,+gds"},
		{name: "a feature nobody knows", asked: RequestSet{Requests: []string{"2"}, Additions: []string{"warp"}}, err: "warp"},
		{name: "nonsense", asked: RequestSet{Requests: []string{"2,,"}}, err: "2,,"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, ok, err := tt.asked.Resolve()
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if ok != (tt.want != "") || ok && r.String() != tt.want {
				t.Errorf("%q, %v, want %q", r, ok, tt.want)
			}
		})
	}
}

// TestRemoveRequests: RemoveRequests removes exactly the entries that RequestsIn reads.
func TestRemoveRequests(t *testing.T) {
	shared := []specs.Hook{
		hook("/berth-hook", "--config", "/c", "refuse", "busy"),
		hook("/berth-hook", "createRuntime", "--request", "2"),
		{Path: "/other", Args: []string{"other", "refuse", "busy"}},
		hook("/berth-hook", "netdev", "a", "b"),
	}
	s := spec(shared...)
	before := s.Hooks
	RemoveRequests(s)
	if diff := cmp.Diff([]specs.Hook{{Path: "/other", Args: []string{"other", "refuse", "busy"}}, hook("/berth-hook", "netdev", "a", "b")}, s.Hooks.CreateRuntime); diff != "" {
		t.Error(diff)
	}
	if len(before.CreateRuntime) != 4 || shared[0].Path != "/berth-hook" {
		t.Error("the list that it was made of was changed")
	}
	RemoveRequests(&specs.Spec{})
}

func FuzzParse(f *testing.F) {
	f.Add("createRuntime --request 2 --with gds")
	f.Add("prestart --request")
	f.Fuzz(func(t *testing.T, line string) {
		words := strings.Fields(line)
		a, ok, err := Parse(words)
		if (err != nil || !ok) && len(a.Requests)+len(a.Additions) > 0 {
			t.Errorf("%q: %v, %v, and asks for %+v", line, ok, err, a)
		}
		if 2*(len(a.Requests)+len(a.Additions)) > len(words) {
			t.Errorf("%q asks for %+v", line, a)
		}
	})
}

func TestBoundLease(t *testing.T) {
	bind := hook("/opt/berth-hook", "--config", "/c", "bind", "--lease", "0123456789ab")
	for _, tt := range []struct {
		name string
		spec *specs.Spec
		want string
	}{
		{"no hooks", &specs.Spec{}, ""},
		{"ours", spec(hook("/berth-hook", "netdev", "a", "b"), bind), "0123456789ab"},
		{"another program's", spec(specs.Hook{Path: "/bin/sh", Args: bind.Args}), ""},
		{"half of one", spec(hook("/berth-hook", "bind", "--lease"), specs.Hook{Path: "/berth-hook"}), ""},
		{"at a stage where it binds nothing", &specs.Spec{Hooks: &specs.Hooks{Poststop: []specs.Hook{bind}}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := BoundLease(tt.spec); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestRequestSources: what counts as a request. An image can't make one.
func TestRequestSources(t *testing.T) {
	note := func(text string) map[string]string { return map[string]string{Annotation: text} }
	podman := func(text string) map[string]string {
		return map[string]string{Annotation: text, "io.container.manager": "libpod"}
	}
	tests := []struct {
		name        string
		annotations map[string]string
		hooks       []string // each a list of berth-hook's words
		env         []string
		trust       Trust
		want        string // "" for none
		err         string
	}{
		{name: "none"},
		{name: "annotation", annotations: note("2"), want: "2"},
		{name: "variable is off", env: []string{"BERTH_GPUS=2"}},
		{name: "variable", env: []string{"BERTH_GPUS=2"}, trust: Trust{Environment: true}, want: "2"},
		{name: "last variable", env: []string{"BERTH_GPUS=1", "BERTH_GPUS=2"}, trust: Trust{Environment: true}, want: "2"},
		{name: "empty variable", env: []string{"BERTH_GPUS="}, trust: Trust{Environment: true}},
		{name: "both agree", annotations: note("2"), env: []string{"BERTH_GPUS=2"}, trust: Trust{Environment: true}, want: "2"},
		{name: "both disagree", annotations: note("2"), env: []string{"BERTH_GPUS=1"}, trust: Trust{Environment: true}, err: "contradicting requests"},
		{name: "disagreement of a variable that is off", annotations: note("2"), env: []string{"BERTH_GPUS=1"}, want: "2"},
		{name: "bad annotation", annotations: note("!"), err: "annotation berth.gpus"},
		{name: "empty annotation", annotations: note(""), err: "annotation berth.gpus"},
		{name: "bad variable", env: []string{"BERTH_GPUS=!"}, trust: Trust{Environment: true}, err: "environment variable BERTH_GPUS"},
		{name: "pause container of containerd", annotations: map[string]string{Annotation: "2", "io.kubernetes.cri.container-type": "sandbox"}},
		{name: "infra container of CRI-O and podman", annotations: map[string]string{Annotation: "2", "io.kubernetes.cri-o.ContainerType": "sandbox"}},
		{
			name: "podman, where it may be the image's", annotations: podman("2"),
			err: "annotation berth.gpus: podman takes it from images too, so it is no request: use --device berth/gpus=2, or have policy.podman_annotation set",
		},
		{name: "podman, and it isn't one", annotations: podman("\n!"), err: "use --device berth/gpus=N"},
		{name: "podman, trusted", annotations: podman("2"), trust: Trust{PodmanAnnotation: true}, want: "2"},
		{name: "podman, beside a device", annotations: podman("8"), hooks: []string{"createRuntime --request 2"}, want: "2"},
		{name: "podman, trusted, beside another device", annotations: podman("8"), hooks: []string{"createRuntime --request 2"}, trust: Trust{PodmanAnnotation: true}, err: "contradicting requests"},
		{name: "podman's infra container", annotations: map[string]string{Annotation: "2", "io.container.manager": "libpod", "io.kubernetes.cri-o.ContainerType": "sandbox"}},
		{name: "CDI device", hooks: []string{"createRuntime --request 2"}, want: "2"},
		{name: "CDI devices that are named", hooks: []string{"createRuntime --request device=0", "createRuntime --request device=1"}, want: "device=0,1"},
		{name: "CDI device with a feature", hooks: []string{"createRuntime --request 2", "createRuntime --with gds"}, want: "2,+gds"},
		{name: "CDI device and annotation", annotations: note("2"), hooks: []string{"createRuntime --request 2"}, want: "2"},
		{name: "CDI devices that contradict", hooks: []string{"createRuntime --request 2", "createRuntime --request 3"}, err: "contradicting requests"},
		{name: "CDI device that contradicts the annotation", annotations: note("1"), hooks: []string{"createRuntime --request 2"}, err: "contradicting requests"},
		{name: "feature alone", hooks: []string{"createRuntime --with gds"}, err: "gds is asked for"},
		{name: "another stage", hooks: []string{"mount /a /b"}},
		{name: "odd words", hooks: []string{"createRuntime --frob 2"}, err: "unknown word"},
		{name: "pod's container", annotations: map[string]string{Annotation: "2", "io.kubernetes.cri.container-type": "container"}, want: "2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := &specs.Spec{Annotations: tt.annotations, Process: &specs.Process{Env: tt.env}, Hooks: &specs.Hooks{
				CreateRuntime: []specs.Hook{{Path: "/usr/bin/other", Args: []string{"berth-hook", "createRuntime", "--request", "8"}}},
			}}
			for _, words := range tt.hooks {
				spec.Hooks.CreateRuntime = append(spec.Hooks.CreateRuntime,
					specs.Hook{Path: "/usr/bin/berth-hook", Args: append([]string{"berth-hook"}, strings.Fields(words)...)})
			}
			r, ok, err := FindRequest(spec, RequestSet{}, tt.trust, nil)
			if (err == nil) != (tt.err == "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if ok != (tt.want != "") || (ok && r.String() != tt.want) {
				t.Errorf("got %v %v, want %q", r, ok, tt.want)
			}
		})
	}
}

// TestStripSpec: berth's reserved annotations are removed, and under podman annotations that make crun
// open files.
func TestStripSpec(t *testing.T) {
	has := func(more ...string) map[string]string {
		all := map[string]string{"a": "b"}
		for _, key := range more {
			all[key] = "x"
		}
		return all
	}
	podman := has("dev.berth.lease", "run.oci.hooks.stderr", "run.oci.delegate-cgroup", "run.oci.seccomp_bpf_data", "run.oci.handler", "org.systemd.property.Conflicts", "org.systemd.property.KillSignal", "run.oci.keep_original_groups")
	podman["io.container.manager"] = "libpod"
	kept := has("org.systemd.property.KillSignal", "run.oci.keep_original_groups")
	kept["io.container.manager"] = "libpod"
	tests := []struct {
		name       string
		have, want map[string]string
	}{
		{"podman", podman, kept},
		{"another engine", has("dev.berth.cgroup", "run.oci.hooks.stderr", "run.oci.handler"), has("run.oci.hooks.stderr", "run.oci.handler")},
		{"none", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := &specs.Spec{Annotations: tt.have, Hooks: &specs.Hooks{
				CreateRuntime: []specs.Hook{hook("/usr/bin/berth-hook", "createRuntime", "--request", "2"), hook("/usr/bin/berth-hook", "netdev", "a", "b")},
			}}
			StripSpec(spec)
			if diff := cmp.Diff(tt.want, spec.Annotations); diff != "" || len(spec.Hooks.CreateRuntime) != 1 {
				t.Errorf("%s, hooks %+v", diff, spec.Hooks.CreateRuntime)
			}
		})
	}
}
