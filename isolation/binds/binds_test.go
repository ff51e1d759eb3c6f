package binds

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestKernelMounts(t *testing.T) {
	const table = "22 1 0:20 / / rw - ext4 /dev/vda rw\n" +
		"40 22 0:21 / /proc rw - proc proc rw\n" +
		"41 40 0:40 / /proc/sys/fs/binfmt_misc rw - binfmt_misc binfmt_misc rw\n" +
		"25 24 0:7 / /sys/kernel/debug rw - debugfs debugfs rw\n" +
		"24 22 0:22 / /sys rw - sysfs sysfs rw\n" +
		"30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n" +
		"32 22 0:27 / /cgroup/devices rw - cgroup cgroup rw,devices\n" +
		"33 22 0:28 / /with\\040space rw - cgroup cgroup rw,pids\n" +
		"35 22 0:21 /cpuinfo /box/cpuinfo rw - proc proc rw\n" +
		"34 22 0:29 / /cgroup rw - tmpfs cgroup rw\nbroken\n - cgroup\n"
	want := []point{
		{path: "/box/cpuinfo"},
		{path: "/cgroup/devices", isCgroup: true},
		{path: "/proc", isProc: true},
		{path: "/proc/sys/fs/binfmt_misc"},
		{path: "/sys"},
		{path: "/sys/fs/cgroup", isCgroup: true},
		{path: "/sys/kernel/debug"},
		{path: "/with space", isCgroup: true},
	}
	if diff := cmp.Diff(want, kernelMounts([]byte(table)), cmp.AllowUnexported(point{})); diff != "" {
		t.Error(diff)
	}
}

// tree is a directory in place of the host's root, with a mount table for it.
func tree(t *testing.T) (root string, h Host) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"proc/1/ns", "proc/sys/fs/binfmt_misc", "sys/fs/cgroup", "sys/bus/pci", "data/driver/550/lib64", "data/tasks", "data/shared/550/lib64", "home"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"proc/self": "1", "home/sys": root + "/sys"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	var table strings.Builder
	for _, m := range [][2]string{{"proc", "proc"}, {"proc/sys/fs/binfmt_misc", "binfmt_misc"}, {"sys", "sysfs"}, {"sys/fs/cgroup", "cgroup2"}} {
		table.WriteString("1 1 0:1 / " + root + "/" + m[0] + " rw - " + m[1] + " none rw\n")
	}
	return root, Host{Table: []byte(table.String()), Files: root + "/data/driver", FilesMount: root + "/data/shared", Bundle: root + "/home"}
}

// describe is a line for each mount, with paths relative to the root.
func describe(root string, mounts []specs.Mount) (all []string) {
	for _, m := range mounts {
		how := "rw"
		for _, o := range m.Options {
			switch o {
			case "ro":
				how = o
			case "rrw":
				how += o
			}
		}
		all = append(all, strings.TrimSpace(m.Destination+" "+how+" "+m.Type+" "+strings.TrimPrefix(m.Source, root)))
	}
	return all
}

