package spec

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestChoose(t *testing.T) {
	all := Host{Capabilities: ^uint64(0)}
	always := defaultCapabilities(^uint64(0))
	without := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(always), func(n string) bool { return slices.Contains(names, n) })
	}
	for _, tt := range []struct {
		name      string
		host      Host
		add, drop []string
		want      Capabilities
		fails     string
	}{
		{name: "nothing said", host: all, want: Capabilities{Names: always}},
		{name: "dropped, in any spelling", host: all, drop: []string{"chown", "CAP_KILL"}, want: Capabilities{Names: without("CAP_CHOWN", "CAP_KILL")}},
		{name: "all dropped", host: all, drop: []string{"ALL"}},
		{name: "all dropped but one", host: all, drop: []string{"all"}, add: []string{"chown"}, want: Capabilities{Names: []string{"CAP_CHOWN"}}},
		{name: "one more", host: all, drop: []string{"ALL"}, add: []string{"cap_net_admin"}, want: Capabilities{Names: []string{"CAP_NET_ADMIN"}, Unusual: true}},
		{name: "in both", host: all, drop: []string{"ALL", "CHOWN"}, add: []string{"CHOWN"}, want: Capabilities{Names: []string{"CAP_CHOWN"}}},
		{name: "unknown", host: all, add: []string{"SYS_ADMN"}, fails: "--cap-add SYS_ADMN: the kernel has no such capability"},
		{name: "unknown, dropped", host: all, drop: []string{""}, fails: "--cap-drop : the kernel has no such capability"},
		{name: "nodes", host: all, add: []string{"MKNOD"}, fails: "--cap-add MKNOD: no task gets CAP_MKNOD: it makes device nodes"},
		{name: "modules", host: all, add: []string{"CAP_SYS_MODULE"}, fails: "--cap-add SYS_MODULE: no task gets CAP_SYS_MODULE"},
		{name: "dropped, and never had", host: all, drop: []string{"MKNOD"}, want: Capabilities{Names: always}},
		{name: "not of this process", host: Host{Capabilities: 1 << unix.CAP_CHOWN}, add: []string{"SYS_ADMIN"}, fails: "--cap-add SYS_ADMIN: this process itself has no CAP_SYS_ADMIN"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ChooseCapabilities(tt.host, tt.add, tt.drop)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("%v, want %q", err, tt.fails)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// Whatever is asked for, a container gets no capability outside of the launcher's list and none that lifts
// device rules. More reports capabilities beyond the usual ones.
func TestChooseProperty(t *testing.T) {
	words := append(strings.Fields(capabilityNames), "ALL")
	rapid.Check(t, func(t *rapid.T) {
		h := Host{Capabilities: rapid.Uint64().Draw(t, "host")}
		names := rapid.SliceOfN(rapid.SampledFrom(words), 0, 5)
		c, err := ChooseCapabilities(h, names.Draw(t, "add"), names.Draw(t, "drop"))
		if err != nil {
			return
		}
		more := false
		for _, name := range c.Names {
			bit := slices.Index(strings.Fields(capabilityNames), strings.TrimPrefix(name, "CAP_"))
			if _, never := withheldReasons()[name]; never || h.Capabilities&(1<<bit) == 0 {
				t.Fatalf("a container has %s", name)
			}
			more = more || !slices.Contains(strings.Fields(defaultCapabilityNames), strings.TrimPrefix(name, "CAP_"))
		}
		if more != c.Unusual {
			t.Fatalf("more than usual: %v, want %v: %v", c.Unusual, more, c.Names)
		}
	})
}

func TestCapabilityNumbers(t *testing.T) {
	names := strings.Fields(capabilityNames)
	for name, bit := range map[string]int{
		"CHOWN": unix.CAP_CHOWN, "MKNOD": unix.CAP_MKNOD, "SYS_ADMIN": unix.CAP_SYS_ADMIN,
		"SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "CHECKPOINT_RESTORE": unix.CAP_CHECKPOINT_RESTORE,
	} {
		if slices.Index(names, name) != bit {
			t.Errorf("%s is %d, want %d", name, slices.Index(names, name), bit)
		}
	}
	if len(names) != unix.CAP_LAST_CAP+1 {
		t.Errorf("%d capabilities, want %d", len(names), unix.CAP_LAST_CAP+1)
	}
}

// Each setting changes the spec as meant, and nothing else.
func TestSpecChanges(t *testing.T) {
	plain := sampleContainer()
	plain.Mounts, plain.Files = nil, nil
	adj := -5
	for _, tt := range []struct {
		name   string
		change func(*Container)
		want   string
	}{
		{"new privileges", func(t *Container) { t.NewPrivileges = true }, "process.noNewPrivileges: true -> absent"},
		{"profile", func(t *Container) { t.AppArmor = "mine" }, "process.apparmorProfile: absent -> mine"},
		{"score", func(t *Container) { t.Resources.OOMScoreAdj = &adj }, "process.oomScoreAdj: absent -> -5"},
		{"limit", func(t *Container) { t.Resources.Ulimits = []specs.POSIXRlimit{{Type: "RLIMIT_CORE", Soft: 1, Hard: 2}} }, "process.rlimits: 2 -> 3 entries"},
		{"usual limit", func(t *Container) {
			t.Resources.Ulimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 2048}}
		}, "process.rlimits[0].hard: 131072 -> 2048; process.rlimits[0].soft: 131072 -> 1024"},
		{"processes", func(t *Container) { t.Resources.Pids = 5 }, "linux.resources.pids: absent -> {limit: 5}"},
		{"swap", func(t *Container) { t.Resources.MemorySwap = -1 }, "linux.resources.memory.swap: absent -> -1"},
		{"reservation", func(t *Container) { t.Resources.MemoryReservation = 7 }, "linux.resources.memory.reservation: absent -> 7"},
		{"weight", func(t *Container) { t.Resources.CPUShares = 7 }, "linux.resources.cpu.shares: absent -> 7"},
		{"nodes", func(t *Container) { t.Resources.MemoryNodes = "1" }, "linux.resources.cpu.mems: absent -> 1"},
		{"IPC", func(t *Container) { t.HostIPC, t.Resources.Shm = true, 0 }, "linux.namespaces: 5 -> 4 entries; mounts[3].options: 5 entries; mounts[3].source: shm -> /dev/shm; mounts[3].type: tmpfs -> bind"},
		{"UTS", func(t *Container) { t.HostUTS = true }, "hostname: trainer -> absent; linux.namespaces: 5 -> 4 entries"},
		{"parameter", func(t *Container) { t.Sysctls = map[string]string{"a": "b"} }, "linux.sysctl: absent -> {a: b}"},
		{"annotation", func(t *Container) { t.Annotations = map[string]string{"a": "b"} }, "annotations: absent -> {a: b}"},
		{"exposed", func(t *Container) { t.Exposed = true }, "linux.maskedPaths: absent; linux.readonlyPaths: absent; mounts[5].options: 3 entries; mounts[6].options: 4 entries"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			changed := plain
			tt.change(&changed)
			if got := specDifference(t, plain, changed); got != tt.want {
				t.Errorf("the spec differs by\n%s, want\n%s", got, tt.want)
			}
		})
	}
}
