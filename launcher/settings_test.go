package launcher

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/spec"
)

func TestParseUlimit(t *testing.T) {
	limit := func(name string, soft, hard uint64) specs.POSIXRlimit {
		return specs.POSIXRlimit{Type: "RLIMIT_" + name, Soft: soft, Hard: hard}
	}
	for _, tt := range []struct {
		text  string
		want  specs.POSIXRlimit
		fails string
	}{
		{text: "memlock=-1", want: limit("MEMLOCK", math.MaxUint64, math.MaxUint64)},
		{text: "memlock=unlimited", want: limit("MEMLOCK", math.MaxUint64, math.MaxUint64)},
		{text: "nofile=1024:2048", want: limit("NOFILE", 1024, 2048)},
		{text: "core=0", want: limit("CORE", 0, 0)},
		{text: "stack=8388608:-1", want: limit("STACK", 8388608, math.MaxUint64)},
		{text: "nofile=2048:1024", fails: "the soft limit is above the hard one"},
		{text: "nofile=-1:5", fails: "the soft limit is above the hard one"},
		{text: "nofile", fails: "is not NAME=SOFT[:HARD]"},
		{text: "files=5", fails: "is one of cpu, fsize"},
		{text: "nofile=many", fails: "a limit is a number, or -1"},
		{text: "nofile=1:2:3", fails: "a limit is a number"},
		{text: "nofile=-2", fails: "a limit is a number"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			got, err := ParseUlimit(tt.text)
			outcomeIs(t, got, tt.want, err, tt.fails)
		})
	}
}

func FuzzParseUlimit(f *testing.F) {
	f.Add("nofile=1:2")
	f.Add("memlock=-1")
	f.Fuzz(func(t *testing.T, s string) {
		if l, err := ParseUlimit(s); err == nil && (l.Soft > l.Hard || !strings.HasPrefix(l.Type, "RLIMIT_") || l.Type == "RLIMIT_") {
			t.Errorf("%q is %+v", s, l)
		}
	})
}

func TestUlimitsThatMayNotBe(t *testing.T) {
	weak := &host{}
	// Every user's signals are limited.
	if err := weak.mayLimit("sigpending", math.MaxUint64); err == nil || !strings.Contains(err.Error(), "--ulimit sigpending: this root may not raise it above its own hard limit") {
		t.Errorf("more than this process has: %v", err)
	}
	if err := weak.mayLimit("sigpending", 1); err != nil {
		t.Error(err)
	}
	strong := &host{give: spec.Host{Capabilities: 1 << unix.CAP_SYS_RESOURCE}}
	if err := strong.mayLimit("memlock", math.MaxUint64); err != nil {
		t.Error(err)
	}
	if err := strong.mayLimit("nofile", math.MaxUint64); err == nil || !strings.Contains(err.Error(), "/proc/sys/fs/nr_open") {
		t.Errorf("more files than the kernel gives: %v", err)
	}
	two := Options{Settings: Settings{Resources: Resources{Ulimits: []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_CORE", Soft: 1, Hard: 1}}}}}
	if err := two.checkUlimits(strong); err == nil || !strings.Contains(err.Error(), "--ulimit core is given twice") {
		t.Errorf("two of one: %v", err)
	}
}

func TestParseEnvFile(t *testing.T) {
	lookup := func(name string) (string, bool) { return "of " + name, name == "SET" }
	for _, tt := range []struct {
		name, text string
		want       []string
		fails      string
	}{
		{name: "values as they stand", text: "A=1\nB=\"x y\" # no comment\nC=$A\nD=\nE=a=b", want: []string{"A=1", `B="x y" # no comment`, "C=$A", "D=", "E=a=b"}},
		{name: "comments and empty lines", text: "# A=1\n\n  # B=1\n\t\n A=2", want: []string{"A=2"}},
		{name: "names alone", text: "SET\nUNSET\n", want: []string{"SET=of SET"}},
		{name: "byte order mark, line ends of Windows", text: "\ufeffA=1\r\nB=2\r\n", want: []string{"A=1", "B=2"}},
		{name: "space after the name", text: "A =1", fails: `line 1: the name "A " has white space`},
		{name: "no name", text: "A=1\n=2", fails: `line 2: "=2" has no name`},
		{name: "words", text: "export A=1", fails: `the name "export A" has white space`},
		{name: "zero", text: "A=\x00", fails: "not text"},
		{name: "not UTF-8", text: "A=\xff", fails: "not text"},
		{name: "a line without end", text: "A=" + strings.Repeat("x", 2<<20), fails: "too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseEnvFile(strings.NewReader(tt.text), lookup)
			outcomeIs(t, got, tt.want, err, tt.fails)
		})
	}
}

// What is written line by line is read so, whatever the values are.
func TestEnvFileProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.StringMatching(`[A-Za-z_][A-Za-z0-9_]{0,5}=[ -~]{0,9}`), 0, 6).Draw(t, "entries")
		got, err := ParseEnvFile(strings.NewReader(strings.Join(want, "\n")), nil)
		if diff := cmp.Diff(append([]string(nil), want...), got, cmpEmpty); err != nil || diff != "" {
			t.Fatalf("%v (-want +got):\n%s", err, diff)
		}
	})
}

