package foreign

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

func registry() Registry {
	timeout, gid := 3, uint32(44)
	mode := os.FileMode(0o640)
	return Registry{Specs: []Spec{{
		Path: "/etc/cdi/nic.yaml", Kind: "vendor.example/nic",
		Edits: cdispecs.ContainerEdits{
			Env:   []string{"NIC=1", "PORT=none"},
			Hooks: []*cdispecs.Hook{{HookName: "createContainer", Path: "/usr/bin/nic", Args: []string{"nic", "up"}, Env: []string{"A=b"}, Timeout: &timeout}},
		},
		Devices: []Device{
			{Name: "port0", Edits: cdispecs.ContainerEdits{
				Env:            []string{"PORT=0"},
				DeviceNodes:    []*cdispecs.DeviceNode{{Path: "/dev/nic0", Type: "c", Major: 240, Minor: 7, FileMode: &mode, GID: &gid, Permissions: "rwm"}},
				Mounts:         []*cdispecs.Mount{{HostPath: "/opt/nic", ContainerPath: "/nic", Options: []string{"ro", "bind"}}, {HostPath: "tmpfs", ContainerPath: "/t", Type: "tmpfs"}},
				NetDevices:     []*cdispecs.LinuxNetDevice{{HostInterfaceName: "enp1", Name: "eth1"}},
				AdditionalGIDs: []uint32{0, 44},
			}},
			{Name: "port1", Edits: cdispecs.ContainerEdits{
				Env:         []string{"PORT=1"},
				DeviceNodes: []*cdispecs.DeviceNode{{Path: "/dev/nic1", HostPath: "/dev/null"}, {Path: "/dev/nic2", HostPath: "/dev/zero", Type: "u", Permissions: "none"}},
				Mounts:      []*cdispecs.Mount{{HostPath: "/opt/one", ContainerPath: "/one"}},
			}},
			{Name: "rdt", Edits: cdispecs.ContainerEdits{IntelRdt: &cdispecs.IntelRdt{ClosID: "x"}}},
			{Name: "gone", Edits: cdispecs.ContainerEdits{DeviceNodes: []*cdispecs.DeviceNode{{Path: "/dev/nic/gone"}}}},
			{Name: "file", Edits: cdispecs.ContainerEdits{DeviceNodes: []*cdispecs.DeviceNode{{Path: "/dev/x", HostPath: "/etc/passwd"}}}},
			{Name: "block", Edits: cdispecs.ContainerEdits{DeviceNodes: []*cdispecs.DeviceNode{{Path: "/dev/x", HostPath: "/dev/null", Type: "b"}}}},
			{Name: "fifo", Edits: cdispecs.ContainerEdits{DeviceNodes: []*cdispecs.DeviceNode{{Path: "/dev/x", Type: "p"}}}},
			{Name: "clash", Edits: cdispecs.ContainerEdits{DeviceNodes: []*cdispecs.DeviceNode{{Path: "/dev/nic0", Type: "c", Major: 1, Minor: 1}}}},
		},
	}}}
}

