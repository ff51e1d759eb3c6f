package bundle

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// reachable leaves in a spec what PartialSpec decodes.
func reachable(s *specs.Spec) *specs.Spec {
	r := &specs.Spec{Version: s.Version, Annotations: s.Annotations}
	if s.Process != nil {
		r.Process = &specs.Process{Env: s.Process.Env}
	}
	for _, m := range s.Mounts {
		r.Mounts = append(r.Mounts, specs.Mount{Destination: m.Destination, Type: m.Type, Source: m.Source, Options: m.Options})
	}
	if h := s.Hooks; h != nil {
		r.Hooks = &specs.Hooks{}
		for _, list := range []struct{ have, want *[]specs.Hook }{
			{&h.Prestart, &r.Hooks.Prestart}, //nolint:staticcheck // Docker still writes it.
			{&h.CreateRuntime, &r.Hooks.CreateRuntime},
			{&h.CreateContainer, &r.Hooks.CreateContainer},
			{&h.StartContainer, &r.Hooks.StartContainer},
			{&h.Poststart, &r.Hooks.Poststart},
			{&h.Poststop, &r.Hooks.Poststop},
		} {
			for _, one := range *list.have {
				*list.want = append(*list.want, specs.Hook{Path: one.Path, Args: one.Args, Env: one.Env})
			}
		}
	}
	if l := s.Linux; l != nil {
		r.Linux = &specs.Linux{CgroupsPath: l.CgroupsPath}
		for _, d := range l.Devices {
			r.Linux.Devices = append(r.Linux.Devices, specs.LinuxDevice{Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor})
		}
		if l.Resources != nil {
			r.Linux.Resources = &specs.LinuxResources{Devices: l.Resources.Devices}
		}
	}
	return r
}

const reachSample = `{"ociVersion":"1.0.2","process":{"env":["A=1"],"user":{"uid":0}},"root":{"path":"r"},
	"mounts":[{"destination":"/d","type":"bind","source":"/s","options":["rbind","ro"]}],"annotations":{"a":"b"},
	"hooks":{"prestart":[{"path":"/p","args":["p","q"],"env":["E=1"]}],"createRuntime":[{"path":"/usr/bin/berth-hook",
		"args":["berth-hook","createRuntime","--request","2"],"timeout":3}],"createContainer":[{"path":"/c"}],"startContainer":[{"path":"/s","env":[]}],
		"poststart":[{"path":"/l"}],"poststop":[{"path":"/x"}]},
	"linux":{"cgroupsPath":"/a/b","devices":[{"path":"/dev/x","type":"c","major":195,"minor":0,"fileMode":438}],"resources":{"devices":[
		{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":1,"minor":3,"access":"rw"}]}}}`

// TestPartialSpec: PartialSpec returns a part of what Spec returns.
func TestPartialSpec(t *testing.T) {
	for _, tt := range []struct{ name, text string }{
		{"all there is", reachSample},
		{"nothing there is", `{"ociVersion":"1.0.2"}`},
		{"escapes", `{"ociVersion":"1.0.2","annotations":{"a":"\u0041<"}}`},
		{"other letters", `{"ociVersion":"1.0.2","process":{"env":["A=ü"]}}`},
		{"nulls", `{"ociVersion":"1.0.2","linux":null,"process":{"env":null}}`},
		{"null in a rule", `{"ociVersion":"1.0.2","linux":{"resources":{"devices":[{"major":null}]}}}`},
		{"sections that don't matter", `{"ociVersion":"1.0.2","hooks":{"poststop":[]},"hostname":"h","windows":{"a":[1.5]}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := Parse([]byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			want, err := d.Spec()
			if err != nil {
				t.Fatal(err)
			}
			got, err := d.PartialSpec()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(reachable(want), reachable(got), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPartialSpecRefusesWhatSpecRefuses(t *testing.T) {
	for _, text := range []string{
		`{"ociVersion":"1.0.0","process":{"env":{"A":1}}}`, `{"ociVersion":"1.0.0","process":5}`,
		`{"ociVersion":"1.0.0","linux":{"devices":[{"major":1.5}]}}`, `{"ociVersion":"1.0.0","linux":{"devices":["x"]}}`,
		`{"ociVersion":"1.0.0","linux":{"resources":{"devices":[{"allow":1}]}}}`, `{"ociVersion":"1.0.0","linux":[]}`,
		`{"ociVersion":"1.0.0","hooks":[]}`, `{"ociVersion":"1.0.0","hooks":{"createRuntime":{}}}`,
		`{"ociVersion":"1.0.0","hooks":{"prestart":[{"path":5}]}}`, `{"ociVersion":"1.0.0","mounts":{}}`, `{"ociVersion":"1.0.0","annotations":{"a":1}}`, `{"ociVersion":"1.0.0","linux":{"resources":7}}`,
		`{"ociVersion":"1.0.0","linux":{"devices":[{"major":99999999999999999999}]}}`,
	} {
		d, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if s, err := d.PartialSpec(); err == nil {
			t.Errorf("%s: read %+v", text, s)
		}
	}
}

// FuzzPartialSpec: PartialSpec and Spec decode the same values of any document that both accept.
func FuzzPartialSpec(f *testing.F) {
	f.Add([]byte(reachSample))
	f.Add([]byte(`{"ociVersion":"1.0.2","linux":{"devices":[{"major":-0}]},"annotations":{"a\u0000":"b"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := Parse(data)
		if err != nil {
			return
		}
		want, err := d.Spec()
		if err != nil {
			return
		}
		got, err := d.PartialSpec()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(reachable(want), reachable(got), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}
