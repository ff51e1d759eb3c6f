package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/spec"
)

// withSettings changes a job's settings.
func withSettings(f func(*spec.Settings)) func(*job) { return func(j *job) { f(&j.Settings) } }

// What was asked for is what the task sees, whichever runtime makes it.
func TestSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("bound\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	onAllRigs(t, func(t *testing.T, r rig) {
		for _, tt := range []struct {
			name, line, stdout string
			change             func(*job)
		}{
			{"another entrypoint", "", "Linux\n", withSettings(func(s *spec.Settings) { s.Entrypoint = []string{"/bin/busybox", "uname"} })},
			{"groups", "id -G", "0 44 4711\n", withSettings(func(s *spec.Settings) { s.Groups = []string{"video", "4711"} })},
			{"hostname", "hostname; cat /etc/hostname; grep -c node7 /etc/hosts", "node7\nnode7\n1\n", withSettings(func(s *spec.Settings) { s.Hostname = "node7" })},
			{"domain", "cat /proc/sys/kernel/domainname; grep -o 'a.b.example a' /etc/hosts", "b.example\na.b.example a\n", withSettings(func(s *spec.Settings) { s.Hostname, s.Domainname = "a", "b.example" })},
			{"hosts", "grep storage /etc/hosts", "10.0.0.1\tstorage\n", withSettings(func(s *spec.Settings) { s.Hosts = []string{"10.0.0.1\tstorage"} })},
			{"name servers", "grep ^nameserver /etc/resolv.conf", "nameserver 9.9.9.9\n", withSettings(func(s *spec.Settings) { s.Resolver.Servers = []string{"9.9.9.9"} })},
			{"a bind", "cat /m; touch /m 2>/dev/null || echo ro", "bound\nro\n", withSettings(func(s *spec.Settings) { s.Mounts = parseMounts(t, "type=bind,src="+file+",dst=/m,ro") })},
			{"a bind in a tmpfs that is named later", "cat /s/m; grep -c ' /s tmpfs' /proc/mounts", "bound\n1\n", withSettings(func(s *spec.Settings) {
				s.Mounts = parseMounts(t, "type=bind,src="+file+",dst=/s/m", "type=tmpfs,dst=/s,tmpfs-size=1m")
			})},
			{
				"tmpfs", "df -k /scratch | grep -o 1024; grep /scratch /proc/mounts | grep -c 'noexec.*mode=700'; touch /scratch/x && echo rw", "1024\n1024\n1\nrw\n",
				withSettings(func(s *spec.Settings) {
					s.Mounts = parseMounts(t, "type=tmpfs,dst=/scratch,tmpfs-size=1m,tmpfs-mode=700")
				}),
			},
			{"tmpfs on a read-only root", "touch /x 2>/dev/null || echo ro; touch /new/x && echo rw", "ro\nrw\n", func(j *job) {
				j.ReadOnly, j.Mounts = true, parseMounts(t, "type=tmpfs,dst=/new")
			}},
			{"capabilities that are added and dropped", "grep -E 'Cap(Bnd|Eff)' /proc/self/status", "CapEff:\t0000000000001402\nCapBnd:\t0000000000001402\n", withSettings(func(s *spec.Settings) {
				s.CapDrop, s.CapAdd = []string{"all"}, []string{"net_admin", "CAP_DAC_OVERRIDE", "NET_BIND_SERVICE"}
			})},
			{"who isn't root has none", "grep CapEff /proc/self/status", "CapEff:\t0000000000000000\n", func(j *job) {
				j.User, j.CapAdd = "user", []string{"NET_ADMIN"}
			}},
			{"new privileges", "grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t0\n", withSettings(func(s *spec.Settings) { s.NewPrivileges = true })},
			{"parameters of the kernel", "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_forward", "1\n1\n", func(j *job) {
				j.Network, j.Sysctls = "none", map[string]string{"kernel.shm_rmid_forced": "1", "net.ipv4.ip_forward": "1"}
			}},
			{"the host's IPC", "readlink /proc/self/ns/ipc; test -d /dev/shm && echo shm", ownNamespace(t, "ipc") + "\nshm\n", withSettings(func(s *spec.Settings) { s.IPC = "host" })},
			{"the host's name", "readlink /proc/self/ns/uts; hostname", ownNamespace(t, "uts") + "\n" + ownName(t) + "\n", withSettings(func(s *spec.Settings) { s.UTS = "host" })},
			{"limits of a process", "ulimit -Sn; ulimit -Hn; ulimit -c", "1024\n2048\n0\n", withSettings(func(s *spec.Settings) {
				s.Ulimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 2048}, {Type: "RLIMIT_CORE"}}
			})},
			{"first to be ended", "cat /proc/self/oom_score_adj", "500\n", withSettings(func(s *spec.Settings) { adj := 500; s.OOMScoreAdj = &adj })},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r := rig{t: t, base: r.base}
				got := r.sh(tt.line, tt.change)
				if tt.line == "" {
					got = r.run(r.job(func(j *job) { j.Command = nil; tt.change(j) }))
				}
				if got.code != 0 || got.stdout != tt.stdout {
					t.Errorf("code %d, output %q, errors %q, want %q", got.code, got.stdout, got.stderr, tt.stdout)
				}
			})
		}
	})
}

