package setup

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// olderSetups returns machines that an older berth has set up, before and after that, by name.
func olderSetups(t *testing.T) (setups map[string]struct{ Before, After machine }) {
	t.Helper()
	text, err := os.ReadFile("testdata/records.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &setups); err != nil {
		t.Fatal(err)
	}
	return setups
}

// TestOlderRecords: what an older berth has set up counts as set up, and is removed again:
// to the byte, or key by key where the admin has changed the file. testdata/records.json
// was written by the version before the editors of package edit.
func TestOlderRecords(t *testing.T) {
	setups := olderSetups(t)
	for _, c := range []struct{ name, engine, version, dump, edited, added string }{
		{"docker", "docker", "28.5.2", "", dockerConfigPath, "\n"},
		{"containerd 1.6", "containerd", "1.6.20", dumpOf(v2), containerdConfigPath, "# more\n"},
		{"containerd 2.1", "containerd", "2.1.9", dumpOf(v3, "/a.toml"), containerdConfigPath, "# more\n"},
		{"podman", "podman", "5.8.6", "", "/etc/containers/containers.conf", "# more\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, after := setups[c.name].Before, setups[c.name].After
			h := after.host(c.version)
			h.Dump = c.dump
			o := usual
			o.Default = true
			if c.name == "containerd 2.1" { // which was set up without
				o.Default = false
			}
			p, err := PlanSetup(c.engine, h, o, after.record(t, c.engine))
			if err != nil || len(p.Changes) > 0 && c.engine != "podman" { // podman's hooks have moved since
				t.Errorf("it isn't set up: %+v, %v", p.Changes, err)
			}
			back, _ := after.unset(t, c.engine)
			if diff := cmp.Diff(before, back); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			after[c.edited] = c.added + after[c.edited]
			before[c.edited] = c.added + before[c.edited]
			back, p = after.unset(t, c.engine)
			if diff := cmp.Diff(before, back); diff != "" || len(p.Notes) > 0 {
				t.Errorf("%s (-want +got):\n%s", noteText(p), diff)
			}
		})
	}
}
