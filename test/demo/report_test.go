package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// asDemo makes the test binary the demo itself.
const asDemo = "BERTH_DEMO_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asDemo) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const model = "NVIDIA H100 80GB HBM3"

// twoGPUs have minors that aren't their places.
func twoGPUs() []device {
	return []device{
		{UUID: "GPU-aaaaaaaa-0000-4000-8000-000000000000", Index: "0", Minor: 1, Model: model, State: "free"},
		{UUID: "GPU-bbbbbbbb-0000-4000-8000-000000000000", Index: "1", Minor: 0, Model: model, State: "free"},
	}
}

// goodTasks returns three tasks for which every promise was kept: the third waited for the first to end.
func goodTasks() []task {
	gpus := twoGPUs()
	of := func(name string, g device, start float64) task {
		return task{name: name, launched: time.UnixMicro(1_000_000_000), seen: sighting{
			Nodes: []node{
				{"/dev/nvidiactl", true},
				{"/dev/nvidia-uvm", true},
				{fmt.Sprintf("/dev/nvidia%d", g.Minor), true},
				{fmt.Sprintf("/dev/nvidia%d", 1-g.Minor), false},
				{"/dev/nvidia-caps/nvidia-cap1", false},
			},
			Mknod: "EPERM", Libcuda: "/usr/local/nvidia/lib64/libcuda.so.1", Devices: g.UUID, Start: start, End: start + 1.5,
		}}
	}
	return []task{of("task-01", gpus[0], 1000.25), of("task-02", gpus[1], 1000.25), of("task-03", gpus[0], 1001.75)}
}

func TestReport(t *testing.T) {
	var out strings.Builder
	if err := report(&out, "simulated", twoGPUs(), goodTasks()); err != nil {
		t.Fatal(err)
	}
	want := `TASK     GPU                                       WAITED  RAN    OWN OPENED  FOREIGN OPENED  MKNOD  LIBCUDA
task-01  GPU-aaaaaaaa-0000-4000-8000-000000000000  0.25s   1.50s  1           0 of 2          EPERM  /usr/local/nvidia/lib64/libcuda.so.1
task-02  GPU-bbbbbbbb-0000-4000-8000-000000000000  0.25s   1.50s  1           0 of 2          EPERM  /usr/local/nvidia/lib64/libcuda.so.1
task-03  GPU-aaaaaaaa-0000-4000-8000-000000000000  1.75s   1.50s  1           0 of 2          EPERM  /usr/local/nvidia/lib64/libcuda.so.1

3 containers shared 2 simulated GPUs (NVIDIA H100 80GB HBM3): each opened its own, none of 6 tries on foreign nodes got through, and no GPU had two holders at a time.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestVerdict: each broken promise makes the demo fail, and is named.
func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(tasks []task)
		want  string
	}{
		{"a foreign GPU was opened", func(a []task) { a[1].seen.Nodes[3].Allowed = true }, "task-02: opened 1 of its own and 1 foreign devices"},
		{"another foreign node was opened", func(a []task) { a[1].seen.Nodes[4].Allowed = true }, "task-02: opened 1 of its own and 1 foreign devices"},
		{"its own wasn't", func(a []task) { a[2].seen.Nodes[2].Allowed = false }, "task-03: opened 0 of its own and 0 foreign devices"},
		{"its own wasn't there", func(a []task) { a[2].seen.Nodes = a[2].seen.Nodes[3:] }, "task-03: opened 0 of its own and 0 foreign devices"},
		{"a foreign one wasn't tried", func(a []task) { a[0].seen.Nodes = a[0].seen.Nodes[:3] }, "task-01: didn't try to open /dev/nvidia0"},
		{"a task failed", func(a []task) { a[0] = task{name: "task-01", err: errors.New("exit status 125: berth: no")} }, "task-01: exit status 125: berth: no"},
		{"a node was made", func(a []task) { a[0].seen.Mknod = "made" }, "task-01: mknod answered made"},
		{"mknod failed for another reason", func(a []task) { a[0].seen.Mknod = "EROFS" }, "task-01: mknod answered EROFS"},
		{
			"libcuda wasn't found", func(a []task) { a[0].seen.Libcuda, a[0].seen.DlopenError = "", "libcuda.so.1: cannot open" },
			"task-01: libcuda.so.1: cannot open",
		},
		{"another libcuda was", func(a []task) { a[0].seen.Libcuda = "/lib/libcuda.so.1" }, "task-01: loaded /lib/libcuda.so.1, which is not the driver's"},
		{"no GPU", func(a []task) { a[1].seen.Devices = "" }, `task-02: has no GPU of this node, but ""`},
		{
			"two GPUs", func(a []task) { a[1].seen.Devices = "GPU-a,GPU-b" },
			`task-02: has no GPU of this node, but "GPU-a,GPU-b"`,
		},
		{
			"two holders at a time", func(a []task) { a[2].seen.Start -= 0.01 },
			"task-01 and task-03 had GPU-aaaaaaaa-0000-4000-8000-000000000000 at the same time",
		},
		{"no times", func(a []task) { a[1].seen.Start, a[1].seen.End = 0, 0 }, "task-02: doesn't say when it ran"},
		{"nothing was said", func(a []task) { a[1].seen = sighting{} }, `task-02: has no GPU of this node, but ""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			tasks := goodTasks()
			c.spoil(tasks)
			var out strings.Builder
			err := report(&out, "simulated", twoGPUs(), tasks)
			if want := "a promise was broken:\n  " + c.want; err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
			if strings.Contains(out.String(), "containers shared") {
				t.Errorf("says that all was well:\n%s", out.String())
			}
		})
	}
	if got := brokenPromises(twoGPUs(), nil); !cmp.Equal(got, []string{"no task ran"}) {
		t.Errorf("of no task at all: %v", got)
	}
}

