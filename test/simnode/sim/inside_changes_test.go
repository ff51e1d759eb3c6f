package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
)

func testChanges(t *testing.T, lib nvml.Interface, p Profile) {
	last := strconv.Itoa(len(p.GPUs) - 1)
	d, r := lib.DeviceGetHandleByIndex(len(p.GPUs) - 1)
	must(t, r)

	control(t, "lose", last)
	if _, r := d.GetUUID(); r != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("lost GPU: %v", r)
	}
	if _, r := lib.DeviceGetHandleByIndex(len(p.GPUs) - 1); r != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("handle of lost GPU: %v", r)
	}
	control(t, "restore", last)
	_, r = d.GetUUID()
	must(t, r)

	control(t, "fail", "nvmlDeviceGetUUID", "999", last)
	if _, r := d.GetUUID(); r != nvml.ERROR_UNKNOWN {
		t.Errorf("failing call: %v", r)
	}
	control(t, "unfail")

	// A call that hangs ends after later actions.
	control(t, "hang", "nvmlDeviceGetMemoryInfo", last)
	used := make(chan uint64)
	go func() {
		m, _ := d.GetMemoryInfo()
		used <- m.Used
	}()
	control(t, "process", last, "4711", "1G")
	control(t, "unhang", "nvmlDeviceGetMemoryInfo")
	if got := <-used; got < 1<<30 {
		t.Errorf("%d bytes used", got)
	}
	processes, r := d.GetComputeRunningProcesses()
	must(t, r)
	none := uint32(0xFFFFFFFF)
	want := []nvml.ProcessInfo{{Pid: 4711, UsedGpuMemory: 1 << 30, GpuInstanceId: none, ComputeInstanceId: none}}
	if diff := cmp.Diff(want, processes); diff != "" {
		t.Error(diff)
	}
	control(t, "process", last, "4711", "0")
	testMIGChange(t, lib, p)
	testUVMChange(t)
}

func testUVMChange(t *testing.T) {
	paths := []string{"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/sys/module/nvidia_uvm"}
	control(t, "uvm", "unload")
	for _, path := range paths {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s without the module: %v", path, err)
		}
	}
	devices, err := os.ReadFile("/proc/devices")
	if err != nil || strings.Contains(string(devices), "nvidia-uvm") {
		t.Errorf("without the module: %v\n%s", err, devices)
	}
	control(t, "uvm", "load")
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

func testMIGChange(t *testing.T, lib nvml.Interface, p Profile) {
	d, r := lib.DeviceGetHandleByIndex(0)
	must(t, r)
	if len(p.GPUs[0].Model.Slicings) == 0 {
		if err := Control("mig", "0", "on"); err == nil {
			t.Error("MIG on a GPU without it")
		}
		return
	}
	control(t, "mig", "0", "2g.20gb,3g.40gb")
	old, r := d.GetMigDeviceHandleByIndex(1)
	must(t, r)
	n, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	testInstances(t, n, 0, d)
	gi, ci := n.Slices(0)[1].Minors(p.GPUs[0].Minor)
	for _, minor := range []int{gi, ci} {
		if _, err := os.Stat(fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor)); err != nil {
			t.Error(err)
		}
	}
	control(t, "mig", "0", "off")
	if _, r := old.GetUUID(); r != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("slice that is gone: %v", r)
	}
	if _, err := os.Stat(fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", gi)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("capability of a slice that is gone: %v", err)
	}
	left, err := filepath.Glob(fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig/*", p.GPUs[0].Minor))
	if err != nil || left != nil {
		t.Errorf("capabilities of slices that are gone: %v (%v)", left, err)
	}
}
