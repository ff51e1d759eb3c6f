package match

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
)

// A set conflicts with exactly the devices with which one of its members conflicts.
func TestSetConflicts(t *testing.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	device := rapid.Custom(func(t *rapid.T) gpu.Device {
		return gpu.Device{UUID: name.Draw(t, "uuid"), Parent: rapid.SampledFrom([]string{"", "a", "b", "x"}).Draw(t, "parent")}
	})
	rapid.Check(t, func(t *rapid.T) {
		d, all := device.Draw(t, "device"), rapid.SliceOfN(device, 0, 4).Draw(t, "taken")
		if got, want := setOf(all).conflictsWith(d.UUID, d.Parent), slices.ContainsFunc(all, d.Conflicts); got != want {
			t.Errorf("%v with %v: %v, want %v", d, all, got, want)
		}
	})
}
