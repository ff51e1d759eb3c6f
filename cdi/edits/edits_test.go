package edits

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"
)

func ExampleEdits_Apply() {
	gpu := Edits{
		Nodes: []Node{{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0, Mode: 0o666, Access: "rw"}},
		Env:   map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"},
	}
	rules := Edits{DropCapabilities: []string{"CAP_MKNOD"}}
	both, err := Merge(gpu, rules)
	if err != nil {
		fmt.Println(err)
	}
	spec := &specs.Spec{Process: &specs.Process{Env: []string{"NVIDIA_VISIBLE_DEVICES=all", "HOME=/root"}}}
	if err := both.Apply(spec); err != nil {
		fmt.Println(err)
	}
	fmt.Println(spec.Process.Env, spec.Linux.Devices[0].Path)
	// Output: [NVIDIA_VISIBLE_DEVICES=void HOME=/root] /dev/nvidia0
}

func TestApply(t *testing.T) {
	n0 := Node{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0, Mode: 0o666, Access: "rw"}
	root, number := uint32(0), func(n int64) *int64 { return &n }
	device := specs.LinuxDevice{Path: "/dev/nvidia0", Type: "c", Major: 195, FileMode: fileMode(0o666), UID: &root, GID: &root}
	rule := specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: number(195), Minor: number(0), Access: "rw"}
	for _, tt := range []struct {
		name  string
		edits Edits
		spec  specs.Spec
		want  specs.Spec
	}{
		{name: "nothing", spec: specs.Spec{Version: "1.0.2"}, want: specs.Spec{Version: "1.0.2"}},
		{
			name: "node into a spec without linux", edits: Edits{Nodes: []Node{n0}},
			want: specs.Spec{Linux: &specs.Linux{
				Devices:   []specs.LinuxDevice{device},
				Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{rule}},
			}},
		},
		{
			name: "node takes the place of one of its path, another goes", edits: Edits{Nodes: []Node{n0}, RemoveNodes: []string{"/dev/nvidia1"}},
			spec: specs.Spec{Linux: &specs.Linux{Devices: []specs.LinuxDevice{
				{Path: "/dev/nvidia0", Type: "c", Major: 1}, {Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1}, {Path: "/dev/fuse"},
			}}},
			want: specs.Spec{Linux: &specs.Linux{
				Devices:   []specs.LinuxDevice{device, {Path: "/dev/fuse"}},
				Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{rule}},
			}},
		},
		{
			name:  "rules are replaced, those of nodes aren't doubled",
			edits: Edits{Nodes: []Node{n0}, Rules: []Rule{{Type: "", Major: Any, Minor: Any, Access: "rwm"}, n0.Rule()}},
			spec:  specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}}},
			want: specs.Spec{Linux: &specs.Linux{
				Devices:   []specs.LinuxDevice{device},
				Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}, rule}},
			}},
		},
		{
			name: "rules to none", edits: Edits{Rules: []Rule{}},
			spec: specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}}},
			want: specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{}}}},
		},
		{
			name:  "mounts: ours come last, one of the same place goes",
			edits: Edits{Mounts: []specs.Mount{{Destination: "/usr/local/nvidia", Source: "/d"}}, RemoveMounts: []MountRef{{Destination: "/dev/x", Source: "/dev/nvidia1"}}},
			spec: specs.Spec{Mounts: []specs.Mount{
				{Destination: "/usr/local/nvidia/", Source: "/mine"}, {Destination: "/dev/x", Source: "/dev/nvidia1"}, {Destination: "/dev/x", Source: "/dev/null"},
			}},
			want: specs.Spec{Mounts: []specs.Mount{{Destination: "/dev/x", Source: "/dev/null"}, {Destination: "/usr/local/nvidia", Source: "/d"}}},
		},
		{
			name:  "environment: set in its place, doubles of it go, others stay",
			edits: Edits{Env: map[string]string{"B": "2", "A": "1"}, UnsetEnv: []string{"C"}},
			spec:  specs.Spec{Process: &specs.Process{Env: []string{"X=1", "B=0", "C=3", "X=2", "B=1", "broken"}}},
			want:  specs.Spec{Process: &specs.Process{Env: []string{"X=1", "B=2", "X=2", "broken", "A=1"}}},
		},
		{
			name: "process edits without a process are left out",
			edits: Edits{
				Env: map[string]string{"A": "1"}, DropCapabilities: []string{"CAP_MKNOD"}, GIDs: []uint32{44},
				Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_MEMLOCK"}},
			},
		},
		{
			name: "capabilities in all sets, in any case", edits: Edits{DropCapabilities: []string{"CAP_MKNOD"}},
			spec: specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{
				Bounding: []string{"CAP_MKNOD", "CAP_KILL"}, Effective: []string{"cap_mknod"}, Inheritable: []string{"CAP_MKNOD"},
				Permitted: []string{"CAP_MKNOD", "CAP_MKNOD"}, Ambient: []string{"CAP_MKNOD"},
			}}},
			want: specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{
				Bounding: []string{"CAP_KILL"}, Effective: []string{}, Inheritable: []string{}, Permitted: []string{}, Ambient: []string{},
			}}},
		},
		{
			name: "hooks, annotations, groups, limits, masks",
			edits: Edits{
				Hooks: []Hook{{CreateRuntime, specs.Hook{Path: "/new"}}}, RemoveHooks: []string{"/usr/bin/nvidia-container-runtime-hook"},
				Annotations: map[string]string{"dev.berth.lease": "1"}, GIDs: []uint32{44, 44},
				Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Hard: 1, Soft: 1}}, MaskedPaths: []string{"/proc/driver/nvidia"},
			},
			spec: specs.Spec{
				//nolint:staticcheck // Docker still writes it.
				Hooks:   &specs.Hooks{Prestart: []specs.Hook{{Path: "/usr/bin/nvidia-container-runtime-hook"}, {Path: "/other"}}},
				Process: &specs.Process{Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_MEMLOCK"}, {Type: "RLIMIT_CORE"}}},
			},
			want: specs.Spec{
				//nolint:staticcheck // Docker still writes it.
				Hooks:       &specs.Hooks{Prestart: []specs.Hook{{Path: "/other"}}, CreateRuntime: []specs.Hook{{Path: "/new"}}},
				Annotations: map[string]string{"dev.berth.lease": "1"},
				Linux:       &specs.Linux{MaskedPaths: []string{"/proc/driver/nvidia"}},
				Process: &specs.Process{
					User:    specs.User{AdditionalGids: []uint32{44}},
					Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Hard: 1, Soft: 1}, {Type: "RLIMIT_CORE"}},
				},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, times := range []string{"once", "twice"} {
				if err := tt.edits.Apply(&tt.spec); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(tt.want, tt.spec); d != "" {
					t.Fatalf("applied %s (-want +got):\n%s", times, d)
				}
			}
		})
	}
}

