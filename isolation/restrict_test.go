package isolation

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
)

// testHost is a machine with NVIDIA GPUs, DRM and RDMA, and a few other drivers.
func testHost() Host {
	return Host{
		Majors: []gpu.Major{
			{Number: 1, Name: "mem"},
			{Number: 5, Name: "/dev/tty"},
			{Number: 5, Name: "/dev/console"},
			{Number: 10, Name: "misc"},
			{Number: 136, Name: "pts"},
			{Number: 195, Name: "nvidia"},
			{Number: 195, Name: "nvidiactl"},
			{Number: 226, Name: "drm"},
			{Number: 231, Name: "infiniband_verbs"},
			{Number: 508, Name: "nvidia-uvm"},
			{Number: 511, Name: "nvidia-caps"},
		},
		Stat: func(path string) (Number, bool) {
			n, ok := map[string]Number{
				"/dev/nvidia0": {195, 0}, "/dev/nvidia1": {195, 1}, "/dev/null": {1, 3}, "/dev/dri/renderD128": {226, 128},
				"/proc/1/root/dev/nvidia1": {195, 1}, "/home/link": {195, 1},
			}[path]
			return n, ok
		},
	}
}

func leased(minors ...int64) []edits.Node {
	var nodes []edits.Node
	for _, m := range minors {
		nodes = append(nodes, edits.Node{Path: fmt.Sprintf("/dev/nvidia%d", m), Type: "c", Major: 195, Minor: m, Access: "rw"})
	}
	return append(nodes, edits.Node{Path: "/dev/nvidia-uvm", Type: "c", Major: 508, Access: "rw"})
}

func specOf(rules ...edits.Rule) *specs.Spec {
	s := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
	for _, r := range rules {
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, r.Spec())
	}
	return s
}

func allow(kind string, major, minor int64, access string) edits.Rule {
	return edits.Rule{Allow: true, Type: kind, Major: major, Minor: minor, Access: access}
}

func deny(kind string, major, minor int64, access string) edits.Rule {
	return edits.Rule{Type: kind, Major: major, Minor: minor, Access: access}
}

const every = edits.Any

