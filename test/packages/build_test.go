package packages

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// The same source gives the same packages, whatever its directory, the umask and the time zone are.
func TestReproducible(t *testing.T) {
	skipUnlessWanted(t)
	dir := t.TempDir()
	source, out := filepath.Join(dir, "elsewhere"), filepath.Join(dir, "out")
	testutil.Must(t, os.Mkdir(source, 0o700))
	copied := exec.Command("sh", "-c", `cd ../.. && umask 077 && git ls-files -z --cached --others --exclude-standard |
		xargs -0 sh -c 'for f; do [ ! -f "$f" ] || printf "%s\0" "$f"; done' - | tar -c --null -T - | tar -x --no-same-permissions -C "$0"`, source)
	if said, err := copied.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	testutil.Must(t, buildInto(out, source, older, "amd64", "TZ=Asia/Tokyo"))
	for _, first := range []string{deb(older), rpm(older), apptainerDeb(older), apptainerRPM(older), nvidiaDeb(older), nvidiaRPM(older)} {
		one, err := os.ReadFile(first)
		testutil.Must(t, err)
		other, err := os.ReadFile(filepath.Join(out, filepath.Base(first)))
		testutil.Must(t, err)
		if !bytes.Equal(one, other) {
			t.Errorf("%s differs from the one built elsewhere", filepath.Base(first))
		}
	}
}

// The packages of the other architecture have its programs, which need no newer C library than the
// packages declare.
func TestARM64(t *testing.T) {
	skipUnlessWanted(t)
	out := t.TempDir()
	testutil.Must(t, buildInto(out, "../..", older, "arm64"))
	for _, name := range []string{"berth_" + older + "_arm64.deb", "berth-" + older + "-1.aarch64.rpm"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
	for _, program := range []string{"berth", "berth-runtime", "berth-hook", "berth-nvml", "berth-monitor", "berth-broker", "berth-containerd"} {
		for _, arch := range []string{"arm64", "amd64"} {
			from := out
			if arch == "amd64" {
				from = shared
			}
			said, err := exec.Command("readelf", "-hV", filepath.Join(from, "stage", arch, program)).CombinedOutput()
			testutil.Must(t, err)
			if machine := map[string]string{"arm64": "AArch64", "amd64": "X86-64"}[arch]; !strings.Contains(string(said), machine) {
				t.Errorf("%s isn't for %s: %s", program, arch, said)
			}
			for _, version := range []string{"GLIBC_2.35", "GLIBC_2.36", "GLIBC_2.37", "GLIBC_2.38"} {
				if strings.Contains(string(said), version) {
					t.Errorf("%s for %s needs %s", program, arch, version)
				}
			}
		}
	}
}
