package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// brokenNVML is a way in which NVIDIA's management library fails.
type brokenNVML struct {
	name string
	// library is the path that the configuration has; "" is the usual one.
	library string
	// breaks are changes of the simulated node; see sim.Actions.
	breaks [][]string
	// without is the program that is missing.
	without string
	// why is what the errors say.
	why string
	// waits: NVML's calls last for seconds, so that only one verb of each kind is tried.
	waits bool
}

// Whatever NVML does, each verb works from the snapshot or fails with one line in bounded time.
func TestBrokenNVML(t *testing.T) {
	s := startGPUServer(t, "l40s-pcie")
	s.detach(t, "holder", "device=3")
	s.openNode(t, "2", "sleep", "1000") // so that the timer asks NVML
	crash, err := shared.Compile("crash.so", "testdata/crash.c", "-shared", "-fPIC")
	rig.Must(t, err)
	text := filepath.Join(t.TempDir(), "text.so")
	rig.Must(t, os.WriteFile(text, []byte("This is no library, and long enough to be looked at as one would be.\n"), 0o600))
	for _, broken := range []brokenNVML{
		{name: "missing", library: "/nonexistent/libnvidia-ml.so.1", why: "cannot open shared object file"},
		{name: "no library", library: text, why: "invalid ELF header"},
		{name: "crashes", library: crash, why: "SIGSEGV"},
		{name: "fails", breaks: [][]string{{"fail", "nvmlInit", "999"}}, why: "nvmlInit_v2: "},
		{name: "hangs", breaks: [][]string{{"hang", "nvmlSystemGetDriverVersion"}, {"hang", "nvmlDeviceGetHandleByUUID"}}, waits: true, why: "nvmlSystemGetDriverVersion did not return within 10s"},
		{name: "no berth-nvml", without: "berth-nvml", why: "/usr/lib/berth/berth-nvml"},
	} {
		t.Run(broken.name, func(t *testing.T) {
			defer func() { s.change(t, "unhang"); s.change(t, "unfail") }()
			for _, words := range broken.breaks {
				s.change(t, words...)
			}
			t.Run("verbs", func(t *testing.T) { s.checkVerbs(t, broken) })
		})
	}
}

// checkVerbs runs all verbs at once: some wait for NVML.
func (s gpuServer) checkVerbs(t *testing.T, broken brokenNVML) {
	t.Helper()
	programs := s.Dir
	if broken.without != "" {
		programs = t.TempDir()
		rig.Must(t, os.CopyFS(programs, os.DirFS(s.Dir)))
		rig.Must(t, os.Remove(filepath.Join(programs, broken.without)))
	}
	t.Run("berth doctor", func(t *testing.T) {
		t.Parallel() // its exit code depends on the machine
		said := s.Run(t, s.Command(filepath.Join(programs, "berth"), "doctor"))
		if !strings.Contains(said.Out, "/run/berth/inventory.json of ") || !strings.Contains(said.Out, broken.without) || said.Err != "" {
			t.Errorf("%+v", said)
		}
	})
	box, bundle := rig.ImagePath(t, "busybox"), s.makeBundle(t)
	berth, runtime := filepath.Join(programs, "berth"), filepath.Join(programs, "berth-runtime")
	for _, c := range []struct {
		words    []string
		snapshot bool
		code     int
		out, err string // what is in the output, and in the one line on stderr
		like     bool   // another case waits for NVML in the same way
	}{
		{[]string{berth, "gpus"}, true, 0, "NVIDIA L40S", "those of the last discovery: ", false},
		{[]string{berth, "topo"}, true, 0, "GPU3", "", false},
		{[]string{berth, "discover", "--if-stale"}, true, 0, "still fits the machine", "", false},
		{[]string{berth, "discover", "--if-stale", "--processes"}, true, 0, "still fits the machine", "the processes that use GPUs are unknown: ", true},
		{[]string{berth, "inspect", "holder"}, true, 0, `"name": "holder"`, "", false},
		{[]string{berth, "ps"}, true, 0, "holder", "", false},
		{[]string{berth, "leases"}, true, 0, "holder", "", false},
		{[]string{berth, "alloc", "1", "--", "true"}, true, 0, "", "", false},
		{[]string{berth, "run", "--rm", "--gpus", "1", box, "echo", "leased"}, true, 0, "leased\n", "", false},
		{[]string{berth, "run", "--rm", box, "echo", "plain"}, true, 0, "plain\n", "", false},
		{[]string{runtime, "run", "--bundle", bundle, "task"}, true, 0, "berth ", "", false},
		{[]string{berth, "discover"}, true, 1, "", broken.why, true},

		{[]string{berth, "discover", "--if-stale"}, false, 1, "", broken.why, true},
		{[]string{berth, "gpus"}, false, 1, "", broken.why, false},
		{[]string{berth, "topo"}, false, 1, "", broken.why, true},
		{[]string{berth, "ps"}, false, 0, "holder", "", false},
		{[]string{berth, "leases"}, false, 0, "there are no leases", "", true},
		{[]string{berth, "alloc", "1", "--", "true"}, false, 125, "", broken.why, true},
		{[]string{berth, "run", "--rm", "--gpus", "1", box, "true"}, false, 125, "", broken.why, true},
		{[]string{berth, "run", "--rm", box, "echo", "plain"}, false, 0, "plain\n", "", false},
		{[]string{runtime, "run", "--bundle", bundle, "task"}, false, 1, "", broken.why, true},
	} {
		if broken.waits && c.like {
			continue
		}
		t.Run(fmt.Sprintf("%s %s snapshot %v", filepath.Base(c.words[0]), c.words[1], c.snapshot), func(t *testing.T) {
			t.Parallel()
			config := "[host]\nnvml = \"" + broken.library + "\"\n"
			if !c.snapshot {
				config = "state = \"" + t.TempDir() + "\"\n" + config
			}
			path := filepath.Join(t.TempDir(), "config.toml")
			rig.Must(t, os.WriteFile(path, []byte(config), 0o600))
			said := s.Run(t, s.Command("env", append([]string{"BERTH_CONFIG=" + path, "timeout", "100"}, c.words...)...))
			lines := strings.Count(said.Err, "\n")
			if said.Code != c.code || !strings.Contains(said.Out, c.out) || !strings.Contains(said.Err, c.err) || lines > 1 || len(said.Err) > 400 || c.code == 0 && c.err == "" && lines > 0 {
				t.Errorf("%+v, want exit code %d, %q and one line with %q", said, c.code, c.out, c.err)
			}
		})
	}
}

// makeBundle makes a bundle whose container asks for a GPU and prints the version of berth.
func (s gpuServer) makeBundle(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	rig.Must(t, os.Mkdir(filepath.Join(dir, "rootfs"), 0o755))
	s.Do(t, "cp", s.Berth, filepath.Join(dir, "rootfs/berth"))
	s.Do(t, "runc", "spec", "--bundle", dir)
	path := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(path)
	rig.Must(t, err)
	var spec map[string]any
	rig.Must(t, json.Unmarshal(data, &spec))
	process := spec["process"].(map[string]any)
	process["terminal"], process["args"] = false, []string{"/berth", "--version"}
	spec["annotations"] = map[string]string{"berth.gpus": "1"}
	data, err = json.Marshal(spec)
	rig.Must(t, err)
	rig.Must(t, os.WriteFile(path, data, 0o600))
	return dir
}