func TestRestrictRules(t *testing.T) {
	denyAll, writtenByEngines := deny("a", every, every, "rwm"), deny("", every, every, "rwm")
	ours := []edits.Rule{allow("c", 195, 0, "rw"), allow("c", 508, 0, "rw")}
	open := []edits.Rule{
		denyAll, allow("c", 1, every, "rwm"), allow("c", 5, every, "rwm"), allow("c", 10, every, "rwm"), allow("c", 136, every, "rwm"),
		allow("b", every, every, "rwm"),
	}
	foreignRule := func(text string) edits.Removal {
		return edits.Removal{Kind: "rule", Name: "allow " + text, Why: whyForeign}
	}
	allowAll := edits.Removal{Kind: "rule", Name: "allow a *:* rwm", Why: whyAllowAll}
	for _, tt := range []struct {
		name   string
		have   []edits.Rule
		want   []edits.Rule
		gone   []edits.Removal
		leased []edits.Node
	}{
		{
			name:   "docker's defaults are kept as they are",
			have:   []edits.Rule{writtenByEngines, allow("c", 1, 5, "rwm"), allow("c", every, every, "m"), allow("b", every, every, "m")},
			want:   append([]edits.Rule{writtenByEngines, allow("c", 1, 5, "rwm"), allow("c", every, every, "m"), allow("b", every, every, "m")}, ours...),
			leased: leased(0),
		},
		{
			name: "--device of a foreign one and of the leased one",
			have: []edits.Rule{writtenByEngines, allow("c", 195, 1, "rwm"), allow("c", 195, 0, "rwm"), allow("c", 10, 200, "rwm")},
			want: append([]edits.Rule{writtenByEngines, allow("c", 10, 200, "rwm")}, ours...),
			gone: []edits.Removal{foreignRule("c 195:1 rwm"), foreignRule("c 195:0 rwm")}, leased: leased(0),
		},
		{
			name: "a whole accelerator major, in a container without a lease",
			have: []edits.Rule{writtenByEngines, allow("c", 195, every, "rw"), allow("c", 231, 3, "r")},
			want: []edits.Rule{writtenByEngines},
			gone: []edits.Removal{foreignRule("c 195:* rw"), foreignRule("c 231:3 r")},
		},
		{
			name: "--privileged", have: []edits.Rule{allow("", every, every, "rwm")},
			want: append(open, ours...), gone: []edits.Removal{allowAll}, leased: leased(0),
		},
		{
			name: "deny all, then allow all", have: []edits.Rule{writtenByEngines, allow("a", every, every, "rwm")},
			want: open, gone: []edits.Removal{allowAll},
		},
		{
			name: "every character device", have: []edits.Rule{writtenByEngines, allow("c", every, every, "rw"), allow("b", 8, 0, "r")},
			want: []edits.Rule{
				denyAll, allow("c", 1, every, "rw"), allow("c", 5, every, "rw"), allow("c", 10, every, "rw"), allow("c", 136, every, "rw"), allow("b", 8, 0, "r"),
			},
			gone: []edits.Removal{allowAll},
		},
		{
			name: "one minor of every major", have: []edits.Rule{writtenByEngines, allow("c", every, 1, "r")},
			want: []edits.Rule{denyAll, allow("c", 1, 1, "r"), allow("c", 5, 1, "r"), allow("c", 10, 1, "r"), allow("c", 136, 1, "r")},
			gone: []edits.Removal{allowAll},
		},
		{
			name: "a hole in allow-all takes its major along",
			have: []edits.Rule{allow("a", every, every, "rwm"), deny("c", 10, 229, "rw"), deny("b", 8, every, "w"), deny("c", 5, every, "rwm")},
			want: []edits.Rule{
				denyAll, allow("c", 1, every, "rwm"), allow("c", 10, every, "m"), allow("c", 136, every, "rwm"), allow("b", every, every, "rm"),
			},
			gone: []edits.Removal{
				{Kind: "rule", Name: "c 10:* rw", Why: "deny c 10:229 rw can't be said in an allow-list"},
				allowAll,
			},
		},
		{
			name: "no rules at all", have: nil,
			want: append([]edits.Rule{denyAll}, ours...), leased: leased(0),
		},
		{
			name: "allows without deny all", have: []edits.Rule{allow("c", 1, 3, "rwm")},
			want: append([]edits.Rule{denyAll, allow("c", 1, 3, "rwm")}, ours...), leased: leased(0),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := specOf(tt.have...)
			e, gone, err := RestrictDevices(spec, testHost(), tt.leased)
			testutil.Must(t, err)
			if d := cmp.Diff(tt.want, e.Rules); d != "" {
				t.Errorf("rules (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.gone, gone); d != "" {
				t.Errorf("gone (-want +got):\n%s", d)
			}
			restrictTwice(t, spec, tt.leased)
		})
	}
}

// restrictTwice restricts the spec, then the result.
func restrictTwice(t interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}, spec *specs.Spec, leased []edits.Node,
) {
	t.Helper()
	restrictTwiceOn(t, spec, testHost(), leased)
}

func restrictTwiceOn(t interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}, spec *specs.Spec, h Host, leased []edits.Node,
) {
	t.Helper()
	var results []string
	for range 2 {
		e, _, err := RestrictDevices(spec, h, leased)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Apply(spec); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, string(data))
	}
	if d := cmp.Diff(results[0], results[1]); d != "" {
		t.Fatalf("a second call changes the spec (-first +second):\n%s", d)
	}
}