func TestRestrict(t *testing.T) {
	root, engine := tree(t)
	engine.KeepCgroups = true
	task := engine
	task.KeepCgroups, task.HideProcesses = false, true
	bind := func(src, dst string, options ...string) specs.Mount {
		return specs.Mount{Type: "bind", Source: root + src, Destination: dst, Options: options}
	}
	for _, tt := range []struct {
		name  string
		given []specs.Mount
		task  []string // nil: refused
		also  []string // under an engine; nil: the same
	}{
		{"of no concern", []specs.Mount{bind("/home", "/h", "rbind")}, []string{"/h rw bind /home"}, nil},
		{"no bind", []specs.Mount{{Type: "proc", Source: "proc", Destination: "/proc"}}, []string{"/proc rw proc proc"}, nil},
		{"cgroups", []specs.Mount{bind("/sys/fs/cgroup", "/c", "rbind", "rw")}, []string{"/c ro bind /sys/fs/cgroup"}, nil},
		{
			"an engine's cgroups",
			[]specs.Mount{bind("/sys/fs/cgroup", "/sys/fs/cgroup", "rbind")},
			[]string{"/sys/fs/cgroup ro bind /sys/fs/cgroup"},
			[]string{"/sys/fs/cgroup rw bind /sys/fs/cgroup"},
		},
		{"the host as an engine's cgroups", []specs.Mount{bind("/sys", "/sys/fs/cgroup", "bind")}, []string{"/sys/fs/cgroup ro bind /sys"}, nil},
		{"sysfs", []specs.Mount{bind("/sys", "/s", "rbind")}, []string{"/s ro bind /sys", "/s/fs/cgroup ro bind /sys/fs/cgroup"}, nil},
		{"sysfs alone", []specs.Mount{bind("/sys", "/s", "bind")}, []string{"/s ro bind /sys"}, nil},
		{"a part of sysfs", []specs.Mount{bind("/sys/bus/pci", "/s", "bind")}, []string{"/s ro bind /sys/bus/pci"}, nil},
		{"a link to sysfs", []specs.Mount{bind("/home/sys", "/s", "bind")}, []string{"/s ro bind /home/sys"}, nil},
		{
			"procfs",
			[]specs.Mount{bind("/proc", "/p", "rbind")},
			nil,
			[]string{"/p ro bind /proc", "/p/sys/fs/binfmt_misc ro bind /proc/sys/fs/binfmt_misc"},
		},
		{"a process", []specs.Mount{bind("/proc/1/ns", "/p", "bind")}, nil, []string{"/p ro bind /proc/1/ns"}},
		{"one's own process", []specs.Mount{bind("/proc/self/ns", "/p", "bind")}, nil, []string{"/p ro bind /proc/self/ns"}},
		{"sysctls", []specs.Mount{bind("/proc/sys", "/p", "bind")}, []string{"/p ro bind /proc/sys"}, nil},
		{
			"the host",
			[]specs.Mount{bind("/", "/host", "rbind", "ro")},
			[]string{"/host ro bind /", "/host/proc ro tmpfs tmpfs", "/host/sys ro bind /sys", "/host/sys/fs/cgroup ro bind /sys/fs/cgroup", "/host/data/driver ro bind /data/shared"},
			[]string{"/host ro bind /", "/host/proc ro bind /proc", "/host/proc/sys/fs/binfmt_misc ro bind /proc/sys/fs/binfmt_misc", "/host/sys ro bind /sys", "/host/sys/fs/cgroup ro bind /sys/fs/cgroup", "/host/data/driver ro bind /data/shared"},
		},
		{"the host, without what is mounted", []specs.Mount{bind("/", "/host", "bind")}, []string{"/host rw bind /", "/host/data/driver ro bind /data/shared"}, nil},
		{"recursively writable", []specs.Mount{bind("/sys", "/s", "bind", "ro", "rrw")}, []string{"/s ro bind /sys"}, nil},
		{
			"another mount in the place of a cover, which may be removed later",
			[]specs.Mount{bind("/data", "/d", "rbind"), bind("/home", "/d/driver", "rbind")},
			[]string{"/d rw bind /data", "/d/driver ro bind /data/shared", "/d/driver rw bind /home"},
			nil,
		},
		{"above the files", []specs.Mount{bind("/data", "/d", "rbind")}, []string{"/d rw bind /data", "/d/driver ro bind /data/shared"}, nil},
		{"the files", []specs.Mount{bind("/data/driver", "/d", "rbind", "ro")}, []string{"/d ro bind /data/shared"}, nil},
		{"below the files", []specs.Mount{bind("/data/driver/550/lib64", "/d", "bind", "ro")}, []string{"/d ro bind /data/shared/550/lib64"}, nil},
		{"shared above", []specs.Mount{bind("/data", "/d", "rbind", "rshared")}, nil, []string{}},
		{"relative", []specs.Mount{{Type: "bind", Source: "../sys", Destination: "/s", Options: []string{"bind"}}}, []string{"/s ro bind /sys"}, nil},
		{"a process that is gone", []specs.Mount{bind("/proc/2/root/app", "/p", "bind")}, nil, []string{"/p ro bind /proc/2/root/app"}},
		{"a part of sysfs that isn't there", []specs.Mount{bind("/sys/nothing", "/s", "bind")}, []string{"/s ro bind /sys/nothing"}, nil},
		{"not there", []specs.Mount{bind("/nothing", "/d", "rbind")}, []string{"/d rw bind /nothing"}, nil},
	} {
		for kind, h := range map[string]Host{"task": task, "engine": engine} {
			t.Run(tt.name+"/"+kind, func(t *testing.T) {
				want := tt.task
				if kind == "engine" && tt.also != nil {
					want = tt.also
				}
				all, _, err := h.Restrict(tt.given)
				if len(want) == 0 {
					if err == nil || !strings.Contains(err.Error(), "volume "+tt.given[0].Source) {
						t.Errorf("error %v", err)
					}
					return
				}
				if diff := cmp.Diff(want, describe(root, all)); diff != "" || err != nil {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
				again, notes, err := h.Restrict(all)
				if diff := cmp.Diff(all, again); diff != "" || err != nil || notes != nil {
					t.Errorf("twice: %v, %q (-once +twice):\n%s", err, notes, diff)
				}
			})
		}
	}
}

// TestRemount: a mount that would make another one writable is refused, whatever its type.
func TestRemount(t *testing.T) {
	for _, m := range []specs.Mount{
		{Type: "bind", Source: "/tmp", Destination: "/sys", Options: []string{"bind", "remount", "rw"}},
		{Type: "sysfs", Source: "sysfs", Destination: "/sys", Options: []string{"remount", "rw"}},
	} {
		if _, _, err := (Host{}).Restrict([]specs.Mount{m}); err == nil || !strings.Contains(err.Error(), "mount at /sys: the option remount") {
			t.Errorf("%s: error %v", m.Type, err)
		}
	}
}

// Links that the kernel follows elsewhere than their text says are refused, and so is a relative
// source without a bundle.
func TestAmbiguousSources(t *testing.T) {
	link := filepath.Join(t.TempDir(), "l")
	if err := os.Symlink("/proc/self/root", link); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for source, want := range map[string]string{
		"/proc/self/root":                         "bind the directory itself",
		"/proc/self/root/nothing/there":           "bind the directory itself",
		"/proc/self/cwd":                          "bind the directory itself",
		fmt.Sprintf("/proc/self/fd/%d", dir.Fd()): "bind the directory itself",
		link:           "bind the directory itself",
		"../../../sys": "not an absolute path",
	} {
		all, _, err := Host{}.Restrict([]specs.Mount{{Type: "bind", Source: source, Destination: "/x"}})
		if err == nil || !strings.Contains(err.Error(), "volume "+source+": ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, error %v", source, all, err)
		}
	}
}

