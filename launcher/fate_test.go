package launcher

import (
	"testing"

	"github.com/berth-gpu/berth/launcher/tasks"
)

func TestFate(t *testing.T) {
	kept, gone := &tasks.Record{}, &tasks.Record{Remove: true}
	detached, detachedGone := &tasks.Record{Detached: true}, &tasks.Record{Detached: true, Remove: true}
	for _, tt := range []struct {
		name string
		f    finding
		want fate
	}{
		{"begun to be made", finding{}, remove},
		{"of an earlier berth, and running", finding{populated: true}, stay},
		{"ended, kept", finding{rec: kept, begun: true, ended: true}, stay},
		{"ended, its removal was cut off", finding{rec: gone, begun: true, ended: true}, remove},
		{"ran at a reboot, kept", finding{rec: detached, begun: true, past: true}, stay},
		{"ran at a reboot, not kept", finding{rec: detachedGone, begun: true, past: true}, remove},
		{"was being made at a reboot", finding{rec: detached, past: true}, remove},
		{"ended before a reboot", finding{rec: detached, begun: true, ended: true, past: true}, stay},
		{"detached, without a monitor", finding{rec: detached, begun: true, populated: true}, adopted},
		{"detached, and has ended without a monitor", finding{rec: detached, begun: true}, adopted},
		{"detached, not kept, without a monitor", finding{rec: detachedGone, begun: true}, adopted},
		{"detached, made and never started", finding{rec: detached, populated: true}, end},
		{"detached, and never made", finding{rec: detached}, end},
		{"in the foreground, runs without a launcher", finding{rec: gone, begun: true, populated: true}, stay},
		{"in the foreground, has ended without a launcher", finding{rec: gone, begun: true}, remove},
		{"in the foreground, to be kept, has ended without a launcher", finding{rec: kept, begun: true}, settle},
		{"in the foreground, to be kept, and never made", finding{rec: kept}, remove},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.f.fate(); got != tt.want {
				t.Errorf("fate %d, want %d", got, tt.want)
			}
		})
	}
}

func TestParseStatus(t *testing.T) {
	for _, tt := range []struct {
		line, text string
		code       int
		ok         bool
	}{
		{"started 0123456789ab\n", "0123456789ab", 0, true},
		{"failed 127 there is no such command\n", "there is no such command", 127, true},
		{"started\n", "", 0, false},
		{"started ../../etc\n", "../../etc", 0, false},
		{"failed 0 x\n", "", 0, false},
		{"failed 256 x\n", "", 0, false},
		{"failed 125\n", "", 0, false},
		{"", "", 0, false},
	} {
		if code, text, ok := ParseStatus(tt.line); code != tt.code || text != tt.text || ok != tt.ok {
			t.Errorf("%q: %d, %q, %v", tt.line, code, text, ok)
		}
	}
}
