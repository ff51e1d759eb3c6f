package bundle

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"
)

// strange has what berth doesn't know at every level, and formatting that no
// encoder would make.
const strange = `{
  "ociVersion": "1.0.2-dev", "x-vendor": {"big": 12345678901234567890123456789, "exp": 1.50e+2},
  "process": {"env" : [ "A=1",  "B=\u0041<>" ], "cwd":"/", "x": [1, 2.0],
    "user": {"uid":0,"gid":0,"umask":18,"x":null},
    "rlimits": [{"type":"RLIMIT_NOFILE","hard":18446744073709551615,"soft":1,"x":1}]},
  "mounts": [ {"destination":"/a","x":{"y":1}} , {"destination":"/b","options":["ro"],"x":2e3} ],
  "linux": {"seccomp": {"defaultAction":"SCMP_ACT_ERRNO","x":1e5,
      "syscalls":[{"names":["mbind"],"action":"SCMP_ACT_ERRNO","errnoRet":1},{"names":["read", "write"],"action":"SCMP_ACT_ALLOW","x":1}]},
    "resources": {"memory":{"limit":9007199254740993},"x":0.10,
      "devices":[{"allow":false,"access":"rwm","x":1}]},
    "devices": [{"path":"/dev/n","type":"c","major":195,"minor":0,"x":7}]},
  "hooks": {"prestart":[{"path":"/bin/h","x":3}],"newStage":[{}]}
}`

