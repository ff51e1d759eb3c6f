package spec

import (
	"math"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
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
			expectOutcome(t, got, tt.want, err, tt.fails)
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

func TestUlimitsAboveLimits(t *testing.T) {
	weak := Host{}
	// Every user's signals are limited.
	if err := checkHardLimit("sigpending", math.MaxUint64, weak); err == nil || !strings.Contains(err.Error(), "--ulimit sigpending: this process may not raise it above its own hard limit") {
		t.Errorf("more than this process has: %v", err)
	}
	if err := checkHardLimit("sigpending", 1, weak); err != nil {
		t.Error(err)
	}
	strong := Host{Capabilities: 1 << unix.CAP_SYS_RESOURCE}
	if err := checkHardLimit("memlock", math.MaxUint64, strong); err != nil {
		t.Error(err)
	}
	if err := checkHardLimit("nofile", math.MaxUint64, strong); err == nil || !strings.Contains(err.Error(), "/proc/sys/fs/nr_open") {
		t.Errorf("more files than the kernel gives: %v", err)
	}
	two := []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_CORE", Soft: 1, Hard: 1}}
	if err := checkUlimits(two, strong); err == nil || !strings.Contains(err.Error(), "--ulimit core is given twice") {
		t.Errorf("two of one: %v", err)
	}
}
