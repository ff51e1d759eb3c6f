package driver

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
)

// bootHost returns the host after a boot with this id.
func bootHost(t *testing.T, host gpu.Host, id string) gpu.Host {
	t.Helper()
	host.Proc = t.TempDir()
	writeFile(t, filepath.Join(host.Proc, "sys/kernel/random/boot_id"), id+"\n", 0o644)
	return host
}

// upgrade gives the host a driver of another version.
func upgrade(t *testing.T, host gpu.Host, version string) {
	t.Helper()
	for _, l := range libraryTable() {
		if l.need == required {
			writeLibrary(t, filepath.Join(host.DriverRoot, "usr/lib64", l.fileName(version)), l.name+".so.1")
		}
	}
}

// TestPrune: directories that were used in this boot stay, and all others are removed.
func TestPrune(t *testing.T) {
	host, data := writeDebianDriver(t), t.TempDir()
	upgrade(t, host, "560.35.03")
	upgrade(t, host, "570.86.15")
	build := func(boot, version string) string {
		t.Helper()
		home, err := Build(t.Context(), bootHost(t, host, boot), version, data)
		testutil.Must(t, err)
		return home
	}
	there := func(step string, want ...string) {
		t.Helper()
		got, err := filepath.Glob(filepath.Join(data, "driver/*"))
		testutil.Must(t, err)
		if d := cmp.Diff(slices.Sorted(slices.Values(want)), got); d != "" {
			t.Errorf("%s: -want +got:\n%s", step, d)
		}
	}
	a := build("boot 1", version)
	b := build("boot 1", "560.35.03")
	there("two drivers in one boot", a, b)

	// These have no boot id, or a killed builder has left them.
	strange := filepath.Join(data, "driver/strange")
	testutil.Must(t, os.Mkdir(strange, 0o755))
	testutil.Must(t, os.MkdirAll(filepath.Join(data, "driver/.new-killed/all"), 0o755))
	build("boot 2", "560.35.03")
	there("the next boot", b, strange)

	testutil.Must(t, SetAside(b))
	aside, err := filepath.Glob(filepath.Join(data, "driver/.damaged-*"))
	testutil.Must(t, err)
	build("boot 2", "560.35.03")
	there("a damaged one in its boot", append(aside, b, strange)...)

	c := build("boot 3", "570.86.15")
	there("another driver in the next boot", c, strange)

	// A directory that is used again belongs to this boot.
	a = build("boot 4", version)
	build("boot 4", "570.86.15")
	there("back and forth", a, strange, build("boot 4", "570.86.15"))
	if _, err := Load(a, whole); err != nil {
		t.Error(err)
	}
}

// TestPruneKeepsUsed: a directory that was made in an earlier boot is in use as soon
// as a Build returns it.
func TestPruneKeepsUsed(t *testing.T) {
	host, data := writeDebianDriver(t), t.TempDir()
	upgrade(t, host, "560.35.03")
	var home string
	var err error
	for _, boot := range []string{"1", "2"} {
		home, err = Build(t.Context(), bootHost(t, host, boot), version, data)
		testutil.Must(t, err)
	}
	_, err = Build(t.Context(), bootHost(t, host, "2"), "560.35.03", data)
	testutil.Must(t, err)
	if _, err := Load(home, whole); err != nil {
		t.Error(err)
	}
}

// TestBuildNeedsBoot: without the boot's id no directory could ever be removed.
func TestBuildNeedsBoot(t *testing.T) {
	host := writeDebianDriver(t)
	host.Proc = t.TempDir()
	if home, err := Build(t.Context(), host, version, t.TempDir()); err == nil {
		t.Errorf("built %s", home)
	}
}
