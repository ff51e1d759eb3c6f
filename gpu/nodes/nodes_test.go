package nodes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
)

func host(t *testing.T, files map[string]string) gpu.Host {
	t.Helper()
	root := t.TempDir()
	h := gpu.Host{Proc: root + "/proc", Sys: root + "/sys", Dev: root + "/dev"}
	if err := os.Mkdir(h.Dev, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		write(t, filepath.Join(root, name), text)
	}
	return h
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// writeServer has two GPUs, the second of which has a slice.
func writeServer(uvm int) map[string]string {
	return map[string]string{
		"proc/devices":              fmt.Sprintf("Character devices:\n195 nvidia\n195 nvidiactl\n%d nvidia-uvm\n236 nvidia-caps\n", uvm),
		"proc/driver/nvidia/params": "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n",
		"proc/driver/nvidia/gpus/0000:10:00.0/information":        "Device Minor: \t 1\n",
		"proc/driver/nvidia/gpus/0000:11:00.0/information":        "Device Minor: \t 0\n",
		"proc/driver/nvidia/gpus/0000:12:00.0/information":        "Model: lost before it got a minor\n",
		"proc/driver/nvidia/capabilities/mig/config":              "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
		"proc/driver/nvidia/capabilities/mig/monitor":             "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 0\n",
		"proc/driver/nvidia/capabilities/gpu0/mig/gi1/access":     "DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
		"proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access": "DeviceFileMinor: 13\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
	}
}

func wanted(uvm uint32) []Node {
	return []Node{
		{"nvidia1", 195, 1, 0o660, 0, 44},
		{"nvidia0", 195, 0, 0o660, 0, 44},
		{"nvidiactl", 195, 255, 0o660, 0, 44},
		{"nvidia-uvm", uvm, 0, 0o660, 0, 44},
		{"nvidia-uvm-tools", uvm, 1, 0o660, 0, 44},
		{"nvidia-caps/nvidia-cap1", 236, 1, 0o400, 0, 0},
		{"nvidia-caps/nvidia-cap12", 236, 12, 0o444, 0, 0},
		{"nvidia-caps/nvidia-cap13", 236, 13, 0o444, 0, 0},
	}
}

func TestPlan(t *testing.T) {
	with := func(name, text string) map[string]string {
		files := writeServer(509)
		files[name] = text
		return files
	}
	tests := []struct {
		name  string
		files map[string]string
		want  []Node
	}{
		{"server", writeServer(509), wanted(509)},
		{"the driver wants nothing", with("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n"), nil},
		{"no driver", map[string]string{"proc/devices": "Character devices:\n1 mem\n"}, nil},
		{"old name, with modeset, uvm not loaded", map[string]string{
			"proc/devices":                          "Character devices:\n195 nvidia-frontend\n195 nvidia-modeset\n",
			"proc/driver/nvidia/gpus/x/information": "Device Minor: 3\n",
		}, []Node{{"nvidia3", 195, 3, 0o666, 0, 0}, {"nvidiactl", 195, 255, 0o666, 0, 0}, {"nvidia-modeset", 195, 254, 0o666, 0, 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Plan(host(t, tt.files))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// listTree lists a device tree: what is at each path, with owner and mode.
func listTree(t *testing.T, h gpu.Host) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(h.Dev, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name, err := filepath.Rel(h.Dev, path)
		if err != nil {
			return err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFCHR:
			got[name] = fmt.Sprintf("c %d:%d %o %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev), st.Mode&0o7777, st.Uid, st.Gid)
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			got[name] = "-> " + target
		case unix.S_IFREG:
			got[name] = "file"
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func made(uvm int) map[string]string {
	return map[string]string{
		"nvidia0": "c 195:0 660 0:44", "nvidia1": "c 195:1 660 0:44", "nvidiactl": "c 195:255 660 0:44",
		"nvidia-uvm": fmt.Sprintf("c %d:0 660 0:44", uvm), "nvidia-uvm-tools": fmt.Sprintf("c %d:1 660 0:44", uvm),
		"nvidia-caps/nvidia-cap1": "c 236:1 400 0:0", "nvidia-caps/nvidia-cap12": "c 236:12 444 0:0", "nvidia-caps/nvidia-cap13": "c 236:13 444 0:0",
		"char/195:0": "-> ../nvidia0", "char/195:1": "-> ../nvidia1", "char/195:255": "-> ../nvidiactl",
		fmt.Sprintf("char/%d:0", uvm): "-> ../nvidia-uvm", fmt.Sprintf("char/%d:1", uvm): "-> ../nvidia-uvm-tools",
		"char/236:1": "-> ../nvidia-caps/nvidia-cap1", "char/236:12": "-> ../nvidia-caps/nvidia-cap12", "char/236:13": "-> ../nvidia-caps/nvidia-cap13",
	}
}

func makeAll(t *testing.T, h gpu.Host) []Change {
	t.Helper()
	plan, err := Plan(h)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := Make(h, plan)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

func TestMake(t *testing.T) {
	testutil.NeedRoot(t)
	old := unix.Umask(0o077)
	t.Cleanup(func() { unix.Umask(old) })
	h := host(t, writeServer(509))
	changes := makeAll(t, h)
	if d := cmp.Diff(made(509), listTree(t, h)); d != "" {
		t.Error(d)
	}
	if len(changes) != 16 || changes[0] != (Change{Path: "nvidia1"}) {
		t.Errorf("%d changes: %v", len(changes), changes)
	}
	if again := makeAll(t, h); again != nil {
		t.Errorf("the second time: %v", again)
	}
}

// The module was loaded again with another major: the node is replaced. Its owner, which udev's
// rules have set, stays.
func TestMakeRepairsNodes(t *testing.T) {
	testutil.NeedRoot(t)
	h := host(t, writeServer(509))
	makeAll(t, h)
	if err := errors.Join(os.Chmod(h.DevPath("nvidia0"), 0o600), os.Chown(h.DevPath("nvidia0"), 7, 8)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(h.DevPath("char/195:1")), os.Symlink("../nvidia0", h.DevPath("char/195:1"))); err != nil {
		t.Fatal(err)
	}
	write(t, h.ProcPath("devices"), "Character devices:\n195 nvidia\n510 nvidia-uvm\n236 nvidia-caps\n")
	changes := makeAll(t, h)
	want := []Change{
		{"char/195:1", "../nvidia0"},
		{"nvidia-uvm", "509:0"},
		{"char/510:0", ""},
		{"nvidia-uvm-tools", "509:1"},
		{"char/510:1", ""},
	}
	if d := cmp.Diff(want, changes); d != "" {
		t.Error(d)
	}
	got := listTree(t, h)
	expect := made(510)
	expect["nvidia0"] = "c 195:0 600 7:8"
	expect["char/509:0"], expect["char/509:1"] = "-> ../nvidia-uvm", "-> ../nvidia-uvm-tools" // harmless
	if d := cmp.Diff(expect, got); d != "" {
		t.Error(d)
	}
}

// A path with anything but a device is left alone, the error names it, and other nodes are made.
func TestMakeRefuses(t *testing.T) {
	testutil.NeedRoot(t)
	tests := []struct {
		name  string
		plant func(h gpu.Host) error
		stays string
		want  string
	}{
		{"a file", func(h gpu.Host) error { return os.WriteFile(h.DevPath("nvidia0"), nil, 0o644) }, "nvidia0", "make device node nvidia0: it exists and isn't a character device"},
		{"a link to a file", func(h gpu.Host) error {
			return errors.Join(os.WriteFile(h.DevPath("../precious"), nil, 0o600), os.Symlink("../precious", h.DevPath("nvidia0")))
		}, "nvidia0", "make device node nvidia0: it exists and isn't a character device"},
		{"a dangling link", func(h gpu.Host) error { return os.Symlink("nothing", h.DevPath("nvidiactl")) }, "nvidiactl", "make device node nvidiactl"},
		{"a linked directory", func(h gpu.Host) error {
			return errors.Join(os.Mkdir(h.DevPath("../elsewhere"), 0o755), os.Symlink("../elsewhere", h.DevPath("nvidia-caps")))
		}, "nvidia-caps", "make device node nvidia-caps/nvidia-cap1"},
		{"a file for a link", func(h gpu.Host) error {
			return errors.Join(os.Mkdir(h.DevPath("char"), 0o755), os.WriteFile(h.DevPath("char/195:0"), nil, 0o644))
		}, "char/195:0", "make link char/195:0: it exists and isn't a symbolic link"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := host(t, writeServer(509))
			if err := tt.plant(h); err != nil {
				t.Fatal(err)
			}
			before := listTree(t, h)[tt.stays]
			plan, err := Plan(h)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Make(h, plan)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			got := listTree(t, h)
			if got[tt.stays] != before {
				t.Errorf("%s was %q and is now %q", tt.stays, before, got[tt.stays])
			}
			if got["nvidia1"] == "" || got["nvidia-uvm"] == "" {
				t.Errorf("the others weren't made: %v", got)
			}
			if left, err := filepath.Glob(h.DevPath("../elsewhere/*")); err != nil || left != nil {
				t.Errorf("%v through the link, %v", left, err)
			}
		})
	}
}

func TestMakeNothing(t *testing.T) {
	if c, err := Make(gpu.Host{Dev: "/nonexistent"}, nil); c != nil || err != nil {
		t.Error(c, err)
	}
	if _, err := Make(gpu.Host{Dev: "/nonexistent"}, wanted(1)); err == nil {
		t.Error("made nodes nowhere")
	}
}

func TestLoadUVM(t *testing.T) {
	const without = "Character devices:\n195 nvidia\n"
	const with = without + "509 nvidia-uvm\n"
	tests := []struct {
		name, devices string
		script        string // of modprobe; "" for none
		want          bool
		wantErr       string
	}{
		{name: "loaded already", devices: with, script: "exit 1"},
		{name: "no driver", devices: "Character devices:\n1 mem\n", script: "exit 1"},
		{name: "loads", devices: without, script: `test "$*" = nvidia-uvm && echo 509 nvidia-uvm >> "$DEVICES"`, want: true},
		{name: "no modprobe", devices: without, wantErr: "load nvidia-uvm: no modprobe found"},
		{name: "fails", devices: without, script: "echo 'FATAL: Module nvidia-uvm' >&2; echo not found >&2; exit 1", wantErr: "exit status 1: FATAL: Module nvidia-uvm not found"},
		{name: "does nothing", devices: without, script: "exit 0", wantErr: "doesn't list the module"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := host(t, map[string]string{"proc/devices": tt.devices})
			program := h.DevPath("modprobe")
			if tt.script != "" {
				script := "#!/bin/sh\nDEVICES=" + h.ProcPath("devices") + "\n" + tt.script + "\n"
				if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			got, err := LoadUVM(t.Context(), h, "/nonexistent/modprobe", program)
			if got != tt.want {
				t.Errorf("loaded: %v, want %v", got, tt.want)
			}
			if tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
				t.Errorf("%v, want %q", err, tt.wantErr)
			}
		})
	}
}
