package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/gpu/nodes"
	"github.com/berth-gpu/berth/gpu/sysfs"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/deviceguard"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/isolation/network"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// decision is what a check decides from what it was given.
type decision struct {
	name   string
	decide func(r *report)
	want   []string
}

func testDecisions(t *testing.T, cases []decision) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := &report{id: "a.b", configPath: berth.ConfigPath}
			c.decide(r)
			if diff := cmp.Diff(c.want, lines(r.findings)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// asUser returns the decision of a check as it is for a user other than root.
func asUser(decide func(r *report)) func(r *report) {
	return func(r *report) {
		r.user = "user 7"
		decide(r)
	}
}

func TestDecideDriver(t *testing.T) {
	uvm := func(names ...string) func(r *report) {
		var majors []gpu.Major
		for _, n := range names {
			majors = append(majors, gpu.Major{Name: n})
		}
		return func(r *report) { decideUVM(r, majors) }
	}
	library := func(found map[string]string) func(r *report) {
		return func(r *report) { decideLibrary(r, "libcuda.so.1", "/", "550.1", found) }
	}
	testDecisions(t, []decision{
		{"uvm", uvm("nvidia", "nvidia-uvm"), []string{"ok: nvidia-uvm is loaded"}},
		{"no uvm", uvm("nvidia-frontend"), []string{"failure: nvidia-uvm isn't loaded: no CUDA program starts -> modprobe nvidia-uvm && berth discover"}},
		{"no driver", uvm("mem"), nil},
		{"no library", library(nil), []string{"failure: there is no libcuda.so.1 below / -> install the driver's libraries of version 550.1, or set host.driver_root to where they are"}},
		{"another library", library(map[string]string{"/a.so": "540.2", "/b.so": ""}), []string{
			"failure: the kernel's module is 550.1, and /a.so is 540.2, /b.so is without a version (NVML says \"Driver/library version mismatch\") -> " +
				"reboot; or end what uses a GPU, and modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia && modprobe nvidia",
		}},
		{"two libraries", library(map[string]string{"/a.so": "540.2", "/b.so": "550.1"}), []string{"warning: the kernel's module is 550.1, and another installation is beside it: /a.so is 540.2 -> remove it, and call ldconfig"}},
		{"lost", func(r *report) {
			decideLostGPUs(r, []gpu.GPU{{Index: 0}, {Index: 3, PCI: "0000:03:00.0", Lost: "it fell off the bus"}}, nil)
		}, []string{"warning: GPU 3 (0000:03:00.0) is lost: it fell off the bus -> dmesg | grep NVRM shows the reason; when the GPU is back, berth discover"}},
		{"none lost", func(r *report) { decideLostGPUs(r, []gpu.GPU{{}}, nil) }, []string{"ok: no GPU is lost"}},
		{"called lost", func(r *report) {
			decideLostGPUs(r, []gpu.GPU{{PCI: "a"}, {Index: 1, PCI: "b"}}, []driver.Xid{{PCI: "b", Code: driver.XidOffBus}})
		}, []string{"warning: GPU 1 (b) fell off the bus, by the kernel's log (dmesg | grep NVRM) -> berth discover"}},
	})
}

func TestDecideNodes(t *testing.T) {
	node := func(change func(*nodeFact)) nodeFact {
		n := nodeFact{
			Node: nodes.Node{Path: "nvidia0", Major: 195, Minor: 0, Mode: 0o666}, path: "/dev/nvidia0", found: true,
			mode: unix.S_IFCHR | 0o666, rdev: unix.Mkdev(195, 0), link: "/dev/char/195:0", linked: true,
		}
		change(&n)
		return n
	}
	good := node(func(*nodeFact) {})
	missing := node(func(n *nodeFact) { n.found, n.linked = false, false })
	wrong := node(func(n *nodeFact) { n.mode = unix.S_IFDIR | 0o755 })
	other := node(func(n *nodeFact) { n.rdev = unix.Mkdev(499, 0) })
	closed := node(func(n *nodeFact) { n.mode = unix.S_IFCHR | 0o600 })
	facts := func(unmanaged bool, all ...nodeFact) nodeFacts {
		return nodeFacts{nodes: all, unmanaged: unmanaged, control: "/dev/nvidiactl", linkDir: "/dev/char"}
	}
	there := func(f nodeFacts) func(r *report) { return func(r *report) { decideNodes(r, f) } }
	modes := func(f nodeFacts, err error) func(r *report) {
		return func(r *report) { decideNodeModes(r, f, err, "/dev") }
	}
	links := func(f nodeFacts) func(r *report) { return func(r *report) { decideLinks(r, f) } }
	const unmanaged = ", and berth must not change them (NVreg_ModifyDeviceFiles=0) -> rm -f /dev/nvidia0 && mknod -m 666 /dev/nvidia0 c 195 0"
	testDecisions(t, []decision{
		{"no driver", there(facts(false)), nil},
		{"fine", there(facts(false, good, good)), []string{"ok: 2 device nodes"}},
		{"missing", there(facts(false, good, missing)), []string{"failure: there is no /dev/nvidia0 -> berth discover"}},
		{"missing, of others", there(facts(true, missing)), []string{"failure: there is no /dev/nvidia0" + unmanaged}},
		{"other numbers", there(facts(false, other)), []string{"failure: the numbers are those of an earlier load of the module: /dev/nvidia0 is 499:0 and not 195:0 -> berth discover"}},
		{"other numbers, of others", there(facts(true, other)), []string{"failure: the numbers are those of an earlier load of the module: /dev/nvidia0 is 499:0 and not 195:0" + unmanaged}},
		{"a directory", there(facts(false, wrong)), []string{"failure: no character device: /dev/nvidia0 -> rm -r /dev/nvidia0 && berth discover"}},
		{"modes", modes(facts(false, good), nil), []string{"ok: 0666, as the driver sets them"}},
		{"modes of what isn't there", modes(facts(false, missing, wrong), nil), []string{"ok: 0666, as the driver sets them"}},
		{"closed", modes(facts(false, closed), nil), []string{"warning: fewer users can open these nodes than the driver allows: /dev/nvidia0 (0600) -> chmod 0666 /dev/nvidia0"}},
		{"nodev", modes(facts(false, good), unix.EACCES), []string{"failure: no device can be opened where /dev/nvidiactl is: it is mounted with nodev -> mount -o remount,dev /dev"}},
		{"nodev, for a user", asUser(modes(facts(false, good), unix.EACCES)), []string{"ok: 0666, as the driver sets them"}},
		{"device rules", modes(facts(false, good), unix.EPERM), []string{"warning: the device rules of this process's cgroup keep /dev/nvidiactl closed -> call berth outside of this container, or of this service"}},
		{"no control node", modes(facts(false, good), unix.ENOENT), []string{"ok: 0666, as the driver sets them"}},
		{"links", links(facts(false, good)), []string{"ok: 1 link in /dev/char"}},
		{"links of no driver", links(facts(false)), nil},
		{"no link", links(facts(false, good, missing)), []string{"warning: no link to a device: /dev/char/195:0; with systemd's cgroups, containers lose GPUs at systemctl daemon-reload -> berth discover"}},
		{"no link, of others", links(facts(true, missing)), []string{"warning: no link to a device: /dev/char/195:0; with systemd's cgroups, containers lose GPUs at systemctl daemon-reload -> mkdir -p /dev/char && ln -sfn ../nvidia0 /dev/char/195:0"}},
	})
}

func TestDecideRuntime(t *testing.T) {
	runtime := func(f runtimeFacts) func(r *report) { return func(r *report) { decideRuntime(r, f) } }
	version := func(f versionFacts) func(r *report) { return func(r *report) { decideRuntimeVersion(r, f) } }
	launched := func(path string, err error) func(r *report) {
		return func(r *report) { decideLauncherRuntime(r, path, err) }
	}
	old := versionFacts{path: "/usr/bin/crun", output: "crun version 1.8.1\n", cgroups: cgroup.Hierarchy{Version: cgroup.V2}}
	change := func(f func(*versionFacts)) versionFacts {
		v := old
		f(&v)
		return v
	}
	const set = `set runtime = "runc" in /etc/berth/config.toml`
	testDecisions(t, []decision{
		{"none", runtime(runtimeFacts{}), []string{"failure: neither crun nor runc is installed, and no other runtime is configured -> install crun or runc, or set runtime"}},
		{"none of that name", runtime(runtimeFacts{asked: "krun"}), []string{"failure: runtime names krun, which isn't in PATH -> install it, or set another runtime"}},
		{"none there", runtime(runtimeFacts{asked: "/x/krun"}), []string{"failure: runtime names /x/krun, which is no executable program -> install it, or set another runtime"}},
		{"itself", runtime(runtimeFacts{asked: "x", path: "/x", isBerth: true}), []string{"failure: /x is berth-runtime itself, which would call itself for ever -> set runtime in /etc/berth/config.toml to the path of crun or runc"}},
		{"crun", runtime(runtimeFacts{path: "/usr/bin/crun"}), []string{"ok: berth-runtime becomes /usr/bin/crun"}},
		{"broken", version(versionFacts{path: "/usr/bin/runc", err: errors.New("exit status 3")}), []string{"failure: /usr/bin/runc can't be run: exit status 3 -> install it again"}},
		{"another one, broken", version(versionFacts{path: "/x/krun", err: errors.New("exit status 3")}), []string{"warning: /x/krun --version: exit status 3 -> see whether it works: /x/krun --help"}},
		{"no version", version(versionFacts{path: "/x/krun", output: "krun 1.0\n"}), []string{"ok: /x/krun doesn't print its version"}},
		{"runc", version(versionFacts{path: "/usr/bin/runc", output: "runc version 1.1.5+ds1\n", cgroups: cgroup.Hierarchy{Hybrid: true}}), []string{"ok: runc 1.1.5+ds1"}},
		{"old crun", version(old), []string{"warning: crun 1.8.1 wants to lift its limit of locked memory, which needs CAP_SYS_RESOURCE, and this process hasn't got it -> install crun 1.9 or newer, or install runc, and " + set}},
		{"old crun, may lift", version(change(func(f *versionFacts) { f.mayLiftMemlock = true })), []string{"ok: crun 1.8.1"}},
		{"old crun, version 1", version(change(func(f *versionFacts) { f.cgroups.Version = cgroup.V1 })), []string{"ok: crun 1.8.1"}},
		{"old crun, for a user", asUser(version(old)), []string{"ok: crun 1.8.1"}},
		{"newer crun", version(change(func(f *versionFacts) { f.output = "crun version 1.10.1\n" })), []string{"ok: crun 1.10.1"}},
		{"crun on both", version(change(func(f *versionFacts) { f.cgroups.Hybrid, f.hasRunc = true, true })), []string{"warning: crun refuses a machine with cgroups of both versions, as this is one -> " + set}},
		{"berth run", launched("/usr/bin/crun", nil), []string{"ok: berth run takes /usr/bin/crun"}},
		{"berth run, none", launched("", launcher.ErrNoRuntime), []string{"failure: berth run: no OCI runtime -> install crun or runc in a directory of the system's, or set runtime to a path"}},
		{"berth run, not root", launched("", spec.ErrNotRoot), []string{"warning: berth run: " + spec.ErrNotRoot.Error() + " -> call berth outside of this container"}},
		{"berth run, no cgroups", launched("", fs.ErrInvalid), nil},
	})
}

func TestDecideFiles(t *testing.T) {
	programs := func(all ...program) func(r *report) {
		return func(r *report) { decidePrograms(r, all, "/usr/bin") }
	}
	nvml := program{name: "berth-nvml", path: "/usr/lib/berth/berth-nvml", without: "no GPU is asked", found: true, executable: true}
	change := func(f func(*program)) program {
		p := nvml
		f(&p)
		return p
	}
	secret := directory{path: "/data/tasks", secret: true}
	testDecisions(t, []decision{
		{"programs", programs(program{name: "berth", executable: true}, nvml), []string{"ok: berth, berth-nvml in /usr/bin"}},
		{"not executable", programs(change(func(p *program) { p.executable = false })), []string{"warning: /usr/lib/berth/berth-nvml can't be run: no GPU is asked -> chmod 0755 /usr/lib/berth/berth-nvml"}},
		{"missing", programs(change(func(p *program) { p.executable, p.found = false, false })), []string{"warning: there is no program /usr/lib/berth/berth-nvml: no GPU is asked -> install berth's package again"}},
		{"missing and needed", programs(change(func(p *program) { p.executable, p.found, p.needed = false, false, true })), []string{"failure: there is no program /usr/lib/berth/berth-nvml: no GPU is asked -> install berth's package again"}},
		{"no directory", func(r *report) { decideDirectory(r, secret, unix.S_IFREG|0o600) }, []string{"failure: /data/tasks is no directory -> mv /data/tasks /data/tasks.old"}},
		{"a link", func(r *report) { decideDirectory(r, secret, unix.S_IFLNK|0o777) }, []string{"failure: /data/tasks is no directory -> mv /data/tasks /data/tasks.old"}},
		{"a link of the admin's", func(r *report) {
			decideDirectory(r, directory{path: "/data", mayBeLink: true}, unix.S_IFLNK|0o777)
		}, nil},
		{"a directory", func(r *report) { decideDirectory(r, secret, unix.S_IFDIR|0o700) }, nil},
		{"secret", func(r *report) { decideSecret(r, secret, unix.S_IFDIR|0o700) }, nil},
		{"no secret", func(r *report) { decideSecret(r, secret, unix.S_IFDIR|0o710) }, []string{"warning: /data/tasks is open to all users (mode 0710) -> chmod 0700 /data/tasks"}},
		{"another directory", func(r *report) { decideSecret(r, directory{path: "/data/driver"}, unix.S_IFDIR|0o755) }, nil},
	})
}

func TestDecideKernel(t *testing.T) {
	overlay := func(known, modules string, err error) func(r *report) {
		return func(r *report) { decideOverlay(r, known, modules, err) }
	}
	const modprobe = " -> modprobe overlay, or a kernel with CONFIG_OVERLAY_FS"
	testDecisions(t, []decision{
		{"calls", func(r *report) { decideSystemCalls(r, "6.12", nil) }, []string{"ok: Linux 6.12"}},
		{"calls missing", func(r *report) { decideSystemCalls(r, "5.4", []string{"openat2", "mount_setattr"}) }, []string{"failure: Linux 5.4 is without openat2, mount_setattr -> boot Linux 5.12 or newer"}},
		{"overlay", overlay("nodev\toverlay\n", "", nil), []string{"ok: overlayfs is there"}},
		{"a module", overlay("nodev\toverlayx\n", "kernel/fs/overlayfs/overlay.ko.xz:\n", nil), []string{"ok: overlayfs is a module, and the first mount loads it"}},
		{"none", overlay("", "", fs.ErrNotExist), []string{"warning: there is no overlayfs, so berth run can't make roots" + modprobe}},
		{"none known", overlay("", "", fs.ErrPermission), []string{"warning: there is no overlayfs, so berth run can't make roots: permission denied" + modprobe}},
	})
}

func TestDecideCgroups(t *testing.T) {
	v2 := cgroup.Hierarchy{Version: cgroup.V2, Root: "/sys/fs/cgroup", Mount: "/sys/fs/cgroup"}
	hybrid := cgroup.Hierarchy{Version: cgroup.V1, Root: "/sys/fs/cgroup/devices", Hybrid: true}
	const table = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t5\t1\nmemory\t0\t1\t0\ncpuset\t3\t1\t1\n"
	rules := func(err error) func(r *report) {
		return func(r *report) {
			if err := decideDeviceRules(r, "/sys/fs/cgroup", err); err != nil {
				r.fail("", "returned %v", err)
			}
		}
	}
	testDecisions(t, []decision{
		{"version 2", func(r *report) { decideCgroups(r, v2, false) }, []string{"ok: version 2 at /sys/fs/cgroup"}},
		{"both", func(r *report) { decideCgroups(r, hybrid, false) }, []string{"ok: version 1 at /sys/fs/cgroup/devices, beside version 2"}},
		{"read-only", func(r *report) { decideCgroups(r, v2, true) }, []string{"failure: /sys/fs/cgroup is mounted read-only: no container gets a cgroup -> mount -o remount,rw /sys/fs/cgroup"}},
		{"all controllers", func(r *report) {
			decideControllers(r, v2, map[string]bool{"cpu": true, "cpuset": true, "memory": true, "pids": true}, table)
		}, []string{"ok: cpu, cpuset, memory, pids"}},
		{"none", func(r *report) { decideControllers(r, v2, nil, table) }, []string{
			"warning: berth run sets no limits without the controllers that are missing: cpu (--cpus), cpuset (--cpuset-cpus) -> boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all, because a version 1 hierarchy has it",
			"warning: berth run sets no limits without the controllers that are missing: memory (--memory) -> boot with cgroup_enable=memory",
			"warning: berth run sets no limits without the controllers that are missing: pids (--pids-limit) -> a kernel with the controller pids",
		}},
		{"rules", rules(nil), []string{"ok: device programs can be loaded, and outer cgroups be made in /sys/fs/cgroup"}},
		{"rules refused", rules(unix.EPERM), []string{"failure: this process may not load device programs, so no device can be isolated: operation not permitted -> give it CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN; or call berth outside of this container"}},
		{"no rules", rules(unix.ENOSYS), []string{"failure: this kernel has no device programs, so no device can be isolated: function not implemented -> a kernel with CONFIG_CGROUP_BPF and CONFIG_BPF_SYSCALL"}},
		{"rules unknown", rules(unix.EIO), []string{"failure: returned input/output error"}},
	})
}

func TestDecideData(t *testing.T) {
	at := func(path string, change func(*unix.Statfs_t)) fileSystem {
		f := fileSystem{path: path, mount: "/mnt"}
		f.Bsize, f.Bavail, f.Files, f.Ffree = 4096, 10<<20, 1<<20, 1<<20
		change(&f.Statfs_t)
		return f
	}
	same := func(*unix.Statfs_t) {}
	state, data := at("/state", same), at("/data", same)
	mounts := func(state, data fileSystem) func(r *report) {
		return func(r *report) { decideDataMounts(r, state, data) }
	}
	readOnly := func(st *unix.Statfs_t) { st.Flags = unix.ST_RDONLY }
	noexec := func(st *unix.Statfs_t) { st.Flags = unix.ST_NOEXEC }
	refused := func(err error) fileSystem {
		f := at("/data", same)
		f.refused = err
		return f
	}
	free := func(mib, inodes uint64) func(r *report) {
		f := at("/data", func(st *unix.Statfs_t) { st.Bavail, st.Ffree = mib<<8, inodes })
		return func(r *report) { decideSpace(r, f, littleData, minimalData, "make room") }
	}
	shm := func(policy string, mib uint64) func(r *report) {
		f := at("/dev/shm", func(st *unix.Statfs_t) { st.Blocks = mib << 8 })
		return func(r *report) { decideSharedMemory(r, policy, f) }
	}
	testDecisions(t, []decision{
		{"fine", mounts(state, data), []string{"ok: /state and /data can be written"}},
		{"read-only", mounts(at("/state", readOnly), at("/data", readOnly)), []string{
			"failure: /state is on a file system that is mounted read-only -> mount -o remount,rw /mnt",
			"failure: /data is on a file system that is mounted read-only -> mount -o remount,rw /mnt",
		}},
		{"one directory", mounts(at("/data", readOnly), at("/data", readOnly)), []string{"failure: /data is on a file system that is mounted read-only -> mount -o remount,rw /mnt"}},
		{"noexec", mounts(at("/state", noexec), at("/data", noexec)), []string{"warning: /data is on a file system that is mounted with noexec: containers that berth-hook prepares, and those of engines without root, can't load the driver's libraries -> mount -o remount,exec /mnt"}},
		{"read-only after an error", mounts(state, refused(unix.EROFS)), []string{"failure: /data is on a file system that the kernel has made read-only after an error -> repair the file system at /mnt with fsck: dmesg has the error"}},
		{"errors", mounts(state, refused(unix.EIO)), []string{"failure: no file can be created in /data: input/output error -> repair the file system at /mnt: dmesg has the error"}},
		{"NFS", mounts(state, at("/data", func(st *unix.Statfs_t) { st.Type = unix.NFS_SUPER_MAGIC })), []string{"warning: /data is on NFS, on which no container of berth run can write: overlayfs can't -> set data in /etc/berth/config.toml to a directory on ext4, xfs, btrfs or tmpfs"}},
		{"space", free(5000, 1<<20), nil},
		{"little space", free(2047, 1<<20), []string{"warning: 2047 MiB are free for /data, and an image or a new driver may need more -> make room"}},
		{"no space", free(63, 1<<20), []string{"failure: 63 MiB are free for /data -> make room"}},
		{"few files", free(5000, 9999), []string{"warning: 9999 more files can be made in /data, and an image has thousands -> make room"}},
		{"shared memory", shm("", 1024), []string{"ok: containers with GPUs have 50% of memory as /dev/shm"}},
		{"little shared memory", shm("64000000", 64), []string{
			"warning: /dev/shm of containers with GPUs is 64000000 bytes: NCCL ends with \"no space left on device\" -> set policy.shm = \"50%\" in /etc/berth/config.toml",
			"warning: /dev/shm of the machine, which tasks with its ipc namespace use, has 64 MiB -> mount -o remount,size=50% /mnt",
		}},
		{"the engine's shared memory", shm("engine", 1024), []string{"warning: /dev/shm of containers with GPUs is the engine's default, 64 MiB: NCCL ends with \"no space left on device\" -> set policy.shm = \"50%\" in /etc/berth/config.toml"}},
	})
}

func TestDecideRecords(t *testing.T) {
	lease := func(view ledger.View, err error) func(r *report) {
		return func(r *report) {
			if err := decideLedger(r, view, err); err != nil {
				r.fail("", "returned %v", err)
			}
		}
	}
	leases := func(all ...ledger.Status) ledger.View { return ledger.View{Leases: all} }
	held := ledger.Status{Live: true}
	held.ID = "a1"
	gone, leaving := held, held
	gone.Live, gone.Note = false, "its process is gone"
	leaving.Note = "processes are left"
	unstarted, fresh := held, held
	unstarted.Created, unstarted.Since, unstarted.Owner.Container = true, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "c1"
	fresh.Created, fresh.Since = true, time.Now()
	records := func(all ...taskFact) func(r *report) { return func(r *report) { decideTasks(r, all) } }
	var running, orphan taskFact
	running.task.State = tasks.Running
	orphan.task.Name, orphan.task.Detached, orphan.task.Life = "train", true, &tasks.Life{}
	testDecisions(t, []decision{
		{"no lease", lease(leases(), nil), []string{"ok: 0 leases, 0 waiting"}},
		{"never started", lease(leases(unstarted, fresh), nil), []string{
			"ok: 2 leases, 0 waiting",
			"warning: container c1 holds lease a1 since 2026-01-02T03:04:05Z and was never started: the process that should start it has ended -> berth release --force a1",
		}},
		{"leases", lease(leases(held, gone, leaving), nil), []string{
			"ok: 3 leases, 0 waiting",
			"warning: the holder of lease a1 is dead (its process is gone); the next request for GPUs also releases it -> berth release a1",
			"warning: lease a1: processes are left -> berth release a1, or wait until its holder ends",
		}},
		{"damaged", lease(leases(), fmt.Errorf("ledger: %w", ledger.ErrCorrupt)), []string{"failure: ledger: " + ledger.ErrCorrupt.Error() + " -> berth repair"}},
		{"of others", lease(leases(), ledger.ErrOwnership), []string{"failure: " + ledger.ErrOwnership.Error() + " -> berth repair"}},
		{"newer", lease(leases(), ledger.ErrFuture), []string{"failure: " + ledger.ErrFuture.Error() + " -> install that version again, or a newer one"}},
		{"hidden", lease(leases(), fs.ErrPermission), []string{"failure: returned permission denied"}},
		{"no tasks", records(), []string{"ok: 0 tasks, 0 running"}},
		{"tasks", records(running, taskFact{}), []string{"ok: 2 tasks, 1 running"}},
		{"a task without a monitor", records(running, taskFact{}, orphan), []string{"warning: task train has no monitor: until the next berth command its output isn't logged and its end isn't recorded -> berth ps"}},
		{"a task that is being made", records(taskFact{err: fs.ErrNotExist}), []string{"ok: 1 task, 0 running"}},
		{"a record that can't be read", records(taskFact{id: "ba98", err: fs.ErrInvalid, dir: "/data/tasks/ba98"}), []string{"failure: invalid argument -> look at /data/tasks/ba98: a newer berth has written it, or it is damaged"}},
	})
}

func TestDecideSpecs(t *testing.T) {
	own := func(searched bool, all ...ownSpec) func(r *report) {
		return func(r *report) { decideOwnSpecs(r, "/etc/cdi", searched, all) }
	}
	others := func(f otherSpecs) func(r *report) { return func(r *report) { decideOtherSpecs(r, f) } }
	spec := ownSpec{kind: "berth/gpus", path: "/etc/cdi/berth.json", want: []byte(`"name" "name"`), have: []byte(`"name" "name"`)}
	stale, missing, none := spec, spec, spec
	stale.have = nil
	missing.missing = true
	none.missing, none.want = true, nil
	testDecisions(t, []decision{
		{"own", own(true, spec), []string{"ok: berth/gpus in /etc/cdi, 2 devices"}},
		{"own, of no device", own(true, none), []string{"ok: berth/gpus in /etc/cdi, 0 devices"}},
		{"own, missing", own(true, missing), []string{"warning: there is no /etc/cdi/berth.json: --device berth/gpus=1 is refused -> berth discover"}},
		{"own, stale", own(true, stale), []string{"warning: /etc/cdi/berth.json doesn't fit the node's present devices -> berth discover"}},
		{"own, elsewhere", own(false, spec), []string{"warning: berth's specs are in /etc/cdi, where host.cdi doesn't look -> add it to host.cdi, or berth cdi generate"}},
		{"no menu", func(r *report) { decideForeignMenu(r, "", 0) }, []string{"warning: there are no devices berth/gpus=…, so --device berth/gpus=2 is refused -> berth cdi generate"}},
		{"somebody's menu", func(r *report) { decideForeignMenu(r, "/etc/cdi/berth.json", 1) }, []string{"ok: /etc/cdi/berth.json, 1 device"}},
		{"others", others(otherSpecs{count: 2}), []string{"ok: 2 specs of others"}},
		{"broken", others(otherSpecs{problems: []specProblem{{path: "/x", reason: "EOF"}}}), []string{"warning: /x: EOF -> mv /x /x.broken, or correct it: berth cdi validate"}},
		{"contradicting", others(otherSpecs{problems: []specProblem{{path: "/x", reason: "conflict", conflict: true}}}), []string{"warning: /x: conflict -> mv /x /x.replaced, or move the other"}},
		{"contradicting NVIDIA's", others(otherSpecs{problems: []specProblem{{path: "/x", reason: "conflict", conflict: true, nvidia: true}}}), []string{"warning: /x: conflict -> berth cdi generate --nvidia --replace"}},
		{"stale", others(otherSpecs{count: 1, stale: []staleSpec{{path: "/x", gone: []string{"/a", "/b", "/c", "/d", "/e"}}}}), []string{"warning: /x is stale: there is no /a, /b, /c, /d and 1 more, so no container with its devices starts -> have its vendor's program write it again, or mv /x /x.stale"}},
		{"NVIDIA's stale", others(otherSpecs{count: 1, stale: []staleSpec{{path: "/x", nvidia: true, gone: []string{"/a"}}}}), []string{"warning: /x is stale: there is no /a, so no container with its devices starts -> nvidia-ctk cdi generate --output=/x, or mv /x /x.stale"}},
	})
}

func TestDecideSharedMount(t *testing.T) {
	shared := func(f sharedFacts) func(r *report) {
		f.mount = "/data/shared"
		return func(r *report) { decideSharedMount(r, f) }
	}
	testDecisions(t, []decision{
		{"mounted", shared(sharedFacts{mounted: true, leasable: true}), []string{"ok: /data/shared has the driver's files without their owner"}},
		{"not mounted", shared(sharedFacts{leasable: true}), []string{"warning: /data/shared is not mounted: the next container that needs it mounts it -> berth discover"}},
		{"no leases", shared(sharedFacts{owned: "not supported"}), []string{"ok: the driver's files keep their owner, but no process can take leases on files (fs.leases-enable = 0): not supported"}},
		{"owned", shared(sharedFacts{owned: "not supported", leasable: true}), []string{
			"warning: root of a container can take leases on the driver's files and so block every program that uses a GPU: not supported" +
				" -> sysctl -w fs.leases-enable=0, or put data of /etc/berth/config.toml on ext4, xfs or btrfs",
		}},
	})
}

func TestDecideNCCL(t *testing.T) {
	peer := func(f peerFacts) func(r *report) { return func(r *report) { decidePeerMemory(r, f) } }
	files := func(f ncclFacts) func(r *report) { return func(r *report) { decideNCCLFiles(r, f) } }
	broken := errors.New("line 2: a tab")
	testDecisions(t, []decision{
		{"ACS", func(r *report) { decideACS(r, []string{"a", "b"}, map[string]uint16{"a": 0x1d}) }, []string{
			"warning: access control (ACS) redirects traffic between GPUs and NICs below a switch to the CPU: a -> " +
				"for b in a; do setpci -s $b ECAP_ACS+6.w=0; done, or off in the firmware; virtual machines with passed-through GPUs need it on",
		}},
		{"no ACS", func(r *report) { decideACS(r, []string{"a", "b"}, map[string]uint16{"a": 1}) }, []string{"ok: no access control (ACS) on the 2 bridges between GPUs and their neighbours"}},
		{"no NIC", peer(peerFacts{}), nil},
		{"peermem", peer(peerFacts{nicBesideGPU: true, module: "nvidia_peermem", openModule: true}), []string{"ok: NICs reach the GPUs' memory by nvidia_peermem"}},
		{"dma-buf", peer(peerFacts{nicBesideGPU: true, openModule: true}), []string{"ok: NICs reach the GPUs' memory by dma-buf, of the open kernel module"}},
		{"neither", peer(peerFacts{nicBesideGPU: true}), []string{"warning: no NIC reaches a GPU's memory (GPUDirect RDMA): nvidia_peermem isn't loaded, and dma-buf needs the open kernel module -> modprobe nvidia-peermem"}},
		{"may lock", func(r *report) { decideLockedMemory(r, true, 1<<16) }, []string{"ok: tasks may lock all memory"}},
		{"may not lock", func(r *report) { decideLockedMemory(r, false, 1<<16) }, []string{"warning: tasks may lock 64 KiB of memory, which this process may not raise: RDMA registers gigabytes -> ulimit -l unlimited where berth is called (LimitMEMLOCK=infinity in a unit), or give it CAP_SYS_RESOURCE"}},
		{"no files", files(ncclFacts{topologyErr: fs.ErrNotExist}), nil},
		{"files", files(ncclFacts{conf: "/c", topology: "/t"}), []string{"ok: containers with GPUs get /c and /t"}},
		{"a file", files(ncclFacts{conf: "/c", topologyErr: fs.ErrNotExist}), []string{"ok: containers with GPUs get /c"}},
		{"files that aren't there", files(ncclFacts{conf: "/c", filesErr: fs.ErrNotExist}), []string{"failure: no container gets a GPU: file does not exist -> put it there, or remove policy.nccl_conf and policy.nccl_topology from /etc/berth/config.toml"}},
		{"a broken topology", files(ncclFacts{topology: "/t", topologyErr: broken}), []string{"failure: line 2: a tab; NCCL ends in every container with a GPU -> correct it (cp /t first), or policy.nccl_topology = \"\" in /etc/berth/config.toml"}},
		{"a guest", files(ncclFacts{guest: true}), []string{`warning: this virtual machine has a topology file of the real machine, /var/run/nvidia-topologyd/virtualTopology.xml, and no container gets it -> set policy.nccl_topology = "/var/run/nvidia-topologyd/virtualTopology.xml" in /etc/berth/config.toml`}},
		{"a guest with a broken topology", files(ncclFacts{guest: true, topologyErr: broken}), []string{"warning: line 2: a tab; no container gets it -> have the hypervisor's host write it again"}},
	})
}

// TestParseACS: the capability is found in a list of them, and the list ends.
func TestParseACS(t *testing.T) {
	space := make([]byte, 4096)
	copy(space[0x100:], []byte{0x01, 0, 0x01, 0x14}) // another capability; the next is at 0x140
	copy(space[0x140:], []byte{0x0d, 0, 0x01, 0, 0, 0, 0x1d, 0})
	ring := make([]byte, 4096)
	copy(ring[0x100:], []byte{0x01, 0, 0x01, 0x10})
	for _, c := range []struct {
		name    string
		space   []byte
		control uint16
		known   bool
	}{
		{"found", space, 0x1d, true},
		{"none", make([]byte, 4096), 0, true},
		{"a ring", ring, 0, true},
		{"short", space[:0x144], 0, true},
		{"of PCI", make([]byte, 256), 0, true},
		{"for users", space[:64], 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if control, known := parseACS(c.space); control != c.control || known != c.known {
				t.Errorf("got %#x, %v", control, known)
			}
		})
	}
}

