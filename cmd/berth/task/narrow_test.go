package task

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verbtest"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// longTasks have the images, names and devices of a server in use.
func longTasks() listing {
	all := someTasks()
	all[0].Image, all[0].Name = "nvcr.io/nvidia/pytorch:24.01-py3", "pretrain-llama3-70b.rank-0"
	all[0].Life.Started = now().Add(-20 * time.Hour)
	all[1].Image = "registry.example.com/vision/detector/train:2026-01-02"
	l := listingOf(all)
	var devices []gpu.Device
	for i := range 8 {
		devices = append(devices, gpu.Device{UUID: fmt.Sprint("GPU-", i), Index: fmt.Sprint(i)})
		all[0].Devices = append(all[0].Devices, devices[i].UUID)
	}
	l.held["00000000000a"] = ledger.Lease{Devices: devices}
	for i := range l.tasks {
		l.tasks[i].Task = all[i]
		l.tasks[i].GPUs = output.ListIndexes(l.devicesOf(all[i]))
	}
	return l
}

// TestNarrowTables: on a terminal of 80 columns no row is broken by the terminal. Without a terminal, and with
// --no-trunc, the tables stay whole.
func TestNarrowTables(t *testing.T) {
	full := longTasks()
	full.full = true
	busy := 97
	large := exampleUsage()
	large[0].Name, large[0].Memory, large[0].MemoryLimit = "pretrain-llama3-70b.rank-0", 402<<30, 1007<<30
	large[0].BlockRead, large[0].BlockWritten = 102<<30, 3<<40
	large[0].Devices = []probe.Use{{UUID: "GPU-1", Memory: 612 << 30, Total: 640 << 30, Busy: &busy}}
	for _, c := range []struct {
		name string
		show func(b *strings.Builder) error
		most int // columns; 0: as many as it takes
	}{
		{"ps_80", func(b *strings.Builder) error { return longTasks().print(b, 80) }, 80},
		{"ps_120", func(b *strings.Builder) error { return longTasks().print(b, 120) }, 120},
		{"ps_66", func(b *strings.Builder) error { return longTasks().print(b, 66) }, 66},
		{"ps_short_80", func(b *strings.Builder) error { return listingOf(someTasks()).print(b, 80) }, 80},
		{"ps_whole", func(b *strings.Builder) error { return longTasks().print(b, 0) }, 0},
		{"ps_full", func(b *strings.Builder) error { return full.print(b, 80) }, 0},
		{"stats_80", func(b *strings.Builder) error { return printStats(b, large, 80) }, 80},
		{"stats_100", func(b *strings.Builder) error { return printStats(b, large, 100) }, 100},
		{"stats_short_80", func(b *strings.Builder) error { return printStats(b, exampleUsage(), 80) }, 80},
		{"stats_whole", func(b *strings.Builder) error { return printStats(b, large, 0) }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			if err := c.show(&b); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(b.String()) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); c.most > 0 && n > c.most {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			verbtest.CompareGolden(t, "testdata/"+c.name+".txt", b.String())
		})
	}
}
