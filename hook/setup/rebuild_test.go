package setup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRemoveWithoutRecord: after the loss of the data directory, a removal removes all values that
// name berth, a default runtime too, and keeps the admin's settings.
func TestRemoveWithoutRecord(t *testing.T) {
	const nvidia = `"nvidia": {"path": "nvidia-container-runtime"}`
	for _, c := range []struct {
		name, engine, version string
		dump                  string
		before, want          machine
	}{
		{
			"docker", "docker", "28.5.2", "",
			machine{dockerConfigPath: "{\n  \"a\": 1\n}\n"},
			machine{dockerConfigPath: "{\n  \"a\": 1\n}\n"},
		},
		{
			"docker with NVIDIA's runtime", "docker", "28.5.2", "",
			machine{dockerConfigPath: `{"runtimes": {` + nvidia + `, "kata": {"path": "/k"}}}`},
			machine{dockerConfigPath: `{"runtimes": {"kata": {"path": "/k"}}}`},
		},
		{
			"containerd 2", "containerd", "2.1.9", dumpOf(v3),
			machine{containerdConfigPath: "version = 3\nimports = [\"/etc/other.toml\"]\n"},
			machine{containerdConfigPath: "version = 3\nimports = [\"/etc/other.toml\"]\n"},
		},
		{
			"containerd 1", "containerd", "1.7.0", dumpOf(v2),
			machine{containerdConfigPath: "version = 2\n"},
			// The runtime runc is as containerd's own default has it.
			machine{containerdConfigPath: "version = 2\n\n[" + v2 + ".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n"},
		},
		{"podman", "podman", "5.8.6", "", machine{"/etc/containers/containers.conf": "[engine]\n"}, machine{"/etc/containers/containers.conf": "[engine]\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var after machine
			if c.dump != "" {
				after, _ = c.before.dumped(t, c.version, c.dump, withDefault())
			} else {
				after, _ = c.before.set(t, c.engine, c.version, withDefault())
			}
			for name := range after {
				if strings.HasPrefix(name, "/data/") {
					delete(after, name)
				}
			}
			record, err := RebuildRecord(after.host(c.version), c.engine, "/data")
			if err != nil || record == nil {
				t.Fatalf("record %+v, %v", record, err)
			}
			p, err := PlanRemoval(after.host(c.version), record)
			if err != nil {
				t.Fatal(err)
			}
			gone := after.with(t, p)
			if diff := cmp.Diff(c.want, gone); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if record, err = RebuildRecord(gone.host(c.version), c.engine, "/data"); record != nil || err != nil {
				t.Errorf("afterwards the record is %+v, %v", record, err)
			}
		})
	}
}