func TestRestrictNodesAndMounts(t *testing.T) {
	spec := specOf(deny("a", every, every, "rwm"))
	spec.Linux.Devices = []specs.LinuxDevice{
		{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0},
		{Path: "/dev/innocent", Type: "c", Major: 195, Minor: 1},
		{Path: "/dev/unbuffered", Type: "u", Major: 226, Minor: 128},
		{Path: "/dev/disk", Type: "b", Major: 195, Minor: 1},
		{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229},
	}
	bind := func(source, destination string) specs.Mount {
		return specs.Mount{Type: "bind", Source: source, Destination: destination, Options: []string{"rbind"}}
	}
	spec.Mounts = []specs.Mount{
		bind("/dev", "/dev"), bind("/dev/nvidia0", "/dev/nvidia0"), bind("/dev/nvidia1", "/dev/nvidia1"), bind("/home/link", "/x"),
		bind("/proc/1/root/dev/nvidia1", "/y"), bind("/dev/null", "/z"), bind("/gone", "/gone"),
		{Source: "/dev/dri/renderD128", Destination: "/r", Options: []string{"ro", "bind"}},
		{Type: "tmpfs", Source: "/dev/nvidia1", Destination: "/tmp"},
	}
	spec.Process = &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_MKNOD"}}}
	got, gone, err := RestrictDevices(spec, testHost(), leased(0))
	testutil.Must(t, err)
	want := edits.Edits{
		RemoveNodes: []string{"/dev/innocent", "/dev/unbuffered"},
		Rules:       []edits.Rule{deny("a", every, every, "rwm"), allow("c", 195, 0, "rw"), allow("c", 508, 0, "rw")},
		RemoveMounts: []edits.MountRef{
			{Destination: "/dev/nvidia1", Source: "/dev/nvidia1"},
			{Destination: "/x", Source: "/home/link"},
			{Destination: "/y", Source: "/proc/1/root/dev/nvidia1"},
			{Destination: "/r", Source: "/dev/dri/renderD128"},
		},
		DropCapabilities: []string{"CAP_MKNOD"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	wantGone := []edits.Removal{
		{Kind: "device", Name: "/dev/innocent", Source: "c 195:1", Why: whyForeign},
		{Kind: "device", Name: "/dev/unbuffered", Source: "c 226:128", Why: whyForeign},
		{Kind: "mount", Name: "/dev/nvidia1", Source: "/dev/nvidia1", Why: whyForeign},
		{Kind: "mount", Name: "/x", Source: "/home/link", Why: whyForeign},
		{Kind: "mount", Name: "/y", Source: "/proc/1/root/dev/nvidia1", Why: whyForeign},
		{Kind: "mount", Name: "/r", Source: "/dev/dri/renderD128", Why: whyForeign},
		{Kind: "capability", Name: "CAP_MKNOD", Why: whyMknod},
	}
	if d := cmp.Diff(wantGone, gone); d != "" {
		t.Errorf("gone (-want +got):\n%s", d)
	}
	restrictTwice(t, spec, leased(0))
}

func TestAcceleratorInSpec(t *testing.T) {
	denyAll := deny("", every, every, "rwm")
	node := specOf(denyAll)
	node.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "c", Major: 508}}
	mount := specOf(denyAll)
	mount.Mounts = []specs.Mount{{Type: "bind", Source: "/home/link"}}
	dev := specOf(denyAll)
	dev.Mounts = []specs.Mount{{Type: "bind", Source: "/dev"}}
	for _, tt := range []struct {
		name string
		spec *specs.Spec
		want bool
	}{
		{"plain", specOf(denyAll, allow("c", 1, 3, "rwm"), allow("c", every, every, "m"), allow("b", every, every, "rwm")), false},
		{"node", node, true},
		{"mount", mount, true},
		{"bind of /dev", dev, false},
		{"rule", specOf(denyAll, allow("c", 195, 7, "r")), true},
		{"rule for mknod alone", specOf(denyAll, allow("c", 195, every, "m")), false},
		{"allow all", specOf(allow("", every, every, "rwm")), true},
		{"allow all of a major that runtimes don't look at", specOf(denyAll, allow("a", 1, 3, "r")), true},
		{"all character devices", specOf(denyAll, allow("c", every, every, "w")), true},
		{"no rules", specOf(), true},
		{"no linux", &specs.Spec{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := AcceleratorInSpec(tt.spec, testHost()); got != tt.want || err != nil {
				t.Errorf("AcceleratorInSpec = %v, %v", got, err)
			}
			e, gone, err := RestrictDevices(tt.spec, testHost(), nil)
			testutil.Must(t, err)
			if cmp.Equal(e, edits.Edits{}) == tt.want || len(gone) > 0 && !tt.want {
				t.Errorf("RestrictDevices without a lease: %+v, gone %q", e, gone)
			}
			plain := Host{Majors: []gpu.Major{{Number: 1, Name: "mem"}}, Stat: testHost().Stat}
			want := tt.want && tt.name != "node" // its major belongs to a driver now, and isn't reserved
			if got, err := AcceleratorInSpec(tt.spec, plain); got != want || err != nil {
				t.Errorf("on a host without an accelerator's driver: %v, %v", got, err)
			}
		})
	}
}
