package cdi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

func inventory() gpu.Inventory {
	return gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", Index: 0, Minor: 3},
		{UUID: "GPU-b", Index: 1, Minor: 0, MIG: true, Slices: []gpu.Slice{
			{UUID: "MIG-1", Profile: "1g.10gb", GIMinor: 30, CIMinor: 31}, {UUID: "MIG-2", Index: 1, Profile: "1g.10gb", GIMinor: 39, CIMinor: 40},
		}},
		{UUID: "GPU-lost", Index: 2, Minor: 2, Lost: "GPU is lost"},
		{UUID: "GPU-odd", Index: 3, Minor: -1},
	}}
}

func majors() map[string]uint32 {
	return map[string]uint32{"nvidia": 195, "nvidia-uvm": 508, "nvidia-caps": 511}
}

func TestDevices(t *testing.T) {
	node := func(path string, major, minor int64, mode uint32) edits.Node {
		return edits.Node{Path: path, Type: "c", Major: major, Minor: minor, Mode: mode, Access: "rw"}
	}
	control := []edits.Node{
		node("/dev/nvidiactl", 195, 255, 0o666), node("/dev/nvidia-uvm", 508, 0, 0o666), node("/dev/nvidia-uvm-tools", 508, 1, 0o666),
	}
	env := map[string]string{"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVIDIA_VISIBLE_DEVICES": "void"}
	for _, tt := range []struct {
		name   string
		leased []string
		want   edits.Edits
	}{
		{name: "none"},
		{
			name: "a GPU has the node of its minor", leased: []string{"GPU-a"},
			want: edits.Edits{Env: env, Nodes: append([]edits.Node{node("/dev/nvidia3", 195, 3, 0o666)}, control...)},
		},
		{
			name: "two slices of one GPU share its node", leased: []string{"MIG-1", "MIG-2"},
			want: edits.Edits{Env: env, Nodes: append([]edits.Node{
				node("/dev/nvidia0", 195, 0, 0o666),
				node("/dev/nvidia-caps/nvidia-cap30", 511, 30, 0o444), node("/dev/nvidia-caps/nvidia-cap31", 511, 31, 0o444),
				node("/dev/nvidia-caps/nvidia-cap39", 511, 39, 0o444), node("/dev/nvidia-caps/nvidia-cap40", 511, 40, 0o444),
			}, control...)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Devices(inventory(), devices(tt.leased), majors())
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if err := got.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

func devices(uuids []string) []gpu.Device {
	var all []gpu.Device
	for _, u := range uuids {
		all = append(all, gpu.Device{UUID: u})
	}
	return all
}

func TestDevicesRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		leased string
		less   string // major that isn't there
		want   string
	}{
		{name: "vanished", leased: "MIG-9", want: "device MIG-9: the node doesn't have it any more"},
		{name: "lost", leased: "GPU-lost", want: "device GPU-lost: lost: GPU is lost"},
		{name: "without a minor", leased: "GPU-odd", want: "device GPU-odd: its minor number is unknown"},
		{name: "without uvm", leased: "GPU-a", less: "nvidia-uvm", want: "/proc/devices has no nvidia-uvm"},
		{name: "without capabilities", leased: "MIG-1", less: "nvidia-caps", want: "device MIG-1: /proc/devices has no nvidia-caps"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := majors()
			delete(m, tt.less)
			_, err := Devices(inventory(), devices([]string{tt.leased}), m)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestFiles(t *testing.T) {
	dir := driver.Dir{Path: "/var/lib/berth/driver/550-1", Manifest: driver.Manifest{Programs: []string{"nvidia-debugdump", "nvidia-smi"}}}
	options := []string{"rbind", "ro", "nosuid", "nodev", "rprivate"}
	want := edits.Edits{Mounts: []specs.Mount{
		{Destination: "/usr/local/nvidia", Type: "bind", Source: "/var/lib/berth/driver/550-1", Options: options},
		{Destination: "/usr/bin/nvidia-smi", Type: "bind", Source: "/var/lib/berth/driver/550-1/bin/nvidia-smi", Options: options},
	}}
	if d := cmp.Diff(want, Files(dir, Target)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestPrograms(t *testing.T) {
	dir := driver.Dir{Path: "/d", Manifest: driver.Manifest{Programs: []string{"nvidia-debugdump", "nvidia-smi"}}}
	want := map[string]string{
		"/usr/bin/nvidia-smi":                          "/d/bin/nvidia-smi",
		"/usr/local/nvidia/bin/nvidia-smi":             "/d/bin/nvidia-smi",
		"/usr/local/nvidia/bin/nvidia-debugdump":       "/d/bin/nvidia-debugdump",
		"/usr/local/berth/nvidia/bin/nvidia-smi":       "/d/bin/nvidia-smi",
		"/usr/local/berth/nvidia/bin/nvidia-debugdump": "/d/bin/nvidia-debugdump",
	}
	if d := cmp.Diff(want, Programs(dir)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestIncludes(t *testing.T) {
	for conf, want := range map[string]bool{
		"include /etc/ld.so.conf.d/*.conf\n":          true,
		"include ld.so.conf.d/*.conf":                 true,
		"/opt/lib\n\tinclude\tx.conf ld.so.conf.d/0*": true,
		"":                                   false,
		"# include ld.so.conf.d/*.conf\n":    false,
		"include /opt/ld.so.conf.d/*.conf\n": false,
		"include ld.so.conf.d/[\n":           false,
		"hwcap 0 nosegneg\n":                 false,
	} {
		if got := includes(conf, "/etc/ld.so.conf.d/00-berth.conf"); got != want {
			t.Errorf("includes(%q) = %v", conf, got)
		}
	}
}

// FuzzIncludes: what an image calls its configuration never stops us, and a line
// that includes our file is found wherever it stands.
func FuzzIncludes(f *testing.F) {
	f.Add("include /etc/ld.so.conf.d/*.conf\n/opt/lib # x\n")
	f.Add("include [\xff\x00")
	const ours = "/etc/ld.so.conf.d/00-berth.conf"
	f.Fuzz(func(t *testing.T, conf string) {
		includes(conf, ours)
		if !includes("include "+ours+"\n"+conf, ours) {
			t.Errorf("our line before %q isn't found", conf)
		}
	})
}
