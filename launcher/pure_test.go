package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/launcher/supervise"
)

func TestValidName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "7": true, "Job-1.b_c": true, strings.Repeat("x", 63): true,
		"": false, strings.Repeat("x", 64): false, "-a": false, ".a": false, "_a": false,
		"a/b": false, "a\n": false, "a b": false, "é": false, "aé": false, "a\x00": false, "a\xff": false,
	} {
		if got := validName(name); got != want {
			t.Errorf("name %q: %v, want %v", name, got, want)
		}
	}
}

func TestThermalPaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cpu0/thermal_throttle", "cpu0/cache", "cpu1", "cpu10/thermal_throttle", "cpufreq/thermal_throttle", "power"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(dir, "cpu0/thermal_throttle"), filepath.Join(dir, "cpu10/thermal_throttle")}
	if diff := cmp.Diff(want, thermalPaths(dir)); diff != "" {
		t.Error(diff)
	}
	if got := thermalPaths(filepath.Join(dir, "none")); got != nil {
		t.Errorf("paths %q below nothing", got)
	}
}

func TestParseVolume(t *testing.T) {
	bind := func(src, dst string, options ...string) specs.Mount {
		return specs.Mount{Source: src, Destination: dst, Type: "bind", Options: options}
	}
	for _, tt := range []struct {
		text  string
		want  specs.Mount
		fails string
	}{
		{text: "/etc:/x", want: bind("/etc", "/x", "rbind", "rprivate")},
		{text: "/etc/:/x/../y/", want: bind("/etc", "/y", "rbind", "rprivate")},
		{text: "/etc:/x:ro,bind,rslave,nosuid", want: bind("/etc", "/x", "bind", "rslave", "ro", "nosuid")},
		{text: "/etc", fails: "is not SRC:DST"},
		{text: "/etc:", fails: "is not SRC:DST"},
		{text: ":/x", fails: "is not SRC:DST"},
		{text: "/etc:/x:ro:rw", fails: "is not SRC:DST"},
		{text: "/etc:x", fails: "x is not an absolute path"},
		{text: "/etc:/a/..", fails: "/a/.. is not an absolute path below /"},
		{text: "/etc:/x:z", want: bind("/etc", "/x", "rbind", "rprivate")},
		{text: "/etc:/x:ro,Z,cached,delegated,consistent", want: bind("/etc", "/x", "rbind", "rprivate", "ro")},
		{text: "/no/such:/x", fails: "no such file or directory; if it is to be an empty directory: mkdir -p /no/such"},
		{text: "/etc:/x:y", fails: `unknown option "y"`},
		{text: "/etc:/x:ro,rw", fails: "both ro and rw"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			got, err := ParseVolume(tt.text)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("error %v, want %q", err, tt.fails)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestCovered(t *testing.T) {
	mounts := []specs.Mount{{Destination: "/a/b"}}
	for path, want := range map[string]bool{"/a/b": true, "/a/b/c": true, "/a/bc": false, "/a": false} {
		if covered(mounts, path) != want {
			t.Errorf("%s: %v, want %v", path, !want, want)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	for _, tt := range []struct {
		list string
		want []int
		bad  bool
	}{
		{list: "0", want: []int{0}},
		{list: "0-2,8\n", want: []int{0, 1, 2, 8}},
		{list: "3-3", want: []int{3}},
		{list: "", bad: true},
		{list: "2-1", bad: true},
		{list: "-1", bad: true},
		{list: "0-", bad: true},
		{list: "0,,1", bad: true},
		{list: "0-99999999", bad: true},
		{list: "a", bad: true},
	} {
		got, err := parseCPUs(tt.list)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != tt.bad {
			t.Errorf("%q: %v, %v", tt.list, got, err)
		}
	}
}

func FuzzParseCPUs(f *testing.F) {
	f.Add("0-3,8")
	f.Fuzz(func(t *testing.T, list string) {
		cpus, err := parseCPUs(list)
		for _, cpu := range cpus {
			if err == nil && (cpu < 0 || cpu >= maxCPU) {
				t.Errorf("%q names CPU %d", list, cpu)
			}
		}
	})
}

func TestCheckRoot(t *testing.T) {
	const whole, all = "         0          0 4294967295\n", ^uint64(0)
	for _, tt := range []struct {
		name   string
		uid    int
		uidMap string
		caps   uint64
		ok     bool
	}{
		{"root", 0, whole, all, true},
		{"a user", 1000, whole, 0, false},
		{"root of a user namespace", 0, "0 1000 1\n", all, false},
		{"mapped ranges", 0, "0 1000 1\n1 100000 65536\n", all, false},
		{"without its capability", 0, whole, all &^ (1 << unix.CAP_SYS_ADMIN), false},
	} {
		if err := checkRoot(tt.uid, tt.uidMap, tt.caps); (err == nil) != tt.ok || (err != nil && !errors.Is(err, ErrNotRoot)) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestExitCode(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{errors.New("x"), 125},
		{ErrNotRoot, 125},
		{ErrCantInvoke, 126},
		{ErrNotFound, 127},
		{gpu.ErrBusy, 75},
		{&Interrupted{Signal: unix.SIGTERM}, 143},
		{errors.Join(ErrNotFound, errors.New("cleaning up")), 127},
	} {
		if got := supervise.ExitCode(tt.err); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.err, got, tt.want)
		}
	}
}