func TestResolve(t *testing.T) {
	timeout := 3
	shared := []edits.Hook{{Stage: edits.CreateContainer, Hook: specs.Hook{Path: "/usr/bin/nic", Args: []string{"nic", "up"}, Env: []string{"A=b"}, Timeout: &timeout}}}
	port0 := edits.Node{Path: "/dev/nic0", Type: "c", Major: 240, Minor: 7, Mode: 0o640, GID: 44, Access: "rw"}
	port1 := []edits.Node{
		{Path: "/dev/nic1", Type: "c", Major: 1, Minor: 3, Mode: 0o666, Access: "rw"},
		{Path: "/dev/nic2", Type: "c", Major: 1, Minor: 5, Mode: 0o666},
	}
	mounts0 := []specs.Mount{
		{Source: "/opt/nic", Destination: "/nic", Type: "bind", Options: []string{"ro", "bind"}},
		{Source: "tmpfs", Destination: "/t", Type: "tmpfs"},
	}
	mounts1 := []specs.Mount{{Source: "/opt/one", Destination: "/one", Type: "bind", Options: []string{"rbind"}}}
	of0 := func(kind, name string) edits.Reason {
		return edits.Reason{Kind: kind, Name: name, Why: "CDI device vendor.example/nic=port0"}
	}
	of1 := func(kind, name string) edits.Reason {
		return edits.Reason{Kind: kind, Name: name, Why: "CDI device vendor.example/nic=port1"}
	}
	reasons := []edits.Reason{
		of0("hook", "nic up"), of0("variable", "NIC"), of0("group", "44"), of0("device", "/dev/nic0"), of0("mount", "/nic"), of0("mount", "/t"),
		of0("network", "enp1"),
	}
	tests := []struct {
		name  string
		names []string
		want  edits.Edits
		err   string
	}{
		{"nothing", nil, edits.Edits{}, ""},
		{"one", []string{"vendor.example/nic=port0"}, edits.Edits{
			Env: map[string]string{"NIC": "1", "PORT": "0"}, Hooks: shared, Nodes: []edits.Node{port0}, Mounts: mounts0,
			GIDs: []uint32{44}, NetDevices: map[string]string{"enp1": "eth1"},
			Reasons: append(slices.Clip(reasons), of0("variable", "PORT")),
		}, ""},
		{"two of a spec, whose own edits come once", []string{"vendor.example/nic=port0", "vendor.example/nic=port1"}, edits.Edits{
			Env: map[string]string{"NIC": "1", "PORT": "1"}, Hooks: shared,
			Nodes: append([]edits.Node{port0}, port1...), Mounts: append(mounts0, mounts1...),
			GIDs: []uint32{44}, NetDevices: map[string]string{"enp1": "eth1"},
			Reasons: append(slices.Clip(reasons), of1("device", "/dev/nic1"), of1("device", "/dev/nic2"), of1("mount", "/one"), of1("variable", "PORT")),
		}, ""},
		{"unknown device", []string{"vendor.example/nic=port9"}, edits.Edits{}, "there are vendor.example/nic=port0, vendor.example/nic=port1"},
		{"unknown kind", []string{"vendor.example/fpga=a"}, edits.Edits{}, "there are devices of vendor.example/nic"},
		{"what berth can't do", []string{"vendor.example/nic=rdt"}, edits.Edits{}, "vendor.example/nic=rdt (/etc/cdi/nic.yaml): it asks for intelRdt"},
		{"node that isn't there", []string{"vendor.example/nic=gone"}, edits.Edits{}, "node /dev/nic/gone: no such file"},
		{"node that is a file", []string{"vendor.example/nic=file"}, edits.Edits{}, "node /etc/passwd is not a device"},
		{"node of another type", []string{"vendor.example/nic=block"}, edits.Edits{}, `node /dev/null is of type "c", the spec says "b"`},
		{"FIFO", []string{"vendor.example/nic=fifo"}, edits.Edits{}, "FIFO"},
		{"two that contradict", []string{"vendor.example/nic=port0", "vendor.example/nic=clash"}, edits.Edits{}, "node /dev/nic0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := registry().Resolve(tt.names)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if err := got.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFindUnknown(t *testing.T) {
	for want, r := range map[string]Registry{
		"the host has no CDI devices of others": {},
		"/etc/cdi/x.json: it is broken":         {Problems: []Problem{{"/etc/cdi/x.json", "it is broken"}}},
	} {
		if _, _, err := r.Find("a/b=c"); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestAllowed(t *testing.T) {
	tests := []struct {
		name     string
		patterns []string
		want     bool
	}{
		{"vendor.example/nic=a", nil, false},
		{"vendor.example/nic=a", []string{"vendor.example/nic"}, true},
		{"vendor.example/nic=a", []string{"other/x", "vendor.example/*"}, true},
		{"vendor.example/nic=a", []string{"*"}, true},
		{"vendor.example/nic=a", []string{"vendor.example"}, false},
		{"vendor.example/nic=a", []string{"vendor.example/ni"}, false},
		{"vendor.example.evil/nic=a", []string{"vendor.example/*"}, false},
		{"vendor.example/nic=vendor.example/gpu=a", []string{"vendor.example/gpu"}, false},
	}
	for _, tt := range tests {
		if got := Allowed(tt.name, tt.patterns); got != tt.want {
			t.Errorf("%s in %v: %v", tt.name, tt.patterns, got)
		}
	}
}

func TestFile(t *testing.T) {
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "cdi.json")
	spec := filepath.Join(dir, "nic.yaml")
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(spec+".new", []byte(text), 0o600), os.Rename(spec+".new", spec)); err != nil {
			t.Fatal(err)
		}
	}
	save := func(stamp string) {
		t.Helper()
		if err := Save(path, stamp, registry()); err != nil {
			t.Fatal(err)
		}
	}
	stamp := func() string {
		t.Helper()
		s, err := Stamp([]string{dir, "/no/such/directory"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	load := func() error {
		t.Helper()
		got, err := Load(path, []string{dir, "/no/such/directory"})
		if err == nil {
			if diff := cmp.Diff(registry(), got); diff != "" {
				t.Error(diff)
			}
		}
		return err
	}
	if err := load(); !errors.Is(err, ErrStale) {
		t.Errorf("no list: %v", err)
	}
	write("one")
	save(stamp())
	if err := load(); err != nil {
		t.Error(err)
	}
	before := stamp()
	write("two")
	if err := load(); !errors.Is(err, ErrStale) {
		t.Errorf("a spec was replaced by one of the same size: %v", err)
	}
	save(before)
	if err := load(); !errors.Is(err, ErrStale) {
		t.Errorf("a spec was replaced while the list was made: %v", err)
	}
	save(stamp())
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "README"), nil, 0o600), load()); err != nil {
		t.Errorf("a file that is no spec: %v", err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := load(); !errors.Is(err, ErrStale) {
		t.Errorf("broken list: %v", err)
	}
}

// For any CDI spec Resolve returns valid edits or an error, and never the right to make nodes.
func FuzzResolve(f *testing.F) {
	f.Add("/dev/null", "", "rwm", "/host", "/inside", "bind", "A=b", "createRuntime")
	f.Fuzz(func(t *testing.T, path, kind, permissions, host, inside, option, env, stage string) {
		r := Registry{Specs: []Spec{{Kind: "v/c", Devices: []Device{{Name: "d", Edits: cdispecs.ContainerEdits{
			Env:         []string{env},
			DeviceNodes: []*cdispecs.DeviceNode{{Path: path, Type: kind, Major: 1, Minor: 3, Permissions: permissions}},
			Mounts:      []*cdispecs.Mount{{HostPath: host, ContainerPath: inside, Options: []string{option}}},
			Hooks:       []*cdispecs.Hook{{HookName: stage, Path: host}},
		}}}}}}
		e, err := r.Resolve([]string{"v/c=d"})
		if err != nil || e.Validate() != nil {
			return
		}
		var spec specs.Spec
		if err := e.Apply(&spec); err != nil {
			t.Fatal(err)
		}
		for _, rule := range spec.Linux.Resources.Devices {
			if strings.Contains(rule.Access, "m") {
				t.Errorf("%q gives %q", permissions, rule.Access)
			}
		}
	})
}

// TestDevice: a device's own nodes are its holder's alone, by their numbers, but for those that the spec has for all of
// its devices and those that give access to nothing by themselves.
func TestDevice(t *testing.T) {
	node := func(path, host string) *cdispecs.DeviceNode { return &cdispecs.DeviceNode{Path: path, HostPath: host} }
	r := Registry{Specs: []Spec{{
		Path: "/etc/cdi/npu.yaml", Kind: "v/npu",
		Edits: cdispecs.ContainerEdits{DeviceNodes: []*cdispecs.DeviceNode{node("/dev/ctl", "/dev/null")}},
		Devices: []Device{
			{Name: "one", Edits: cdispecs.ContainerEdits{DeviceNodes: []*cdispecs.DeviceNode{
				node("/dev/npu0", "/dev/zero"), {Path: "/dev/npu1", Type: "u", Major: 240, Minor: 7}, node("/dev/again", "/dev/zero"), node("/dev/ctl", "/dev/null"),
			}}},
			{Name: "none", Edits: cdispecs.ContainerEdits{Env: []string{"A=b"}}},
			{Name: "gone", Edits: cdispecs.ContainerEdits{DeviceNodes: []*cdispecs.DeviceNode{node("/dev/x", "/dev/no/such")}}},
		},
	}}}
	device := func(name, nodes string) gpu.Device {
		d := gpu.CDIDevice("v/npu=" + name)
		d.Nodes, d.CommonNodes = nodes, "c 1:3"
		return d
	}
	one, none := device("one", "c 1:5,c 240:7"), device("none", "")
	if got, err := r.Device("v/npu=one"); err != nil || got != one {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := r.Device("v/npu=gone"); err == nil || !strings.Contains(err.Error(), "CDI device v/npu=gone (/etc/cdi/npu.yaml): node /dev/no/such") {
		t.Error(err)
	}
	if diff := cmp.Diff([]gpu.Device{one, none, gpu.CDIDevice("v/npu=gone")}, r.Devices()); diff != "" {
		t.Error(diff)
	}
}
