package task

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/launcher/tasks"
)

func TestPsFormat(t *testing.T) {
	for _, tt := range []struct{ format, want string }{
		{"{{.ID}}", "aaaaaaaaaaaa\nbbbbbbbbbbbb\ncccccccccccc\ndddddddddddd\n"},
		{"  {{.Names}}\\t{{.Image}} ", "train\tdebian:12\neval\tdebian:12\nserve\tdebian:12\ndddddddddddd\tdebian:12\n"},
		{"{{.Names}} {{.State}}, {{.Status}}, {{.GPUs}}.", `train running, up 10m00s, 0,1.
eval exited, exited (3) 1m00s ago, .
serve restarting, restarting (1) 2s ago, .
dddddddddddd lost, lost: the machine was restarted, .
`},
		{`{{.Command}} {{.RunningFor}}{{if .Labels}}\n{{.Labels}} {{.Label "team"}}/{{.Label "absent"}}{{end}}`, `"python train.py --e…" 1h00m ago
team=vision,urgent= vision/
"python train.py --e…" 1h00m ago
"python train.py --e…" 1h00m ago
"sh -c 'echo  [31m r…" 1h00m ago
`},
		{`table {{.ID}}\t{{.Names}}\t{{.RunningFor}}\t{{upper .State}}\t{{.Label "com.example.the-team"}}`, `CONTAINER ID  NAMES         CREATED    STATE       the team
aaaaaaaaaaaa  train         1h00m ago  RUNNING
bbbbbbbbbbbb  eval          1h00m ago  EXITED
cccccccccccc  serve         1h00m ago  RESTARTING
dddddddddddd  dddddddddddd  1h00m ago  LOST
`},
		{
			`{{json .Names}} {{lower "A"}} {{title "two words"}} [{{pad "x" 1 2}}] [{{pad "" 1 2}}] {{truncate .Image 3}} {{join (split .Image ":") "+"}}`,
			`"train" a Two Words [ x  ] [] deb debian+12` + "\n" + `"eval" a Two Words [ x  ] [] deb debian+12` + "\n" +
				`"serve" a Two Words [ x  ] [] deb debian+12` + "\n" + `"dddddddddddd" a Two Words [ x  ] [] deb debian+12` + "\n",
		},
	} {
		t.Run(tt.format, func(t *testing.T) {
			var b strings.Builder
			if err := listingOf(someTasks()).printFormatted(t.Context(), &b, tt.format, backend.Tasks{}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, b.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPsFormatJSON: each task is one line of JSON with all fields as text, as docker prints it.
func TestPsFormatJSON(t *testing.T) {
	l := listingOf(someTasks()[:1])
	created := l.tasks[0].Created.Local().Format(output.TimeFormat)
	want := `{"Command":"\"python train.py --e…\"","CreatedAt":"` + created + `","GPUs":"0,1","ID":"aaaaaaaaaaaa","Image":"debian:12",` +
		`"Labels":"team=vision,urgent=","Lease":"00000000000a","LocalVolumes":"0","Mounts":"","Names":"train","Networks":"","Ports":"",` +
		`"RunningFor":"1h00m ago","Size":"0 B","State":"running","Status":"up 10m00s","User":"alice"}` + "\n"
	for _, format := range []string{"json", "{{json .}}"} {
		var b strings.Builder
		if err := l.printFormatted(t.Context(), &b, format, backend.Tasks{Store: tasks.Store{Data: t.TempDir()}}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Error(diff)
		}
	}
}

func someInspected() inspected {
	started, limit, code := now().Add(-time.Minute), int64(1<<30), 3
	return inspected{Task: &inspectedTask{
		Record: tasks.Record{
			ID: "aaaaaaaaaaaa", Name: "train", Image: "debian:12", Created: now(), Labels: map[string]string{"team.name": "vision"},
			Restart: tasks.Restart{Policy: "on-failure", Max: 4},
		},
		State: inspectedState{Status: "exited", Code: &code, OOM: true, Started: &started, Restarts: 2},
		Paths: inspectedPaths{Log: "/data/tasks/aaaaaaaaaaaa/log"},
		Container: &inspectedContainer{
			Args: []string{"python", "train.py"}, Env: []string{"A=1", "B=2"}, Dir: "/work", User: "5:6", Network: "host",
			Mounts:    []specs.Mount{{Type: "bind", Source: "/home/x", Destination: "/x", Options: []string{"ro"}}, {Type: "bind", Source: "/data/tasks/aaaaaaaaaaaa/files/hosts"}, {Type: "proc", Destination: "/proc"}},
			Resources: &inspectedResources{Memory: &specs.LinuxMemory{Limit: &limit}},
		},
	}}
}

func TestInspectFormat(t *testing.T) {
	for _, tt := range []struct{ format, want string }{
		{"{{.Id}} {{.Name}} {{.Config.Image}} {{.Path}} {{.Args}}", "aaaaaaaaaaaa /train debian:12 python [train.py]"},
		{"{{.State.Status}} {{.State.Running}} {{.State.Pid}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.RestartCount}}", "exited false 0 3 true 2"},
		{"{{if eq .State.ExitCode 3}}{{.State.StartedAt}} {{.State.FinishedAt}}{{end}}", "2026-01-02T03:03:05Z 0001-01-01T00:00:00Z"},
		{"{{range .Config.Env}}{{println .}}{{end}}", "A=1\nB=2\n"},
		{"{{join .Config.Env \",\"}} {{index .Config.Labels \"team.name\"}}{{index .Config.Labels \"x\"}}", "A=1,B=2 vision"},
		{"{{range .Mounts}}{{.Source}}:{{.Destination}} {{.RW}}{{end}}", "/home/x:/x false"},
		{"{{.HostConfig.Memory}} {{.HostConfig.NetworkMode}} {{.HostConfig.RestartPolicy.Name}} {{.HostConfig.RestartPolicy.MaximumRetryCount}}", "1073741824 host on-failure 4"},
		{"[{{.NetworkSettings.IPAddress}}] {{range $name, $n := .NetworkSettings.Networks}}{{$name}}[{{$n.IPAddress}}]{{end}}", "[] host[]"},
		{"{{json .State.ExitCode}} {{json .Config.Cmd}}", `3 ["python","train.py"]`},
		{"{{if .State.Health}}{{.State.Health.Status}}{{else}}none{{end}} {{json .State.Health}}", "none null"},
		{"{{.HostConfig.Binds}} {{.HostConfig.NanoCpus}} {{len .HostConfig.PortBindings}}", "[/home/x:/x:ro] 0 0"},
		{"{{.LogPath}} {{.task.name}} {{.task.container.resources.memory.limit}}", "/data/tasks/aaaaaaaaaaaa/log train 1073741824"},
	} {
		t.Run(tt.format, func(t *testing.T) {
			var b strings.Builder
			i := inspector{store: backend.Tasks{Store: tasks.Store{Data: "/data"}}}
			if err := i.printFormatted(&b, tt.format, []inspected{someInspected()}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want+"\n", b.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
	err := inspector{}.printFormatted(&strings.Builder{}, "{{.State.Health.Status}}", []inspected{someInspected()})
	if want := "--format, column 9: what is before .Status is empty"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	err = inspector{}.printFormatted(&strings.Builder{}, "{{.State.Healthy.Status}}", []inspected{someInspected()})
	if want := "--format, column 9: there is no field .State.Healthy (did you mean Health?); there are Dead, Error, ExitCode, FinishedAt, Health, OOMKilled, Paused, Pid, Restarting, Running, StartedAt, Status"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestStatsFormat: docker's fields, and those of the devices. What nobody counts is "-".
func TestStatsFormat(t *testing.T) {
	busy := 50
	all := []usage{
		{ID: "aaaaaaaaaaaa", Name: "train", CPU: 12.345, Memory: 1 << 30, MemoryLimit: 4 << 30, PIDs: 3, BlockRead: 2048, Devices: []probe.Use{{Busy: &busy, Memory: 1 << 30, Total: 80 << 30}}},
		{ID: "bbbbbbbbbbbb", Name: "idle"},
	}
	for format, want := range map[string]string{
		"table {{.Name}}\t{{.CPUPerc}}\t{{.MemUsage}}": "NAME   CPU %   MEM USAGE / LIMIT\ntrain  12.35%  1 GiB / 4 GiB\nidle   0.00%   -\n",
		"{{.Container}} {{.MemPerc}} {{.BlockIO}} {{.NetIO}} {{.PIDs}} {{.GPUPerc}} {{.GPUMemUsage}}": "aaaaaaaaaaaa 25.0% 2 KiB / 0 B - 3 50% 1 GiB / 80 GiB\n" +
			"bbbbbbbbbbbb - 0 B / 0 B - - - -\n",
	} {
		var b strings.Builder
		if err := printStatsFormatted(&b, format, all); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Error(diff)
		}
	}
}
