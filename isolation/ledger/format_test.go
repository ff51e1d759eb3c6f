package ledger

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
)

var update = flag.Bool("update", false, "rewrite golden files")

// sample is a state in which every field is set.
func sample() state {
	since := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	return state{
		reaped: 59 * time.Minute,
		leases: []record{
			newRecord(Lease{
				ID: "0123456789ab", State: Bound, Request: "2", Since: since, Ticks: 360000,
				Devices: []gpu.Device{
					{UUID: "GPU-0", Index: "0", Model: "NVIDIA H100 80GB HBM3"},
					{UUID: "MIG-1", Parent: "GPU-1", Index: "1:0", Profile: "1g.10gb"},
				},
				Owner: Owner{
					EntryPoint: "docker", Container: "4f0c", Name: "web", Bundle: "/b/4f0c", UID: 1000, Command: "python3 train.py",
					Process: Process{PID: 12, Start: 34, Namespace: 56}, BootID: "boot-1", Cgroup: "/docker/4f0c",
					CgroupNS: 78, Maker: "/system.slice/docker.service", PIDFile: "/b/4f0c/init.pid", RuntimeRoot: "/run/runc", Runtime: "runc",
				},
			}),
			newRecord(Lease{
				ID: "ba9876543210", State: Reserved, Request: "1", Since: since,
				Devices: []gpu.Device{{UUID: "GPU-2", Index: "2"}}, Owner: Owner{EntryPoint: "run", BootID: "boot-1"},
			}),
		},
		queue: []block[waiter]{{v: waiter{
			ID: "aaaaaaaaaaaa", Request: "h100:4", Since: since, Arrived: time.Hour,
			Owner: Owner{EntryPoint: "run", BootID: "boot-1"}, Process: Process{PID: 13, Start: 35, Namespace: 56}, Cgroup: "/user",
		}}},
	}
}

func leases(rs []record) []Lease {
	ls := []Lease{}
	for _, r := range rs {
		ls = append(ls, *r.v)
	}
	return ls
}

// decode decodes a file completely.
func (c *codec) decode(data []byte) (state, error) {
	s, err := c.decodeOutline(data)
	if err == nil {
		err = c.decodeLeases(&s)
	}
	return s, err
}

func values[T any](bs []block[T]) []T {
	vs := []T{}
	for _, b := range bs {
		vs = append(vs, b.v)
	}
	return vs
}

// addHeader returns a file with this body and a valid header.
func addHeader(kind string, body []byte) []byte {
	return fillChecksum(kind, append(appendHeader(kind, len(body)), body...))
}

func mustEncode(t testing.TB, s state) []byte {
	t.Helper()
	data, err := new(codec).encode(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The golden file pins the format on disk: a change needs a new version.
func TestFormat(t *testing.T) {
	got := mustEncode(t, sample())
	golden := filepath.Join("testdata", "ledger.json")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
	_, body, _ := bytes.Cut(got, []byte("\n"))
	var indented bytes.Buffer
	if err := json.Indent(&indented, body, "", "  "); err != nil || !bytes.Equal(indented.Bytes(), body) {
		t.Errorf("not indented as usual: %v", err)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		name string
		s    state
	}{
		{"empty", state{}},
		{"full", sample()},
		{"leases only", state{leases: sample().leases}},
		{"line only", state{queue: sample().queue}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &codec{}
			data := mustEncode(t, tt.s)
			for range 2 { // the second time from the codec's memory
				got, err := d.decode(data)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(leases(tt.s.leases), leases(got.leases)); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff(values(tt.s.queue), values(got.queue)); diff != "" {
					t.Error(diff)
				}
				if again := mustEncode(t, got); !bytes.Equal(again, data) {
					t.Errorf("encoded again:\n%s", again)
				}
			}
		})
	}
}

// The devices that are read without decoding a lease are those of the decoded lease.
func TestDevicesWithoutDecoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.StringMatching(`(GPU|MIG)-[0-9a-f]{1,8}`), rapid.String())
		device := rapid.Custom(func(t *rapid.T) gpu.Device {
			return gpu.Device{
				UUID: text.Draw(t, "uuid"), Parent: rapid.OneOf(rapid.Just(""), text).Draw(t, "parent"),
				Index: text.Draw(t, "index"), Model: text.Draw(t, "model"), Profile: text.Draw(t, "profile"),
				Shared: rapid.Bool().Draw(t, "shared"),
				Nodes:  rapid.OneOf(rapid.Just(""), text).Draw(t, "nodes"), CommonNodes: rapid.OneOf(rapid.Just(""), text).Draw(t, "common"),
			}
		})
		s := sample()
		lease := *s.leases[0].v
		lease.Devices = rapid.SliceOfN(device, 1, 4).Draw(t, "devices")
		s.leases[0] = newRecord(lease)
		data, err := new(codec).encode(s)
		if err != nil {
			t.Fatal(err)
		}
		got, err := (&codec{}).decodeOutline(data)
		if err != nil {
			t.Fatal(err)
		}
		r := got.leases[0]
		ds, ok := r.devices()
		if r.id != lease.ID || !ok {
			return // then the whole lease is decoded
		}
		var want []gpu.Device
		for _, d := range lease.Devices {
			want = append(want, gpu.Device{UUID: d.UUID, Parent: d.Parent, Shared: d.Shared, Nodes: d.Nodes, CommonNodes: d.CommonNodes})
		}
		if diff := cmp.Diff(want, ds); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Fields that a newer berth added survive a change of another lease by this one.
