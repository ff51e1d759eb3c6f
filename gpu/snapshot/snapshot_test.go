package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
)

// machine is a node of eight GPUs, of which one is cut into two slices.
type machine struct {
	tb   testing.TB
	root string
}

func newMachine(tb testing.TB) machine {
	m := machine{tb, tb.TempDir()}
	m.write("proc/sys/kernel/random/boot_id", "3f0c\n")
	m.write("sys/module/nvidia/version", "550.163.01\n")
	m.devices(509)
	m.write("dev/nvidia-fs0", "")
	m.write("dev/nvidia-nvswitchctl", "")
	m.write("dev/nvidia-caps-imex-channels/channel0", "")
	long := time.Unix(1_600_000_000, 0) // in the past, so that each change is seen, however coarse the clock
	m.must(os.Chtimes(filepath.Join(m.root, "dev/nvidia-caps-imex-channels"), long, long))
	for i := range 8 {
		m.write(fmt.Sprintf("proc/driver/nvidia/gpus/0000:%02x:00.0/information", 16+i), "")
	}
	m.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", "")
	m.write("proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access", "")
	return m
}

func (m machine) host() gpu.Host {
	return gpu.Host{Dev: m.root + "/dev", Proc: m.root + "/proc", Sys: m.root + "/sys"}
}

func (m machine) path() string { return filepath.Join(m.root, "inventory.json") }

func (m machine) write(name, text string) {
	m.tb.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.tb.Fatal(err)
	}
}

func (m machine) devices(uvm int) {
	m.write("proc/devices", fmt.Sprintf("Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n%d nvidia-uvm\n240 nvidia-fs\n241 gdrdrv\n243 nvidia-caps-imex-channels\n\nBlock devices:\n  8 sd\n", uvm))
}

func (m machine) remove(name string) {
	m.tb.Helper()
	if err := os.RemoveAll(filepath.Join(m.root, name)); err != nil {
		m.tb.Fatal(err)
	}
}

func (m machine) save(inv gpu.Inventory) Snapshot {
	m.tb.Helper()
	key, err := ReadKey(m.host())
	if err != nil {
		m.tb.Fatal(err)
	}
	s := Snapshot{Taken: time.Unix(1_700_000_000, 0).UTC(), Key: key, Inventory: inv}
	if err := Save(m.path(), s); err != nil {
		m.tb.Fatal(err)
	}
	return s
}

// largeSnapshot is the snapshot of a server with eight GPUs and ten adapters.
func largeSnapshot() gpu.Inventory {
	inv := gpu.Inventory{Hostname: "dgx", Driver: gpu.Driver{Version: "550.163.01", CUDA: "12.4"}, NVSwitches: 4}
	for i := range 8 {
		inv.GPUs = append(inv.GPUs, gpu.GPU{
			UUID: fmt.Sprintf("GPU-6d1f1d3a-8f0e-4a43-9f2b-0123456789%02x", i), Index: i, Minor: i,
			PCI: fmt.Sprintf("0000:%02x:00.0", 16+i), Model: "NVIDIA H100 80GB HBM3", Architecture: "hopper",
			DRI:               []gpu.DRINode{{Name: fmt.Sprintf("card%d", i), Minor: i}, {Name: fmt.Sprintf("renderD%d", 128+i), Minor: 128 + i}},
			ComputeCapability: "9.0", Memory: 80 << 30, NUMA: i / 4, CPUs: "0-55,112-167",
		})
		for a := range i {
			inv.Links = append(inv.Links, gpu.Link{A: a, B: i, NVLinks: 18, PCIe: gpu.PathSYS})
		}
	}
	for i := range 16 {
		inv.FeatureNodes = append(inv.FeatureNodes, gpu.FeatureNode{Feature: "gds", Path: fmt.Sprintf("nvidia-fs%d", i), Major: 240, Minor: i})
	}
	for i := range 10 {
		inv.NICs = append(inv.NICs, gpu.NIC{
			Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("0000:%02x:00.1", 16+i), Uverbs: fmt.Sprintf("uverbs%d", i),
			Ports: []gpu.Port{{Number: 1, LinkLayer: "InfiniBand", State: "ACTIVE", Rate: "400 Gb/sec (4X NDR)"}},
			Near:  []gpu.Path{"PIX", "PXB", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"},
		})
	}
	return inv
}

func TestReadKey(t *testing.T) {
	m := newMachine(t)
	got, err := ReadKey(m.host())
	if err != nil {
		t.Fatal(err)
	}
	want := Key{
		BootID: "3f0c", Driver: "550.163.01",
		Majors: map[string]uint32{
			"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 509,
			"nvidia-fs": 240, "gdrdrv": 241, "nvidia-caps-imex-channels": 243,
		},
		GPUs: []string{
			"0000:10:00.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0",
			"0000:14:00.0", "0000:15:00.0", "0000:16:00.0", "0000:17:00.0",
		},
		MIG:          []string{"gpu0: 1.0 2.0"},
		FeatureNodes: []string{"nvidia-fs0"}, // nvidia-nvswitch isn't loaded, so the node doesn't count
	}
	if got.Channels == 0 {
		t.Error("the IMEX channels weren't looked at")
	}
	got.Channels = 0
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// The machine that runs the tests has a key, with a driver or without.
func TestReadKeyHere(t *testing.T) {
	k, err := ReadKey(gpu.Host{})
	if err != nil || k.BootID == "" {
		t.Errorf("%+v, %v", k, err)
	}
	if len(k.Changes(k)) != 0 {
		t.Error("a key differs from itself")
	}
}

func TestRoundTrip(t *testing.T) {
	m := newMachine(t)
	want := m.save(largeSnapshot())
	first, err := os.ReadFile(m.path())
	if err != nil {
		t.Fatal(err)
	}
	got, err := Load(m.path(), m.host())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := Save(m.path(), got); err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(m.path())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Errorf("the same snapshot, other bytes:\n%s\n%s", first, second)
	}
}

// TestSaveProcesses: only root reads the names and users of processes.
func TestSaveProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "processes.json")
	want := map[string][]gpu.Process{"GPU-a": {{PID: 1, Start: 2, Name: "python", User: "bob"}}}
	if err := SaveProcesses(path, "boot", want); err != nil {
		t.Fatal(err)
	}
	boot, got := LoadProcesses(path)
	if d := cmp.Diff(want, got); boot != "boot" || d != "" {
		t.Error(boot, d)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := st.Mode(); mode != 0o600 {
		t.Errorf("mode %v", mode)
	}
}

