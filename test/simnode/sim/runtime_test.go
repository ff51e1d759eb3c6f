package sim

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/testutil"
)

// Both runtimes start containers on both versions of cgroups, and nodes that a container may open
// answer differently from those that it may not.
func TestRuntimes(t *testing.T) {
	testutil.NeedRoot(t, "cc", "runc", "crun", "busybox")
	for _, cgroup := range []string{"v1", "v2"} {
		for _, runtime := range []string{"runc", "crun"} {
			t.Run(cgroup+" "+runtime, func(t *testing.T) {
				dir := bundle(t)
				cmd := node(t, "dgx-h100", cgroup, runtime, "run", "--bundle", dir, "simnode-test-"+cgroup+"-"+runtime)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				for _, want := range []string{
					"/dev/nvidia0: No such device or address", "/dev/nvidia1: Operation not permitted",
				} {
					if !strings.Contains(string(out), want) {
						t.Errorf("no %q in\n%s", want, out)
					}
				}
			})
		}
	}
}

// bundle makes a bundle of a container that may open the first of two nodes.
func bundle(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "rootfs")
	for _, name := range []string{"bin", "proc", "dev", "sys"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "bin/sh"), code, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("runc", "spec", "--bundle", dir).CombinedOutput(); err != nil {
		t.Fatalf("runc spec: %v: %s", err, out)
	}
	edit(t, filepath.Join(dir, "config.json"))
	return dir
}

func edit(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		t.Fatal(err)
	}
	spec.Process.Terminal = false
	spec.Process.Args = []string{"/bin/sh", "-c", "(: </dev/nvidia0); (: </dev/nvidia1); true"}
	mode := os.FileMode(0o666)
	major, minor := int64(majorNVIDIA), int64(0)
	for i := range int64(2) {
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{
			Path: "/dev/nvidia" + string(rune('0'+i)), Type: "c", Major: major, Minor: i, FileMode: &mode,
		})
	}
	spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
		Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw",
	})
	if b, err = json.Marshal(spec); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}
