package run

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-gpu/berth/cmd/berth/leasing"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/gang/ranks"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// TestLaunchRequestRoundTrip: the options of the command line reach the launching process unchanged,
// except devices, files and callbacks, which it sets itself.
func TestLaunchRequestRoundTrip(t *testing.T) {
	adj := -5
	o := launcher.Options{
		Image: "debian", Name: "train", Interactive: true, Runtime: "crun", State: "/s", Data: "/d",
		Settings: spec.Settings{
			Command: []string{"sh", "-c", "true"}, Entrypoint: []string{}, Env: []string{"A=b\n"}, Terminal: true,
			Annotations: map[string]string{"a": "b"}, Resources: spec.Resources{OOMScoreAdj: &adj},
		},
		Lifecycle: launcher.Lifecycle{
			Keep: true, Timeout: time.Second, StopSignal: "WINCH", StopTimeout: -1,
			Restart: tasks.Restart{Policy: "on-failure", Max: 2}, LogLimit: tasks.LogLimit{Size: 5},
		},
	}
	for name, want := range map[string]launchRequest{
		"task": {Config: "/etc/c", Task: &o, Devices: "2", Lease: leasing.Terms{Wait: -1, Outer: "a", Detached: true}, Hint: commandHint{Command: "sh"}},
		"gang": {Config: "/etc/c", Devices: "1;1", Lease: leasing.Terms{Network: "none"}, Gang: &launcher.GangOptions{
			Options: o, Server: "/b", Viewer: tasks.Process{PID: 1, Start: 2},
			Ranks:  []launcher.Rank{{Options: o, Role: "rank", Index: 1, Part: 1, Sees: []int{0, 1}, InWorld: 1}},
			Stores: []tasks.GangStore{{Port: 7, Scopes: map[string]int{"a": 2}}},
			Worlds: []ranks.World{{Ranks: []ranks.Rank{{Host: "rank-0"}, {Host: "rank-1"}}, Port: 29500, Interface: "eth0"}},
			Ports:  &ranks.Leased{First: 5, Count: 6},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			sent := want
			if sent.Task != nil {
				withFiles := *sent.Task
				withFiles.Stdin, withFiles.Detach = os.Stdin, &launcher.Detach{Status: os.Stdout}
				sent.Task = &withFiles
			}
			data, err := json.Marshal(sent)
			if err != nil {
				t.Fatal(err)
			}
			var got launchRequest
			if err := json.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(request.Request{}), cmpopts.IgnoreFields(launcher.Options{}, "Inspect")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
