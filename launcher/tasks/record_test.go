package tasks

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func fullRecord() Record {
	return Record{
		Version: Version, ID: "0123456789ab", Name: "train", Image: "docker://debian", Command: []string{"sh", "-c", "x\ny"},
		Created: time.Unix(1e9, 5).UTC(), BootID: "boot", Maker: Process{PID: 7, Start: 8}, User: 1, UID: 2, GID: 3,
		Detached: true, Remove: true, Terminal: true, Interactive: true,
		Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		Request: "2", Lease: "ba9876543210", Shared: true, Devices: []string{"GPU-1"},
		Runtime: "/usr/bin/crun", RuntimeRoot: "/run/berth/runtime/crun", Cgroup: "/berth/0123456789ab", CgroupMount: "/sys/fs/cgroup",
		Layers: []string{"/a", "/b"}, Writable: true,
		Restart: Restart{Policy: "on-failure", Max: 3}, StopSignal: 15, Grace: 1, Timeout: 2, Log: LogLimit{Size: 1, Files: 2},
	}
}

func TestRecordsRoundTrip(t *testing.T) {
	s := Store{Data: t.TempDir()}
	id := fullRecord().ID
	makeTask(t, s, id)
	life := Life{
		Version: Version, Init: Process{1, 2}, Started: time.Unix(5, 0).UTC(), Restarts: 1, BootID: "boot", Monitor: Process{3, 4},
		Ended: &Exit{Version: Version, Code: 137, Signal: 9, OOM: true, Error: "x"},
	}
	if err := s.WriteRecord(fullRecord()); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteLife(id, life); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteExit(id, *life.Ended); err != nil {
		t.Fatal(err)
	}
	gotRecord, err := s.Record(id)
	if diff := cmp.Diff(fullRecord(), gotRecord); diff != "" || err != nil {
		t.Error(err, diff)
	}
	gotLife, err := s.Life(id)
	if diff := cmp.Diff(&life, gotLife); diff != "" || err != nil {
		t.Error(err, diff)
	}
	gotExit, err := s.Exit(id)
	if diff := cmp.Diff(life.Ended, gotExit); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestParseRecordRefuses(t *testing.T) {
	good, err := json.Marshal(fullRecord())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, data, want string }{
		{"nothing", "", "unexpected end"},
		{"no version", "{}", "format 0, and this one knows 1"},
		{"a later version", `{"version":2,"id":7}`, "format 2, and this one knows 1"},
		{"no id", `{"version":1}`, "no id of a task"},
		{"a path for an id", `{"version":1,"id":"../../../etc"}`, "no id of a task"},
		{"cut off", string(good[:len(good)/2]), "unexpected end"},
		{"a field of another type", `{"version":1,"id":"0123456789ab","command":"x"}`, "cannot unmarshal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ParseRecord([]byte(tt.data)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	if _, err := ParseRecord([]byte(`{"version":1,"id":"0123456789ab","later":"field"}`)); err != nil {
		t.Errorf("a field of a later berth is refused: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, v := range []any{fullRecord(), Life{Version: 1, Ended: &Exit{}}, Exit{Version: 1, Code: 3}} {
		data, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"version":1,"id":"0123456789ab","restart":{"max":-1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := ParseRecord(data); err == nil {
			if !ValidID(r.ID) || r.Version != Version {
				t.Errorf("record with id %q, version %d", r.ID, r.Version)
			}
			expectRoundTrip(t, r, ParseRecord)
		}
		if l, err := ParseLife(data); err == nil {
			expectRoundTrip(t, l, ParseLife)
		}
		if e, err := ParseExit(data); err == nil {
			expectRoundTrip(t, e, ParseExit)
		}
	})
}

// expectRoundTrip: what was read is written and read as the same.
func expectRoundTrip[T any](t *testing.T, v T, parse func([]byte) (T, error)) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		return // a time that JSON can't hold
	}
	got, err := parse(data)
	second, _ := json.Marshal(got)
	if err != nil || string(second) != string(data) {
		t.Errorf("%s comes back as %s, %v", data, second, err)
	}
}

func TestRestart(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Restart
		err  string
	}{
		{text: "no"},
		{text: ""},
		{text: "always", want: Restart{Policy: "always"}},
		{text: "unless-stopped", want: Restart{Policy: "unless-stopped"}},
		{text: "3", want: Restart{Policy: "on-failure", Max: 3}},
		{text: "0", want: Restart{}},
		{text: "-1", err: "is not known"},
		{text: "on-failure", want: Restart{Policy: "on-failure"}},
		{text: "on-failure:3", want: Restart{Policy: "on-failure", Max: 3}},
		{text: "on-failure:", err: "not a number"},
		{text: "on-failure:-1", err: "not a number"},
		{text: "always:3", err: "only on-failure takes a number"},
		{text: "no:3", err: "only on-failure takes a number"},
		{text: "sometimes", err: "there are no, on-failure[:N], always and unless-stopped"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			got, err := ParseRestart(tt.text)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if got != tt.want || err != nil {
				t.Errorf("%+v, %v, want %+v", got, err, tt.want)
			}
			if back, err := ParseRestart(got.String()); back != got || err != nil {
				t.Errorf("%q comes back as %+v, %v", got, back, err)
			}
		})
	}
}

func TestAgain(t *testing.T) {
	for _, tt := range []struct {
		policy         Restart
		code, restarts int
		want           bool
	}{
		{Restart{}, 1, 0, false},
		{Restart{Policy: "always"}, 0, 1000, true},
		{Restart{Policy: "unless-stopped"}, 1, 0, true},
		{Restart{Policy: "on-failure"}, 0, 0, false},
		{Restart{Policy: "on-failure"}, 1, 1000, true},
		{Restart{Policy: "on-failure", Max: 2}, 1, 1, true},
		{Restart{Policy: "on-failure", Max: 2}, 1, 2, false},
		{Restart{Policy: "a later one"}, 1, 2, false},
	} {
		if got := tt.policy.Allows(tt.code, tt.restarts); got != tt.want {
			t.Errorf("%s after code %d and %d restarts: %v", tt.policy, tt.code, tt.restarts, got)
		}
	}
}