// TestNeighbours: pairs of devices below one switch, and the bridges between them.
func TestNeighbours(t *testing.T) {
	device := func(route ...string) sysfs.Device { return sysfs.Device{Address: route[len(route)-1], Route: route} }
	a, b := device("root", "switch", "port1", "gpu1"), device("root", "switch", "port2", "nic")
	far := device("root2", "gpu2")
	pairs := pairNeighbours([]sysfs.Device{a, far}, []sysfs.Device{a, far, b})
	if len(pairs) != 1 || pairs[0].gpu.Address != "gpu1" || pairs[0].other.Address != "nic" {
		t.Errorf("got %+v", pairs)
	}
	if diff := cmp.Diff([]string{"port1", "port2"}, bridgesBetween(pairs)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDecideRDMA(t *testing.T) {
	nic := func(uverbs string, ports ...gpu.Port) sysfs.NIC {
		var n sysfs.NIC
		n.Name, n.Uverbs, n.Ports = "mlx5_0", uverbs, ports
		return n
	}
	ports := func(all ...sysfs.NIC) func(r *report) { return func(r *report) { decideRDMAPorts(r, all) } }
	active := gpu.Port{Number: 1, State: "ACTIVE", LinkLayer: "Ethernet"}
	waiting := gpu.Port{Number: 2, State: "INIT", LinkLayer: "InfiniBand"}
	gids := func(all ...gpu.GID) func(r *report) {
		port := active
		port.GIDs = all
		return func(r *report) { decideGIDs(r, []rocePort{{nic: "mlx5_0", port: port, netdev: "eth1"}}) }
	}
	mtu := func(n int) func(r *report) {
		return func(r *report) { decideMTU(r, []rocePort{{nic: "mlx5_0", port: active, netdev: "eth1", mtu: n}}) }
	}
	namespaces := func(shared bool, policy string) func(r *report) {
		return func(r *report) { decideRDMANamespaces(r, shared, policy) }
	}
	testDecisions(t, []decision{
		{"no adapter", ports(), nil},
		{"ports", ports(nic("uverbs0", active), nic("uverbs1")), []string{"ok: 2 adapters, 1 port active"}},
		{"no node", ports(nic("", active)), []string{"warning: mlx5_0 has no uverbs node: no container can use it -> modprobe ib_uverbs && berth discover"}},
		{"no subnet manager", ports(nic("uverbs0", waiting)), []string{"warning: port 2 of mlx5_0 has a link and no address: no subnet manager has configured it -> start a subnet manager (systemctl start opensm, or one in a switch)"}},
		{"a GID", gids(gpu.GID{Type: "RoCE v2", GID: "fe80::1"}, gpu.GID{Type: "RoCE v2", GID: "::ffff:10.0.0.1"}), []string{"ok: 1 port of RoCE with GIDs that can be reached"}},
		{"no GID", gids(gpu.GID{Type: "RoCE v2", GID: "fe80::1"}, gpu.GID{Type: "IB/RoCE v1", GID: "::ffff:10.0.0.1"}), []string{"warning: port 1 of mlx5_0 is RoCE and has no GID of RoCE v2 that another machine reaches -> ip address add ADDRESS/BITS dev eth1"}},
		{"no RoCE", func(r *report) { decideGIDs(r, nil); decideMTU(r, nil) }, nil},
		{"large packets", mtu(9000), []string{"ok: 1 port of RoCE with large packets"}},
		{"small packets", mtu(1500), []string{"warning: port 1 of mlx5_0 is RoCE at an MTU of 1500 (eth1): RDMA's packets become as small -> ip link set dev eth1 mtu 9000, if the switches carry it"}},
		{"shared", namespaces(true, ""), []string{"ok: RDMA is shared among network namespaces: device rules and the view of /sys divide it"}},
		{"exclusive", namespaces(false, "exclusive"), []string{"ok: adapters move into the network namespaces of their holders (rdma system)"}},
		{"exclusive, and policy isn't", namespaces(false, ""), []string{`warning: an adapter is in one network namespace at a time (rdma system), and policy leases it to several: the second finds it gone -> set policy.nics = "exclusive" in /etc/berth/config.toml, or rdma system set netns shared before anything uses RDMA`}},
	})
}

func TestDecideNetwork(t *testing.T) {
	kernel := func(err error) func(r *report) {
		return func(r *report) {
			if err := decideGangKernel(r, err); err != nil {
				r.fail("", "returned %v", err)
			}
		}
	}
	wall := func(s network.HostStatus) func(r *report) { return func(r *report) { decideFirewall(r, s) } }
	addresses := func(s network.HostStatus) func(r *report) { return func(r *report) { decideGangAddresses(r, s) } }
	free := netip.MustParsePrefix("10.213.0.0/26")
	testDecisions(t, []decision{
		{"kernel", kernel(nil), []string{"ok: the kernel has veth interfaces, and nf_tables with NAT"}},
		{"not allowed", kernel(unix.EPERM), []string{"warning: this process may make no network for a gang: operation not permitted -> call berth outside of this container, or of this service"}},
		{"not allowed, for a user", asUser(kernel(unix.EPERM)), []string{"failure: returned operation not permitted"}},
		{"no nf_tables", kernel(network.ErrFirewall), []string{"warning: no gang gets a network of its own: " + network.ErrFirewall.Error() + " -> modprobe -a nf_tables nft_chain_nat nft_masq nft_ct nft_fib_inet, or " + otherNetworks}},
		{"no veth", kernel(network.ErrKind), []string{"warning: no gang gets a network of its own: " + network.ErrKind.Error() + " -> modprobe veth, or " + otherNetworks}},
		{"another reason", kernel(unix.EIO), []string{"warning: no gang gets a network of its own: input/output error -> " + otherNetworks}},
		{"open", wall(network.HostStatus{Gangs: []string{"berth0"}, Rules: true, Router: true}), []string{"ok: no firewall drops what gangs send; net.ipv4.ip_forward is on"}},
		{"no gangs", wall(network.HostStatus{}), []string{"ok: no firewall drops what gangs send; net.ipv4.ip_forward is off and stays so: only packets of gangs are forwarded"}},
		{"no rules", wall(network.HostStatus{Gangs: []string{"berth0"}}), []string{"warning: table inet berth is gone, and with it the rules that separate gangs: berth0 -> start a gang, which sets them again"}},
		{"firewalls", wall(network.HostStatus{Firewalld: true, Closed: []string{"table inet filter, chain forward"}}), []string{
			"warning: firewalld drops what gangs send, as it does with unknown interfaces -> firewall-cmd --permanent --zone=trusted --add-interface=berth+ && firewall-cmd --reload",
			`warning: what gangs send is dropped by others: table inet filter, chain forward -> accept iifname "berth*", and oifname "berth*" with ct state established,related, in there`,
		}},
		{"a subnet", addresses(network.HostStatus{Free: free}), []string{"ok: the next gang's network could be 10.213.0.0/26; gangs ask the host's name servers"}},
		{"a relay", addresses(network.HostStatus{Free: free, Relayed: []netip.Addr{netip.MustParseAddr("127.0.0.53")}}), []string{"ok: the next gang's network could be 10.213.0.0/26; gangs ask 127.0.0.53 by a relay"}},
		{"IPv6 alone", addresses(network.HostStatus{Free: free, OnlyIPv6: true}), []string{"warning: gangs reach nothing outside: their networks have IPv4, and the host has a default route of IPv6 alone -> give the host a default route of IPv4, or run gangs with --network host"}},
		{"no subnet", addresses(network.HostStatus{Full: errors.New("no subnet is free")}), []string{"warning: no subnet is free -> remove routes to all private networks, or " + otherNetworks}},
	})
}

func TestDecideUnits(t *testing.T) {
	unit := func(block string) func(r *report) {
		return func(r *report) { decideUnit(r, parseProperties("Id=berth-discover.timer\n"+block)) }
	}
	const fine = "LoadState=loaded\nUnitFileState=enabled\nActiveState=active\nResult=success\n"
	rootless := func(refusal userns.Refusal, needed bool) func(r *report) {
		return func(r *report) { decideRootless(r, refusal, needed) }
	}
	limit := userns.Refusal{Reason: "user.max_user_namespaces is 0", Fix: "sysctl -w user.max_user_namespaces=15000"}
	testDecisions(t, []decision{
		{"fine", unit(fine), nil},
		{"masked", unit("LoadState=masked\n"), nil},
		{"missing", unit("LoadState=not-found\n"), []string{"warning: there is no berth-discover.timer: after a boot or a change of the driver, the next container's start waits for berth discover -> install berth's package"}},
		{"disabled", unit("LoadState=loaded\nUnitFileState=disabled\n"), []string{"warning: berth-discover.timer isn't enabled: after a boot or a change of the driver, the next container's start waits for berth discover -> systemctl enable --now berth-discover.timer"}},
		{"failed", unit("LoadState=loaded\nActiveState=failed\nResult=exit-code\n"), []string{"warning: berth-discover.timer has failed (exit-code) -> systemctl restart berth-discover.timer (journalctl -u berth-discover.timer says why)"}},
		{"not started", unit("LoadState=loaded\n"), []string{"warning: berth-discover.timer is not started -> systemctl start berth-discover.timer"}},
		{"tmpfiles", func(r *report) { decideTmpfiles(r, "/usr/lib/tmpfiles.d/berth.conf", "/run/berth") }, []string{"ok: /usr/lib/tmpfiles.d/berth.conf"}},
		{"no tmpfiles", func(r *report) { decideTmpfiles(r, "", "/run/berth") }, []string{"warning: there is no berth.conf in /usr/lib/tmpfiles.d: any user could create /run/berth after a boot -> echo 'd /run/berth 0755 root root -' >/etc/tmpfiles.d/berth.conf, or install berth's package again"}},
		{"namespaces", rootless(userns.Refusal{}, true), []string{"ok: users may make user namespaces, as berth run and podman do without root"}},
		{"no namespaces", rootless(limit, true), []string{
			"warning: users can't make user namespaces, which berth run and podman need without root: user.max_user_namespaces is 0 -> sysctl -w user.max_user_namespaces=15000",
		}},
		{"nobody needs namespaces", rootless(limit, false), []string{
			"ok: users can't make user namespaces, which berth run and podman would need without root: user.max_user_namespaces is 0",
		}},
	})
}

func TestDecideGuard(t *testing.T) {
	rules := func(root bool, cgroups map[uint64]deviceguard.Entry) deviceguard.Rules {
		return deviceguard.Rules{RootAllowed: root, Cgroups: cgroups}
	}
	facts := func(f guardFacts) func(r *report) { return func(r *report) { decideGuard(r, f) } }
	gpu := []deviceguard.Number{{Major: 195}}
	lease := deviceguard.Entry{Kind: deviceguard.Lease, Devices: gpu}
	wants := rules(true, map[uint64]deviceguard.Entry{1: lease, 2: {Kind: deviceguard.Exempt}})
	testDecisions(t, []decision{
		{"not wanted", facts(guardFacts{wants: wants}), nil},
		{"off", facts(guardFacts{reason: "berth-guard.service is enabled", wants: wants}), []string{"warning: it is off, although berth-guard.service is enabled: processes without a lease can open GPUs -> berth guard on"}},
		{"on", facts(guardFacts{on: true, has: wants, wants: wants}), []string{"ok: it is on, as configured"}},
		{"an ended lease", facts(guardFacts{on: true, has: rules(true, map[uint64]deviceguard.Entry{1: lease, 2: {Kind: deviceguard.Exempt}, 3: lease}), wants: wants}), []string{"ok: it is on, as configured"}},
		{"another mode", facts(guardFacts{on: true, has: rules(false, wants.Cgroups), wants: wants}), []string{`warning: guard.root is "allow", and the guard that is on has "deny" -> berth guard on`}},
		{"missing", facts(guardFacts{on: true, has: rules(true, map[uint64]deviceguard.Entry{1: {Kind: deviceguard.Lease}}), wants: wants}), []string{
			"warning: it doesn't open GPUs for 1 exempt cgroup -> berth guard on",
			"warning: it doesn't open all devices of 1 lease -> berth guard on",
		}},
	})
}

// TestFixNamesConfiguration: the commands of fixes name the configuration that was checked.
func TestFixNamesConfiguration(t *testing.T) {
	for path, want := range map[string]string{berth.ConfigPath: "berth discover", "/x.toml": "berth --config /x.toml discover"} {
		if got := (&report{configPath: path}).command("discover"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
