package sim

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/testutil"
)

// The test binary acts as the simnode command, or as tests inside a node, when
// these are set.
const (
	envExec   = "SIMNODE_TEST_EXEC"   // arguments: profile cgroup command…
	envInside = "SIMNODE_TEST_INSIDE" // profile whose node TestInside is to see
	envOption = "SIMNODE_TEST_OPTION" // bare
)

func TestMain(m *testing.M) {
	if words := strings.Fields(os.Getenv(envExec)); len(words) > 2 {
		env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, envExec) })
		exitWith(Exec(words[0], Options{Cgroup: words[1]}, words[2:], env))
	}
	if profile := os.Getenv(envInside); profile != "" {
		bare := os.Getenv(envOption) == "bare"
		Main(m, profile, Options{BareNodes: bare, NoUVM: bare})
	}
	if was, err := Loader(os.Args); was {
		exitWith(err)
	}
	os.Exit(m.Run())
}

func self(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(path, args...)
}

// node returns a command that runs words in a new node.
func node(t *testing.T, profile, cgroup string, words ...string) *exec.Cmd {
	t.Helper()
	cmd := self(t)
	cmd.Env = append(os.Environ(), envExec+"="+strings.Join(append([]string{profile, cgroup}, words...), " "))
	return cmd
}

// TestProfiles runs TestInside in a node of each profile.
func TestProfiles(t *testing.T) {
	testutil.NeedRoot(t, "cc")
	for _, p := range Profiles() {
		t.Run(p.Name, func(t *testing.T) { inNewNode(t, "^TestInside$", envInside+"="+p.Name) })
	}
}

func TestBareNode(t *testing.T) {
	testutil.NeedRoot(t, "cc")
	inNewNode(t, "^TestInsideBare$", envInside+"=one-gpu", envOption+"=bare")
}

func inNewNode(t *testing.T, run string, env ...string) {
	t.Helper()
	cmd := self(t, "-test.run="+run, "-test.v")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("--- SKIP")) {
		t.Errorf("tests inside the node: %v\n%s", err, out)
	}
}

func TestExitCode(t *testing.T) {
	testutil.NeedRoot(t, "cc")
	err := node(t, "one-gpu", "host", "sh", "-c", "exit${IFS}7").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("got %v, want exit status 7", err)
	}
}

// A node consists of its first process and that one's children: kill -9 leaves nothing.
func TestNothingLeft(t *testing.T) {
	testutil.NeedRoot(t, "cc")
	before := listTraces(t)
	cmd, out := start(t, "dgx-a100-mig")
	pid := strconv.Itoa(cmd.Process.Pid)
	if err := ControlNode(pid, "lose", "1"); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("killed process ended well")
	}
	if diff := cmp.Diff(before, listTraces(t)); diff != "" {
		t.Errorf("left behind: %s", diff)
	}
	if err := ControlNode(pid, "lose", "1"); err == nil {
		t.Error("changed a node that is gone")
	}
	if !strings.Contains(out.String(), "is simulated") {
		t.Errorf("said %q", out)
	}
}

// start runs a node that writes here and there, and waits until its standard input ends. It returns when
// the command runs, hence the node is complete.
func start(t *testing.T, profile string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := node(t, profile, "host", "sh", "-c",
		"touch${IFS}/etc/simnode-test${IFS}/var/lib/berth/simnode-test${IFS}/run/simnode-test${IFS}/dev/simnode-test;"+
			"echo;read${IFS}x")
	said := new(bytes.Buffer)
	cmd.Stderr = said
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // ends the node if the test has not
		_ = cmd.Wait() // a second wait is an error
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatalf("node didn't start: %v: %s", err, said)
	}
	return cmd, said
}

// listTraces returns what a node could leave on the machine.
func listTraces(t *testing.T) map[string][]string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string][]string{"hostname": {name}}
	for _, pattern := range []string{
		"/dev/nvidia*", "/dev/simnode*", "/run/simnode*", "/etc/simnode*", "/var/lib/berth/simnode*", "/proc/driver/nvidia*", "/sys/module/nvidia*",
		"/usr/bin/nvidia-smi", filepath.Join(libraryDir(), "libcuda*"), filepath.Join(libraryDir32(), "libcuda*"),
		"/usr/lib/firmware/nvidia/*/gsp*", "/usr/share/vulkan/icd.d/nvidia*", "/etc/OpenCL/vendors/nvidia*", "/run/nvidia*",
	} {
		if seen[pattern], err = filepath.Glob(pattern); err != nil {
			t.Fatal(err)
		}
	}
	return seen
}

// Programs inside see changes from outside.
func TestControlFromOutside(t *testing.T) {
	testutil.NeedRoot(t, "cc")
	cmd, _ := start(t, "dgx-a100-mig")
	pid := strconv.Itoa(cmd.Process.Pid)
	root := filepath.Join("/proc", pid, "root")
	all, err := Nodes()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(r Running) bool { return r.PID == cmd.Process.Pid })
	if at < 0 {
		t.Fatalf("node isn't among %v", all)
	}
	for _, action := range [][]string{{"mig", "0", "3g.40gb"}, {"driver", "560.35.03"}, {"uvm-major", "444"}} {
		if err := ControlNode(all[at].ID, action...); err != nil {
			t.Fatal(err)
		}
	}
	gi, _ := Slice{GI: 1}.Minors(all[at].Blueprint().GPUs[0].Minor)
	for path, want := range map[string]string{
		"sys/module/nvidia/version":                              "560.35.03\n",
		"proc/driver/nvidia/capabilities/gpu2/mig/gi1/access":    capability(gi, 0o444),
		"run/simnode/nvml.state":                                 "system.driver 560.35.03\n",
		"proc/devices":                                           "\n444 nvidia-uvm\n",
		filepath.Join(libraryDir(), "libnvidia-ml.so.560.35.03"): "SIMNODE-STATE",
		"usr/lib/firmware/nvidia/560.35.03/gsp_ga10x.bin":        "firmware 560.35.03",
	} {
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v, has no %q", path, err, want)
		}
	}
	for _, dir := range []string{libraryDir(), libraryDir32()} {
		to, err := os.Readlink(filepath.Join(root, dir, "libcuda.so.1"))
		if dir != "" && (err != nil || to != "libcuda.so.560.35.03") {
			t.Errorf("libcuda.so.1 in %s leads to %q (%v)", dir, to, err)
		}
	}
	if old, err := filepath.Glob(filepath.Join(root, "usr/lib/firmware/nvidia/550*/*")); old != nil || err != nil {
		t.Errorf("firmware of the old driver: %v, %v", old, err)
	}
	if _, err := os.Stat(filepath.Join(root, "dev/nvidia-caps", "nvidia-cap"+strconv.Itoa(gi))); err != nil {
		t.Error(err)
	}
}

func TestUnusable(t *testing.T) {
	for _, tc := range []struct {
		name    string
		profile string
		o       Options
		want    string
	}{
		{"profile", "dgx", Options{}, `unknown profile "dgx": it is one of dgx-h100, dgx-a100-mig, l40s-pcie, one-gpu`},
		{"cgroup", "one-gpu", Options{Cgroup: "v3"}, `unknown cgroup mode "v3": it is host, v1 or v2`},
		{"driver", "one-gpu", Options{Driver: "x"}, `unknown driver "x": it is auto, stub or debian`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := Exec(tc.profile, tc.o, []string{"true"}, nil); err == nil || err.Error() != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}