func parseMounts(t *testing.T, words ...string) (all []specs.Mount) {
	t.Helper()
	for _, w := range words {
		m, err := spec.ParseMount(w)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

func ownNamespace(t *testing.T, kind string) string {
	t.Helper()
	name, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func ownName(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// Limits of the whole task, where the controllers are.
func TestSettingsInCgroup(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		for _, tt := range []struct{ name, v1, v2, want, controller string }{
			{"processes", "pids/pids.max", "pids.max", "77", "pids"},
			{"weight", "cpu/cpu.shares", "cpu.weight", "512", "cpu"},
			{"reservation", "memory/memory.soft_limit_in_bytes", "memory.low", "67108864", "memory"},
			{"nodes", "cpuset/cpuset.mems", "cpuset.mems", "0", "cpuset"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r := rig{t: t, base: r.base}
				file := map[string]string{"v1": tt.v1, "v2": tt.v2}[r.base.Cgroups]
				got := r.sh("cat /sys/fs/cgroup/"+file, withSettings(func(s *spec.Settings) {
					switch tt.controller {
					case "pids":
						s.Pids = 77
					case "cpu":
						s.CPUShares = 512
					case "memory":
						s.MemoryReservation = 64 << 20
					default:
						s.MemoryNodes = "0"
					}
				}))
				switch {
				case got.code == 125: // where the controllers belong to the other version
					if !strings.Contains(got.stderr, `no cgroup controller "`+tt.controller+`"`) {
						t.Errorf("%+v", got)
					}
				case got.stdout != tt.want+"\n" && (tt.controller != "cpu" || r.base.Cgroups == "v1"):
					t.Errorf("%+v", got)
				}
			})
		}
	})
}

// No limit needs no controller, and no runtime that can write it.
func TestNoLimitOfProcesses(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		if got := r.sh("true", withSettings(func(s *spec.Settings) { s.Pids = -1 })); got.code != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// The id is told when the task's directory is there, and never twice.
func TestCIDFile(t *testing.T) {
	r := newAnyRig(t)
	file := filepath.Join(t.TempDir(), "cid")
	ask := func(j *job) { j.Lasting.CIDFile = file }
	got := r.sh("hostname", ask)
	if id := readFile(t, file); got.stdout != id+"\n" || len(id) < 12 {
		t.Errorf("the file says %q, %+v", id, got)
	}
	if again := r.sh("true", ask); again.code != 125 || !strings.Contains(again.stderr, "--cidfile "+file+": the file exists") {
		t.Errorf("a second time: %+v", again)
	}
}

// The foreign device is a GPU's number. A task that may do more than usual tries to
// take off its rules, or to make them anew, with everything it has. On v1 it must not
// find the root of a hierarchy either, where it could have the host run a program. On
// v2 it leaves v1's hierarchy of devices alone: no rule of its own is there, but those
// of other containers are, where v2 is only this test's view of a machine.
const takeOff = `
mount -t tmpfs none /mnt 2>/dev/null; mkdir -p /mnt/cg
case $VERSION in v1) mount -t cgroup -o devices none /mnt/cg;; v2) mount -t cgroup2 none /mnt/cg;; esac 2>/dev/null
for f in $(find /mnt/cg /sys/fs/cgroup -name devices.allow 2>/dev/null); do echo a >$f 2>/dev/null; done
echo $$ >/mnt/cg/cgroup.procs 2>/dev/null; echo $$ >/mnt/cg/../cgroup.procs 2>/dev/null
mount -o remount,rw /sys/fs/cgroup 2>/dev/null
test $VERSION = v1 && find /mnt -name release_agent 2>/dev/null
cat /node 2>&1 | grep -o 'Operation not permitted\|Permission denied'`

func TestNoSettingOpensForeignDevices(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		if err := unix.Mknod(filepath.Join(r.base.Image, "node"), unix.S_IFCHR|0o666, int(unix.Mkdev(195, 0))); err != nil {
			t.Fatal(err)
		}
		for name, change := range map[string]func(*spec.Settings){
			"CAP_SYS_ADMIN":          func(s *spec.Settings) { s.CapAdd = []string{"SYS_ADMIN"} },
			"all":                    func(s *spec.Settings) { s.CapAdd = []string{"ALL"} },
			"privileged":             func(s *spec.Settings) { s.Privileged = true },
			"no filter":              func(s *spec.Settings) { s.Seccomp = "unconfined" },
			"all, and no filter":     func(s *spec.Settings) { s.CapAdd, s.Seccomp = []string{"ALL"}, "unconfined" },
			"a namespace of its own": func(s *spec.Settings) { s.CapAdd, s.CgroupNS = []string{"SYS_ADMIN"}, "private" },
		} {
			t.Run(name, func(t *testing.T) {
				r := rig{t: t, base: r.base}
				got := r.sh(takeOff, func(j *job) { j.Env = []string{"VERSION=" + j.Cgroups}; change(&j.Settings) })
				if got.stdout != "Operation not permitted\n" && got.stdout != "Permission denied\n" {
					t.Errorf("%+v", got)
				}
			})
		}
	})
}

