package setup

import (
	"strings"
	"testing"
)

// TestRemoveLeavesNoOrphan: an engine doesn't start whose default runtime isn't there, so
// one that the admin has made it by hand isn't taken away; and what berth setup has made
// it goes with the rest.
func TestRemoveLeavesNoOrphan(t *testing.T) {
	set := func(engine, version string) func(*testing.T, machine) machine {
		return func(t *testing.T, m machine) machine {
			t.Helper()
			after, _ := m.set(t, engine, version, usual)
			return after
		}
	}
	containerd := func(t *testing.T, m machine) machine {
		t.Helper()
		after, _ := m.dumped(t, "2.1.9", dumpOf(v3), usual)
		return after
	}
	for _, c := range []struct {
		name, engine string
		set          func(*testing.T, machine) machine
		file         string
		old, by      string // what the admin writes then
		want         string
	}{
		{
			"docker", "docker", set("docker", "28.5.2"),
			dockerConfigPath, "{\n", "{\n  \"default-runtime\" : \"berth\",\n", dockerConfigPath + ` has default-runtime = "berth"`,
		},
		{
			"containerd", "containerd", containerd,
			containerdConfigPath, "version = 3\n", "version = 3\n[" + v3 + ".containerd]\ndefault_runtime_name = 'berth'\n", containerdConfigPath + ` has default_runtime_name = "berth"`,
		},
		{
			"podman", "podman", set("podman", "5.8.6"),
			"/etc/containers/containers.conf", "[engine]\n", "[engine]\nruntime = \"berth\"\n", `/etc/containers/containers.conf has runtime = "berth"`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := machine{dockerConfigPath: "{\n  \"a\": 1\n}\n", containerdConfigPath: "imports = []\nversion = 3\n", "/etc/containers/containers.conf": "[engine]\n"}
			after := c.set(t, before)
			if _, err := PlanRemoval(after.host(""), after.record(t, c.engine)); err != nil {
				t.Fatalf("as it was set up: %v", err)
			}
			after[c.file] = strings.Replace(after[c.file], c.old, c.by, 1)
			_, err := PlanRemoval(after.host(""), after.record(t, c.engine))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			after[c.file] = strings.Replace(after[c.file], c.by, c.old, 1)
			if _, err := PlanRemoval(after.host(""), after.record(t, c.engine)); err != nil {
				t.Errorf("with another default again: %v", err)
			}
		})
	}
}
