package control

import (
	"testing"

	"github.com/berth-gpu/berth/launcher/tasks"
)

func TestDecide(t *testing.T) {
	kept, gone := &tasks.Record{}, &tasks.Record{Remove: true}
	detached, detachedGone := &tasks.Record{Detached: true}, &tasks.Record{Detached: true, Remove: true}
	queued := &tasks.Record{Detached: true, Queued: true}
	for _, tt := range []struct {
		name string
		f    finding
		want disposition
	}{
		{"begun to be made", finding{}, removeEnded},
		{"of an earlier berth, and running", finding{populated: true}, leaveAlone},
		{"ended, kept", finding{rec: kept, begun: true, ended: true}, leaveAlone},
		{"ended, its removal was cut off", finding{rec: gone, begun: true, ended: true}, removeEnded},
		{"ran at a reboot, kept", finding{rec: detached, begun: true, previousBoot: true}, leaveAlone},
		{"ran at a reboot, not kept", finding{rec: detachedGone, begun: true, previousBoot: true}, removeEnded},
		{"was being made at a reboot", finding{rec: detached, previousBoot: true}, removeEnded},
		{"waited for devices at a reboot", finding{rec: queued, previousBoot: true}, leaveAlone},
		{"waited for devices, without a launcher", finding{rec: queued}, killFirst},
		{"ended before a reboot", finding{rec: detached, begun: true, ended: true, previousBoot: true}, leaveAlone},
		{"detached, without a monitor", finding{rec: detached, begun: true, populated: true}, adopt},
		{"detached, and has ended without a monitor", finding{rec: detached, begun: true}, adopt},
		{"detached, not kept, without a monitor", finding{rec: detachedGone, begun: true}, adopt},
		{"detached, made and never started", finding{rec: detached, populated: true}, killFirst},
		{"detached, and never made", finding{rec: detached}, killFirst},
		{"in the foreground, runs without a launcher", finding{rec: gone, begun: true, populated: true}, adopt},
		{"in the foreground, and made without a launcher", finding{rec: gone, populated: true}, leaveAlone},
		{"in the foreground, has ended without a launcher", finding{rec: gone, begun: true}, removeEnded},
		{"in the foreground, to be kept, has ended without a launcher", finding{rec: kept, begun: true}, recordUnknown},
		{"in the foreground, to be kept, and never made", finding{rec: kept}, removeEnded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.f.disposition(); got != tt.want {
				t.Errorf("disposition %d, want %d", got, tt.want)
			}
		})
	}
}