func parse(t testing.TB, text string) *Document {
	t.Helper()
	d, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestEdit(t *testing.T) {
	tests := []struct {
		name     string
		change   func(*specs.Spec)
		old, new string // the one difference in the text, spaces between members aside
	}{
		{name: "nothing", change: func(*specs.Spec) {}},
		{
			"append to env", func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "C=3") },
			`"B=\u0041<>"]`, `"B=\u0041<>","C=3"]`,
		},
		{
			"take out of env", func(s *specs.Spec) { s.Process.Env = s.Process.Env[1:] },
			`"A=1",`, ``,
		},
		{
			"option of a mount", func(s *specs.Spec) { s.Mounts[1].Options = []string{"ro", "nodev"} },
			`["ro"]`, `["ro","nodev"]`,
		},
		{
			"first mount goes", func(s *specs.Spec) { s.Mounts = s.Mounts[1:] },
			`{"destination":"/a","x":{"y":1}},`, ``,
		},
		{
			"mount in front", func(s *specs.Spec) { s.Mounts = append([]specs.Mount{{Destination: "/z"}}, s.Mounts...) },
			`[{"destination":"/a"`, `[{"destination":"/z"},{"destination":"/a"`,
		},
		{
			"groups", func(s *specs.Spec) { s.Process.User.AdditionalGids = []uint32{44} },
			`"x":null`, `"x":null,"additionalGids":[44]`,
		},
		{"limit of the same type", func(s *specs.Spec) { s.Process.Rlimits[0].Soft = 2 }, `"soft":1`, `"soft":2`},
		{"node's minor", func(s *specs.Spec) { s.Linux.Devices[0].Minor = 5 }, `"minor":0`, `"minor":5`},
		{"another rule", func(s *specs.Spec) {
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true})
		}, `"access":"rwm","x":1}]`, `"access":"rwm","x":1},{"allow":true}]`},
		{
			"a call is let through", func(s *specs.Spec) {
				f := s.Linux.Seccomp
				f.Syscalls = []specs.LinuxSyscall{{Names: []string{"mbind"}, Action: specs.ActAllow}}
			},
			`{"names":["mbind"],"action":"SCMP_ACT_ERRNO","errnoRet":1},{"names":["read","write"],"action":"SCMP_ACT_ALLOW","x":1}]`,
			`{"names":["read","write"],"action":"SCMP_ACT_ALLOW","x":1},{"names":["mbind"],"action":"SCMP_ACT_ALLOW"}]`,
		},
		{
			"a rule for a call comes", func(s *specs.Spec) {
				f := s.Linux.Seccomp
				f.Syscalls = append(f.Syscalls, specs.LinuxSyscall{Names: []string{"mbind"}, Action: specs.ActAllow})
			},
			`"syscalls":[{"names":["mbind"],"action":"SCMP_ACT_ERRNO","errnoRet":1},{"names":["read","write"],"action":"SCMP_ACT_ALLOW","x":1}]`,
			`"syscalls":[{"names":["mbind"],"action":"SCMP_ACT_ERRNO","errnoRet":1},{"names":["read","write"],"action":"SCMP_ACT_ALLOW","x":1},{"names":["mbind"],"action":"SCMP_ACT_ALLOW"}]`,
		},
		{
			"hooks go, unknown ones stay", func(s *specs.Spec) { s.Hooks = &specs.Hooks{} },
			`"prestart":[{"path":"/bin/h","x":3}],`, ``,
		},
		{
			"annotations come", func(s *specs.Spec) { s.Annotations = map[string]string{"k": "v"} },
			`"newStage":[{}]}`, `"newStage":[{}]},"annotations":{"k":"v"}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := parse(t, strange)
			spec, err := d.Spec()
			if err != nil {
				t.Fatal(err)
			}
			tt.change(spec)
			got, err := d.Edit(spec)
			if err != nil {
				t.Fatal(err)
			}
			plain := squeeze(strange)
			if tt.old != "" && strings.Count(plain, tt.old) != 1 {
				t.Fatalf("the text has %q %d times", tt.old, strings.Count(plain, tt.old))
			}
			want := strings.Replace(plain, tt.old, tt.new, 1)
			if tt.old == "" {
				want = plain
			}
			if diff := cmp.Diff(want, squeeze(string(got.Bytes()))); diff != "" {
				t.Error(diff)
			}
			if again, err := Parse(got.Bytes()); err != nil {
				t.Errorf("what was written can't be read: %v", err)
			} else if back, _ := again.Spec(); !reflect.DeepEqual(back, normal(t, spec)) {
				t.Errorf("read back: %+v, want %+v", back, spec)
			}
		})
	}
}

// squeeze takes out the spaces between tokens and keeps the tokens.
func squeeze(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); {
		switch c := text[i]; c {
		case ' ', '\n', '\t', '\r':
			i++
		case '"':
			end := skipString([]byte(text), i)
			out.WriteString(text[i:end])
			i = end
		default:
			out.WriteByte(c)
			i++
		}
	}
	return out.String()
}

// normal returns the spec as encoding and decoding leave it: empty lists become nil.
func normal(t testing.TB, spec *specs.Spec) *specs.Spec {
	t.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	out := new(specs.Spec)
	if err := json.Unmarshal(data, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEditRefusesOtherSections(t *testing.T) {
	d := parse(t, strange)
	spec, err := d.Spec()
	if err != nil {
		t.Fatal(err)
	}
	limit := int64(1)
	spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit}
	if got, err := d.Edit(spec); err == nil {
		t.Errorf("want an error, got %s", got.Bytes())
	}
}

func TestEditWithoutChange(t *testing.T) {
	d := parse(t, strange)
	spec, err := d.Spec()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.Edit(spec); err != nil || got != d {
		t.Errorf("got another document, %v", err)
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"empty", ``, "broken JSON at byte 0: unexpected end"},
		{"cut off", `{"ociVersion":"1.0.0"`, "broken JSON at byte 21"},
		{"broken", `{"ociVersion":x}`, "broken JSON at byte 15: invalid character 'x'"},
		{"more after the end", `{"ociVersion":"1.0.0"} {}`, "broken JSON at byte 24"},
		{"not an object", ` ["1.0.0"]`, "not a JSON object"},
		{"no version", `{}`, "ociVersion is missing: 1.x is supported"},
		{"next version", `{"ociVersion":"2.0.0"}`, `OCI version "2.0.0" is unknown: 1.x is supported`},
		{"old version", `{"ociVersion":"0.6.0-dev"}`, "1.x is supported"},
		{"eleven", `{"ociVersion":"11.0"}`, "1.x is supported"},
		{"wrong type", `{"ociVersion":"1.0.0","process":{"env":{"A":1}}}`, "process.env has a value of the wrong type (object)"},
		{"twice", `{"ociVersion":"1.0.0","mounts":[],"mounts":[]}`, `key "mounts" is there twice`},
		{"twice, in other spelling", `{"ociVersion":"1.0.0","mounts":[],"\u006dounts":[]}`, `key "mounts" is there twice`},
		{"other letters", `{"ociVersion":"1.0.0","Linux":{}}`, `key "Linux" differs from "linux" in case only`},
		{"other letters of Unicode", `{"ociVersion":"1.0.0","linux":{"deviceſ":[]}}`, `differs from "devices" in case only`},
		{
			"twice and deep", `{"ociVersion":"1.0.0","linux":{"resources":{"devices":[{"allow":false,"allow":true}]}}}`,
			`key "linux.resources.devices[0].allow" is there twice`,
		},
		{"other letters and deep", `{"ociVersion":"1.0.0","mounts":[{},{"Source":"/"}]}`, `key "mounts[1].Source"`},
		{"annotation twice", `{"ociVersion":"1.0.0","annotations":{"a":"1","a":"2"}}`, `key "annotations.a" is there twice`},
		{"an end inside a key", `{"ociVersion":"1.0.0","linux\u0000":{}}`, `string "linux\u0000" at byte 23 has a NUL`},
		{"an end inside a deep key", `{"ociVersion":"1.0.0","linux":{"resources":{"devices":[{"major\u0000x":195}]}}}`, `string "major\u0000x" at byte 57 has a NUL`},
		{"an end inside a value", `{"ociVersion":"1.0.0","annotations":{"berth.gpus":"\\\\\u00002"}}`, `string "\\\\\u00002" at byte 51 has a NUL`},
		{"an end where berth doesn't look", `{"ociVersion":"1.0.0","x":["a", {"y":"\"\u0000"}]}`, `string "\"\u0000" at byte 38 has a NUL`},
		{"an end in a long string", `{"ociVersion":"1.0.0","x":"` + strings.Repeat("y", 99) + `\u0000"}`, `string "` + strings.Repeat("y", 39) + `…" at byte 27 has a NUL`},
		{"half a surrogate pair", `{"ociVersion":"1.0.0","mounts":[{"source":"/x\ud800y"}]}`, `string "\"/x\\ud800y\"" has what is no character`},
		{"the other half", `{"ociVersion":"1.0.0","mounts":[{"source":"\uDC00"}]}`, `has what is no character`},
		{"half a pair before another escape", `{"ociVersion":"1.0.0","mounts":[{"source":"/\ud800\u002f"}]}`, `has what is no character`},
		{"a byte that is no character", "{\"ociVersion\":\"1.0.0\",\"mounts\":[{\"source\":\"/\xff\"}]}", `string "\"/\xff\"" has what is no character`},
		{"in a hook", `{"ociVersion":"1.0.0","hooks":{"prestart":[{"Path":"/x"}]}}`, `key "hooks.prestart[0].Path"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := Parse([]byte(tt.text))
			if err == nil {
				_, err = d.Spec()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestParseAcceptsHarmless(t *testing.T) {
	for _, text := range []string{
		`{"ociVersion":"1.3.0"}`,
		`{"ociVersion":"1"}`,
		`{"ociVersion":"1.0.0","process":null,"linux":null,"mounts":null,"annotations":null,"hooks":null}`,
		`{"ociVersion":"1.0.0","annotations":{"a":"1","A":"2"}}`,
		`{"ociVersion":"1.0.0","x":{"y":1,"y":2,"Y":3}}`,
		`{"ociVersion":"1.0.0","x\\u0000":"\\\\u0000 \u0001 \u000a0"}`,
		`{"ociVersion":"1.0.0","annotations":{"a":"\ud83d\ude00 \\ud800 😀 \ufffd"}}`,
		"{\"ociVersion\":\"1.0.0\",\"x\":\"\xff\\ud800\"}",
	} {
		parse(t, text)
	}
}

// TestEditProperty: any changed spec is decoded again as it was changed, and members that berth
// doesn't know are kept.
func TestEditProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := parse(t, strange)
		spec, err := d.Spec()
		if err != nil {
			rt.Fatal(err)
		}
		text := rapid.StringMatching(`[a-zA-Z/<>"\\=é ]{0,6}`)
		spec.Process.Env = append(shuffled(rt, spec.Process.Env), rapid.SliceOf(text).Draw(rt, "env")...)
		spec.Mounts = shuffled(rt, spec.Mounts)
		for range rapid.IntRange(0, 3).Draw(rt, "more mounts") {
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: text.Draw(rt, "to"), Source: text.Draw(rt, "from")})
		}
		spec.Annotations = rapid.MapOf(text, text).Draw(rt, "annotations")
		spec.Linux.Devices[0].Minor = rapid.Int64().Draw(rt, "minor")
		spec.Linux.MaskedPaths = rapid.SliceOf(text).Draw(rt, "masked")
		got, err := d.Edit(spec)
		if err != nil {
			rt.Fatal(err)
		}
		again, err := Parse(got.Bytes())
		if err != nil {
			rt.Fatal(err)
		}
		back, err := again.Spec()
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(normal(t, spec), normal(t, back)); diff != "" {
			rt.Error(diff)
		}
		for _, piece := range []string{`"big": 12345678901234567890123456789`, `1.50e+2`, `"x":7`, `9007199254740993`, `"x":0.10`} {
			if !strings.Contains(string(got.Bytes()), piece) {
				rt.Errorf("%s is lost", piece)
			}
		}
	})
}

