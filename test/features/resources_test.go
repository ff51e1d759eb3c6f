package features

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/spec/seccomp"
	"github.com/berth-gpu/berth/test/rig"
)

// engineDefaults makes an engine's defaults: a filter that refuses NUMA memory policy, and 64 MiB of
// shared memory.
func engineDefaults(s *specs.Spec) {
	eperm := uint(unix.EPERM)
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=67108864"}})
	s.Linux.Seccomp = &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64},
		Syscalls: []specs.LinuxSyscall{{Names: []string{"bpf", "mbind", "get_mempolicy", "set_mempolicy"}, Action: specs.ActErrno, ErrnoRet: &eperm}},
	}
}

// strictFilter is a filter that lists what it allows.
func strictFilter(s *specs.Spec) {
	engineDefaults(s)
	s.Linux.Seccomp = spec.New(spec.Container{Filter: seccomp.Default(nil)}).Linux.Seccomp
	for i, r := range s.Linux.Seccomp.Syscalls {
		s.Linux.Seccomp.Syscalls[i].Names = slices.DeleteFunc(r.Names, func(name string) bool {
			return slices.Contains([]string{"mbind", "get_mempolicy", "set_mempolicy"}, name)
		})
	}
	eperm := uint(unix.EPERM)
	s.Linux.Seccomp.DefaultErrnoRet = &eperm
}

// TestResources: containers with GPUs may set the NUMA policy of their memory, and have enough
// shared memory, unless the admin or the container says otherwise.
func TestResources(t *testing.T) {
	var memory unix.Sysinfo_t
	rig.Must(t, unix.Sysinfo(&memory))
	half := int(memory.Totalram * uint64(memory.Unit) >> 21)
	ok, refused := []string{"ok", "ok", "ok"}, []string{"EPERM", "EPERM", "EPERM"}
	for _, tt := range []struct {
		name, request, policy string
		change                func(*specs.Spec)
		calls                 []string
		size                  int
	}{
		{"GPU", "1", "", engineDefaults, ok, half},
		{"filter that names what it allows", "1", "", strictFilter, ok, half},
		{"no GPU", "", "", engineDefaults, refused, 64},
		{"engine's", "1", "memory_policy = false\nshm = 'engine'", engineDefaults, refused, 64},
		{"as much as the admin says", "1", "shm = '134217728'", engineDefaults, ok, 128},
		{"as much as was asked for", "1", "", func(s *specs.Spec) {
			engineDefaults(s)
			s.Mounts[len(s.Mounts)-1].Options[4] = "size=16m"
		}, ok, 16},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachKind(t, "dgx-h100", kindsWithBundle(), func(t *testing.T, d entryPoint) {
				c := d.run(t, task{request: tt.request, policy: tt.policy, change: tt.change})
				want, size := tt.calls, tt.size
				if d.way == byHook { // the hook comes too late for both
					if want = refused; size != 16 {
						size = 64
					}
				}
				c.wantAnswer("memory", want...)
				got, err := strconv.Atoi(c.ask("size /dev/shm")[0])
				if err != nil || got < size*9/10 || got > size*11/10 {
					t.Errorf("/dev/shm has %d MiB, want %d: %v", got, size, err)
				}
				c.end()
			})
		})
	}
}

// TestNCCLFiles: the admin's files for NCCL are where NCCL reads them, and can't be changed;
// without a configured file there is none.
func TestNCCLFiles(t *testing.T) {
	dir := t.TempDir()
	text := map[string]string{"/etc/nccl.conf": "NCCL_DEBUG=WARN", "/var/run/nvidia-topologyd/virtualTopology.xml": "<system version=\"1\"/>"}
	policy := ""
	for name, key := range map[string]string{"/etc/nccl.conf": "nccl_conf", "/var/run/nvidia-topologyd/virtualTopology.xml": "nccl_topology"} {
		path := filepath.Join(dir, key)
		rig.Must(t, os.WriteFile(path, []byte(text[name]+"\n"), 0o644))
		policy += fmt.Sprintf("%s = %q\n", key, path)
	}
	eachKind(t, "dgx-h100", oneOfEach(), func(t *testing.T, d entryPoint) {
		c := d.run(t, task{request: "1", policy: policy})
		for name, want := range text {
			c.wantAnswer("cat "+name, want)
			if got := c.ask("open " + name)[0]; got != "ok EACCES EACCES" {
				t.Errorf("open %s: %s", name, got)
			}
		}
		c.end()
		without := d.run(t, task{request: "1"})
		for name := range text {
			if without.exists(name) {
				t.Errorf("there is a %s", name)
			}
		}
		without.end()
		d.wantRefused(t, task{request: "1", policy: "nccl_conf = '/none'"}, "NCCL's file /none isn't there")
	})
}
