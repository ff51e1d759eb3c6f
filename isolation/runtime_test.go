package isolation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
)

// TestMain lets the test binary be the program inside a container: it opens the devices that its
// arguments name, and prints the results.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "probe" {
		probe(os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

// probe makes a node for each device where it may, otherwise takes the node of the image, and opens
// it.
func probe(numbers []string) {
	for _, number := range numbers {
		var major, minor uint32
		if _, err := fmt.Sscanf(number, "%d:%d", &major, &minor); err != nil {
			fmt.Println(number, err)
			continue
		}
		path := "/tmp/" + number
		if unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))) != nil {
			path = "/nodes/" + number
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		var errno unix.Errno
		if errors.As(err, &errno) {
			fmt.Println(number, unix.ErrnoName(errno))
			continue
		}
		fmt.Println(number, "open", f.Close())
	}
}

// TestRuntimesHoldDeviceRules runs containers with hostile specs. No driver has the numbers:
// opening gives ENXIO where the rules allow it and EPERM where they don't.
func TestRuntimesHoldDeviceRules(t *testing.T) {
	for _, tt := range []struct{ runtime, cgroup string }{{"runc", "v1"}, {"runc", "v2"}, {"crun", "v1"}, {"crun", "v2"}} {
		for name, rules := range hostileRules() {
			t.Run(tt.runtime+" "+tt.cgroup+" "+name, func(t *testing.T) {
				testutil.NeedRoot(t, tt.runtime)
				if tt.runtime == "crun" && tt.cgroup == "v2" && !canRaiseLimits(t) {
					t.Skip("crun raises RLIMIT_MEMLOCK to load a device program, and root may not do that here")
				}
				testutil.OnlyCgroup(t, tt.cgroup)
				checkRules(t, tt.runtime, rules)
			})
		}
	}
}

// canRaiseLimits reports whether this process may raise hard limits of resources.
func canRaiseLimits(t *testing.T) bool {
	t.Helper()
	var limit unix.Rlimit
	testutil.Must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	if limit.Max == unix.RLIM_INFINITY {
		return true
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	testutil.Must(t, unix.Capget(&header, &data[0]))
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// hostileRules are rule lists of engines, and hostile ones.
func hostileRules() map[string][]edits.Rule {
	denyAll := deny("", every, every, "rwm")
	return map[string][]edits.Rule{
		"plain":         {denyAll, allow("c", every, every, "m"), allow("c", 1, 3, "rwm")},
		"device":        {denyAll, allow("c", 195, 1, "rwm"), allow("c", 195, 0, "rwm")},
		"whole major":   {denyAll, allow("c", 195, every, "rwm"), allow("c", 508, every, "rw")},
		"privileged":    {allow("", every, every, "rwm")},
		"deny and all":  {denyAll, allow("a", every, every, "rwm")},
		"every c":       {denyAll, allow("c", every, every, "rwm"), allow("b", every, every, "rwm")},
		"none":          nil,
		"no first deny": {allow("c", 195, every, "rwm")},
	}
}

// realHost is this machine, with an additional accelerator driver that isn't loaded.
func realHost(t *testing.T) Host {
	t.Helper()
	majors, err := gpu.ReadMajors(gpu.Host{})
	testutil.Must(t, err)
	return Host{Majors: append(majors, gpu.Major{Number: 195, Name: "nvidia"}, gpu.Major{Number: 508, Name: "nvidia-uvm"})}
}

func checkRules(t *testing.T, name string, rules []edits.Rule) {
	spec := bundleSpec(rules)
	e, _, err := RestrictDevices(spec, realHost(t), []edits.Node{
		{Type: "c", Major: 195, Minor: 0, Access: "rw"}, {Type: "c", Major: 195, Minor: 255, Access: "rw"}, {Type: "c", Major: 508, Minor: 0, Access: "rw"},
	})
	testutil.Must(t, err)
	testutil.Must(t, e.Apply(spec))
	want := "1:3 open <nil>\n195:0 ENXIO\n195:1 EPERM\n195:2 EPERM\n195:255 ENXIO\n508:0 ENXIO\n508:1 EPERM\n"
	got := runContainer(t, name, spec)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func bundleSpec(rules []edits.Rule) *specs.Spec {
	s := specOf(rules...)
	caps := []string{"CAP_MKNOD", "CAP_DAC_OVERRIDE"}
	s.Version = "1.0.2"
	s.Root = &specs.Root{Path: "rootfs"}
	s.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}},
		{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
	}
	s.Process = &specs.Process{
		Cwd: "/", Args: append([]string{"/probe", "probe"}, runProbe()...), Env: []string{},
		Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
	}
	for _, ns := range []specs.LinuxNamespaceType{"pid", "mount", "ipc", "uts"} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: ns})
	}
	return s
}

func runProbe() []string {
	return []string{"1:3", "195:0", "195:1", "195:2", "195:255", "508:0", "508:1"}
}

// runContainer runs the spec and returns what the container printed.
func runContainer(t *testing.T, name string, spec *specs.Spec) string {
	t.Helper()
	bundle, state := t.TempDir(), t.TempDir()
	nodes := filepath.Join(bundle, "rootfs/nodes")
	testutil.Must(t, os.MkdirAll(nodes, 0o755))
	for _, d := range []string{"proc", "dev", "tmp"} {
		testutil.Must(t, os.Mkdir(filepath.Join(bundle, "rootfs", d), 0o755))
	}
	for _, number := range runProbe() {
		var major, minor uint32
		_, err := fmt.Sscanf(number, "%d:%d", &major, &minor)
		testutil.Must(t, err)
		testutil.Must(t, unix.Mknod(filepath.Join(nodes, number), unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))))
	}
	copySelf(t, filepath.Join(bundle, "rootfs/probe"))
	id := "berth-rules-" + filepath.Base(filepath.Dir(bundle))[:8] + fmt.Sprint(os.Getpid())
	spec.Linux.CgroupsPath = "/" + id
	t.Cleanup(func() { removeCgroups(id) })
	config, err := json.Marshal(spec)
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o644))
	cmd := exec.Command(name, "--root", state, "run", "--bundle", bundle, id)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+state)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		_ = exec.Command(name, "--root", state, "delete", "--force", id).Run() // the container may be gone already
		t.Fatalf("%s: %v: %s\n%s", name, err, stderr.String(), config)
	}
	return string(out)
}

// removeCgroups removes the cgroups that a failed runtime has left.
func removeCgroups(id string) {
	left, err := filepath.Glob("/sys/fs/cgroup/*/" + id)
	if err == nil {
		for _, dir := range append(left, "/sys/fs/cgroup/"+id) {
			_ = unix.Rmdir(dir) // usually there is none
		}
	}
}

func copySelf(t *testing.T, to string) {
	t.Helper()
	in, err := os.Open("/proc/self/exe")
	testutil.Must(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	testutil.Must(t, err)
	_, err = io.Copy(out, in)
	testutil.Must(t, errors.Join(err, out.Close()))
}