// TestExitCode runs the demo itself, with a fake berth whose tasks print a given output.
func TestExitCode(t *testing.T) {
	good := goodTasks()[0].seen
	bad := goodTasks()[0].seen
	bad.Nodes[3].Allowed = true
	for _, c := range []struct {
		name string
		seen sighting
		run  string // exit code of berth run
		ok   bool
	}{
		{"all is well", good, "exit 0", true},
		{"a foreign device was opened", bad, "exit 0", false},
		{"a task failed", good, "exit 75", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := demo(t, c.seen, c.run)
			if said := strings.Contains(out, "containers shared 1 simulated GPUs"); (err == nil) != c.ok || said != c.ok {
				t.Errorf("the demo ended with %v, and said\n%s", err, out)
			}
		})
	}
}

// demo runs the demo in a directory with a fake berth, a script. It has one GPU, so three tasks
// share it; each reports another time.
func demo(t *testing.T, seen sighting, ending string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	gpus, err := json.Marshal(map[string]any{"devices": twoGPUs()[:1]})
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]any{
		"nodes": seen.Nodes, "mknod": seen.Mknod, "libcuda": seen.Libcuda, "devices": seen.Devices, "start": 10, "end": 20,
	}
	said, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\ncase $* in\ngpus*) echo '" + string(gpus) + "';;\n*--name*) n=${6#task-0}; echo '" + string(said) +
		"' | sed \"s/:10\\b/:${n}0/; s/:20\\b/:${n}9/\"; " + ending + ";;\nesac\n"
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/berth"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "inside", "simulated")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), asDemo+"=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestREADME: the README shows the demo's real output.
func TestREADME(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := report(&out, "simulated", twoGPUs(), goodTasks()); err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(text), "```text demo\n")
	shown, _, _ = strings.Cut(shown, "```")
	if diff := cmp.Diff(normalizeReport(out.String()), normalizeReport(shown)); diff != "" {
		t.Errorf("(-demo +README):\n%s", diff)
	}
}

// normalizeReport returns a report without the values of one run, each kind of line once.
func normalizeReport(text string) (lines []string) {
	number := regexp.MustCompile(`\b\d+(\.\d+)?`)
	for line := range strings.Lines(text) {
		line = regexp.MustCompile(`GPU-[0-9a-f-]{36}`).ReplaceAllString(line, "UUID")
		line = number.ReplaceAllString(strings.Join(strings.Fields(line), " "), "N")
		if line != "…" && (len(lines) == 0 || lines[len(lines)-1] != line) {
			lines = append(lines, line)
		}
	}
	return lines
}
