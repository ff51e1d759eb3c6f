package sysfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/gpu"
)

func TestOffBus(t *testing.T) {
	root := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(root, "bus/pci/devices", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ones := strings.Repeat("\xff", 256)
	write("0000:01:00.0/config", "\xde\x10\x30\x23"+ones)
	write("0000:02:00.0/config", ones)
	write("0000:03:00.0/config", "\xff\xff\xff\xff\x07"+ones) // a virtual function
	write("0000:04:00.0/config", ones)
	write("0000:04:00.0/power_state", "D3cold\n")
	write("0000:05:00.0/vendor", "0x10de\n") // a tree without config
	write("0000:06:00.0/config", "\xff\xff")
	h := gpu.Host{Sys: root}
	for address, want := range map[string]string{
		"0000:01:00.0": "", "0000:03:00.0": "", "0000:04:00.0": "", "0000:05:00.0": "", "0000:06:00.0": "", "": "",
		"0000:02:00.0": "fell off the PCI bus: the configuration space of 0000:02:00.0 reads as ones",
		"0000:07:00.0": "fell off the PCI bus: there is no device 0000:07:00.0",
	} {
		if got := OffBus(h, gpu.GPU{PCI: address, CPUs: "0-3"}); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
	if got := OffBus(gpu.Host{Sys: "/nonexistent"}, gpu.GPU{PCI: "0000:02:00.0", CPUs: "0-3"}); got != "" {
		t.Errorf("without a tree: %q", got)
	}

	if got := OffBus(h, gpu.GPU{PCI: "0000:07:00.0"}); got != "" {
		t.Errorf("a GPU that /sys never listed: %q", got)
	}

	gpus := []gpu.GPU{{PCI: "0000:01:00.0"}, {PCI: "0000:02:00.0"}, {PCI: "0000:07:00.0", Lost: "why"}}
	marked := MarkLost(h, gpus)
	if gpus[1].Lost != "" || marked[0].Lost != "" || marked[1].Lost == "" || marked[2].Lost != "why" {
		t.Errorf("%+v of %+v", marked, gpus)
	}
}