// A data directory that is a symbolic link is protected by both names.
func TestLinkToTheFiles(t *testing.T) {
	root, h := tree(t)
	if err := os.Symlink(root+"/data", root+"/link"); err != nil {
		t.Fatal(err)
	}
	h.Files, h.FilesMount = root+"/link/driver", root+"/link/shared"
	for source, want := range map[string][]string{
		"/data":        {"/d rw bind /data", "/d/driver ro bind /link/shared"},
		"/link":        {"/d rw bind /link", "/d/driver ro bind /link/shared"},
		"/link/driver": {"/d rw bind /link/shared"},
	} {
		all, _, err := h.Restrict([]specs.Mount{{Type: "bind", Source: root + source, Destination: "/d", Options: []string{"rbind"}}})
		if diff := cmp.Diff(want, describe(root, all)); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", source, err, diff)
		}
	}
}

// An engine may bind the tmpfs with the cgroups of version 1, and nothing else in sysfs.
func TestCgroupsOfVersion1(t *testing.T) {
	points := kernelMounts([]byte("1 1 0:1 / /sys rw - sysfs s rw\n2 1 0:2 / /sys/fs/cgroup rw - tmpfs t rw\n" +
		"3 2 0:3 / /sys/fs/cgroup/devices rw - cgroup c rw\n4 1 0:4 / /sys/kernel/debug rw - debugfs d rw\n"))
	for name, want := range map[string]bool{"/": false, "/sys": false, "/sys/kernel/debug": false, "/sys/fs/cgroup": true, "/sys/fs/cgroup/devices/a": true} {
		if is := isInCgroups(name, points); is != want {
			t.Errorf("isInCgroups(%s) = %v", name, is)
		}
	}
}

// TestRealTable: the machine's own /proc and /sys are found.
func TestRealTable(t *testing.T) {
	table, err := ReadTable()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, p := range kernelMounts(table) {
		found[p.path] = true
	}
	if !found["/proc"] || !found["/sys"] {
		t.Errorf("found %v", found)
	}
}
