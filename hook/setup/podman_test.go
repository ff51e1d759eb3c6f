package setup

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const builtIn = `"crun", "crun-vm", "kata", "krun", "runc", "runsc", "youki"`

func TestPodman(t *testing.T) {
	crun := usual
	crun.Crun = true
	for _, c := range []struct {
		name    string
		files   machine
		options Options
		want    []string // lines that are there
		note    string
	}{
		{"nothing said", machine{}, usual, []string{"runtime_supports_json = [" + builtIn + `, "berth"]`, `berth = ["/usr/bin/berth-runtime"]`}, ""},
		{"default", machine{}, withDefault(), []string{`runtime = "berth"`}, ""},
		{"crun", machine{}, crun, []string{`runtime_supports_nocgroups = ["crun", "krun", "berth"]`}, ""},
		{"the admin's list", machine{"/etc/containers/containers.conf": "[engine]\nruntime_supports_json = [\"runc\"]\n"}, usual, []string{`runtime_supports_json = ["runc", "berth"]`}, ""},
		{"the admin's list, longer", machine{"/usr/share/containers/containers.conf": "[engine]\nruntime_supports_json = [\"runc\"]\n", "/etc/containers/containers.conf.d/x": "", "/etc/containers/containers.conf.d/1.conf": "[engine]\nruntime_supports_json = [\"x\", {append=true}]\n"}, usual, []string{`runtime_supports_json = ["runc", "x", "berth"]`}, ""},
		{"a later file", machine{"/etc/containers/containers.conf.d/99.conf": "[engine]\nruntime = \"runc\"\n"}, withDefault(), []string{`runtime = "berth"`}, "99.conf sets engine.runtime after berth's"},
		{"a later file that appends", machine{"/etc/containers/containers.conf.d/99.conf": "[engine]\nruntime_supports_json = [\"x\"]\n"}, usual, []string{"runtime_supports_json = [" + builtIn + `, "berth"]`}, "99.conf sets engine.runtime_supports_json after berth's"},
	} {
		t.Run(c.name, func(t *testing.T) {
			after, p := c.files.set(t, "podman", "5.8.6", c.options)
			for _, line := range c.want {
				if !strings.Contains(after[PodmanDropIn], line+"\n") {
					t.Errorf("%q isn't there: %s", line, after[PodmanDropIn])
				}
			}
			if notes := noteText(p); !strings.Contains(notes, c.note) || c.note == "" && strings.Contains(notes, "after berth's") {
				t.Errorf("notes: %s", notes)
			}
			if err := p.Check.Verify(map[bool]string{true: c.options.Runtime, false: "/usr/bin/crun"}[c.options.Default] + "\n"); err != nil {
				t.Error(err)
			}
			if back, _ := after.unset(t, "podman"); !cmp.Equal(c.files, back) {
				t.Error(cmp.Diff(c.files, back))
			}
		})
	}
	broken := machine{"/etc/containers/containers.conf": "[engine\n"}
	if _, err := planPodman(broken.host(""), usual, nil); err == nil || !strings.HasPrefix(err.Error(), "/etc/containers/containers.conf: line 1, column 8: ") {
		t.Errorf("got %v", err)
	}
	if _, err := planPodman(Host{FS: fstest.MapFS{}}, usual, nil); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("got %v", err)
	}
}

// TestPodmanHooks: the hook files that setup writes equal the packaged ones.
func TestPodmanHooks(t *testing.T) {
	after, _ := machine{}.set(t, "podman", "5.8.6", usual)
	for _, stage := range []string{"precreate", "poststop"} {
		want, err := os.ReadFile("../../packaging/hooks.d/berth-" + stage + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), after[hookPath(podmanHooks, stage)]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	// podman build reads the former directory, and fails on a hook of the stage precreate.
	if strings.Contains(after[PodmanDropIn], formerPodmanHooks) || after[hookPath(formerPodmanHooks, "precreate")] != "" {
		t.Errorf("berth uses %s: %v", formerPodmanHooks, after)
	}
	admins := machine{"/etc/containers/containers.conf": "[engine]\nhooks_dir = [\"" + formerPodmanHooks + "\"]\n"}
	if after, _ := admins.set(t, "podman", "5.8.6", usual); !strings.Contains(after[PodmanDropIn], `hooks_dir = ["`+formerPodmanHooks+`", "`+podmanHooks+`"]`) {
		t.Errorf("the admin's directory: %s", after[PodmanDropIn])
	}
	// Where podman's own directory is missing it would run no hooks at all.
	for _, there := range []bool{true, false} {
		m, want := machine{}, []string{packagedHooks}
		if there {
			m[packagedHooks+"/x.json"], want = "{}", nil
		}
		after, p := m.set(t, "podman", "5.8.6", usual)
		if diff := cmp.Diff(want, p.Dirs); diff != "" || !strings.Contains(after[PodmanDropIn], `hooks_dir = ["`+packagedHooks+`", "`+podmanHooks+`"]`) {
			t.Errorf("%s (-want +got):\n%s", after[PodmanDropIn], diff)
		}
		if r := after.record(t, "podman"); slices.Contains(r.Dirs, packagedHooks) == there {
			t.Errorf("the record has %v", r.Dirs)
		}
	}
	o := usual
	o.Config = "/srv/b.toml"
	after, _ = machine{}.set(t, "podman", "5.8.6", o)
	if !strings.Contains(after[hookPath(podmanHooks, "poststop")], `"args": ["berth-hook", "--config", "/srv/b.toml", "poststop"]`) {
		t.Errorf("got %v", after)
	}
}

// TestPodmanFormerHooks: a setup removes the hooks of an earlier version from the directory that
// podman build reads, also where the record is lost; a removal then leaves nothing.
func TestPodmanFormerHooks(t *testing.T) {
	old := olderSetups(t)["podman"]
	precreate := hookPath(formerPodmanHooks, "precreate")
	if old.After[precreate] == "" {
		t.Fatalf("the earlier version has no %s", precreate)
	}
	want, _ := old.Before.set(t, "podman", "5.8.6", withDefault())
	delete(want, RecordPath("/data", "podman"))
	for _, lost := range []bool{false, true} {
		m := maps.Clone(old.After)
		if lost {
			delete(m, RecordPath("/data", "podman"))
		}
		record := m.record(t, "podman")
		if lost {
			var err error
			if record, err = RebuildRecord(m.host(""), "podman", "/data"); err != nil {
				t.Fatal(err)
			}
		}
		p, err := PlanSetup("podman", m.host("5.8.6"), withDefault(), record)
		if err != nil {
			t.Fatal(err)
		}
		after := m.with(t, p)
		back, _ := after.unset(t, "podman")
		if diff := cmp.Diff(old.Before, back); diff != "" {
			t.Errorf("record lost: %v: removed (-want +got):\n%s", lost, diff)
		}
		again, err := PlanSetup("podman", after.host("5.8.6"), withDefault(), after.record(t, "podman"))
		if err != nil || len(again.Changes) > 0 {
			t.Errorf("record lost: %v: a second time: %+v, %v", lost, again.Changes, err)
		}
		delete(after, RecordPath("/data", "podman"))
		if diff := cmp.Diff(want, after); diff != "" {
			t.Errorf("record lost: %v: set up (-want +got):\n%s", lost, diff)
		}
	}
	old.After[precreate] += "\n"
	after, p := old.After.set(t, "podman", "5.8.6", withDefault())
	if after[precreate] == "" || !strings.Contains(noteText(p), precreate+" isn't as berth has written it, and stays") {
		t.Errorf("the admin's changes: %s", noteText(p))
	}
}
