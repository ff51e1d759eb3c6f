package spec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/launcher/image"
)

func TestArgs(t *testing.T) {
	config := image.Config{Entrypoint: []string{"entry"}, Cmd: []string{"cmd"}}
	for _, tt := range []struct {
		name string
		s    Settings
		want []string
	}{
		{"the image's", Settings{}, []string{"entry", "cmd"}},
		{"a command", Settings{Command: []string{"c"}}, []string{"entry", "c"}},
		{"an entrypoint drops the image's command", Settings{Entrypoint: []string{"e"}}, []string{"e"}},
		{"both", Settings{Command: []string{"c"}, Entrypoint: []string{"e"}}, []string{"e", "c"}},
		{"none", Settings{Command: []string{"c"}, Entrypoint: []string{}}, []string{"c"}},
	} {
		if diff := cmp.Diff(tt.want, tt.s.mergeCommand(config)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestResolver(t *testing.T) {
	const conf = "# made by somebody\nnameserver 1.1.1.1\nsearch a b\ndomain a\noptions ndots:2"
	got := Resolver{Servers: []string{"9.9.9.9", "8.8.8.8"}, Search: []string{"x", "y"}}.applyTo(conf)
	if want := "# made by somebody\noptions ndots:2\nnameserver 9.9.9.9\nnameserver 8.8.8.8\nsearch x y\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (Resolver{}).applyTo(conf); got != conf {
		t.Errorf("nothing asked: %q", got)
	}
}

// Each setting that can't be is one line that names the flag.
func TestCheck(t *testing.T) {
	low := -900
	strange := 2000
	for _, tt := range []struct {
		fails string
		s     Settings
	}{
		{"can't be both read-only and writable", Settings{ReadOnly: true, ReadWrite: true}},
		{`environment entry "A" is not NAME=VALUE`, Settings{Env: []string{"A"}}},
		{"--hostname", Settings{Hostname: "a b"}},
		{"--domainname", Settings{Domainname: "a..b"}},
		{"--dns", Settings{Network: "none", Resolver: Resolver{Servers: []string{"1.1.1.1"}}}},
		{"--ipc", Settings{IPC: "shareable"}},
		{"--uts", Settings{UTS: "x"}},
		{"--cgroupns", Settings{CgroupNS: "x"}},
		{"--uts host", Settings{UTS: "host", Hostname: "a"}},
		{"--ipc host", Settings{IPC: "host", Resources: Resources{Shm: 1}}},
		{"--sysctl kernel.panic", Settings{Sysctls: map[string]string{"kernel.panic": "1"}}},
		{"--sysctl net.ipv4.ip_forward: the task shares the host's network", Settings{Network: "host", Sysctls: map[string]string{"net.ipv4.ip_forward": "1"}}},
		{"--sysctl kernel.sem: it is the host's", Settings{IPC: "host", Sysctls: map[string]string{"kernel.sem": "1"}}},
		{"not the name of a parameter", Settings{Network: "none", Sysctls: map[string]string{"net./../kernel.panic": "1"}}},
		{"--hostname and --domainname set it", Settings{Sysctls: map[string]string{"kernel.domainname": "a"}}},
		{"--annotation berth.gpus", Settings{Annotations: map[string]string{"berth.gpus": "2"}}},
		{"--annotation run.oci.seccomp_bpf_data", Settings{Annotations: map[string]string{"run.oci.seccomp_bpf_data": ""}}},
		{"can't be negative", Settings{Resources: Resources{Memory: -1}}},
		{"less than the kernel can give", Settings{Resources: Resources{CPUQuota: 0.001}}},
		{"too little to start in", Settings{Resources: Resources{Memory: 1 << 20}}},
		{"--memory-swap is memory and swap together; say --memory", Settings{Resources: Resources{MemorySwap: 1 << 30}}},
		{"can't be less than --memory", Settings{Resources: Resources{Memory: 1 << 30, MemorySwap: 1 << 20}}},
		{"--memory-reservation", Settings{Resources: Resources{Memory: 1 << 23, MemoryReservation: 1 << 30}}},
		{"--cpu-shares", Settings{Resources: Resources{CPUShares: 1}}},
		{"--oom-score-adj -900", Settings{Resources: Resources{OOMScoreAdj: &low}}},
		{"--oom-score-adj 2000", Settings{Resources: Resources{OOMScoreAdj: &strange}}},
		{"none of the CPUs 60000", Settings{Resources: Resources{CPUs: "60000"}}},
		{"of the CPUs 0,60000 only 0 can", Settings{Resources: Resources{CPUs: "0,60000"}}},
		{"--cgroupns host", Settings{CgroupNS: "host", Security: Security{Seccomp: "unconfined"}}},
		{"--security-opt apparmor=none-such", Settings{Security: Security{AppArmor: "none-such"}}},
	} {
		t.Run(tt.fails, func(t *testing.T) {
			p, err := tt.s.ChoosePrivileges(Host{})
			if err == nil {
				err = tt.s.Check(Host{}, p)
			}
			if err == nil || !strings.Contains(err.Error(), tt.fails) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, tt.fails)
			}
		})
	}
	fine := Settings{Network: "none", Sysctls: map[string]string{"net.ipv4.ip_forward": "1", "kernel.sem": "1", "fs.mqueue.msg_max": "1"}}
	if err := fine.Check(Host{}, Privileges{}); err != nil {
		t.Errorf("parameters of the container's own namespaces: %v", err)
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

func TestStorageSizeIsHeld(t *testing.T) {
	for _, name := range []string{"CAP_SYS_ADMIN", "CAP_SYS_RESOURCE", "CAP_NET_RAW"} {
		err := Settings{StorageSize: 1 << 20}.checkStorageSize(Privileges{Capabilities: Capabilities{Names: []string{name}}})
		if lifts := name != "CAP_NET_RAW"; (err != nil) != lifts {
			t.Errorf("%s: %v", name, err)
		}
	}
}
