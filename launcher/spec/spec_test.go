package spec

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/spec/seccomp"
)

var update = flag.Bool("update", false, "write the golden files")

// defaultCapabilities are those of a container for which no flag names any.
func defaultCapabilities(permitted uint64) []string {
	c, err := ChooseCapabilities(Host{Capabilities: permitted}, nil, nil)
	if err != nil {
		panic(err) // no name was given that could be wrong
	}
	return c.Names
}

func sampleContainer() Container {
	caps := defaultCapabilities(^uint64(0))
	return Container{
		Capabilities: Capabilities{Names: caps}, Filter: seccomp.Default(caps),
		Args: []string{"python3", "train.py"}, Env: []string{"PATH=/bin", "A=1", "A=2"}, Dir: "/work",
		User:     rootfs.User{UID: 1000, GID: 100, Groups: []uint32{44}, Home: "/home/user"},
		Terminal: true, Hostname: "trainer", Root: "/var/lib/berth/tasks/1/rootfs", Cgroup: "/berth/1/container",
		Files:     map[string]string{"/etc/hosts": "/hosts", "/etc/hostname": "/hostname"},
		Mounts:    []specs.Mount{{Destination: "/data", Source: "/srv", Type: "bind", Options: []string{"rbind", "ro"}}},
		Resources: Resources{Memory: 1 << 30, CPUQuota: 2.5, Shm: 1 << 20},
		Host:      Host{Capabilities: ^uint64(0), NoFile: 1024, Memlock: 65536},
	}
}

// The golden files have the whole spec, so that a changed default shows in the review.
func TestSpecGolden(t *testing.T) {
	spec := New(sampleContainer())
	SetCPUs(spec, "0-3")
	spec.Linux.Seccomp, spec.Annotations = nil, nil // depend on the processor; see below
	got, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const golden = "testdata/spec.json"
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
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCapabilities(t *testing.T) {
	all := defaultCapabilities(^uint64(0))
	for _, name := range []string{"CAP_MKNOD", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_DAC_READ_SEARCH"} {
		if slices.Contains(all, name) {
			t.Errorf("a container has %s", name)
		}
	}
	if got := defaultCapabilities(1 << unix.CAP_CHOWN); !slices.Equal(got, []string{"CAP_CHOWN"}) {
		t.Errorf("a launcher that has CAP_CHOWN alone gives %v", got)
	}
}

func TestRlimits(t *testing.T) {
	const unlimited = ^uint64(0)
	nofile := func(soft, hard uint64) specs.POSIXRlimit {
		return specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: soft, Hard: hard}
	}
	memlock := specs.POSIXRlimit{Type: "RLIMIT_MEMLOCK", Soft: unlimited, Hard: unlimited}
	for _, tt := range []struct {
		name string
		host Host
		want []specs.POSIXRlimit
	}{
		{"may raise", Host{Capabilities: 1 << unix.CAP_SYS_RESOURCE, NoFile: 1024, Memlock: 1}, []specs.POSIXRlimit{nofile(131072, 131072), memlock}},
		{"may not", Host{NoFile: 20000, Memlock: 8 << 20}, []specs.POSIXRlimit{nofile(20000, 20000)}},
		{"need not", Host{NoFile: 1 << 20, Memlock: unlimited}, []specs.POSIXRlimit{nofile(131072, 1<<20), memlock}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, defaultRlimits(tt.host)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Each name is there once with its last value, and PATH, HOME and HOSTNAME are always set.
func TestEnvironment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"A", "B", "PATH", "HOME", "HOSTNAME", "TERM"})
		container := Container{User: rootfs.User{Home: "/h"}, Hostname: "n", Terminal: rapid.Bool().Draw(t, "terminal")}
		want := map[string]string{"PATH": defaultPath, "HOME": "/h", "HOSTNAME": "n"}
		if container.Terminal {
			want["TERM"] = "xterm"
		}
		for range rapid.IntRange(0, 8).Draw(t, "n") {
			k, v := name.Draw(t, "k"), rapid.StringMatching(`[a-z=]{0,3}`).Draw(t, "v")
			container.Env, want[k] = append(container.Env, k+"="+v), v
		}
		got := map[string]string{}
		for _, kv := range buildEnvironment(container) {
			k, v, _ := strings.Cut(kv, "=")
			if _, twice := got[k]; twice {
				t.Fatalf("%s is set twice", k)
			}
			if got[k] = v; Getenv(container, k) != v {
				t.Fatalf("Getenv(%s) is %q, the container sees %q", k, Getenv(container, k), v)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Encode writes what the standard encoder would.
func TestEncode(t *testing.T) {
	spec := New(sampleContainer())
	spec.Domainname = "example.org"
	spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/true"}}}
	for _, spec := range []*specs.Spec{spec, {Windows: &specs.Windows{LayerFolders: []string{"C:\\"}}}} {
		want, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Encode(spec)
		if diff := cmp.Diff(string(want), string(got)); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
}
