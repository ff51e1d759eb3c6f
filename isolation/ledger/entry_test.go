package ledger

import (
	stdjson "encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/json"
)

// anyText draws names, commands and paths, also hostile ones.
func anyText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.Just(""), rapid.StringMatching(`[ -~]{0,40}`), rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"<&>", "\u2028\u2029", "\x7f", "a\nb\tc\x00", `"\`, "\xff", "…"}),
	)
}

func anyTime() *rapid.Generator[time.Time] {
	return rapid.Custom(func(t *rapid.T) time.Time {
		zone := time.FixedZone("", rapid.IntRange(-14*60, 14*60).Draw(t, "zone")*60)
		return time.Unix(rapid.Int64Range(0, 1<<37).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).In(zone)
	})
}

func anyDevices() *rapid.Generator[[]gpu.Device] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) gpu.Device {
		s := func(name string) string { return anyText().Draw(t, name) }
		return gpu.Device{
			UUID: s("uuid"), Parent: s("parent"), Index: s("index"), Model: s("model"), Profile: s("profile"),
			Shared: rapid.Bool().Draw(t, "shared"),
		}
	}), 0, 4)
}

func anyProcess() *rapid.Generator[Process] {
	return rapid.Custom(func(t *rapid.T) Process {
		return Process{rapid.Int().Draw(t, "pid"), rapid.Uint64().Draw(t, "start"), rapid.Uint64().Draw(t, "pidns")}
	})
}

func anyOwner() *rapid.Generator[Owner] {
	return rapid.Custom(func(t *rapid.T) Owner {
		s := func(name string) string { return anyText().Draw(t, name) }
		return Owner{
			EntryPoint: s("door"), Container: s("container"), Name: s("name"), Bundle: s("bundle"), UID: rapid.Int().Draw(t, "uid"),
			Command: s("command"), Process: anyProcess().Draw(t, "process"), Reaper: rapid.Bool().Draw(t, "reaper"),
			BootID: s("boot"), Cgroup: s("cgroup"), OwnCgroup: rapid.Bool().Draw(t, "own"),
			CgroupNS: rapid.Uint64Range(0, 3).Draw(t, "cgroupns"), Maker: s("maker"), PIDFile: s("pid file"),
			RuntimeRoot: s("root"), Runtime: s("runtime"),
		}
	})
}

func anyLease() *rapid.Generator[Lease] {
	return rapid.Custom(func(t *rapid.T) Lease {
		return Lease{
			ID: anyText().Draw(t, "id"), State: State(anyText().Draw(t, "state")), Devices: anyDevices().Draw(t, "devices"),
			Request: anyText().Draw(t, "request"), Owner: anyOwner().Draw(t, "owner"), Since: anyTime().Draw(t, "since"),
			Ticks: rapid.Uint64().Draw(t, "ticks"),
		}
	})
}

// The encoder gives the result of encoding/json.
func TestEncodeAsJSON(t *testing.T) {
	same := func(t *rapid.T, v any) {
		t.Helper()
		var c json.Codec
		got, err := c.AppendIndent(nil, v, indent)
		if err != nil || !c.Handles(v) {
			t.Fatal(err, "or left to encoding/json")
		}
		want, err := stdjson.MarshalIndent(v, indent, "  ")
		if diff := cmp.Diff(string(want), string(got)); diff != "" || err != nil {
			t.Fatal(err, diff)
		}
	}
	t.Run("lease", rapid.MakeCheck(func(t *rapid.T) {
		l := anyLease().Draw(t, "lease")
		same(t, &l)
	}))
	t.Run("waiter", rapid.MakeCheck(func(t *rapid.T) {
		same(t, &waiter{
			anyText().Draw(t, "id"), anyText().Draw(t, "request"), anyOwner().Draw(t, "owner"), anyTime().Draw(t, "since"),
			time.Duration(rapid.Int64().Draw(t, "arrived")), anyProcess().Draw(t, "process"), anyText().Draw(t, "cgroup"),
			rapid.Int().Draw(t, "server"), rapid.Uint64().Draw(t, "its start"), time.Duration(rapid.Int64().Draw(t, "server ended")),
		})
	}))
	t.Run("event", rapid.MakeCheck(func(t *rapid.T) {
		e := event{
			Time: anyTime().Draw(t, "time"), Event: anyText().Draw(t, "event"), Lease: anyText().Draw(t, "lease"),
			Request: anyText().Draw(t, "request"), Devices: rapid.SliceOf(anyText()).Draw(t, "devices"),
			Owner:  anyOwner().Draw(t, "owner"),
			Waited: rapid.OneOf(rapid.Just(0.), rapid.Float64Range(1e-6, 1e9)).Draw(t, "waited"),
			Held:   rapid.Float64Range(1e-6, 1e7).Draw(t, "held"), Reason: anyText().Draw(t, "reason"),
		}
		same(t, &e)
	}))
}

// The decoder gives the result of encoding/json.
func TestDecodeAsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLease().Draw(t, "lease")
		var c json.Codec
		raw, err := c.AppendIndent(nil, &l, rapid.SampledFrom([]string{"", indent}).Draw(t, "indent"))
		if err != nil {
			t.Fatal(err)
		}
		var got, want Lease
		if err := errors.Join(c.Unmarshal(raw, &got), stdjson.Unmarshal(raw, &want)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzEntry compares with encoding/json for any text in the place of an entry.
func FuzzEntry(f *testing.F) {
	var c json.Codec
	var seeds [][]byte
	for _, v := range []any{sample().leases[0].v, sample().leases[1].v, &sample().queue[0].v} {
		raw, err := c.AppendIndent(nil, v, indent)
		if err != nil {
			f.Fatal(err)
		}
		seeds = append(seeds, raw)
		f.Add(raw)
	}
	lease := string(seeds[0])
	for _, other := range []string{"0360000", "-0", "+1", "1e3", "1.0", "", "18446744073709551616", `"1"`, "null", " 1"} {
		f.Add([]byte(strings.Replace(lease, ": 360000", ": "+other, 1)))
	}
	for _, other := range []string{`\"`, "\n", `\ud800`, "\xff", "\x7f", "<", `\`} {
		f.Add([]byte(strings.Replace(lease, "python3", other, 1)))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var lease, wantLease Lease
		err, wantErr := new(json.Codec).Unmarshal(raw, &lease), stdjson.Unmarshal(raw, &wantLease)
		if (err == nil) != (wantErr == nil) || err == nil && !cmp.Equal(wantLease, lease) {
			t.Fatalf("%v, want %v\n%s", err, wantErr, cmp.Diff(wantLease, lease))
		}
		var got, want waiter
		err, wantErr = new(json.Codec).Unmarshal(raw, &got), stdjson.Unmarshal(raw, &want)
		if (err == nil) != (wantErr == nil) || err == nil && !cmp.Equal(want, got) {
			t.Fatalf("%v, want %v\n%s", err, wantErr, cmp.Diff(want, got))
		}
	})
}

// A time that JSON can't hold is an error, and no file.
func TestEncodeNoTime(t *testing.T) {
	s := sample()
	s.leases[0].v.Since = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	if _, err := new(codec).encode(s); err == nil {
		t.Error("encoded the year 10000")
	}
	if _, err := new(codec).encodeLease(*s.leases[0].v); err == nil {
		t.Error("encoded a lease of the year 10000")
	}
}