// What goes with --privileged, and what doesn't.
func TestPrivileged(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		got := r.sh("grep Seccomp: /proc/self/status; grep NoNew /proc/self/status; mkdir /m && mount -t tmpfs none /m && echo mounts; test -w /proc/sys/vm/swappiness && echo writes; mknod /n c 195 0 2>/dev/null || echo no nodes",
			withSettings(func(s *spec.Settings) { s.Privileged = true }))
		if want := "Seccomp:\t2\nNoNewPrivs:\t0\nmounts\nwrites\nno nodes\n"; got.stdout != want {
			t.Errorf("%+v, want %q", got, want)
		}
	})
}

// A seccomp profile from a file applies, but cannot allow the calls by which a container could lift its device rules.
func TestSeccompFile(t *testing.T) {
	profile := filepath.Join(t.TempDir(), "profile.json")
	const text = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}, {"names": ["bpf"], "action": "SCMP_ACT_ALLOW"}]}`
	if err := os.WriteFile(profile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	onAllRigs(t, func(t *testing.T, r rig) {
		got := r.sh("mkdir /x 2>&1 | grep -o 'No space left'; echo y", withSettings(func(s *spec.Settings) { s.Seccomp = profile }))
		if got.stdout != "No space left\ny\n" {
			t.Errorf("%+v", got)
		}
	})
	r := newAnyRig(t)
	if got := r.sh("true", withSettings(func(s *spec.Settings) { s.Seccomp = "/no/profile" })); got.code != 125 || !strings.Contains(got.stderr, "--security-opt seccomp=/no/profile: ") {
		t.Errorf("%+v", got)
	}
}

// With --init, orphans are reaped, signals and exit codes come through, and a command
// that isn't there is said to be missing as it is without.
func TestInit(t *testing.T) {
	init := withSettings(func(s *spec.Settings) { s.Init = true })
	onAllRigs(t, func(t *testing.T, r rig) {
		for _, tt := range []struct {
			name, line string
			code       int
			stdout     string
		}{
			{"isn't the first", "test $$ -gt 1 && head -c 11 /proc/1/cmdline; exit 7", 7, "/dev/init\x00-"},
			{"ended by a signal", "kill -9 $$", 137, ""},
			{"orphans", "(sleep 0.1 &) ; sleep 0.4; grep -l 'State:.Z' /proc/[0-9]*/status 2>/dev/null; echo done", 0, "done\n"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r := rig{t: t, base: r.base}
				if got := r.sh(tt.line, init); got.code != tt.code || got.stdout != tt.stdout {
					t.Errorf("%+v, want %d, %q", got, tt.code, tt.stdout)
				}
			})
		}
		dev := deviceNodes(t)
		bound := func(j *job) { init(j); j.Volumes = []string{dev + ":/dev"} }
		got := r.sh("test $$ -gt 1 && head -c 8 /proc/1/cmdline; echo x >/dev/null && exit 7", bound)
		if _, err := os.Lstat(filepath.Join(dev, "init")); got.code != 7 || got.stdout != "/.init\x00-" || err == nil {
			t.Errorf("with the host's /dev: %+v; its init: %v", got, err)
		}
		got = r.sh("true", func(j *job) { bound(j); j.ReadWrite = true })
		if got.code != 125 || !strings.Contains(got.stderr, "--init: the init program can be mounted neither in /dev") {
			t.Errorf("%+v", got)
		}
		got = r.run(r.job(func(j *job) { j.Command = []string{"nope"}; init(j) }))
		if got.code != 127 || !strings.Contains(got.stderr, `"nope" is nowhere in PATH`) {
			t.Errorf("%+v", got)
		}
	})
}

// deviceNodes is a directory like the host's /dev.
func deviceNodes(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		if err := unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "pts"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
