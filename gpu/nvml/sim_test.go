package nvml_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/simnode/sim"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestProfiles(t *testing.T) {
	for _, profile := range []string{"dgx-h100", "dgx-a100-mig", "l40s-pcie", "one-gpu"} {
		t.Run(profile, func(t *testing.T) {
			r := runJob(t, job{Profile: profile, Timeout: time.Minute})
			if r.Error != "" || r.Stale != nil {
				t.Fatalf("%s %v", r.Error, r.Stale)
			}
			compare(t, golden(profile), withoutMachine(r.Inventory))
		})
	}
}

// The computed profiles equal the names that drivers give.
func TestComputedProfiles(t *testing.T) {
	r := runJob(t, job{Profile: "dgx-a100-mig", Timeout: time.Minute, Name: true})
	if r.Error != "" {
		t.Fatal(r.Error)
	}
	want := map[string]string{}
	for _, g := range r.Inventory.GPUs {
		for _, s := range g.Slices {
			want[s.UUID] = s.Profile
		}
	}
	if d := diff.Diff(want, r.Computed); d != "" || len(want) == 0 {
		t.Error(d)
	}
}

func compare(t *testing.T, path string, value any) {
	t.Helper()
	got, err := json.MarshalIndent(value, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s (run with -update to rewrite):\n%s", path, diff.Diff(string(want), string(got)))
	}
}

// After a boot, before any CUDA program has started, uvm isn't loaded and there are no nodes; the
// library is read without them.
func TestPrepare(t *testing.T) {
	r := runJob(t, job{
		Profile: "dgx-a100-mig", Options: sim.Options{BareNodes: true, NoUVM: true},
		Prepare: true, Timeout: time.Minute,
	})
	if r.Error != "" || !r.UVM {
		t.Fatalf("uvm loaded: %v; %s", r.UVM, r.Error)
	}
	made := map[string]bool{}
	for _, c := range r.Made[0] {
		made[c.Path] = c.Was == ""
	}
	want := []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1", "char/195:255"}
	for _, g := range r.Inventory.GPUs {
		want = append(want, fmt.Sprint("nvidia", g.Minor), fmt.Sprint("char/195:", g.Minor))
		for _, s := range g.Slices {
			want = append(want, fmt.Sprint("nvidia-caps/nvidia-cap", s.GIMinor), fmt.Sprint("nvidia-caps/nvidia-cap", s.CIMinor))
		}
	}
	for _, path := range want {
		if !made[path] {
			t.Errorf("%s wasn't made", path)
		}
	}
	if r.Made[1] != nil {
		t.Errorf("made again: %v", r.Made[1])
	}
}

// lostReasons returns the reason for each lost GPU.
func lostReasons(r result) map[int]string {
	reasons := map[int]string{}
	for _, g := range r.Inventory.GPUs {
		if g.Lost != "" {
			reasons[g.Index] = g.Lost
		}
	}
	return reasons
}

func TestFailures(t *testing.T) {
	const notSupported, unknown, gpuIsLost, driverNotLoaded = "3", "999", "15", "9"
	hang := func(function string, rest ...string) [][]string {
		return [][]string{append([]string{"hang", function}, rest...)}
	}
	fail := func(function, code string, rest ...string) [][]string {
		return [][]string{append([]string{"fail", function, code}, rest...)}
	}
	tests := []struct {
		name    string
		actions [][]string
		call    time.Duration // how long a call may take; a minute if not set
		child   time.Duration
		library string
		lost    map[int]string
		wantErr string
		none    bool
	}{
		{name: "healthy, in a child", child: time.Minute},
		{name: "off the bus", actions: [][]string{{"lose", "2"}}, lost: map[int]string{2: "GPU is lost"}},
		{name: "off the bus, in a child", actions: [][]string{{"lose", "2"}}, child: time.Minute, lost: map[int]string{2: "GPU is lost"}},
		{name: "several", actions: [][]string{{"lose", "0"}, {"lose", "3"}}, lost: map[int]string{0: "GPU is lost", 3: "GPU is lost"}},
		{
			name: "hangs", actions: hang("nvmlDeviceGetMemoryInfo", "1"), call: 2 * time.Second,
			lost: map[int]string{1: "NVML call nvmlDeviceGetMemoryInfo did not return within 2s"},
		},
		{
			name: "hangs early", actions: hang("nvmlDeviceGetHandleByIndex", "1"), call: 2 * time.Second,
			lost: map[int]string{1: "NVML call nvmlDeviceGetHandleByIndex did not return within 8s"},
		},
		{
			name: "hangs for longer than the child has", actions: hang("nvmlDeviceGetMemoryInfo", "1"), child: 10 * time.Second,
			lost: map[int]string{1: "no answer within 10s"},
		},
		{name: "init hangs", actions: hang("nvmlInit"), call: 2 * time.Second, wantErr: "NVML call nvmlInit_v2 did not return within 8s"},
		{name: "init hangs in a child", actions: hang("nvmlInit"), child: 10 * time.Second, wantErr: "read node: no answer within 10s"},
		{name: "shutdown hangs", actions: hang("nvmlShutdown"), call: 2 * time.Second},
		{name: "UUID unreadable", actions: fail("nvmlDeviceGetUUID", unknown, "1"), lost: map[int]string{1: "nvmlDeviceGetUUID: Unknown Error"}},
		{name: "MIG mode not supported", actions: fail("nvmlDeviceGetMigMode", notSupported, "1")},
		{name: "MIG mode unreadable isn't MIG mode off", actions: fail("nvmlDeviceGetMigMode", unknown, "1"), lost: map[int]string{1: "nvmlDeviceGetMigMode: Unknown Error"}},
		{name: "memory not supported", actions: fail("nvmlDeviceGetMemoryInfo", notSupported, "1")},
		{name: "memory unreadable", actions: fail("nvmlDeviceGetMemoryInfo", unknown, "1"), lost: map[int]string{1: "nvmlDeviceGetMemoryInfo: Unknown Error"}},
		{name: "lost while links are read", actions: fail("nvmlDeviceGetNvLinkState", gpuIsLost, "1"), lost: map[int]string{1: "nvmlDeviceGetNvLinkState: GPU is lost"}},
		{name: "count unreadable", actions: fail("nvmlDeviceGetCount", unknown), wantErr: "nvmlDeviceGetCount: Unknown Error"},
		{name: "driver not loaded", actions: fail("nvmlInit", driverNotLoaded), wantErr: "nvmlInit_v2: Driver Not Loaded", none: true},
		{name: "driver not loaded, in a child", actions: fail("nvmlInit", driverNotLoaded), child: time.Minute, wantErr: "Driver Not Loaded", none: true},
		{name: "no library", library: "/nonexistent/libnvidia-ml.so.1", wantErr: "load /nonexistent/libnvidia-ml.so.1", none: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // some wait long
			call := cmp.Or(tt.call, time.Minute)
			r := runJob(t, job{Profile: "l40s-pcie", Actions: tt.actions, Library: tt.library, Timeout: call, Child: tt.child})
			if tt.wantErr != "" || r.Error != "" {
				if tt.wantErr == "" || !strings.Contains(r.Error, tt.wantErr) || r.NoDriver != tt.none {
					t.Errorf("%q (no driver: %v), want %q", r.Error, r.NoDriver, tt.wantErr)
				}
				return
			}
			if len(r.Inventory.GPUs) != 4 {
				t.Fatalf("%d GPUs", len(r.Inventory.GPUs))
			}
			got := lostReasons(r)
			for i, reason := range got {
				if tt.lost[i] == "" || !strings.Contains(reason, tt.lost[i]) {
					t.Errorf("GPU %d is lost: %q, want %q", i, reason, tt.lost[i])
				}
			}
			if len(got) != len(tt.lost) {
				t.Errorf("lost: %v, want %v", got, tt.lost)
			}
		})
	}
}

