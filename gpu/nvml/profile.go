package nvml

import (
	"fmt"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// profileOf finds the profile in the name of a MIG device, "NVIDIA A100-SXM4-40GB
// MIG 1c.3g.20gb".
func profileOf(name string) (string, bool) {
	_, profile, ok := strings.Cut(name, " MIG ")
	if !ok || profile == "" || strings.ContainsAny(profile, " /") {
		return "", false
	}
	return strings.ToLower(profile), true
}

// profileName names a slice as nvidia-smi does: compute slices if they aren't all of the instance's,
// the instance's slices, its memory in GB, and the suffix of the profile ("+me", "-me", "+gfx").
// total is the GPU's memory in bytes.
func profileName(a nvml.DeviceAttributes, total uint64, kind int) string {
	name := fmt.Sprintf("%dg.%dgb%s", a.GpuInstanceSliceCount, roundToGigabytes(a.MemorySizeMB, total), profileSuffix(kind))
	if a.ComputeInstanceSliceCount < a.GpuInstanceSliceCount {
		name = fmt.Sprintf("%dc.%s", a.ComputeInstanceSliceCount, name)
	}
	return name
}

// roundToGigabytes rounds an instance's memory up to eighths of the GPU's, which is the
// size that its name carries.
func roundToGigabytes(megabytes, total uint64) uint64 {
	if total == 0 {
		return (megabytes + 1023) / 1024
	}
	eighths := math.Ceil(float64(megabytes<<20) / float64(total) * 8)
	whole := math.Ceil(float64(total) / (1 << 30))
	return uint64(math.Round(eighths / 8 * whole))
}

func profileSuffix(kind int) string {
	switch kind {
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1:
		return "+me"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, nvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX, nvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX:
		return "+gfx"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME:
		return "-me"
	case nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, nvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME:
		return "+me.all"
	}
	return ""
}