// TestApplyLeavesSharedMemoryAlone: specs are made of templates, and their five
// sets of capabilities are often one slice.
func TestApplyLeavesSharedMemoryAlone(t *testing.T) {
	caps, groups, masks := []string{"CAP_MKNOD", "CAP_KILL"}, make([]uint32, 1, 9), make([]string, 0, 9)
	limits := []specs.POSIXRlimit{{Type: "RLIMIT_MEMLOCK"}}
	hooks := []specs.Hook{{Path: "/a"}, {Path: "/b"}}
	notes := map[string]string{}
	spec := &specs.Spec{
		Annotations: notes, Hooks: &specs.Hooks{Poststop: hooks}, Linux: &specs.Linux{MaskedPaths: masks},
		Process: &specs.Process{
			User: specs.User{AdditionalGids: groups}, Rlimits: limits,
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
	}
	e := Edits{
		DropCapabilities: []string{"CAP_MKNOD"}, GIDs: []uint32{7}, MaskedPaths: []string{"/x"}, Annotations: map[string]string{"a": "b"},
		Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_MEMLOCK", Hard: 1}}, RemoveHooks: []string{"/a"},
	}
	if err := e.Apply(spec); err != nil {
		t.Fatal(err)
	}
	c := spec.Process.Capabilities
	if d := cmp.Diff([][]string{{"CAP_KILL"}, {"CAP_KILL"}, {"CAP_KILL"}}, [][]string{c.Bounding, c.Effective, c.Permitted}); d != "" {
		t.Errorf("capabilities (-want +got):\n%s", d)
	}
	if caps[0] != "CAP_MKNOD" || groups[:2][1] != 0 || masks[:1][0] != "" || limits[0].Hard != 0 || hooks[0].Path != "/a" || len(notes) > 0 {
		t.Errorf("the template was changed: %q %v %q %v %v %v", caps, groups[:2], masks[:1], limits, hooks, notes)
	}
}

// TestApplyRules: a rule is added once, in whichever form the spec has it, and the memory of the
// spec's own list isn't changed.
func TestApplyRules(t *testing.T) {
	one, minor := int64(195), int64(1)
	all := specs.LinuxDeviceCgroup{Allow: true, Access: "m"} // of type "a", which it leaves out
	first := specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &one, Minor: &minor, Access: "rw"}
	have := append(make([]specs.LinuxDeviceCgroup, 0, 9), all, first)
	spec := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: have}}}
	e := Edits{Nodes: []Node{
		{Path: "/dev/a", Type: "c", Major: 195, Minor: 1, Access: "rw"},
		{Path: "/dev/b", Type: "c", Major: 195, Minor: 2, Access: "rw"},
		{Path: "/dev/c", Type: "c", Major: 195, Minor: 2, Access: "rw"},
		{Path: "/dev/d", Type: "c", Major: 195, Minor: 3},
	}}
	if err := e.Apply(spec); err != nil {
		t.Fatal(err)
	}
	two := int64(2)
	want := []specs.LinuxDeviceCgroup{all, first, {Allow: true, Type: "c", Major: &one, Minor: &two, Access: "rw"}}
	if d := cmp.Diff(want, spec.Linux.Resources.Devices); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
	if have[:3][2].Allow {
		t.Error("the template's list was written to")
	}
	if (Rule{Type: "a"}).canonical() != (Rule{}).canonical() || (Rule{Type: "c"}).canonical() == (Rule{}).canonical() {
		t.Error("a rule without a type isn't one of type a")
	}
}

