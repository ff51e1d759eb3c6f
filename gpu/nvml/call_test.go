package nvml

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/gpu"
)

func newCaller(ctx context.Context, timeout time.Duration) caller {
	return caller{ctx: ctx, timeout: timeout, hung: new(atomic.Bool), has: func(f string) bool { return f != "nvmlNew" }}
}

func TestCall(t *testing.T) {
	c := newCaller(t.Context(), time.Minute)
	seven := func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	if n, err := callFunction(c, "nvmlSeven", seven); n != 7 || err != nil {
		t.Error(n, err)
	}
	_, err := callFunction(c, "nvmlNew", seven)
	if !isUnsupported(err) || !strings.Contains(err.Error(), "nvmlNew: not in this library") {
		t.Error(err)
	}
	_, err = callFunction(c, "nvmlOld", func() (int, nvml.Return) { return 7, nvml.ERROR_GPU_IS_LOST })
	if isUnsupported(err) || !isReturn(err, nvml.ERROR_GPU_IS_LOST) || !strings.HasPrefix(err.Error(), "nvmlOld: ") {
		t.Error(err)
	}
	if c.hung.Load() {
		t.Error("nothing hung")
	}
}

func TestCallHangs(t *testing.T) {
	forever := make(chan struct{})
	defer close(forever)
	hang := func() (int, nvml.Return) { <-forever; return 0, nvml.SUCCESS }

	c := newCaller(t.Context(), time.Millisecond)
	_, err := callFunction(c, "nvmlHang", hang)
	if err == nil || err.Error() != "NVML call nvmlHang did not return within 1ms" || !c.hung.Load() {
		t.Error(err, c.hung.Load())
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c = newCaller(ctx, time.Hour)
	if _, err := callFunction(c, "nvmlHang", hang); !errors.Is(err, context.Canceled) || !c.hung.Load() {
		t.Error(err, c.hung.Load())
	}
}

func TestParseAddress(t *testing.T) {
	tests := map[string]string{
		"00000000:1B:00.0": "0000:1b:00.0", "0000:1B:00.0": "0000:1b:00.0", "00010000:C3:1F.7": "10000:c3:1f.7",
		"": "", "1B:00.0": "", "0000:1B:00": "", "0000:1B:20.0": "", "0000:1B:00.8": "", "0000:1BB:00.0": "", "x:1B:00.0": "",
	}
	for id, want := range tests {
		got, err := parseAddress(id)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", id, got, err, want)
		}
	}
	var info nvml.PciInfo
	for i, c := range []byte("00000000:1B:00.0") {
		info.BusId[i] = int8(c)
	}
	if got, err := sysfsAddress(info); got != "0000:1b:00.0" || err != nil {
		t.Error(got, err)
	}
}

func TestProfileOf(t *testing.T) {
	tests := map[string]string{
		"NVIDIA A100-SXM4-40GB MIG 1g.5gb": "1g.5gb", "NVIDIA H100 80GB HBM3 MIG 2c.3g.40gb": "2c.3g.40gb",
		"NVIDIA A100-SXM4-80GB MIG 1g.10gb+me": "1g.10gb+me", "NVIDIA X MIG 1G.10GB+ME.ALL": "1g.10gb+me.all",
		"NVIDIA H100 80GB HBM3": "", "": "", "NVIDIA X MIG ": "", "NVIDIA X MIG mode on": "",
	}
	for name, want := range tests {
		if got, ok := profileOf(name); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", name, got, ok)
		}
	}
}

// The sizes are those that the drivers report for these models.
func TestProfileName(t *testing.T) {
	const gib = 1 << 30
	tests := []struct {
		want      string
		g, c      uint32
		megabytes uint64
		total     uint64
		kind      int
	}{
		{"1g.5gb", 1, 1, 4864, 40 * gib, nvml.GPU_INSTANCE_PROFILE_1_SLICE},
		{"7g.40gb", 7, 7, 40192, 40 * gib, nvml.GPU_INSTANCE_PROFILE_7_SLICE},
		{"1g.10gb", 1, 1, 9856, 85520809984, nvml.GPU_INSTANCE_PROFILE_1_SLICE},
		{"1g.10gb+me", 1, 1, 9856, 85520809984, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1},
		{"1g.20gb", 1, 1, 19968, 85520809984, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2},
		{"2c.3g.40gb", 3, 2, 40320, 85520809984, nvml.GPU_INSTANCE_PROFILE_3_SLICE},
		{"1g.24gb-me", 1, 1, 23552, 192 * gib, nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME},
		{"1g.24gb+gfx", 1, 1, 23552, 192 * gib, nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX},
		{"1g.24gb+me.all", 1, 1, 23552, 192 * gib, nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME},
		{"1g.10gb", 1, 1, 9856, 0, nvml.GPU_INSTANCE_PROFILE_COUNT},
	}
	for _, tt := range tests {
		a := nvml.DeviceAttributes{GpuInstanceSliceCount: tt.g, ComputeInstanceSliceCount: tt.c, MemorySizeMB: tt.megabytes}
		if got := profileName(a, tt.total, tt.kind); got != tt.want {
			t.Errorf("%s, want %s", got, tt.want)
		}
	}
}

func TestArchitecture(t *testing.T) {
	for a, want := range map[nvml.DeviceArchitecture]string{
		nvml.DEVICE_ARCH_VOLTA: "volta", nvml.DEVICE_ARCH_BLACKWELL: "blackwell", 99: "", nvml.DEVICE_ARCH_UNKNOWN: "",
	} {
		if got := architectureName(a); got != want {
			t.Errorf("%d: %q, want %q", a, got, want)
		}
	}
}

func TestLoad(t *testing.T) {
	broken := t.TempDir() + "/broken.so"
	write(t, broken, "not a library")
	tests := []struct {
		name, library, want string
		none                bool
	}{
		{"missing", "/nonexistent/libnvidia-ml.so.1", "load /nonexistent/libnvidia-ml.so.1: cannot open shared object file", true},
		{"missing name", "libno-such-nvml.so.1", "load libno-such-nvml.so.1: cannot open shared object file", true},
		{"broken", broken, "load " + broken + ": ", false},
		{"another library", "libm.so.6", "load libm.so.6: it isn't NVML", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Source{Library: tt.library}.Read(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || errors.Is(err, gpu.ErrNoDriver) != tt.none {
				t.Errorf("%v (no driver: %v), want %q", err, errors.Is(err, gpu.ErrNoDriver), tt.want)
			}
		})
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	path := root + "/usr/lib64/libnvidia-ml.so.1"
	write(t, path, "")
	write(t, root+"/usr/lib64/libother.so", "")
	debian := t.TempDir()
	current := debian + "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1"
	write(t, current, "")
	tests := []struct {
		name, library, root, want string
	}{
		{"usual", "", "", "libnvidia-ml.so.1"},
		{"root is the machine", "", "/", "libnvidia-ml.so.1"},
		{"below the driver root", "", root, path},
		{"another name below it", "libother.so", root, root + "/usr/lib64/libother.so"},
		{"Debian's", "", debian, current},
		{"not below it", "libnone.so", root, "libnone.so"},
		{"a path", "/opt/libnvidia-ml.so.1", root, "/opt/libnvidia-ml.so.1"},
	}
	for _, tt := range tests {
		if got := Find(tt.library, gpu.Host{DriverRoot: tt.root}); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
