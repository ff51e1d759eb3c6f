package ledger

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
)

// anyText is what names, commands and paths can be, and worse.
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
			Door: s("door"), Container: s("container"), Name: s("name"), Bundle: s("bundle"), UID: rapid.Int().Draw(t, "uid"),
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

// What is written by hand is what encoding/json writes.
func TestEncodeAsJSON(t *testing.T) {
	same := func(t *rapid.T, by text, want []byte, err error) {
		t.Helper()
		if err != nil || by.err != nil {
			t.Fatal(err, by.err)
		}
		if diff := cmp.Diff(string(want), string(by.b)); diff != "" {
			t.Fatal(diff)
		}
	}
	t.Run("lease", rapid.MakeCheck(func(t *rapid.T) {
		l := anyLease().Draw(t, "lease")
		by := text{indent: indent}
		by.lease(&l)
		want, err := json.MarshalIndent(l, indent, "  ")
		same(t, by, want, err)
	}))
	t.Run("waiter", rapid.MakeCheck(func(t *rapid.T) {
		w := waiter{
			anyText().Draw(t, "id"), anyText().Draw(t, "request"), anyOwner().Draw(t, "owner"), anyTime().Draw(t, "since"),
			time.Duration(rapid.Int64().Draw(t, "arrived")), anyProcess().Draw(t, "process"), anyText().Draw(t, "cgroup"),
		}
		by := text{indent: indent}
		by.waiter(w)
		want, err := json.MarshalIndent(w, indent, "  ")
		same(t, by, want, err)
	}))
	t.Run("event", rapid.MakeCheck(func(t *rapid.T) {
		e := event{
			Time: anyTime().Draw(t, "time"), Event: anyText().Draw(t, "event"), Lease: anyText().Draw(t, "lease"),
			Request: anyText().Draw(t, "request"), Devices: rapid.SliceOf(anyText()).Draw(t, "devices"),
			Owner:  anyOwner().Draw(t, "owner"),
			Waited: rapid.OneOf(rapid.Just(0.), rapid.Float64()).Draw(t, "waited"),
			Held:   rapid.Float64Range(0, 1e7).Draw(t, "held"), Reason: anyText().Draw(t, "reason"),
		}
		by := text{flat: true}
		by.event(e)
		var want bytes.Buffer
		err := json.NewEncoder(&want).Encode(e)
		same(t, by, want.Bytes(), err)
	}))
}

// set gives every field a value that isn't its zero.
func set(v reflect.Value) {
	switch at := v.Addr().Interface().(type) {
	case *time.Time:
		*at = time.Unix(1, 0).UTC()
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			set(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		set(v.Index(0))
		set(v.Index(1))
	case reflect.String:
		v.SetString("text of " + v.Type().String())
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(-42)
	case reflect.Uint64:
		v.SetUint(42)
	case reflect.Float64:
		v.SetFloat(4.2)
	default:
		panic("a field of a new kind: " + v.Type().String())
	}
}

// A field that is added to a type must be written and read too.
func TestEncodeEveryField(t *testing.T) {
	var l Lease
	set(reflect.ValueOf(&l).Elem())
	by := text{}
	by.lease(&l)
	want, err := json.MarshalIndent(l, "", "  ")
	if err != nil || by.err != nil {
		t.Fatal(err, by.err)
	}
	if diff := cmp.Diff(string(want), string(by.b)); diff != "" {
		t.Error(diff)
	}
	if got, ok := parseLease(by.b, ""); !ok || !cmp.Equal(got, &l) {
		t.Errorf("read %v: %s", ok, cmp.Diff(&l, got))
	}

	var w waiter
	set(reflect.ValueOf(&w).Elem())
	by = text{}
	by.waiter(w)
	if want, err = json.MarshalIndent(w, "", "  "); err != nil || by.err != nil {
		t.Fatal(err, by.err)
	}
	if diff := cmp.Diff(string(want), string(by.b)); diff != "" {
		t.Error(diff)
	}
	if got, ok := parseWaiter(by.b, ""); !ok || !cmp.Equal(got, w) {
		t.Errorf("read %v: %s", ok, cmp.Diff(w, got))
	}

	var e event
	set(reflect.ValueOf(&e).Elem())
	by = text{flat: true}
	by.event(e)
	if want, err = json.Marshal(e); err != nil || by.err != nil {
		t.Fatal(err, by.err)
	}
	if diff := cmp.Diff(string(want)+"\n", string(by.b)); diff != "" {
		t.Error(diff)
	}
}

// A time that JSON can't hold is an error, and no file.
func TestEncodeNoTime(t *testing.T) {
	s := sample()
	s.leases[0].v.Since = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	if _, err := encode(s); err == nil {
		t.Error("encoded the year 10000")
	}
	if _, err := encodeLease(*s.leases[0].v); err == nil {
		t.Error("encoded a lease of the year 10000")
	}
}