func TestApplyRefuses(t *testing.T) {
	for name, e := range map[string]Edits{
		"relative node":      {Nodes: []Node{{Path: "dev/x", Type: "c"}}},
		"unknown type":       {Nodes: []Node{{Path: "/dev/x", Type: "p"}}},
		"negative minor":     {Nodes: []Node{{Path: "/dev/x", Type: "c", Minor: -1}}},
		"unknown access":     {Rules: []Rule{{Type: "c", Access: "x"}}},
		"empty access":       {Rules: []Rule{{Type: "c"}}},
		"relative mount":     {Mounts: []specs.Mount{{Destination: "x"}}},
		"relative mask":      {MaskedPaths: []string{"x"}},
		"variable with =":    {Env: map[string]string{"A=B": ""}},
		"value with NUL":     {Env: map[string]string{"A": "\x00"}},
		"unknown stage":      {Hooks: []Hook{{"later", specs.Hook{Path: "/x"}}}},
		"one node, two ways": {Nodes: []Node{{Path: "/dev/x", Type: "c"}, {Path: "/dev/x/", Type: "b"}}},
		"network device":     {NetDevices: map[string]string{"enp1": "eth1"}},
		"set and unset":      {Env: map[string]string{"A": ""}, UnsetEnv: []string{"A"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &specs.Spec{Version: "1.0.2"}
			if err := e.Apply(spec); err == nil {
				t.Error("applied")
			}
			if d := cmp.Diff(&specs.Spec{Version: "1.0.2"}, spec); d != "" {
				t.Errorf("spec was changed (-want +got):\n%s", d)
			}
		})
	}
	if err := (Edits{}).Apply(nil); err == nil {
		t.Error("applied to no spec")
	}
}

