package tasks

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDerive(t *testing.T) {
	const boot = "this boot"
	task := Record{BootID: boot}
	always := Record{BootID: boot, Restart: Restart{Policy: "always"}}
	queued, leased := Record{BootID: boot, Queued: true}, Record{BootID: boot, Queued: true, Lease: "00000000000a"}
	live, ended := &Life{}, &Life{Ended: &Exit{Code: 3}}
	for _, tt := range []struct {
		name string
		e    Evidence
		want Status
	}{
		{"being made", Evidence{Record: task, Held: true}, Status{State: Created}},
		{"waiting for devices", Evidence{Record: queued, Held: true}, Status{State: Waiting}},
		{"being made after it has waited", Evidence{Record: leased, Held: true}, Status{State: Created}},
		{"killed while it waited", Evidence{Record: queued}, Status{State: Lost, Why: "its launcher was killed"}},
		{"killed while it was made", Evidence{Record: task}, Status{State: Lost, Why: "its launcher was killed"}},
		{"made, and its launcher was killed", Evidence{Record: task, Populated: true}, Status{State: Running}},
		{"running", Evidence{Record: task, Life: live, Init: true, Populated: true, Held: true}, Status{State: Running}},
		{"its init has ended, others live on", Evidence{Record: task, Life: live, Populated: true, Held: true}, Status{State: Running}},
		{"its monitor was killed", Evidence{Record: task, Life: live, Init: true, Populated: true}, Status{State: Running}},
		{"ending", Evidence{Record: task, Life: ended, Held: true}, Status{State: Stopping}},
		{"ending, unseen yet", Evidence{Record: always, Life: live, Held: true}, Status{State: Stopping}},
		{"between two lives", Evidence{Record: always, Life: ended, Held: true}, Status{State: Restarting}},
		{"the next life runs", Evidence{Record: always, Life: ended, Held: true, Populated: true}, Status{State: Running}},
		{"stopped between two lives", Evidence{Record: always, Life: ended, Held: true, Stopped: true}, Status{State: Stopping}},
		{"all were killed", Evidence{Record: always, Life: live}, Status{State: Lost, Why: "its monitor was killed, and its processes have ended"}},
		{"ended well", Evidence{Record: task, Life: ended, Exit: &Exit{}}, Status{State: Exited}},
		{"ended badly", Evidence{Record: task, Life: ended, Exit: &Exit{Code: 3, Error: "x"}}, Status{State: Exited, Code: 3, Why: "x"}},
		{"ended before a reboot", Evidence{Record: Record{BootID: "an earlier one"}, Exit: &Exit{Code: 3}}, Status{State: Exited, Code: 3}},
		{"ran at a reboot", Evidence{Record: Record{BootID: "an earlier one"}, Life: live}, Status{State: Lost, Why: "the machine was restarted"}},
		{"was being made at a reboot", Evidence{Record: Record{BootID: "an earlier one"}}, Status{State: Lost, Why: "the machine was restarted"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.e.Boot = boot
			if diff := cmp.Diff(tt.want, Derive(tt.e)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
