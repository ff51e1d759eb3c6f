//go:build amd64 || arm64

package early

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/isolation"
)

// isPlainText asks isPlain about a text.
func isPlainText(text []byte) bool {
	return len(text) < len(work.data) && isPlain(copy(work.data[:], text))
}

func sample(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestPlain(t *testing.T) {
	docker := sample(t, "docker.json")
	for _, name := range []string{"docker.json", "podman.json"} {
		if !isPlainText([]byte(sample(t, name))) {
			t.Errorf("%s isn't plain", name)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	const hosts = `"source":"/etc","options":["rbind","rprivate"]}]`
	for _, tc := range []struct {
		name, from, to string
		want           bool
	}{
		{name: "spaces", from: `{"ociVersion":"1.2.1",`, to: " {\n\t\"ociVersion\" : \"1.2.1\" , ", want: true},
		{name: "a null device by number", from: `"major":1,"minor":5`, to: `"major":136`, want: true},
		{name: "mknod alone, of anything", from: `"type":"c","major":1,"minor":5,"access":"rwm"`, to: `"type":"c","access":"m"`, want: true},
		{name: "a disk", from: `"type":"c","major":1,"minor":5`, to: `"type":"b","major":8,"minor":0`, want: true},
		{name: "another variable", from: `"HOSTNAME=`, to: `"A=B","HOSTNAME=`, want: true},
		{name: "another annotation", from: `"linux":{`, to: `"annotations":{"Any.key/x":"1"},"linux":{`, want: true},

		{name: "a capability to take off rules", from: `"CAP_CHOWN"`, to: `"CAP_CHOWN","CAP_SYS_ADMIN"`},
		{name: "in small letters", from: `"CAP_CHOWN"`, to: `"cap_sys_admin"`},
		{name: "nothing of capabilities", from: `"capabilities":{`, to: `"ioPriority":{`},
		{name: "capabilities of another type", from: `"capabilities":{`, to: `"capabilities":null,"ioPriority":{`},
		{name: "an annotation of berth's", from: `"linux":{`, to: `"annotations":{"berth.gpus":"1"},"linux":{`},
		{name: "in other letters", from: `"linux":{`, to: `"annotations":{"BERTH.gpus":"1"},"linux":{`},
		{name: "escaped", from: `"linux":{`, to: `"annotations":{"\u0062erth.gpus":"1"},"linux":{`},
		{name: "an annotation that is no text", from: `"linux":{`, to: `"annotations":{"a":1},"linux":{`},
		{name: "NVIDIA's variable", from: `"HOSTNAME=`, to: `"NVIDIA_VISIBLE_DEVICES=all","HOSTNAME=`},
		{name: "the word gpu", from: `"HOSTNAME=`, to: `"x=my-GPUs","HOSTNAME=`},
		{name: "hooks", from: `"linux":{`, to: `"hooks":{},"linux":{`},
		{name: "nodes", from: `"linux":{`, to: `"linux":{"devices":[],`},
		{name: "network devices", from: `"linux":{`, to: `"linux":{"netDevices":{},`},
		{name: "all allowed", from: `{"allow":false,"access":"rwm"}`, to: `{"allow":true,"access":"rwm"}`},
		{name: "not all denied first", from: `{"allow":false,"access":"rwm"}`, to: `{"allow":false,"access":"rw"}`},
		{name: "no rules", from: `"devices":[`, to: `"devices":[],"unified":[`},
		{name: "an empty list of rules", from: `"resources":{"devices":[`, to: `"resources":{"devices":[]},"intelRdt":{"schemata":[`},
		{name: "a GPU's number", from: `"major":1,"minor":5`, to: `"major":195,"minor":0`},
		{name: "any number", from: `"type":"c","major":1,"minor":5`, to: `"type":"c"`},
		{name: "any number, said otherwise", from: `"major":1,"minor":5`, to: `"major":-1,"minor":5`},
		{name: "a number that is cut", from: `"major":1,"minor":5`, to: `"major":4294967491,"minor":5`},
		{name: "a fraction", from: `"major":1,"minor":5`, to: `"major":1.0,"minor":5`},
		{name: "a power", from: `"major":1,"minor":5`, to: `"major":1e2,"minor":5`},
		{name: "octal", from: `"major":1,"minor":5`, to: `"major":01,"minor":5`},
		{name: "another type", from: `"type":"c","major":1`, to: `"type":"cx","major":1`},
		{name: "total, with a number", from: `"type":"c","major":1`, to: `"type":"a","major":1`},
		{name: "access twice", from: `"access":"rwm"},{"allow":true`, to: `"access":"rwmr"},{"allow":true`},
		{name: "a number twice", from: `"major":1,"minor":5`, to: `"major":1,"minor":5,"major":195`},
		{name: "a number in other letters", from: `"major":1,"minor":5`, to: `"Major":195,"minor":5`},
		{name: "twice, in other letters", from: `"major":1,"minor":5`, to: `"major":1,"minor":5,"MAJOR":195`},
		{name: "a section twice", from: `"linux":{`, to: `"linux":{},"linux":{`},
		{name: "a section in other letters", from: `"linux":{`, to: `"Linux":{},"linux":{`},
		{name: "an unknown key", from: `"linux":{`, to: `"strange":1,"linux":{`},
		{name: "an unknown key, deeper", from: `"cwd":"/"`, to: `"cwd":"/","strange":1`},
		{name: "a key twice, deeper", from: `"uid":0`, to: `"uid":0,"uid":0`},
		{name: "no version", from: `"ociVersion":"1.2.1",`, to: ``},
		{name: "version 2", from: `"1.2.1"`, to: `"2.0.0"`},
		{name: "a section that is null", from: `"linux":{`, to: `"process":null,"linux":{`},
		{name: "a bind of a device", from: hosts, to: `"source":"/dev/null","options":["rbind"]}]`},
		{name: "a bind of a link to a device", from: hosts, to: `"source":"` + link + `","options":["bind"]}]`},
		{name: "a bind of what isn't there", from: hosts, to: `"source":"/not/there","options":["bind"]}]`},
		{name: "a bind of a relative path", from: hosts, to: `"source":"dev/null","options":["bind"]}]`},
		{name: "a bind by type alone", from: `"type":"bind","source":"/etc","options":["rbind","rprivate"]}]`, to: `"type":"bind","source":"/dev/null","options":[]}]`},
		{name: "a bind by option alone", from: `"type":"bind","source":"/etc","options":["rbind","rprivate"]}]`, to: `"type":"none","source":"/dev/null","options":["bind"]}]`},
		{name: "no source", from: `"source":"/etc",`, to: ``},
		{name: "more behind it", from: `"readonlyPaths":[`, to: `"readonlyPaths":[]}}{"linux":{"readonlyPaths":[`},
		{name: "a comma too many", from: `"cwd":"/",`, to: `"cwd":"/",,`},
		{name: "a comma at the end", from: `"HOSTNAME=0123456789ab"]`, to: `"HOSTNAME=0123456789ab",]`},
		{name: "no comma", from: `"cwd":"/",`, to: `"cwd":"/"`},
		{name: "another bracket", from: `"HOSTNAME=0123456789ab"]`, to: `"HOSTNAME=0123456789ab"}`},
		{name: "a control character", from: `"cwd":"/"`, to: "\"cwd\":\"/\n\""},
		{name: "other letters than ASCII's", from: `"cwd":"/"`, to: `"cwd":"/é"`},
	} {
		text := strings.Replace(docker, tc.from, tc.to, 1)
		if text == docker {
			t.Errorf("%s: nothing was changed", tc.name)
		}
		if isPlainText([]byte(text)) != tc.want {
			t.Errorf("%s: plain isn't %t", tc.name, tc.want)
		}
		if tc.want {
			unconcernedEverywhere(t, []byte(text))
		}
	}
	for i := range len(docker) {
		if isPlainText([]byte(docker[:i])) {
			t.Errorf("the first %d bytes are plain", i)
		}
	}
}

// unconcernedEverywhere is what a plain text has to be: to the wrapper, on a host whose
// every major is an accelerator's but the kernel's own, with every wish trusted, and as
// runc reads it.
func unconcernedEverywhere(t interface{ Fatalf(string, ...any) }, text []byte) {
	d, err := bundle.Parse(text)
	if err != nil {
		t.Fatalf("Parse: %v of\n%s", err, text)
	}
	reach, err := d.Reach()
	if err != nil {
		t.Fatalf("Reach: %v of\n%s", err, text)
	}
	read, wrong := new(specs.Spec), (*json.UnmarshalTypeError)(nil)
	if err := json.Unmarshal(text, read); errors.As(err, &wrong) {
		read = reach // runc refuses what is of another type, wherever it is
	} else if err != nil {
		t.Fatalf("as runc reads it: %v of\n%s", err, text)
	}
	host := isolation.Host{}
	for n := range 1 << 12 {
		if n != 1 && n != 5 && n != 10 && n != 136 {
			host.Majors = append(host.Majors, gpu.Major{Number: uint32(n), Name: "nvidia"})
		}
	}
	for i, spec := range []*specs.Spec{reach, read} {
		concerned, err := isolation.AcceleratorInSpec(spec, host)
		named := func([]specs.LinuxDevice) ([]gpu.Device, error) { return nil, errors.New("asked for names") }
		_, asked, e := entry.RequestOf(spec, entry.Asked{}, entry.Trust{
			Environment: true, PodmanAnnotation: true, VisibleDevices: entry.Honour, CountIndices: true,
		}, named)
		if err != nil || e != nil || concerned || asked || entry.Foreign(spec) || entry.Bound(spec) != "" || isolation.CanLiftRules(spec) {
			t.Fatalf("reading %d: concerned %t, asked %t, %v, %v:\n%s", i, concerned, asked, err, e, text)
		}
	}
	if diff := cmp.Diff(read.Linux.Resources.Devices, reach.Linux.Resources.Devices, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("runc reads other rules: %s", diff)
	}
}

// What mutations put into objects, into lists, and anywhere.
func members() []string {
	return []string{
		`"allow":true`, `"allow":false`, `"major":195`, `"Major":195`, `"major":5`, `"minor":0`, `"type":"c"`, `"type":"a"`, `"type":"b"`, `"type":"bind"`, `"Type":"bind"`, `"Env":["x"]`,
		`"access":"m"`, `"access":"rw"`, `"linux":{}`, `"Linux":{}`, `"resources":{}`, `"devices":[]`, `"hooks":{}`, `"annotations":{}`,
		`"annotations":{"a":"b"}`, `"berth.gpus":"1"`, `"process":{}`, `"env":["a"]`, `"env":["NVIDIA_VISIBLE_DEVICES=all"]`, `"mounts":[]`,
		`"source":"/dev/null"`, `"options":["bind"]`, `"options":[]`, `"sysctl":{"k":"v"}`, `"seccomp":{"x":[1,true,null]}`, `"unified":{}`,
		`"unified":{"a.b":"c"}`, `"ociVersion":"1.0.0"`, `"root":{"path":"x"}`, `"domainname":"d"`, `"cwd":"/x"`, `"terminal":true`,
		`"memory":{"limit":1}`, `"pids":{"limit":-1}`, `"cpu":{"cpus":"0"}`, `"cgroupsPath":"/x"`, `"maskedPaths":["/x"]`, `"path":"/x"`,
		`"uid":1`, `"umask":0`, `"destination":"/x"`, `"readonly":true`, `"fileMode":438`,
		`"capabilities":{}`, `"capabilities":null`, `"Capabilities":{"bounding":["CAP_SYS_ADMIN"]}`, `"bounding":["CAP_SYS_ADMIN"]`, `"ambient":["cap_Sys_Admin"]`,
	}
}

func elements() []string {
	return []string{
		`{"allow":true,"access":"rwm"}`, `{"allow":true,"type":"c","major":195,"minor":0,"access":"rw"}`, `{"allow":true,"type":"c","access":"rwm"}`,
		`{"allow":true,"type":"c","access":"m"}`, `{"allow":false,"access":"rwm"}`, `{"allow":true,"type":"c","major":5,"access":"rw"}`,
		`{"allow":true,"type":"b","access":"rw"}`, `{"allow":false,"type":"c","major":195,"access":"rwm"}`, `{"destination":"/x","type":"tmpfs"}`,
		`{"destination":"/x","type":"bind","source":"/dev/null"}`, `{"destination":"/x","source":"/etc","options":["rbind"]}`, `"x"`,
		`"BERTH_GPUS=1"`, `"bind"`, `1`, `{}`, `[]`, `null`,
	}
}

func anything() []string {
	return []string{`\u0067`, `\"`, `\\`, `{`, `}`, `[`, `]`, `,`, `:`, `"`, ` `, "\n", `null`, `true`, `0`, `1`, `-`, `.`, `e`, `k`, "K", "ſ", "\x00"}
}

// changed is a text after one mutation.
func changed(t *rapid.T, text string) string {
	i := rapid.IntRange(0, len(text)).Draw(t, "from")
	into := func(bracket string, pieces []string) string {
		if n := strings.Index(text[i:], bracket); n >= 0 {
			i += n + 1
		}
		piece := rapid.SampledFrom(pieces).Draw(t, "piece")
		if i < len(text) && text[i] != bracket[0]+2 { // "}" behind "{", "]" behind "["
			piece += ","
		}
		return text[:i] + piece + text[i:]
	}
	switch rapid.IntRange(0, 5).Draw(t, "how") {
	case 0, 1:
		return into("{", members())
	case 2:
		return into("[", elements())
	case 3:
		if n := strings.Index(text[i:], "}]"); n >= 0 { // the end of a list of objects
			i += n + 1
			return text[:i] + "," + rapid.SampledFrom(elements()).Draw(t, "piece") + text[i:]
		}
	case 4:
		return text[:i] + rapid.SampledFrom(anything()).Draw(t, "piece") + text[i:]
	}
	return text[:i] + text[min(len(text), i+rapid.IntRange(1, 40).Draw(t, "less")):]
}

// Whatever is done to a spec, what is then plain is of no concern.
func TestPlainIsOfNoConcern(t *testing.T) {
	seeds := []string{
		sample(t, "docker.json"), sample(t, "podman.json"),
		`{"ociVersion":"1.0.2","process":{"capabilities":{}},"mounts":[],"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`,
		`{"ociVersion":"1.0.2","process":{"env":[],"capabilities":{"bounding":["CAP_CHOWN"]}},"mounts":[{"options":[]}],"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":1,"minor":3,"access":"rw"}]}}}`,
	}
	check(t, setChecks("6000"))
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom(seeds).Draw(t, "seed")
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			text = changed(t, text)
		}
		if isPlainText([]byte(text)) {
			found++
			unconcernedEverywhere(t, []byte(text))
		}
	})
	if found < 300 {
		t.Errorf("only %d of the changed specs were plain: this proves little", found)
	}
}

