package tasks

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// injection is one element of what berth inspect says was injected.
type injection struct{ Kind, Name, Source, Why string }

type inspected struct {
	Lease    struct{ ID string }
	Injected []injection
	Removed  []injection
	Not      string `json:"not_explained"`
	Task     struct {
		ID, Name, Lease string
		State           struct {
			Status   string
			PID      int
			Running  bool
			Code     *int `json:"exit_code"`
			Restarts int
		}
		Paths struct{ Bundle string }
	}
}

func (s server) inspect(t *testing.T, word string) inspected {
	t.Helper()
	var all []inspected
	rig.Decode(t, s.Do(t, s.Berth, "inspect", word), &all)
	if len(all) != 1 {
		t.Fatalf("berth inspect %s shows %d", word, len(all))
	}
	return all[0]
}

func (s server) spec(t *testing.T, bundle string) specs.Spec {
	t.Helper()
	data, err := os.ReadFile(s.Path(filepath.Join(bundle, "config.json")))
	rig.Must(t, err)
	var spec specs.Spec
	rig.Decode(t, string(data), &spec)
	return spec
}

// listParts returns all that berth changes in a spec, as Injection.Kind and Name call it; what a
// bind is called depends on what is bound.
func listParts(spec specs.Spec) (all []string) {
	for _, d := range spec.Linux.Devices {
		all = append(all, "device "+d.Path)
	}
	for _, m := range spec.Mounts {
		all = append(all, "mount "+m.Destination)
	}
	for _, e := range spec.Process.Env {
		all = append(all, "variable "+e)
	}
	for name, value := range spec.Annotations {
		all = append(all, "annotation "+name+"="+value)
	}
	if spec.Hooks != nil {
		for _, h := range spec.Hooks.CreateRuntime {
			all = append(all, "hook "+strings.Join(h.Args, " "))
		}
	}
	return all
}

// TestInspectIsComplete: whatever a task has that the same task without a lease hasn't
// is explained, and nothing is that it hasn't.
func TestInspectIsComplete(t *testing.T) {
	for _, c := range []struct {
		name, profile, cgroup, runtime, request string
		env                                     []string
	}{
		{"two GPUs", "dgx-h100", "v2", "crun", "2", nil},
		{"two GPUs with runc", "dgx-h100", "v1", "runc", "2", nil},
		{"all capabilities", "dgx-h100", "v2", "crun", "1", []string{"-e", "NVIDIA_DRIVER_CAPABILITIES=all"}},
		{"a slice", "dgx-a100-mig", "v2", "runc", "1g.10gb", []string{"-e", "NVIDIA_DRIVER_CAPABILITIES=utility"}},
		{"a root that can't be written to", "dgx-h100", "v2", "crun", "1", []string{"--read-only"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startServer(t, c.profile, c.cgroup, c.runtime)
			words := append(slices.Clone(c.env), rig.ImagePath(t, "debian"), "sh", "-c", announceReady("exec sleep 1000"))
			s.run(t, append([]string{"--name", "bare"}, words...)...)
			s.run(t, append([]string{"--name", "leased", "--gpus", c.request}, words...)...)
			seen, bare := s.inspect(t, "leased"), s.inspect(t, "bare")
			if seen.Not != "" || bare.Injected != nil || bare.Not != "" {
				t.Fatalf("%s, %s, %+v", seen.Not, bare.Not, bare.Injected)
			}
			expectExplained(t, listParts(s.spec(t, bare.Task.Paths.Bundle)), listParts(s.spec(t, seen.Task.Paths.Bundle)), seen.Injected)
			expectInContainer(t, s, seen.Injected)
		})
	}
}

// expectExplained compares two specs' parts with what was said of the second.
func expectExplained(t *testing.T, without, with []string, said []injection) {
	t.Helper()
	var known []string
	for _, i := range said {
		kind := i.Kind
		if slices.Contains([]string{"directory", "file", "firmware", "program", "socket"}, kind) {
			kind = "mount"
		}
		if i.Why == "" || i.Name == "" {
			t.Errorf("without a name or a reason: %+v", i)
		}
		known = append(known, kind+" "+i.Name)
	}
	for _, p := range with {
		own := strings.Contains(p, "bare") || strings.Contains(p, "leased") || strings.Contains(p, "/ready")
		if !own && !slices.Contains(without, p) && !slices.Contains(known, p) {
			t.Errorf("%s isn't explained", p)
		}
	}
	for i, p := range known {
		if slices.Contains(without, p) {
			t.Errorf("%s is there without a lease, and said to be there because of %s", p, said[i].Why)
		}
	}
}

