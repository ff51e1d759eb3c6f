package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// TestChecksAreDocumented: docs/doctor.md lists the checks in their order.
func TestChecksAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "## For programs")
	if !ok {
		t.Fatal("docs/doctor.md has no part for programs")
	}
	var listed, made []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z.]+)` \\|").FindAllStringSubmatch(table, -1) {
		listed = append(listed, m[1])
	}
	for _, c := range new(examination).checks() {
		made = append(made, c.id)
	}
	made = append(made, "access", "engines")
	if diff := cmp.Diff(made, listed); diff != "" {
		t.Errorf("docs/doctor.md (-is +lists):\n%s", diff)
	}
}

// machine is a tree in which a driver can be put together.
type machine struct {
	*testing.T
	root    string
	user    string         // "" is root
	refusal userns.Refusal // of user namespaces
}

func (m machine) write(name, text string) {
	m.Helper()
	path := filepath.Join(m.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		m.Fatal(err)
	}
}

func (m machine) link(name, to string) {
	m.Helper()
	path := filepath.Join(m.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path)); err != nil {
		m.Fatal(err)
	}
}

// check makes one check on the machine.
func (m machine) check(id string, programs ...string) (found []string) {
	m.Helper()
	h := gpu.Host{DriverRoot: m.root, Dev: m.root + "/dev", Proc: m.root + "/proc", Sys: m.root + "/sys"}
	conf := berth.Config{State: m.root + "/state", Data: m.root + "/data", Host: berth.HostConfig{DriverRoot: m.root, Dev: h.Dev, Proc: h.Proc, Sys: h.Sys}}
	e := &examination{ctx: m.Context(), host: h, Host: Host{Config: conf, ConfigPath: berth.ConfigPath, User: m.user, TryNamespace: func(context.Context) (userns.Refusal, error) {
		return m.refusal, nil
	}, Find: func(name string) string {
		if slices.Contains(programs, name) {
			return "/usr/bin/" + name
		}
		return ""
	}}}
	for _, c := range e.checks() {
		if c.id == id {
			e.run(c)
		}
	}
	for _, line := range lines(e.findings) {
		found = append(found, strings.ReplaceAll(line, m.root, ""))
	}
	return found
}

// lines are findings as "STATE: TEXT -> FIX".
func lines(findings []Finding) (all []string) {
	for _, f := range findings {
		all = append(all, strings.TrimSuffix(string(f.State)+": "+f.Text+" -> "+f.Fix, " -> "))
	}
	return all
}

// TestRecords: records of tasks and images that can't be read are reported with a fix.
func TestRecords(t *testing.T) {
	m := machine{T: t, root: t.TempDir()}
	if diff := cmp.Diff([]string{"ok: the name of each image can be read"}, m.check("images.names")); diff != "" {
		t.Error(diff)
	}
	m.write("data/images/names/00.json", "")
	m.write("data/tasks/0123456789ab/task.json", "")
	m.write("data/tasks/ba9876543210/task.json", `{"version":99}`)
	want := []string{"warning: /data/images/names/00.json can't be read, and its image is lost -> berth prune; then pull that image again"}
	if diff := cmp.Diff(want, m.check("images.names")); diff != "" {
		t.Error(diff)
	}
	got := m.check("tasks.records")
	if len(got) != 2 || !strings.HasSuffix(got[0], " -> berth rm -f 0123456789ab") || strings.Contains(got[1], "rm -f") {
		t.Errorf("%q", got)
	}
}

func TestDriver(t *testing.T) {
	card := func(driver string) func(machine) {
		return func(m machine) {
			m.write("sys/bus/pci/devices/0000:17:00.0/vendor", "0x10de\n")
			m.write("sys/bus/pci/devices/0000:17:00.0/class", "0x030200\n")
			m.write("sys/bus/pci/devices/0000:17:00.1/vendor", "0x10de\n") // its sound
			m.write("sys/bus/pci/devices/0000:17:00.1/class", "0x040300\n")
			if driver != "" {
				m.link("sys/bus/pci/devices/0000:17:00.0/driver", "../../drivers/"+driver)
			}
		}
	}
	module := func(m machine) { m.write("sys/module/nvidia/version", "550.1\n") }
	loaded := func(m machine) {
		module(m)
		m.write("proc/driver/nvidia/gpus/0000:31:00.0/information", "Device Minor: 0\n")
	}
	library := func(dir, version string) func(machine) {
		return func(m machine) {
			for _, name := range []string{"libcuda.so", "libnvidia-ml.so"} {
				m.write(dir+"/"+name+"."+version, "")
				m.link(dir+"/"+name+".1", "/"+dir+"/"+name+"."+version) // below the root
			}
		}
	}
	const two = " is 540.2"
	for _, c := range []struct {
		name, id string
		parts    []func(machine)
		want     []string
	}{
		{"nothing", "driver.module", nil, []string{"failure: no driver is loaded, and there is no NVIDIA GPU on the PCI bus -> install a GPU, or pass one through to this virtual machine"}},
		{"not loaded", "driver.module", []func(machine){card("")}, []string{"failure: NVIDIA's driver isn't loaded, and there are 1 GPU on the PCI bus -> modprobe nvidia"}},
		{"nouveau", "driver.module", []func(machine){card("nouveau")}, []string{"failure: NVIDIA's driver isn't loaded: the GPU is bound to nouveau -> " + removeNouveau}},
		{"loaded", "driver.module", []func(machine){loaded}, []string{"ok: 550.1, 1 GPU"}},
		{"loaded without a GPU", "driver.module", []func(machine){module}, []string{"warning: 550.1 is loaded, and there is no NVIDIA GPU on the PCI bus -> install a GPU, or pass one through to this virtual machine"}},
		{"loaded without its GPU", "driver.module", []func(machine){module, card("")}, []string{"failure: 550.1 is loaded and bound to none of the 1 GPU on the PCI bus -> dmesg | grep NVRM shows why"}},
		{"all passed through", "driver.module", []func(machine){module, card("vfio-pci")}, []string{"ok: 550.1, without a GPU: all are passed through to virtual machines (vfio)"}},
		{"nouveau has another", "driver.cards", []func(machine){loaded, card("nouveau")}, []string{"warning: the GPU 0000:17:00.0 is bound to nouveau -> " + removeNouveau}},
		{"a virtual machine's", "driver.cards", []func(machine){loaded, card("vfio-pci")}, []string{"ok: every GPU of the PCI bus is bound to it, except 1 that are passed through to virtual machines (vfio)"}},
		{"nobody's", "driver.cards", []func(machine){loaded, card("")}, []string{"warning: the GPU 0000:17:00.0 is on the PCI bus, and not bound to the driver -> echo 0000:17:00.0 >/sys/bus/pci/drivers/nvidia/bind; if that fails, dmesg | grep NVRM shows why"}},
		{"files", "driver.files", []func(machine){loaded, library("usr/lib64", "550.1")}, []string{"ok: libcuda.so.1 and libnvidia-ml.so.1 have the version of the module"}},
		{"two installations", "driver.files", []func(machine){loaded, library("usr/lib64", "550.1"), library("usr/lib/x86_64-linux-gnu", "540.2")}, []string{
			"warning: the kernel's module is 550.1, and another installation is beside it: /usr/lib/x86_64-linux-gnu/libcuda.so.540.2" + two + " -> remove it, and call ldconfig",
			"warning: the kernel's module is 550.1, and another installation is beside it: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.540.2" + two + " -> remove it, and call ldconfig",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine{T: t, root: t.TempDir()}
			for _, part := range c.parts {
				part(m)
			}
			if diff := cmp.Diff(c.want, m.check(c.id)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestRootless: a refusal of user namespaces is a problem where a broker or podman needs them, and for each user.
func TestRootless(t *testing.T) {
	m := machine{T: t, root: t.TempDir()}
	m.refusal = userns.Refusal{Reason: "they are forbidden", Fix: "allow them"}
	const unneeded = "ok: users can't make user namespaces, which berth run and podman would need without root: they are forbidden"
	const needed = "warning: users can't make user namespaces, which berth run and podman need without root: they are forbidden -> allow them"
	want := func(name, line string, programs ...string) {
		t.Helper()
		if diff := cmp.Diff([]string{line}, m.check("rootless", programs...)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	want("nobody", unneeded)
	want("podman", needed, "podman")
	m.user = "user 1000"
	want("a user", needed)
	m.user = ""
	m.write("state/broker.sock", "")
	want("a broker", needed)
	m.refusal = userns.Refusal{}
	want("allowed", "ok: users may make user namespaces, as berth run and podman do without root")
}

func TestOverlay(t *testing.T) {
	m := machine{T: t, root: t.TempDir()}
	m.write("proc/filesystems", "nodev\tproc\nnodev\toverlay\n\text4\n")
	if got := m.check("kernel.overlay"); len(got) != 1 || got[0] != "ok: overlayfs is there" {
		t.Errorf("got %v", got)
	}
}

func TestControllerFix(t *testing.T) {
	const table = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t5\t1\nmemory\t0\t1\t0\npids\t0\t1\t1\n"
	v1 := cgroup.Hierarchy{Version: cgroup.V1, Mount: "/sys/fs/cgroup"}
	v2 := cgroup.Hierarchy{Version: cgroup.V2, Mount: "/sys/fs/cgroup"}
	for _, c := range []struct {
		name, controller string
		h                cgroup.Hierarchy
		want             string
	}{
		{"turned off", "memory", v2, "boot with cgroup_enable=memory"},
		{"version 1 has it", "cpu", v2, "boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all, because a version 1 hierarchy has it"},
		{"not mounted", "pids", v1, "mkdir -p /sys/fs/cgroup/pids && mount -t cgroup -o pids cgroup /sys/fs/cgroup/pids"},
		{"not built", "cpuset", v2, "a kernel with the controller cpuset"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := controllerFix(c.h, c.controller, table); got != c.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestDecideOwner(t *testing.T) {
	for _, c := range []struct {
		name string
		st   unix.Stat_t
		want string
	}{
		{"root's", unix.Stat_t{Mode: unix.S_IFREG | 0o755}, ""},
		{"root's group", unix.Stat_t{Mode: unix.S_IFDIR | 0o775}, ""},
		{"another group", unix.Stat_t{Mode: unix.S_IFREG | 0o775, Gid: 4}, "chmod go-w /x"},
		{"everybody's", unix.Stat_t{Mode: unix.S_IFDIR | 0o777}, "chmod go-w /x"},
		{"sticky", unix.Stat_t{Mode: unix.S_IFDIR | unix.S_ISVTX | 0o777}, ""},
		{"a sticky file", unix.Stat_t{Mode: unix.S_IFREG | unix.S_ISVTX | 0o777}, "chmod go-w /x"},
		{"a user's", unix.Stat_t{Mode: unix.S_IFREG | 0o755, Uid: 7}, "chown root:root /x && chmod go-w /x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &report{}
			decideOwner(r, "/x", c.st)
			decideOwner(r, "/x", c.st) // of two files below one directory
			if (len(r.findings) == 1) != (c.want != "") || len(r.findings) > 0 && r.findings[0].Fix != c.want {
				t.Errorf("got %+v", r.findings)
			}
		})
	}
}

func TestFindMount(t *testing.T) {
	const table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:5 / /var/lib rw - ext4 /dev/sdb rw\n31 30 0:6 / /var/lib/berth\\040two rw - xfs /dev/sdc rw\nodd\n"
	for path, want := range map[string]string{
		"/var/lib/berth": "/var/lib", "/var/lib/berth two/x": "/var/lib/berth two", "/var/library": "/", "/": "/", "/var/lib": "/var/lib",
	} {
		if got, _ := findMount(table, path); got != want {
			t.Errorf("%s is on %s, not on %s", path, got, want)
		}
	}
}

func TestParseRuntimeVersion(t *testing.T) {
	for output, want := range map[string][2]string{
		"crun version 1.8.1\ncommit: x\n": {"crun", "1.8.1"}, "runc version 1.1.5+ds1\n": {"runc", "1.1.5+ds1"}, "youki: 0.5\n": {}, "": {},
	} {
		if name, version := parseRuntimeVersion(output); name != want[0] || version != want[1] {
			t.Errorf("%q is %q, %q", output, name, version)
		}
	}
}

// TestChecksOnlyRootCanMake: for another user than root, a check without permission is left out and
// listed. For root it is a failure.
func TestChecksOnlyRootCanMake(t *testing.T) {
	denied := func(*report) error { return &os.PathError{Op: "open", Path: "/x", Err: unix.EACCES} }
	for _, c := range []struct {
		user string
		want []State
	}{{"", []State{Failure}}, {"user 7", nil}} {
		e := &examination{ctx: context.Background(), Host: Host{User: c.user}}
		e.run(check{"a.b", denied})
		var got []State
		for _, f := range e.findings {
			got = append(got, f.State)
		}
		if diff := cmp.Diff(c.want, got); diff != "" || (len(e.unseen) == 1) != (c.user != "") {
			t.Errorf("user %q: %v, unseen %v", c.user, got, e.unseen)
		}
	}
}