func TestDeferNet(t *testing.T) {
	theirs := Hook{CreateRuntime, specs.Hook{Path: "/usr/bin/vendor"}}
	e := Edits{NetDevices: map[string]string{"enp2": "eth2", "enp1": ""}, Hooks: []Hook{theirs}}
	want := Edits{Hooks: []Hook{{CreateRuntime, specs.Hook{
		Path: "/bin/berth-hook", Args: []string{"berth-hook", "--config", "/c", "netdev", "enp1", "enp1", "enp2", "eth2"}, Env: []string{},
	}}, theirs}, Reasons: []Reason{{"hook", "berth-hook --config /c netdev enp1 enp1 enp2 eth2", "moves network devices into the container"}}}
	for range 2 {
		e = e.DeferNet("/bin/berth-hook", "--config", "/c")
		if d := cmp.Diff(want, e); d != "" {
			t.Error(d)
		}
	}
}

func TestMerge(t *testing.T) {
	n0 := Node{Path: "/dev/nvidia0", Type: "c", Major: 195, Access: "rw"}
	a := Edits{Nodes: []Node{n0}, Env: map[string]string{"A": "1"}, GIDs: []uint32{1}, Rules: []Rule{n0.Rule()}}
	b := Edits{Nodes: []Node{n0}, Env: map[string]string{"A": "1", "B": "2"}, GIDs: []uint32{2, 1}, RemoveNodes: []string{"/dev/nvidia0"}}
	got, err := Merge(a, b, Edits{})
	want := Edits{
		Nodes: []Node{n0}, Env: map[string]string{"A": "1", "B": "2"}, GIDs: []uint32{1, 2},
		Rules: []Rule{n0.Rule()}, RemoveNodes: []string{"/dev/nvidia0"},
	}
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if len(a.Env) != 1 {
		t.Error("Merge changed its argument")
	}
	a.Reasons, b.Reasons = []Reason{{"group", "1", "a"}}, []Reason{{"group", "1", "b"}, {"group", "1", "a"}, {"group", "2", "b"}}
	if got, err = Merge(a, b, a); err != nil || got.Why("group", "1") != "a, b" || got.Why("group", "2") != "b" || got.Why("limit", "1") != "" {
		t.Errorf("reasons %+v, %v", got.Reasons, err)
	}
	three := Edits{Nodes: []Node{n0, {Path: "/dev/a"}, n0, {Path: "/dev/a"}, {Path: "/dev/b"}}}
	if got, err = Merge(three, Edits{Nodes: []Node{{Path: "/dev/b/"}}}); err == nil {
		t.Errorf("merged paths that mean the same: %v", got.Nodes)
	}
	if got, err = Merge(three, three); err != nil || len(got.Nodes) != 3 {
		t.Errorf("merged nodes are %v, %v", got.Nodes, err)
	}
}