func TestLoadStale(t *testing.T) {
	tests := []struct {
		name   string
		change func(m machine)
		want   string
	}{
		{"none", func(m machine) { m.remove("inventory.json") }, "there is none yet"},
		{"boot", func(m machine) { m.write("proc/sys/kernel/random/boot_id", "77\n"); m.devices(1) }, "the machine was booted since"},
		{"driver", func(m machine) { m.write("sys/module/nvidia/version", "560.35.03\n") }, "driver 550.163.01 is now 560.35.03"},
		{"driver unloaded", func(m machine) { m.remove("sys/module") }, "driver 550.163.01 is gone"},
		{"uvm loaded anew", func(m machine) { m.devices(510) }, "major of nvidia-uvm 509 is now 510"},
		{"uvm unloaded", func(m machine) { m.replace("proc/devices", "509 nvidia-uvm\n", "") }, "major of nvidia-uvm 509 is gone"},
		{"GPU removed", func(m machine) { m.remove("proc/driver/nvidia/gpus/0000:12:00.0") }, "GPU 0000:12:00.0 is gone"},
		{"GPU added", func(m machine) { m.write("proc/driver/nvidia/gpus/0000:aa:00.0/information", "") }, "GPU 0000:aa:00.0 is new"},
		{"slice removed", func(m machine) { m.remove("proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0") }, "MIG layout (gpu0: 1.0 2.0) is now (gpu0: 1.0 2)"},
		{"slice added", func(m machine) { m.write("proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci1/access", "") }, "MIG layout (gpu0: 1.0 2.0) is now (gpu0: 1.0 2.0 2.1)"},
		{"MIG off", func(m machine) { m.remove("proc/driver/nvidia/capabilities") }, "MIG layout (gpu0: 1.0 2.0) is now (none)"},
		{"two things", func(m machine) { m.devices(510); m.remove("sys/module") }, "driver 550.163.01 is gone; major of nvidia-uvm 509 is now 510"},
		{"nvidia_drm loaded", func(m machine) { m.write("sys/module/nvidia_drm/initstate", "live") }, "nvidia_drm was loaded"},
		{"node made", func(m machine) { m.write("dev/gdrdrv", "") }, "node gdrdrv is new"},
		{"node removed", func(m machine) { m.remove("dev/nvidia-fs0") }, "node nvidia-fs0 is gone"},
		{"channel made", func(m machine) { m.write("dev/nvidia-caps-imex-channels/channel1", "") }, "IMEX channels were made or removed"},
		{"channel removed", func(m machine) { m.remove("dev/nvidia-caps-imex-channels/channel0") }, "IMEX channels were made or removed"},
		{"channels gone", func(m machine) { m.remove("dev/nvidia-caps-imex-channels") }, "IMEX channels were made or removed"},
		{"empty", func(m machine) { m.write("inventory.json", "") }, "it is damaged"},
		{"not JSON", func(m machine) { m.write("inventory.json", "hello\n") }, "it is damaged"},
		{"another version", func(m machine) { m.write("inventory.json", `{"berth_snapshot":1}`) }, "it was written by another version of berth"},
		{"truncated", func(m machine) { m.edit(func(b []byte) []byte { return b[:len(b)-9] }) }, "it is damaged: wrong checksum"},
		{"a bit flipped", func(m machine) {
			m.edit(func(b []byte) []byte { return bytes.Replace(b, []byte(`"minor":3`), []byte(`"minor":2`), 1) })
		}, "it is damaged: wrong checksum"},
		{"huge", func(m machine) { m.edit(func([]byte) []byte { return make([]byte, maxSize+1) }) }, "file is too large"},
		{"a link", func(m machine) {
			m.must(os.Rename(m.path(), m.path()+".real"))
			m.must(os.Symlink(m.path()+".real", m.path()))
		}, "it is a symbolic link"},
		{"a directory", func(m machine) { m.remove("inventory.json"); m.must(os.Mkdir(m.path(), 0o755)) }, "it is not a regular file"},
		{"a pipe", func(m machine) { m.remove("inventory.json"); m.must(unix.Mkfifo(m.path(), 0o644)) }, "it is not a regular file"},
		{"writable by others", func(m machine) { m.must(os.Chmod(m.path(), 0o666)) }, "other users may write to it (mode 0666)"},
		{"writable by its group", func(m machine) { m.must(os.Chmod(m.path(), 0o664)) }, "other users may write to it (mode 0664)"},
		{"planted", func(m machine) {
			testutil.NeedRoot(m.tb)
			m.must(os.Chown(m.path(), 1234, 0))
		}, "it belongs to user 1234"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			m.save(largeSnapshot())
			tt.change(m)
			_, err := Load(m.path(), m.host())
			if !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			m.remove("inventory.json")
			if _, err := ReadKey(m.host()); err != nil {
				t.Fatal(err)
			}
			m.save(largeSnapshot()) // a new snapshot fixes it
			if _, err := Load(m.path(), m.host()); err != nil {
				t.Errorf("after renewal: %v", err)
			}
		})
	}
}

