package task

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/tasks"
)

func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// someTasks are one of each kind.
func someTasks() []tasks.Task {
	ago := func(d time.Duration) time.Time { return now().Add(-d) }
	record := func(n string, name string) tasks.Record {
		return tasks.Record{ID: strings.Repeat(n, 12), Name: name, Image: "debian:12", Command: []string{"python", "train.py", "--epochs", "90"}, Created: ago(time.Hour)}
	}
	running, exited, again, lost := record("a", "train"), record("b", "eval"), record("c", "serve"), record("d", strings.Repeat("d", 12))
	running.Lease, running.Devices, running.Labels = "00000000000a", []string{"GPU-1", "GPU-2"}, map[string]string{"team": "vision", "urgent": ""}
	exited.Lease, exited.Devices = "00000000000b", []string{"GPU-3"}
	lost.Command = []string{"sh", "-c", "echo \x1b[31m\nrm"}
	return []tasks.Task{
		{Record: running, Life: &tasks.Life{Started: ago(10 * time.Minute)}, Status: tasks.Status{State: tasks.Running}},
		{Record: exited, Exit: &tasks.Exit{Code: 3, Finished: ago(time.Minute)}, Status: tasks.Status{State: tasks.Exited, Code: 3}},
		{Record: again, Life: &tasks.Life{Ended: &tasks.Exit{Code: 1, Finished: ago(2 * time.Second)}}, Status: tasks.Status{State: tasks.Restarting}},
		{Record: lost, Status: tasks.Status{State: tasks.Lost, Why: "the machine was restarted"}},
	}
}

func listingOf(all []tasks.Task) listing {
	l := listing{now: now(), held: map[string]ledger.Lease{
		"00000000000a": {Devices: []gpu.Device{{UUID: "GPU-1", Index: "0"}, {UUID: "GPU-2", Index: "1"}, {UUID: "GPU-9", Index: "7"}}},
		"00000000000b": {Devices: []gpu.Device{{UUID: "GPU-3", Index: "2"}}},
	}}
	for _, t := range all {
		l.tasks = append(l.tasks, listed{Task: t, GPUs: output.ListIndexes(l.devicesOf(t)), UserName: "alice"})
	}
	return l
}