func FuzzPlain(f *testing.F) {
	f.Add([]byte(sample(f, "docker.json")))
	f.Add([]byte(sample(f, "podman.json")))
	f.Add([]byte(`{"ociVersion":"1.0.2","process":{"capabilities":{}},"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":5,"access":"m"}]}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if isPlainText(text) {
			unconcernedEverywhere(t, text)
		}
	})
}

// The table has every name that a spec has where berth looks, and none that is another
// one in other letters.
func TestNames(t *testing.T) {
	known := strings.Fields(names)
	for i, name := range known {
		for _, other := range known[:i] {
			if strings.EqualFold(name, other) {
				t.Errorf("%s and %s", name, other)
			}
		}
	}
	apart := map[string]bool{"hooks": true, "netDevices": true, "solaris": true, "windows": true, "vm": true, "zos": true, "freebsd": true, "seccomp": true}
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(of reflect.Type) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(of.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[of] {
			return
		}
		seen[of] = true
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if apart[name] || name == "" || name == "-" {
				continue
			}
			if !slices.Contains(known, name) {
				t.Errorf("%s of %s isn't known: its containers go the long way", name, of)
			}
			walk(of.Field(i).Type)
		}
	}
	walk(reflect.TypeFor[specs.Spec]())
}

// A create is early where its bundle's spec is plain and has never been berth's.
func TestWhichCreatesAreEarly(t *testing.T) {
	plain := sample(t, "docker.json")
	host(t, "")
	note(t, "runc")
	write(t, "/run/plain/config.json", plain)
	write(t, "/run/asks/config.json", strings.Replace(plain, `"linux":{`, `"annotations":{"berth.gpus":"1"},"linux":{`, 1))
	write(t, "/run/kept/config.json", plain)
	write(t, "/run/kept/config.json.berth", plain)
	check(t, os.MkdirAll("/run/linked", 0o755))
	check(t, os.Symlink("/run/plain/config.json", "/run/linked/config.json"))
	write(t, "/run/large/config.json", plain+strings.Repeat(" ", 1<<18))
	const runc = "/run/bin/runc"
	for _, tc := range []struct{ args, want string }{
		{"create --bundle /run/plain x", runc},
		{"--root /r --log /l --log-format json create --bundle /run/plain --pid-file /p x", runc},
		{"--systemd-cgroup create --bundle /run/plain --console-socket /s --no-pivot x", runc},
		{"create --bundle /run/asks x", ""},
		{"create --bundle /run/kept x", ""},
		{"create --bundle /run/linked x", ""},
		{"create --bundle /run/large x", ""},
		{"create --bundle /run/none x", ""},
		{"create --bundle run/plain x", ""},
		{"create --bundle /run/../run/plain x", ""},
		{"create --bundle=/run/plain x", ""},
		{"create -b /run/plain x", ""},
		{"create --bundle /run/plain --bundle /run/asks x", ""},
		{"create --bundle /run/plain", ""},
		{"create --bundle /run/plain x y", ""},
		{"create --bundle /run/plain --config /c x", ""},
		{"create --bundle /run/plain --preserve-fds 1 x", ""},
		{"create x", ""},
		{"create x --bundle", ""},
		{"--cgroup-manager disabled create --bundle /run/plain x", ""},
		{"--cgroup-manager=disabled create --bundle /run/plain x", ""},
		{"run --bundle /run/plain x", ""},
		{"start --bundle /run/plain x", ""},
	} {
		if got := became(append([]string{"r"}, strings.Fields(tc.args)...), []string{path}); got != tc.want {
			t.Errorf("%s: becomes %q, want %q", tc.args, got, tc.want)
		}
	}
	// And what is early is what the wrapper would have done.
	slow := build(t, runtime.GOARCH, "")
	out := output(t, slow, strings.Fields("r create --bundle /run/plain x"), []string{path})
	if want := fmt.Sprintf("%s|create|--bundle|/run/plain|x|", "/run/bin/crun"); out != want {
		t.Errorf("wrapper: %q, want %q", out, want)
	}
	text, err := os.ReadFile("/run/plain/config.json")
	if err != nil || string(text) != plain {
		t.Errorf("wrapper has changed a plain spec: %v", err)
	}
}
