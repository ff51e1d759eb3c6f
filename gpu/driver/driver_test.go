package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
)

// tree writes files below a new directory; a name that ends in / is a directory.
func tree(t *testing.T, files map[string]string) gpu.Host {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		dir := filepath.Dir(path)
		if strings.HasSuffix(name, "/") {
			dir = path
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if dir == path {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return gpu.Host{Proc: root + "/proc", Sys: root + "/sys", Dev: root + "/dev"}
}

func TestVersion(t *testing.T) {
	const proc = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025\nGCC version:  gcc 12.2.0\n"
	const open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (dvs-builder)\n"
	const arm64 = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.124.06  Release Build  (dvs-builder)\n"
	tests := []struct {
		name    string
		files   map[string]string
		want    string
		wantErr bool
	}{
		{name: "no driver"},
		{name: "arm64", files: map[string]string{"proc/driver/nvidia/version": arm64}, want: "570.124.06"},
		{name: "module", files: map[string]string{"sys/module/nvidia/version": "550.163.01\n", "proc/driver/nvidia/version": open}, want: "550.163.01"},
		{name: "proc alone", files: map[string]string{"proc/driver/nvidia/version": proc}, want: "550.163.01"},
		{name: "open modules", files: map[string]string{"proc/driver/nvidia/version": open}, want: "560.35.03"},
		{name: "garbage", files: map[string]string{"proc/driver/nvidia/version": "hello 1.2\n"}, wantErr: true},
		{name: "no number", files: map[string]string{"proc/driver/nvidia/version": "NVRM version: x86_64 1.a 1\n"}, wantErr: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Version(tree(t, tt.files))
			if got != tt.want || (err != nil) != tt.wantErr {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestGPUs(t *testing.T) {
	h := tree(t, map[string]string{
		"proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 31\n" +
			"GPU UUID: \t GPU-8a7f\nBus Location: \t 0000:1b:00.0\nDevice Minor: \t 2\n",
		"proc/driver/nvidia/gpus/0000:0a:00.0/information": "GPU UUID: \t GPU-????????-????\nDevice Minor: \t -7\n",
		"proc/driver/nvidia/gpus/0000:ff:00.0/":            "",
	})
	got, err := GPUs(h)
	if err != nil {
		t.Fatal(err)
	}
	want := []GPU{
		{PCI: "0000:0a:00.0", Minor: -1},
		{PCI: "0000:1b:00.0", UUID: "GPU-8a7f", Model: "NVIDIA H100 80GB HBM3", Minor: 2},
		{PCI: "0000:ff:00.0", Minor: -1},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got, err := GPUs(tree(t, nil)); err != nil || got != nil {
		t.Errorf("no driver: %v, %v", got, err)
	}
}

func TestParams(t *testing.T) {
	tests := []struct {
		name, text string
		want       DeviceFiles
		wantErr    bool
	}{
		{name: "usual", text: "Mobile: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nRegistryDwords: \"\"\n", want: DeviceFiles{Modify: true, Mode: 0o666}},
		{name: "group", text: "ModifyDeviceFiles: 0\nDeviceFileUID: 3\nDeviceFileGID: 44\nDeviceFileMode: 432\n", want: DeviceFiles{UID: 3, GID: 44, Mode: 0o660}},
		{name: "silent", want: DeviceFiles{Modify: true, Mode: 0o666}},
		{name: "set-uid bits don't count", text: "DeviceFileMode: 4095\n", want: DeviceFiles{Modify: true, Mode: 0o777}},
		{name: "a word", text: "DeviceFileUID: root\n", wantErr: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Params(tree(t, map[string]string{"proc/driver/nvidia/params": tt.text}))
			if got != tt.want || (err != nil) != tt.wantErr {
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
	if got, err := Params(tree(t, nil)); err != nil || got != defaultDeviceFiles() {
		t.Errorf("no driver: %+v, %v", got, err)
	}
}

func TestCapabilities(t *testing.T) {
	access := func(minor string) string {
		return "DeviceFileMinor: " + minor + "\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
	}
	files := map[string]string{
		"proc/driver/nvidia/capabilities/mig/config":               access("1"),
		"proc/driver/nvidia/capabilities/mig/monitor":              access("2"),
		"proc/driver/nvidia/capabilities/gpu10/mig/gi2/access":     access("300"),
		"proc/driver/nvidia/capabilities/gpu2/mig/gi10/access":     access("210"),
		"proc/driver/nvidia/capabilities/gpu2/mig/gi10/ci0/access": access("211"),
		"proc/driver/nvidia/capabilities/gpu2/mig/gi1/ci3/":        "",
		"proc/driver/nvidia/capabilities/gpu2/mig/gi1/ci0/access":  access("12"),
		"proc/driver/nvidia/capabilities/gpu3/mig/":                "",
		"proc/driver/nvidia/capabilities/fabric-imex-mgmt":         access("9"),
		"proc/driver/nvidia-caps/mig-minors":                       "config 1\nmonitor 2\ngpu2/gi1/access 30\ngpu2/gi1/ci3/access 33\n",
	}
	h := tree(t, files)
	got, err := Capabilities(h)
	if err != nil {
		t.Fatal(err)
	}
	read := DeviceFiles{Modify: true, Mode: 0o444}
	want := []Capability{
		{"mig/config", 1, read},
		{"mig/monitor", 2, read},
		{"gpu2/mig/gi1", 30, defaultDeviceFiles()},
		{"gpu2/mig/gi1/ci0", 12, read},
		{"gpu2/mig/gi1/ci3", 33, defaultDeviceFiles()},
		{"gpu2/mig/gi10", 210, read},
		{"gpu2/mig/gi10/ci0", 211, read},
		{"gpu10/mig/gi2", 300, read},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	layout, err := Layout(h)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, m := range layout {
		text = append(text, m.String())
	}
	if d := cmp.Diff([]string{"gpu2: 1.0 1.3 10.0", "gpu10: 2"}, text); d != "" {
		t.Error(d)
	}

	if got, err := Capabilities(tree(t, nil)); err != nil || got != nil {
		t.Errorf("no driver: %v, %v", got, err)
	}
	files["proc/driver/nvidia/capabilities/gpu2/mig/gi10/access"] = "DeviceFileMode: 292\n"
	if _, err := Capabilities(tree(t, files)); err == nil || !strings.Contains(err.Error(), "gi10/access: no minor") {
		t.Errorf("access file without a minor: %v", err)
	}
}

func TestParseMinors(t *testing.T) {
	for _, text := range []string{"config\n", "gpu0/gi0/access x\n", "config -1\n", "config 1048576\n", "gpu0/gi0/access 1 2\n"} {
		if got, err := parseMinors(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

func FuzzParseMinors(f *testing.F) {
	f.Add("config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n")
	f.Fuzz(func(t *testing.T, text string) {
		minors, err := parseMinors(strings.NewReader(text))
		if err != nil && minors != nil {
			t.Errorf("minors %v beside error %v", minors, err)
		}
		for name, minor := range minors {
			if minor < 0 || minor > maxMinor || !strings.Contains(name, "mig/") {
				t.Errorf("%q: %d", name, minor)
			}
		}
	})
}

func FuzzParseFields(f *testing.F) {
	f.Add("DeviceFileMinor: 31\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
	f.Add("ModifyDeviceFiles: 1\nDeviceFileUID: 0\nRegistryDwords: \"\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		fields, err := parseFields(text)
		if err == nil && deviceFiles(fields).Mode > 0o777 {
			t.Errorf("mode of %q", text)
		}
	})
}
