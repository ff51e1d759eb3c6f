package spec

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestThermalPaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cpu0/thermal_throttle", "cpu0/cache", "cpu1", "cpu10/thermal_throttle", "cpufreq/thermal_throttle", "power"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(dir, "cpu0/thermal_throttle"), filepath.Join(dir, "cpu10/thermal_throttle")}
	if diff := cmp.Diff(want, ThermalPaths(dir)); diff != "" {
		t.Error(diff)
	}
	if got := ThermalPaths(filepath.Join(dir, "none")); got != nil {
		t.Errorf("paths %q below nothing", got)
	}
}
