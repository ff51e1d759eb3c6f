package server

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/username"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// TestHideOthers: users see their own leases in full, and of others' what policy.show says. A container's lease
// belongs to no user, whatever its uid.
func TestHideOthers(t *testing.T) {
	command := func(uid int) ledger.Owner {
		return ledger.Owner{EntryPoint: "alloc", Name: "python", UID: uid, User: "u", Command: "python secret.py", Cgroup: "/berth/alloc-1.2.3-ab", Process: ledger.Process{PID: 1}}
	}
	container := ledger.Owner{EntryPoint: "docker", Name: "web", Container: "4f0c", UID: 7, User: "x", Command: "secret", Bundle: "/b", Cgroup: "/docker/4f0c"}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	leases := func(owners ...ledger.Owner) (v ledger.View) {
		for _, o := range owners {
			v.Leases = append(v.Leases, ledger.Status{Live: true, Note: "init (process 1) has ended", Lease: ledger.Lease{
				ID: "0123456789ab", Request: "1", Devices: []gpu.Device{{UUID: "GPU-0"}}, Owner: o, Since: since, Ticks: 7,
			}})
			v.Queue = append(v.Queue, ledger.Waiter{ID: "0123456789ab", Request: "1", Owner: o, Since: since})
		}
		return v
	}
	all := leases(command(7), command(8), container)
	nothing := leases(command(7), ledger.Owner{UID: -1}, ledger.Owner{UID: -1})
	for i := 1; i < 3; i++ {
		nothing.Leases[i] = ledger.Status{Live: true, Lease: ledger.Lease{Devices: nothing.Leases[i].Devices, Owner: nothing.Leases[i].Owner}}
		nothing.Queue[i] = ledger.Waiter{Owner: nothing.Queue[i].Owner}
	}
	users := leases(command(7), ledger.Owner{EntryPoint: "alloc", UID: 8, User: "u"}, ledger.Owner{EntryPoint: "docker", UID: 7, User: "x"})
	for show, want := range map[string]ledger.View{"all": all, "users": users, "": users, "none": nothing} {
		if diff := cmp.Diff(want, viewer{7, show, username.Find}.hideOthers(leases(command(7), command(8), container))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", show, diff)
		}
		busy := ledger.BusyError{Occupied: []gpu.Occupied{{}}}
		wanted := ledger.BusyError{Occupied: busy.Occupied}
		for i, l := range leases(command(7), command(8), container).Leases {
			busy.Holders, wanted.Holders = append(busy.Holders, l.Lease), append(wanted.Holders, want.Leases[i].Lease)
		}
		if show == "none" {
			wanted.Occupied = nil
		}
		if diff := cmp.Diff(wanted, viewer{7, show, username.Find}.hideHolders(busy)); diff != "" {
			t.Errorf("busy, %q (-want +got):\n%s", show, diff)
		}
	}
}

// TestHideOccupied: remarks on the leased devices name processes of others only if policy.show says so.
func TestHideOccupied(t *testing.T) {
	all := []gpu.Occupied{{Device: gpu.Device{UUID: "GPU-2", Index: "2"}, By: []gpu.Process{{PID: 4711, Name: "python", User: "bob"}}}}
	named := []string{"GPU 2 in use by python (4711, bob)"}
	unnamed := []string{"GPU 2 in use by a process without a lease"}
	for show, want := range map[string][]string{"all": named, "users": named, "": named, "none": unnamed} {
		var got []string
		for _, o := range hideOccupied(all, show) {
			got = append(got, o.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", show, diff)
		}
	}
}