// cmpEmpty takes no entries and none for the same.
var cmpEmpty = cmp.Transformer("none", func(s []string) string { return strings.Join(s, "\n") })

func FuzzParseEnvFile(f *testing.F) {
	f.Add("A=1\n# x\nB")
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := ParseEnvFile(strings.NewReader(text), nil)
		for _, e := range entries {
			if err == nil && !validEnv(e) {
				t.Errorf("%q gives the entry %q", text, e)
			}
		}
	})
}

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]int{"TERM": 15, "SIGINT": 2, "sigusr1": 10, "9": 9, "SIGRTMIN": 34, "RTMIN+3": 37, "SIGRTMAX-1": 63, "64": 64} {
		if got, err := ParseSignal(text); err != nil || int(got) != want {
			t.Errorf("%s is %d (%v), want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "65", "SIG", "NOPE", "RTMIN+99", "RTMAX+1", "RTMIN-1"} {
		if got, err := ParseSignal(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

func TestArgs(t *testing.T) {
	config := image.Config{Entrypoint: []string{"entry"}, Cmd: []string{"cmd"}}
	for _, tt := range []struct {
		name string
		o    Options
		want []string
	}{
		{"the image's", Options{}, []string{"entry", "cmd"}},
		{"a command", Options{Command: []string{"c"}}, []string{"entry", "c"}},
		{"an entrypoint drops the image's command", Options{Settings: Settings{Entrypoint: []string{"e"}}}, []string{"e"}},
		{"both", Options{Command: []string{"c"}, Settings: Settings{Entrypoint: []string{"e"}}}, []string{"e", "c"}},
		{"none", Options{Command: []string{"c"}, Settings: Settings{Entrypoint: []string{}}}, []string{"c"}},
	} {
		if diff := cmp.Diff(tt.want, tt.o.args(config)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestResolver(t *testing.T) {
	const conf = "# made by somebody\nnameserver 1.1.1.1\nsearch a b\ndomain a\noptions ndots:2"
	got := Resolver{Servers: []string{"9.9.9.9", "8.8.8.8"}, Search: []string{"x", "y"}}.replace(conf)
	if want := "# made by somebody\noptions ndots:2\nnameserver 9.9.9.9\nnameserver 8.8.8.8\nsearch x y\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (Resolver{}).replace(conf); got != conf {
		t.Errorf("nothing asked: %q", got)
	}
}

// Each setting that can't be is one line that names the flag.
func TestCheckSettings(t *testing.T) {
	there := filepath.Join(t.TempDir(), "cid")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	low := -900
	strange := 2000
	for _, tt := range []struct {
		fails string
		o     Options
	}{
		{"--hostname", Options{Settings: Settings{Hostname: "a b"}}},
		{"--domainname", Options{Settings: Settings{Domainname: "a..b"}}},
		{"--dns", Options{Network: "none", Settings: Settings{Resolver: Resolver{Servers: []string{"1.1.1.1"}}}}},
		{"--ipc", Options{Settings: Settings{IPC: "shareable"}}},
		{"--uts", Options{Settings: Settings{UTS: "x"}}},
		{"--cgroupns", Options{Settings: Settings{CgroupNS: "x"}}},
		{"--uts host", Options{Settings: Settings{UTS: "host", Hostname: "a"}}},
		{"--ipc host", Options{Shm: 1, Settings: Settings{IPC: "host"}}},
		{"--sysctl kernel.panic", Options{Settings: Settings{Sysctls: map[string]string{"kernel.panic": "1"}}}},
		{"--sysctl net.ipv4.ip_forward: the task shares the host's network", Options{Network: "host", Settings: Settings{Sysctls: map[string]string{"net.ipv4.ip_forward": "1"}}}},
		{"--sysctl kernel.sem: it is the host's", Options{Settings: Settings{IPC: "host", Sysctls: map[string]string{"kernel.sem": "1"}}}},
		{"not the name of a parameter", Options{Network: "none", Settings: Settings{Sysctls: map[string]string{"net./../kernel.panic": "1"}}}},
		{"--hostname and --domainname set it", Options{Settings: Settings{Sysctls: map[string]string{"kernel.domainname": "a"}}}},
		{"--annotation berth.gpus", Options{Settings: Settings{Annotations: map[string]string{"berth.gpus": "2"}}}},
		{"--annotation run.oci.seccomp_bpf_data", Options{Settings: Settings{Annotations: map[string]string{"run.oci.seccomp_bpf_data": ""}}}},
		{"signal", Options{Settings: Settings{StopSignal: "NOPE"}}},
		{"--cidfile", Options{Settings: Settings{CIDFile: there}}},
		{"--memory-swap is memory and swap together; say --memory", Options{Settings: Settings{Resources: Resources{MemorySwap: 1 << 30}}}},
		{"can't be less than --memory", Options{Memory: 1 << 30, Settings: Settings{Resources: Resources{MemorySwap: 1 << 20}}}},
		{"--memory-reservation", Options{Memory: 1 << 20, Settings: Settings{Resources: Resources{MemoryReservation: 1 << 30}}}},
		{"--cpu-shares", Options{Settings: Settings{Resources: Resources{CPUShares: 1}}}},
		{"--oom-score-adj -900", Options{Settings: Settings{Resources: Resources{OOMScoreAdj: &low}}}},
		{"--oom-score-adj 2000", Options{Settings: Settings{Resources: Resources{OOMScoreAdj: &strange}}}},
		{"none of the CPUs 60000", Options{CPUs: "60000"}},
		{"of the CPUs 0,60000 only 0 can", Options{CPUs: "0,60000"}},
		{"--cgroupns host", Options{Settings: Settings{CgroupNS: "host", Security: Security{Seccomp: "unconfined"}}}},
		{"--security-opt apparmor=none-such", Options{Settings: Settings{Security: Security{AppArmor: "none-such"}}}},
	} {
		t.Run(tt.fails, func(t *testing.T) {
			err := tt.o.checkSettings(&host{})
			if err == nil || !strings.Contains(err.Error(), tt.fails) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, tt.fails)
			}
		})
	}
	fine := Options{Network: "none", Settings: Settings{Sysctls: map[string]string{"net.ipv4.ip_forward": "1", "kernel.sem": "1", "fs.mqueue.msg_max": "1"}}}
	if err := fine.checkSettings(&host{}); err != nil {
		t.Errorf("parameters of the task's own namespaces: %v", err)
	}
}

func TestCheckAppArmor(t *testing.T) {
	dir := t.TempDir()
	enabled, profiles := filepath.Join(dir, "enabled"), filepath.Join(dir, "profiles")
	for path, text := range map[string]string{enabled: "Y\n", profiles: "mine (enforce)\nothers (complain)\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, fails := range map[string]string{"": "", "unconfined": "", "mine": "", "min": "no profile of that name is loaded"} {
		if err := checkAppArmor(name, enabled, profiles); (err == nil) != (fails == "") || err != nil && !strings.Contains(err.Error(), fails) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := checkAppArmor("mine", filepath.Join(dir, "none"), profiles); err == nil || !strings.Contains(err.Error(), "has no AppArmor") {
		t.Error(err)
	}
}