func TestPrintListing(t *testing.T) {
	var b strings.Builder
	if err := listingOf(someTasks()).print(&b, 0); err != nil {
		t.Fatal(err)
	}
	want := `ID            IMAGE      COMMAND                 CREATED    STATUS                           GPUS  NAME
aaaaaaaaaaaa  debian:12  "python train.py --e…"  1h00m ago  up 10m00s                        0,1   train
bbbbbbbbbbbb  debian:12  "python train.py --e…"  1h00m ago  exited (3) 1m00s ago             -     eval
cccccccccccc  debian:12  "python train.py --e…"  1h00m ago  restarting (1) 2s ago            -     serve
dddddddddddd  debian:12  "sh -c echo  [31m rm"   1h00m ago  lost: the machine was restarted  -     dddddddddddd
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

// TestUserTasks: root's list has the tasks of other users, with what is known of them, and a column for their users.
func TestUserTasks(t *testing.T) {
	l := listingOf(someTasks()[:1])
	l.addUserTasks([]berth.UserTask{
		{ID: strings.Repeat("e", 12), UID: 4294967290, Cgroup: "/berth/alloc-1.2.3-a/main/eeeeeeeeeeee", Started: now().Add(-2 * time.Hour), Name: "job\n\x1b[31m", Command: "python \x1b[2Jx", Program: "python", Lease: &ledger.Lease{ID: "00000000000b"}},
		{ID: strings.Repeat("f", 12), UID: 4294967290, Cgroup: "/user/alloc-1.2.3-a/main/ffffffffffff", Started: now().Add(-time.Second), Program: "sleep"},
		{ID: strings.Repeat("c", 12), UID: 4294967290, Cgroup: "/user/alloc-1.2.3-a/main/cccccccccccc", Started: now().Add(-time.Minute), Program: "sh", Ranks: []string{"1", "2"}},
		{ID: strings.Repeat("a", 12), UID: 4294967290}, // root's
	})
	var b strings.Builder
	if err := l.print(&b, 0); err != nil {
		t.Fatal(err)
	}
	want := `ID            IMAGE      COMMAND                 CREATED    STATUS     GPUS  NAME       USER
ffffffffffff  -          "sleep"                 1s ago     up 1s      -     -          4294967290
cccccccccccc  -          gang of 2               1m00s ago  up 1m00s   -     -          4294967290
aaaaaaaaaaaa  debian:12  "python train.py --e…"  1h00m ago  up 10m00s  0,1   train      alice
eeeeeeeeeeee  -          "python [2Jx"           2h00m ago  up 2h00m   2     job  [31m  4294967290
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
	b.Reset()
	if err := l.printFormatted(t.Context(), &b, "{{.Names}}|{{.User}}|{{.Lease}}|{{.Size}}{{.Mounts}}|{{.Image}}", backend.Tasks{Store: tasks.Store{Data: t.TempDir()}}); err != nil {
		t.Fatal(err)
	}
	if want := "|4294967290|||\n|4294967290|||\ntrain|alice|00000000000a|0 B|debian:12\njob  [31m|4294967290|00000000000b||\n"; b.String() != want {
		t.Errorf("formatted: %q", b.String())
	}
}

func TestFilters(t *testing.T) {
	for _, c := range []struct{ name, words, want string }{
		{"none", "", "train eval serve dddddddddddd"},
		{"a part of the name", "name=al", "eval"},
		{"the whole name", "name=^eval$", "eval"},
		{"the whole name, with docker's slash", "name=^/eval$", "eval"},
		{"not the whole name", "name=^al$", ""},
		{"an expression", "name=^(train|serve)$", "train serve"},
		{"two of a kind", "name=al name=serve", "eval serve"},
		{"two kinds", "name=al status=running", ""},
		{"a label", "label=team", "train"},
		{"a label's value", "label=team=vision", "train"},
		{"another value", "label=team=audio", ""},
		{"a label without a value", "label=urgent=", "train"},
		{"a status", "status=restarting", "serve"},
		{"an exit code", "exited=3", "eval"},
		{"another exit code", "exited=0", ""},
		{"an image in docker's words", "ancestor=debian", "train eval serve dddddddddddd"},
		{"the beginning of an id", "id=bbb", "eval"},
		{"a GPU", "gpu=1", "train"},
		{"a GPU by its UUID, held or not", "gpu=GPU-3", "eval"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := parseFilters(strings.Fields(c.words))
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, task := range listingOf(someTasks()).tasks {
				if f.matches(task) {
					names = append(names, task.Name)
				}
			}
			if got := strings.Join(names, " "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	for word, want := range map[string]string{
		"nmae=x":        `there is no filter "nmae" (did you mean name?)`,
		"status=runing": `there is no status "runing" (did you mean running?)`,
		"name":          `filter "name" has no value: name=VALUE`,
		"exited=x":      `filter exited=x: not an exit code`,
		"name=(x":       "filter name=(x: error parsing regexp: missing closing )",
	} {
		if _, err := parseFilters([]string{word}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", word, err, want)
		}
	}
}

func TestPrintStats(t *testing.T) {
	var b strings.Builder
	err := printStats(&b, exampleUsage(), 0)
	if err != nil {
		t.Fatal(err)
	}
	want := `ID            NAME   CPU %  MEMORY         MEM %  BLOCK I/O      PIDS  GPU %  GPU MEMORY
aaaaaaaaaaaa  train  250.0  3 GiB / 4 GiB  75.0   1.5 KiB / 0 B  12    80     60 GiB / 160 GiB
bbbbbbbbbbbb  idle   0.0    -              -      0 B / 0 B      -     -      1 MiB / 10 GiB
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

// exampleUsage is of a task with several GPUs, and of one that little is known of.
func exampleUsage() []usage {
	busy := func(n int) *int { return &n }
	return []usage{
		{ID: "aaaaaaaaaaaa", Name: "train", CPU: 250.04, Memory: 3 << 30, MemoryLimit: 4 << 30, PIDs: 12, BlockRead: 1500, Devices: []probe.Use{
			{UUID: "GPU-1", Memory: 40 << 30, Total: 80 << 30, Busy: busy(90)}, {UUID: "GPU-2", Memory: 20 << 30, Total: 80 << 30, Busy: busy(71)}, {UUID: "GPU-3", Error: "lost"},
		}},
		{ID: "bbbbbbbbbbbb", Name: "idle", MemoryLimit: 4 << 30, Devices: []probe.Use{{UUID: "MIG-1", Memory: 1 << 20, Total: 10 << 30}}},
	}
}