// A GPU about which NVML reports nothing has the identity that the kernel module reports.
func TestLostIdentity(t *testing.T) {
	whole := runJob(t, job{Profile: "l40s-pcie", Timeout: time.Minute}).Inventory.GPUs[2]
	for name, actions := range map[string][][]string{
		"off the bus": {{"lose", "2"}},
		"no handle":   {{"fail", "nvmlDeviceGetHandleByIndex", "999", "2"}},
		"no UUID":     {{"fail", "nvmlDeviceGetUUID", "999", "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := runJob(t, job{Profile: "l40s-pcie", Actions: actions, Timeout: time.Minute}).Inventory.GPUs[2]
			if got.Lost == "" || got.UUID != whole.UUID || got.PCI != whole.PCI || got.Minor != whole.Minor || got.NUMA != whole.NUMA {
				t.Errorf("%+v, want the identity of %+v", got, whole)
			}
		})
	}
}

func TestSnapshotKeyChanges(t *testing.T) {
	tests := []struct {
		name    string
		actions [][]string
		want    []string
	}{
		{"nothing", nil, nil},
		{"memory in use", [][]string{{"process", "0", "1", "40G"}}, nil},
		{"MIG on", [][]string{{"mig", "0", "3g.40gb,1g.10gb"}}, []string{"MIG layout (gpu0: "}},
		{"MIG off", [][]string{{"mig", "6", "off"}}, []string{"MIG layout (gpu0: "}},
		{"driver", [][]string{{"driver", "560.35.03"}}, []string{"driver 550.163.01 is now 560.35.03"}},
		{"uvm unloaded", [][]string{{"uvm", "unload"}}, []string{"major of nvidia-uvm "}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := runJob(t, job{Profile: "dgx-a100-mig", Actions: tt.actions, Timeout: time.Minute})
			if r.Error != "" {
				t.Fatal(r.Error)
			}
			if len(r.Stale) != len(tt.want) {
				t.Fatalf("%q, want %q", r.Stale, tt.want)
			}
			for i, want := range tt.want {
				if !strings.HasPrefix(r.Stale[i], want) {
					t.Errorf("%q, want %q", r.Stale[i], want)
				}
			}
		})
	}
}

// The inventory has a new layout.
func TestRecut(t *testing.T) {
	r := runJob(t, job{Profile: "dgx-a100-mig", Actions: [][]string{{"mig", "0", "3g.40gb:1c:2c,2g.20gb"}}, Timeout: time.Minute})
	if r.Error != "" {
		t.Fatal(r.Error)
	}
	var got []string
	for _, s := range r.Inventory.GPUs[0].Slices {
		got = append(got, fmt.Sprintf("%s %v", s.Profile, s.GIMinor > 2 && s.CIMinor > s.GIMinor))
	}
	if d := diff.Diff([]string{"1c.3g.40gb true", "2c.3g.40gb true", "2g.20gb true"}, got); d != "" {
		t.Error(d)
	}
}