// expectInContainer looks for what was injected in the container.
func expectInContainer(t *testing.T, s server, said []injection) {
	t.Helper()
	var paths []string
	for _, i := range said {
		if strings.HasPrefix(i.Name, "/") {
			paths = append(paths, i.Name)
		}
	}
	script := `for p; do test -e "$p" || echo "$p"; done`
	if got := s.RunBerth(t, append([]string{"exec", "leased", "sh", "-c", script, "sh"}, paths...)...); got.Code != 0 || got.Out != "" || len(paths) < 15 {
		t.Errorf("of %d paths the container has none of these: %+v", len(paths), got)
	}
}

// TestInspectSaysWhy: berth inspect --why has the reason of each usual mount, device and variable.
func TestInspectSaysWhy(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "crun")
	s.run(t, "--name", "why", "--gpus", "1", "-e", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics", rig.ImagePath(t, "debian"), "sh", "-c", announceReady("exec sleep 1000"))
	seen := s.inspect(t, "why")
	uuid := ""
	for _, i := range seen.Injected {
		if v, ok := strings.CutPrefix(i.Name, "BERTH_DEVICES="); ok {
			uuid = v
		}
	}
	for name, why := range map[string]string{
		"/dev/nvidiactl":                   "comes with every GPU",
		"/dev/nvidia-uvm":                  "driver capability compute",
		"/dev/nvidia-modeset":              "driver capability graphics",
		"/usr/bin/nvidia-smi":              "driver capability utility, where people look for it",
		"/proc/driver":                     "is read-only, and what is of other devices is masked",
		"dev.berth.lease=" + seen.Lease.ID: "names the lease",
		"NVIDIA_VISIBLE_DEVICES=void":      "keeps NVIDIA's own tools from adding devices",
	} {
		if !slices.ContainsFunc(seen.Injected, func(i injection) bool { return i.Name == name && i.Why == why }) {
			t.Errorf("%s isn't said to be there because: %s", name, why)
		}
	}
	count := map[string]int{}
	for _, i := range seen.Injected {
		switch {
		case i.Kind == "library" && strings.Contains(i.Name, "libcuda.so."):
			count[i.Why]++
		case i.Kind == "device" && i.Why == "device "+uuid:
			count["the GPU"]++
		case i.Kind == "firmware":
			count["firmware"]++
		case i.Kind == "rule" && strings.HasPrefix(i.Why, "node /dev/nvidia"):
			count["rules"]++
		}
	}
	if count["driver capability compute"] != 1 || count["the GPU"] != 1 || count["firmware"] == 0 || count["rules"] < 4 {
		t.Errorf("%v", count)
	}
	table := s.Do(t, s.Berth, "inspect", "--why", "why")
	if n := len(lines(table)); n != len(seen.Injected)+1 || !strings.HasPrefix(table, "CONTAINER") {
		t.Errorf("the table has %d lines for %d injections", n, len(seen.Injected))
	}
}

// TestInspectRemoved: what a task asked for and didn't get is said, too.
func TestInspectRemoved(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "runc")
	s.run(t, "--name", "train", "--gpus", "device=0", "-v", "/dev/nvidia7:/dev/theirs", "-v", "/dev/nvidia0:/dev/ours", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec sleep 1000"))
	want := []injection{{"mount", "/dev/theirs", "/dev/nvidia7", "it belongs to an accelerator that the lease doesn't have"}}
	if got := s.inspect(t, "train").Removed; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	table := s.Do(t, s.Berth, "inspect", "--why", "train")
	if !strings.Contains(strings.Join(strings.Fields(table), " "), "train no mount /dev/theirs it belongs to an accelerator that the lease doesn't have") {
		t.Errorf("the table doesn't have it:\n%s", table)
	}
}