func (m machine) edit(change func([]byte) []byte) {
	m.tb.Helper()
	data, err := os.ReadFile(m.path())
	m.must(err)
	m.must(os.WriteFile(m.path(), change(data), 0o644))
}

// replace changes a text in one of the machine's files.
func (m machine) replace(name, old, text string) {
	m.tb.Helper()
	data, err := os.ReadFile(filepath.Join(m.root, name))
	m.must(err)
	m.write(name, strings.Replace(string(data), old, text, 1))
}

func (m machine) must(err error) {
	m.tb.Helper()
	if err != nil {
		m.tb.Fatal(err)
	}
}

// Save replaces a planted file, and doesn't write through it.
func TestSaveReplaces(t *testing.T) {
	m := newMachine(t)
	m.write("precious", "text")
	m.must(os.Symlink(m.root+"/precious", m.path()))
	m.save(largeSnapshot())
	text, err := os.ReadFile(m.root + "/precious")
	if err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Load(m.path(), m.host()); err != nil {
		t.Error(err)
	}
}

func TestLoadDriverDir(t *testing.T) {
	m := newMachine(t)
	s := m.save(largeSnapshot())
	s.DriverDir = m.root + "/driver/550.163.01"
	m.must(os.MkdirAll(s.DriverDir, 0o755))
	m.must(Save(m.path(), s))
	if _, err := Load(m.path(), m.host()); err != nil {
		t.Fatal(err)
	}
	m.remove("driver")
	if _, err := Load(m.path(), m.host()); !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), "550.163.01 is gone") {
		t.Error(err)
	}
}

// A machine that can't be read isn't a stale snapshot: discovery wouldn't help.
func TestLoadUnreadable(t *testing.T) {
	m := newMachine(t)
	m.save(largeSnapshot())
	m.remove("proc/devices")
	if _, err := Load(m.path(), m.host()); err == nil || errors.Is(err, ErrStale) {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	m := newMachine(f)
	m.save(largeSnapshot())
	now, err := ReadKey(m.host())
	if err != nil {
		f.Fatal(err)
	}
	data, err := os.ReadFile(m.path())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"berth_snapshot":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, changes := decodeSnapshot(data, now)
		if changes == nil && len(s.Key.Changes(now)) != 0 {
			t.Errorf("a key of another machine: %+v", s.Key)
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	m := newMachine(b)
	m.save(largeSnapshot())
	for b.Loop() {
		if _, err := Load(m.path(), m.host()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadKey(b *testing.B) {
	m := newMachine(b)
	for b.Loop() {
		if _, err := ReadKey(m.host()); err != nil {
			b.Fatal(err)
		}
	}
}