func TestUnknownFieldsSurvive(t *testing.T) {
	data := mustEncode(t, sample())
	_, body, _ := bytes.Cut(data, []byte("\n"))
	body = bytes.Replace(body, []byte(`"id": "0123456789ab",`), []byte(`"id": "0123456789ab",`+"\n      "+`"color": "red",`), 1)
	s, err := (&codec{}).decode(addHeader(kindLedger, body))
	if err != nil {
		t.Fatal(err)
	}
	s.leases = s.leases[:1]
	if again := mustEncode(t, s); !strings.Contains(string(again), `"color": "red"`) {
		t.Errorf("lost:\n%s", again)
	}
}

// A file is refused if any single byte of it is changed, or if it is cut anywhere.
func TestDamageIsRefused(t *testing.T) {
	data := mustEncode(t, sample())
	want, err := (&codec{}).decode(data)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		bad := bytes.Clone(data)
		i := rapid.IntRange(0, len(bad)-1).Draw(t, "at")
		if rapid.Bool().Draw(t, "cut") {
			bad = bad[:i]
		} else {
			bad[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		}
		got, err := (&codec{}).decode(bad)
		if err == nil && !cmp.Equal(leases(want.leases), leases(got.leases)) {
			t.Fatalf("accepted a damaged file")
		}
	})
}

func FuzzDecode(f *testing.F) {
	s := sample()
	data, err := new(codec).encode(s)
	if err != nil {
		f.Fatal(err)
	}
	_, body, _ := bytes.Cut(data, []byte("\n"))
	f.Add(body)
	f.Add([]byte(openLeases + openLine + closeFile))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		// With a valid header, so that the fuzzer gets past the checksum.
		got, err := (&codec{}).decode(addHeader(kindLedger, body))
		if err != nil {
			return
		}
		again, err := new(codec).encode(got)
		if err != nil {
			t.Fatal(err)
		}
		back, err := (&codec{}).decode(again)
		if err != nil {
			t.Fatalf("accepted, but not when written again: %v", err)
		}
		if diff := cmp.Diff(leases(got.leases), leases(back.leases)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzDecodeValidHeader(f *testing.F) {
	f.Add(addHeader(kindLedger, []byte("{}")))
	f.Add([]byte(`{"berth":"ledger","version":2,"sha256":""}` + "\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		body, err := checkHeader(kindLedger, data)
		if err == nil && !bytes.HasSuffix(data, body) {
			t.Error("the body isn't the end of the file")
		}
	})
}

// FuzzRuntimeState: the files that runtimes leave are untrusted input.
func FuzzRuntimeState(f *testing.F) {
	f.Add([]byte(`{"init_process_pid":12,"init_process_start":34,"cgroup_paths":{"devices":"/sys/fs/cgroup/devices/x"}}`))
	f.Add([]byte(`{"pid":12,"process-start-time":34,"cgroup-path":"/../x"}`))
	f.Add([]byte(" 12\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		for _, name := range []string{"state.json", "status", "init.pid"} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		o := Owner{PIDFile: filepath.Join(dir, "init.pid"), RuntimeRoot: filepath.Dir(dir), Container: filepath.Base(dir)}
		for _, c := range readClaims(o, devicesTree) {
			if c.pid <= 0 || strings.Contains(c.own, "..") && !strings.HasPrefix(c.own, "/") {
				t.Errorf("accepted %+v", c)
			}
		}
	})
}