func shuffled[T any](rt *rapid.T, list []T) []T {
	out := rapid.Permutation(list).Draw(rt, "order")
	return append([]T(nil), out[:rapid.IntRange(0, len(out)).Draw(rt, "kept")]...)
}

// concern lists what device isolation and requests depend on.
func concern(s specs.Spec) []any {
	all := []any{s.Mounts, s.Annotations, s.Hooks, s.Root}
	if p := s.Process; p != nil {
		all = append(all, p.Env, p.Capabilities, p.Rlimits, p.User)
	}
	if l := s.Linux; l != nil {
		all = append(all, l.Devices, l.CgroupsPath, l.Namespaces, l.MaskedPaths)
		if l.Resources != nil {
			all = append(all, l.Resources.Devices, l.Resources.CPU)
		}
	}
	return all
}

// FuzzParse: no input makes Parse panic, and a document that it accepts means the same to a
// plain decoder, changed or not.
func FuzzParse(f *testing.F) {
	f.Add([]byte(strange))
	files, err := filepath.Glob("testdata/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := Parse(data)
		if err != nil {
			return
		}
		spec, err := d.Spec()
		if err != nil {
			return // a value of another type than OCI's
		}
		if same, err := d.Edit(spec); err != nil || same != d {
			t.Fatalf("no change made another document (%v)", err)
		}
		var plain specs.Spec
		if json.Unmarshal(data, &plain) == nil {
			if diff := cmp.Diff(concern(plain), concern(*spec)); diff != "" {
				t.Errorf("a plain decoder reads something else: %s", diff)
			}
		}
		spec.Annotations = map[string]string{"k": "v"}
		spec.Mounts = append([]specs.Mount{{Destination: "/new"}}, spec.Mounts...)
		edited, err := d.Edit(spec)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(edited.Bytes())
		if err != nil {
			t.Fatalf("%v: %s", err, edited.Bytes())
		}
		back, err := again.Spec()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(normal(t, spec), normal(t, back)); diff != "" {
			t.Errorf("read back: %s", diff)
		}
	})
}