func TestMergeConflicts(t *testing.T) {
	for name, pair := range map[string][2]Edits{
		"node":       {{Nodes: []Node{{Path: "/dev/x", Type: "c", Major: 1}}}, {Nodes: []Node{{Path: "/dev/x", Type: "c", Major: 2}}}},
		"mount":      {{Mounts: []specs.Mount{{Destination: "/x", Source: "/a"}}}, {Mounts: []specs.Mount{{Destination: "/x/", Source: "/b"}}}},
		"variable":   {{Env: map[string]string{"A": "1"}}, {Env: map[string]string{"A": "2"}}},
		"unset":      {{UnsetEnv: []string{"A"}}, {Env: map[string]string{"A": "2"}}},
		"annotation": {{Annotations: map[string]string{"A": "1"}}, {Annotations: map[string]string{"A": "2"}}},
		"limit":      {{Rlimits: []specs.POSIXRlimit{{Type: "X"}}}, {Rlimits: []specs.POSIXRlimit{{Type: "X", Hard: 1}}}},
		"rules":      {{Rules: []Rule{}}, {Rules: []Rule{{Access: "r"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Merge(pair[0], pair[1]); !errors.Is(err, ErrConflict) {
				t.Errorf("error %v, want ErrConflict", err)
			}
		})
	}
}

// Small alphabets make collisions, which are the interesting cases.
func drawEdits(t *rapid.T, label string) Edits {
	path := rapid.SampledFrom([]string{"/dev/a", "/dev/b", "/dev/c/"})
	name := rapid.SampledFrom([]string{"A", "B", "C"})
	number := rapid.Int64Range(0, 2)
	access := rapid.SampledFrom([]string{"r", "rw", "rwm"})
	node := rapid.Custom(func(t *rapid.T) Node {
		return Node{Path: path.Draw(t, "path"), Type: "c", Major: number.Draw(t, "major"), Minor: number.Draw(t, "minor"), Access: access.Draw(t, "access")}
	})
	rule := rapid.Custom(func(t *rapid.T) Rule {
		return Rule{rapid.Bool().Draw(t, "allow"), rapid.SampledFrom([]string{"", "a", "c"}).Draw(t, "type"), number.Draw(t, "major") - 1, number.Draw(t, "minor") - 1, access.Draw(t, "access")}
	})
	mount := rapid.Custom(func(t *rapid.T) specs.Mount {
		return specs.Mount{Destination: path.Draw(t, "destination"), Source: name.Draw(t, "source")}
	})
	e := Edits{
		Nodes:            rapid.SliceOfNDistinct(node, 0, 3, func(n Node) string { return n.Path }).Draw(t, label+" nodes"),
		RemoveNodes:      rapid.SliceOfN(path, 0, 2).Draw(t, "remove"),
		Mounts:           rapid.SliceOfNDistinct(mount, 0, 3, func(m specs.Mount) string { return m.Destination }).Draw(t, "mounts"),
		Env:              rapid.MapOfN(name, name, 0, 2).Draw(t, "env"),
		DropCapabilities: rapid.SliceOfN(name, 0, 2).Draw(t, "capabilities"),
		MaskedPaths:      rapid.SliceOfN(path, 0, 2).Draw(t, "masks"),
		GIDs:             rapid.SliceOfN(rapid.Uint32Range(0, 3), 0, 3).Draw(t, "gids"),
		Hooks:            []Hook{{Poststop, specs.Hook{Path: path.Draw(t, "hook")}}},
		RemoveHooks:      rapid.SliceOfN(path, 0, 1).Draw(t, "remove hooks"),
	}
	for _, m := range rapid.SliceOfN(mount, 0, 2).Draw(t, "remove mounts") {
		e.RemoveMounts = append(e.RemoveMounts, MountRef{m.Destination, m.Source})
	}
	if rapid.Bool().Draw(t, "set rules") {
		e.Rules = rapid.SliceOfN(rule, 0, 4).Draw(t, "rules")
	}
	return e
}

func TestApplyTwiceIsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"A", "B"}}}}
		before, e := drawEdits(t, "before"), drawEdits(t, "edits")
		if err := before.Apply(spec); err != nil {
			t.Fatal(err)
		}
		if err := e.Apply(spec); err != nil {
			t.Fatal(err)
		}
		once := mustJSON(t, spec)
		if err := e.Apply(spec); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(once, mustJSON(t, spec)); d != "" {
			t.Fatalf("twice isn't once (-once +twice):\n%s", d)
		}
		checkNoDuplicates(t, spec)
	})
}

func mustJSON(t *rapid.T, v any) string {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func checkNoDuplicates(t *rapid.T, spec *specs.Spec) {
	seen := map[string]bool{}
	once := func(what, key string) {
		if seen[what+key] {
			t.Fatalf("two times %s %s", what, key)
		}
		seen[what+key] = true
	}
	for _, m := range spec.Mounts {
		once("mount", m.Destination)
	}
	for _, v := range spec.Process.Env {
		once("variable", v[:1])
	}
	if spec.Linux != nil {
		for _, d := range spec.Linux.Devices {
			once("node", d.Path)
		}
		for _, p := range spec.Linux.MaskedPaths {
			once("mask", p)
		}
	}
}
