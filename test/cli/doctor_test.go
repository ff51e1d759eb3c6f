package cli

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// finding is one of berth doctor --json.
type finding struct {
	ID, State, About, Text string
	Fix                    string `json:"fix"`
}

// doctor is the directory of a complete copy of the programs for the node, which can be damaged. It
// has runtimes and no engines, because engines are slow and have tests of their own.
const (
	doctor   = "PATH=/run/path /run/programs/berth doctor --json"
	breaking = "PATH=/run/programs:$PATH; "
)

// newHealthyNode makes a node on which doctor finds no problem.
func newHealthyNode(t *testing.T, profile string) *node {
	t.Helper()
	n := newDiscoveredNode(t, profile)
	n.equip()
	n.sh(breaking + "berth cdi generate").ok()
	return n
}

func (n *node) equip() {
	n.t.Helper()
	n.sh("mkdir /run/programs /run/path && cp " + programs + "/berth* /run/programs/ && cp -n /bin/true /run/programs/berth-containerd && " +
		"for p in crun runc; do ! r=$(command -v $p) || ln -s $r /run/path/; done").ok()
}

// examine runs doctor by a command and returns its findings by check.
func (n *node) examine(command string) (map[string][]finding, result) {
	n.t.Helper()
	r := n.sh(command)
	var all []finding
	if err := json.Unmarshal([]byte(r.stdout), &all); err != nil {
		n.t.Fatalf("%s: %v: code %d: %s%s", command, err, r.code, r.stdout, r.stderr)
	}
	by := map[string][]finding{}
	worst := "ok"
	for _, f := range all {
		by[f.ID] = append(by[f.ID], f)
		if (f.State == "ok") != (f.Fix == "") || f.Text == "" || f.About == "" || strings.Contains(f.Text+f.Fix, "\n") {
			n.t.Errorf("a finding isn't whole: %+v", f)
		}
		if f.State == "failure" {
			worst = f.State
		}
	}
	if r.code != map[string]int{"ok": 0, "failure": 1}[worst] {
		n.t.Errorf("%s: code %d, and the worst is a %s", command, r.code, worst)
	}
	return by, r
}

// command returns the first command of a fix; alternatives follow it.
func (f finding) command() string {
	words := f.Fix
	for _, end := range []string{", or ", " (", "; ", ": "} {
		words, _, _ = strings.Cut(words, end)
	}
	return words
}

// defect is one thing that is broken: doctor reports it, and its fix fixes it.
type defect struct {
	name, id, state, text string
	breaks                string
	fix                   string // "" for the command that doctor prints; otherwise that command can't be run on this machine
	says                  string // the command that doctor then prints
	doctor                string // "" for the usual call
}

func (s defect) test(t *testing.T, n *node) {
	t.Helper()
	call := s.doctor
	if call == "" {
		call = doctor
	}
	n.sh(breaking + s.breaks).ok()
	found, r := n.examine(call)
	i := slices.IndexFunc(found[s.id], func(f finding) bool { return f.State == s.state && strings.Contains(f.Text, s.text) })
	if i < 0 {
		t.Fatalf("no %s of %s says %q: %+v%s", s.state, s.id, s.text, found[s.id], r.stderr)
	}
	f := found[s.id][i]
	if s.says != "" && !strings.Contains(f.Fix, s.says) {
		t.Errorf("the fix isn't %q: %q", s.says, f.Fix)
	}
	fix := s.fix
	if fix == "" {
		fix = f.command()
	}
	n.sh(breaking + fix).ok()
	found, _ = n.examine(doctor)
	if len(found[s.id]) == 0 || slices.ContainsFunc(found[s.id], func(f finding) bool { return f.State != "ok" }) {
		t.Errorf("after %q: %+v", fix, found[s.id])
	}
}

// TestDoctor: each check detects its defect, and its fix repairs it.
func TestDoctor(t *testing.T) {
	t.Parallel()
	n := newHealthyNode(t, "one-gpu")
	other := func(text string) string {
		return "PATH=/run/path /run/programs/berth --config " + configured(t, text) + " doctor --json"
	}
	// aside is a call in a network namespace of its own.
	aside := func(first string) string { return "unshare --net sh -c '" + first + "; '" + `"` + doctor + `"` }
	const modules = "for f in /sys/module/nvidia/version /proc/driver/nvidia/version; do "
	seen := map[string]bool{"units.tmpfiles": true, "snapshot.lost": true, "kernel.calls": true, "kernel.overlay": true, "network.kernel": true}
	for _, s := range []defect{
		{name: "configuration", id: "configuration", state: "failure", text: "line 1, column 1: expected '=' after key", breaks: "true", doctor: other("x"), fix: "true", says: "every key is explained"},
		{name: "configuration for all", id: "configuration", state: "failure", text: "others can write to /etc/berth/config.toml (mode 0666)", breaks: "mkdir -p /etc/berth && : >/etc/berth/config.toml && chmod 666 /etc/berth/config.toml"},
		{name: "module", id: "driver.module", state: "failure", text: "isn't loaded, and there are 1 GPU on the PCI bus", breaks: modules + "mv $f $f.gone; done", fix: modules + "mv $f.gone $f; done", says: "modprobe nvidia"},
		{name: "versions", id: "driver.files", state: "failure", text: `the kernel's module is 560.1, and /`, breaks: modules + "sed -i.was 's/550.163.01/560.1/' $f; done", fix: modules + "mv $f.was $f; done", says: "reboot"},
		{name: "libraries", id: "driver.files", state: "failure", text: "there is no libcuda.so.1 below /", breaks: "for d in /usr/lib /usr/lib/*-linux-gnu /usr/lib64; do [ ! -e $d/libcuda.so.1 ] || mv $d/libcuda.so.1 $d/libcuda.gone; done", fix: "for d in /usr/lib /usr/lib/*-linux-gnu /usr/lib64; do [ ! -L $d/libcuda.gone ] || mv $d/libcuda.gone $d/libcuda.so.1; done", says: "host.driver_root"},
		{name: "card", id: "driver.cards", state: "warning", text: "the GPU 0000:99:00.0 is on the PCI bus, and not bound to the driver", breaks: "cd /sys/bus/pci/devices && mkdir 0000:99:00.0 && cd 0000:99:00.0 && echo 0x10de >vendor && echo 0x030200 >class", fix: "rm -r /sys/bus/pci/devices/0000:99:00.0", says: "echo 0000:99:00.0 >/sys/bus/pci/drivers/nvidia/bind"},
		{name: "missing node", id: "nodes.device", state: "failure", text: "there is no /dev/nvidia0", breaks: "rm /dev/nvidia0"},
		{name: "other node", id: "nodes.device", state: "failure", text: "an earlier load of the module: /dev/nvidia-uvm is 499:0", breaks: "rm /dev/nvidia-uvm && mknod /dev/nvidia-uvm c 499 0"},
		{name: "no node", id: "nodes.device", state: "failure", text: "no character device: /dev/nvidiactl", breaks: "rm /dev/nvidiactl && mkdir /dev/nvidiactl"},
		{name: "node of others", id: "nodes.device", state: "failure", text: "there is no /dev/nvidia0, and berth must not change them", breaks: "sed -i 's/ModifyDeviceFiles: 1/ModifyDeviceFiles: 0/' /proc/driver/nvidia/params && rm /dev/nvidia0"},
		{name: "links of others", id: "links", state: "warning", text: "no link to a device: /dev/char/195:0, /dev/char/195:255", breaks: "rm -r /dev/char"},
		{name: "link", id: "links", state: "warning", text: "lose GPUs at systemctl daemon-reload", breaks: "sed -i 's/ModifyDeviceFiles: 0/ModifyDeviceFiles: 1/' /proc/driver/nvidia/params && rm -f /dev/char/195:0"},
		{name: "mode", id: "nodes.mode", state: "warning", text: "driver allows: /dev/nvidia0 (0600)", breaks: "chmod 600 /dev/nvidia0"},
		{name: "nodev", id: "nodes.mode", state: "failure", text: "it is mounted with nodev", breaks: "mount -o remount,nodev /dev"},
		{name: "snapshot", id: "snapshot.fresh", state: "warning", text: "is stale: there is none yet", breaks: "rm /run/berth/inventory.json"},
		{name: "mount of driver files", id: "snapshot.owner", state: "warning", text: "/var/lib/berth/shared is not mounted", breaks: "umount /var/lib/berth/shared"},
		{name: "driver files", id: "snapshot.files", state: "warning", text: "driver directory is damaged", breaks: "echo x | tee -a /var/lib/berth/driver/*/all/files/bin/nvidia-smi"},
		{name: "runtime", id: "runtime.program", state: "failure", text: "neither crun nor runc is installed, and no other runtime is configured", breaks: "true", doctor: strings.Replace(doctor, "/run/path", "/nowhere", 1), fix: "true", says: "install crun or runc"},
		{name: "runtime by name", id: "runtime.program", state: "failure", text: "runtime names krun, which isn't in PATH", breaks: "true", doctor: other("runtime = 'krun'"), fix: "true"},
		{name: "runtime by path", id: "runtime.program", state: "failure", text: "runtime names /run/krun, which is no executable program", breaks: "true", doctor: other("runtime = '/run/krun'"), fix: "true"},
		{name: "runtime by itself", id: "runtime.program", state: "failure", text: "would call itself for ever", breaks: "true", doctor: other("runtime = '/run/programs/berth-runtime'"), fix: "true"},
		{name: "runtime of another machine", id: "runtime.version", state: "failure", text: "/run/other/crun can't be run: ", breaks: "mkdir /run/other && printf '#!/bin/sh\nexit 3\n' >/run/other/crun && chmod 755 /run/other/crun && cp /run/other/crun /run/krun", doctor: other("runtime = '/run/other/crun'"), fix: "echo runtime = \\'runc\\' >/etc/berth/config.toml"},
		{name: "another runtime", id: "runtime.version", state: "warning", text: "/run/krun --version: ", breaks: "true", doctor: other("runtime = '/run/krun'"), fix: "true"},
		{name: "launcher's runtime", id: "runtime.launcher", state: "failure", text: "there is no krun in ", breaks: "true", doctor: strings.Replace(other("runtime = 'krun'"), "/run/path", "/run", 1), fix: "rm -r /run/krun /run/other /etc/berth/config.toml"},
		{name: "containerd", id: "runtime.engine", state: "failure", text: "none answers at /run/none.sock", breaks: "true", doctor: other("[run]\nengine = 'containerd'\ncontainerd_address = '/run/none.sock'"), fix: "true"},
		{name: "program", id: "programs.there", state: "warning", text: "berth-monitor can't be run: berth run --detach doesn't work", breaks: "chmod 600 /run/programs/berth-monitor"},
		{name: "NVML's", id: "programs.there", state: "warning", text: "berth-nvml can't be run: berth discover can't call NVML", breaks: "chmod 600 /run/programs/berth-nvml"},
		{name: "NVML's, needed now", id: "programs.there", state: "failure", text: "berth-nvml can't be run: berth discover can't call NVML", breaks: "chmod 600 /run/programs/berth-nvml; rm /run/berth/inventory.json", fix: "chmod 755 /run/programs/berth-nvml && berth discover", says: "chmod 0755 /run/programs/berth-nvml"},
		{name: "hook", id: "programs.there", state: "failure", text: "there is no program /run/programs/berth-hook: no container gets a GPU", breaks: "mv /run/programs/berth-hook /run/", fix: "mv /run/berth-hook /run/programs/"},
		{name: "init", id: "programs.init", state: "warning", text: "catatonit is missing: install the distribution's package catatonit: berth run --init and gangs don't work", breaks: "mount --bind /dev/null $(readlink -f /usr/bin/catatonit)", fix: "umount $(readlink -f /usr/bin/catatonit)", says: "install catatonit"},
		{name: "program of others", id: "programs.safe", state: "failure", text: "others can write to /run/programs/berth-runtime (mode 0757)", breaks: "chmod 757 /run/programs/berth-runtime"},
		{name: "programs of a user", id: "programs.safe", state: "failure", text: "/run/programs belongs to user 1234", breaks: "chown 1234 /run/programs"},
		{name: "no cgroups", id: "cgroups.version", state: "failure", text: "no cgroup file system", breaks: "mount -t tmpfs tmpfs /sys/fs/cgroup"},
		{name: "cgroups to read", id: "cgroups.version", state: "failure", text: "is mounted read-only", breaks: "umount /sys/fs/cgroup /sys/fs/cgroup && mount -o remount,bind,ro /sys/fs/cgroup"},
		{name: "no device programs", id: "cgroups.devices", state: "failure", text: "this process may not load device programs", breaks: "true", doctor: "setpriv --bounding-set=-bpf,-sys_admin,-net_admin --inh-caps=-all env " + doctor, fix: "true"},
		{name: "data for all", id: "permissions", state: "failure", text: "others can write to /var/lib/berth (mode 0777)", breaks: "chmod 777 /var/lib/berth"},
		{name: "data of a user", id: "permissions", state: "failure", text: "/var/lib/berth/driver belongs to user 1234", breaks: "chown 1234 /var/lib/berth/driver"},
		{name: "secrets", id: "permissions", state: "warning", text: "/var/lib/berth/tasks is open to all users (mode 0755)", breaks: "mkdir -p /var/lib/berth/tasks && chmod 755 /var/lib/berth/tasks"},
		{name: "no directory", id: "permissions", state: "failure", text: "/var/lib/berth/names is no directory", breaks: "rm -rf /var/lib/berth/names && : >/var/lib/berth/names"},
		{name: "data to read", id: "data.mount", state: "failure", text: "/var/lib/berth is on a file system that is mounted read-only", breaks: "rm /var/lib/berth/names.old && mount -o remount,bind,ro /var/lib/berth"},
		{name: "data without programs", id: "data.mount", state: "warning", text: "/var/lib/berth is on a file system that is mounted with noexec", breaks: "mount -o remount,bind,noexec /var/lib/berth"},
		{name: "data on an overlay", id: "data.mount", state: "warning", text: "is on an overlay", breaks: "true", doctor: other("data = '/etc/berth-data'"), fix: "true", says: "to a directory on ext4"},
		{name: "little space", id: "data.space", state: "warning", text: "MiB are free for /var/lib/berth, and an image", breaks: "mount -t tmpfs -o size=200m tmpfs /var/lib/berth", fix: "true; umount /var/lib/berth", says: "berth prune --all"},
		{name: "no space", id: "data.space", state: "failure", text: "MiB are free for /var/lib/berth", breaks: "mount -t tmpfs -o size=20m tmpfs /var/lib/berth", fix: "umount /var/lib/berth"},
		{name: "no files", id: "data.space", state: "failure", text: "no more files can be made", breaks: "mount -t tmpfs -o nr_inodes=200,size=9g tmpfs /var/lib/berth && for i in $(seq 199); do : >/var/lib/berth/$i; done", fix: "umount /var/lib/berth"},
		{name: "ledger", id: "ledger.state", state: "failure", text: "the checksum doesn't match", breaks: "berth alloc 1 true && echo x >>/run/berth/ledger.json"},
		{name: "ledger of others", id: "ledger.state", state: "failure", text: "could have been written by others", breaks: "chmod 666 /run/berth/ledger.json"},
		{name: "a later ledger", id: "ledger.state", state: "failure", text: "newer version", breaks: "cp /run/berth/ledger.json /run/kept && sed -i '1s/\"version\":[0-9]*/\"version\":99/' /run/berth/ledger.json", fix: "mv /run/kept /run/berth/ledger.json", says: "install that version again"},
		{name: "record", id: "tasks.records", state: "failure", text: "/task.json: ", breaks: "d=/var/lib/berth/tasks/$(head -c 32 /dev/urandom | sha256sum | head -c $IDLEN); mkdir -m 700 $d && echo '{' >$d/task.json"},
		{name: "name of an image", id: "images.names", state: "warning", text: "/var/lib/berth/images/names/00.json can't be read", breaks: "mkdir -p /var/lib/berth/images/names && : >/var/lib/berth/images/names/00.json"},
		{name: "no specs", id: "cdi.own", state: "warning", text: "so --device berth/gpus=2 is refused", breaks: "berth cdi remove"},
		{name: "specs of another node", id: "cdi.own", state: "warning", text: "doesn't fit the node's present devices", breaks: "sed -i 's/berth-hook/berth-hock/' /etc/cdi/berth*.json"},
		{name: "specs that are gone", id: "cdi.own", state: "warning", text: "there is no /etc/cdi/berth", breaks: "rm /etc/cdi/berth*"},
		{name: "list of specs", id: "cdi.own", state: "failure", text: "/var/lib/berth/cdi-menu.json", breaks: "echo x >/var/lib/berth/cdi-menu.json"},
		{name: "broken spec", id: "cdi.others", state: "warning", text: "/etc/cdi/x.json: ", breaks: "echo '{' >/etc/cdi/x.json"},
		{name: "stale spec", id: "cdi.others", state: "warning", text: "/etc/cdi/y.json is stale: there is no /usr/lib/libcuda.so.1.0", breaks: `echo '{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"mounts":[{"hostPath":"/usr/lib/libcuda.so.1.0","containerPath":"/x"}]}}]}' >/etc/cdi/y.json`, fix: "mv /etc/cdi/y.json /run/", says: "nvidia-ctk cdi generate --output=/etc/cdi/y.json, or mv "},
		{name: "contradiction", id: "cdi.others", state: "warning", text: "conflict", breaks: `for f in 1 2; do echo '{"cdiVersion":"0.5.0","kind":"vendor.example/nic","devices":[{"name":"0","containerEdits":{"env":["A=1"]}}]}' >/etc/cdi/nic$f.json; done`},
		{name: "NVIDIA's and berth's", id: "cdi.others", state: "warning", text: "conflict", breaks: `berth cdi generate --nvidia && echo '{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"env":["A=1"]}}]}' >/etc/cdi/z.json`, fix: "berth cdi generate --nvidia --replace", says: "berth cdi generate --nvidia --replace"},
		{name: "shared memory", id: "nccl.shm", state: "warning", text: "the engine's default, 64 MiB", breaks: "true", doctor: other("[policy]\nshm = 'engine'"), fix: "true", says: `policy.shm = "50%"`},
		{name: "shared memory of the machine", id: "nccl.shm", state: "warning", text: "/dev/shm of the machine, which tasks with its ipc namespace use, has 64 MiB", breaks: "mount -o remount,size=64m /dev/shm"},
		{name: "memory policy", id: "nccl.policy", state: "warning", text: "engines' filters refuse mbind", breaks: "true", doctor: other("[policy]\nmemory_policy = false"), fix: "true", says: "policy.memory_policy = true"},
		{name: "gangs without a wall", id: "network.firewall", state: "warning", text: "table inet berth is gone, and with it the rules that separate gangs: berth0123456789", breaks: "true", doctor: aside("ip link add berth0123456789 type veth peer name peer"), fix: "true", says: "start a gang"},
		{name: "no room for gangs", id: "network.addresses", state: "warning", text: "no subnet is free in 10.213.0.0/16", breaks: "true", doctor: aside("for n in 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 198.18.0.0/15; do ip route add unreachable $n; done"), fix: "true", says: "--network host"},
	} {
		s.breaks = strings.ReplaceAll(s.breaks, "$IDLEN", "12")
		t.Run(s.name, func(t *testing.T) { s.test(t, n.as(t)) })
		seen[s.id] = true
	}
	found, _ := n.examine(doctor)
	for _, id := range []string{"driver.uvm", "ledger.lock", "units.discover", "rootless", "cgroups.controllers", "containers.open"} { // by tests of their own
		seen[id] = true
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if !seen[id] && !strings.HasPrefix(id, "engines") {
			t.Errorf("nothing is broken for the check %s to see", id)
		}
	}
	n.sh("rm -f /run/berth/ledger.json.bad-*; rm -rf /var/lib/berth/tasks").ok()
	n.checkClean(t)
}

// TestDoctorBare: the state after a driver was installed, before anything has made its nodes.
func TestDoctorBare(t *testing.T) {
	t.Parallel()
	n := newNode(t, "dgx-a100-mig", options{bare: true})
	n.equip()
	defect{id: "driver.uvm", state: "failure", text: "nvidia-uvm isn't loaded: no CUDA program starts"}.test(t, n)
	found, _ := n.examine(doctor)
	for _, id := range []string{"nodes.device", "links", "snapshot.fresh"} { // which the same command fixes
		if found[id][0].State != "ok" {
			t.Errorf("got %+v", found[id])
		}
	}
}

// TestDoctorLost: a GPU that fell off the bus, and its return.
func TestDoctorLost(t *testing.T) {
	t.Parallel()
	n := newHealthyNode(t, "dgx-h100")
	n.control("lose", "3")
	n.berth("discover", "-q").ok()
	found, _ := n.examine(doctor)
	if f := found["snapshot.lost"]; len(f) != 1 || f[0].State != "warning" || !strings.Contains(f[0].Text, "GPU 3 (") {
		t.Errorf("got %+v", f)
	}
	n.control("restore", "3")
	n.berth("discover", "-q").ok()
	found, _ = n.examine(doctor)
	if f := found["snapshot.lost"]; len(f) != 1 || f[0].State != "ok" {
		t.Errorf("got %+v", f)
	}
	n.sh("rm /run/nvidia-fabricmanager/socket").ok()
	found, _ = n.examine(doctor)
	if f := found["driver.fabric"]; len(f) != 1 || f[0].Fix != "systemctl enable --now nvidia-fabricmanager" {
		t.Errorf("got %+v", f)
	}
}

// TestDoctorProcesses: leases of dead holders, a ledger whose lock is held, a task without its
// monitor.
func TestDoctorProcesses(t *testing.T) {
	t.Parallel()
	n := newHealthyNode(t, "one-gpu")
	defect{
		id: "ledger.lock", state: "failure", text: " and is stopped",
		breaks: "berth alloc 1 true; { setsid flock --no-fork /run/berth/ledger.lock sleep 1000 >/dev/null 2>&1 & echo $! >/run/holder; }; " +
			"until grep -q \" $(cat /run/holder) \" /proc/locks; do sleep 0.01; done; kill -STOP $(cat /run/holder); until grep -q '^State:.T' /proc/$(cat /run/holder)/status; do sleep 0.01; done",
	}.test(t, n)
	n.sh("kill -9 $(cat /run/holder)").ok()

	p := n.start("berth", "alloc", "1", "sh", "-c", "echo $$ >/run/held; echo ready; exec sleep 1000")
	p.says("ready")
	// berth alloc is killed first, as it would release the lease when the command ends.
	n.sh(`kill -9 $(berth leases --json | sed -n 's/.*"pid": \([0-9]*\).*/\1/p') $(cat /run/held)`).ok()
	p.wait()
	eventually(t, "the holder is dead", func() bool { return !n.leases().Leases[0].Live })
	defect{id: "ledger.state", state: "warning", text: "the holder of lease " + n.leases().Leases[0].ID + " is dead", breaks: "true"}.test(t, n)

	n.berth("run", "-d", "--name", "train", image(), "sleep", "1000").ok()
	defect{
		id: "tasks.records", state: "warning", text: "task train has no monitor",
		breaks: `m=$(sed -n 's/.*"monitor":{"pid":\([0-9]*\).*/\1/p' /var/lib/berth/tasks/*/run.json); kill -9 $m; while kill -0 $m 2>/dev/null; do sleep 0.01; done`,
	}.test(t, n)
	n.berth("rm", "-f", "train").ok()
	n.checkClean(t)
}

// TestDoctorUnits: the states of berth's units in systemd.
func TestDoctorUnits(t *testing.T) {
	t.Parallel()
	n := newHealthyNode(t, "one-gpu")
	n.sh(`mkdir -p /run/systemd/system /run/fake /etc/systemd/system
cat >/run/fake/systemctl <<'END'
#!/bin/sh
case "$1 $2" in
"show --property=Id"*) cat /run/fake/said ;;
"enable --now") sed -i "/^Id=$3/,/^Result/{s/UnitFileState=.*/UnitFileState=enabled/;s/ActiveState=.*/ActiveState=active/}" /run/fake/said ;;
start*|restart*) sed -i "/^Id=$2/,/^Result/s/ActiveState=.*/ActiveState=active/" /run/fake/said ;;
esac
END
chmod 755 /run/fake/systemctl
for u in service timer; do printf 'Id=berth-discover.%s\nLoadState=loaded\nUnitFileState=enabled\nActiveState=active\nResult=success\n\n' $u; done >/run/fake/good`).ok()
	const path = "PATH=/run/fake:$PATH; "
	doctor := strings.Replace(doctor, "/run/path", "/run/fake:/bin:/run/path", 1)
	for _, s := range []defect{
		{name: "timer", text: "berth-discover.timer isn't enabled", breaks: "sed 's/UnitFileState=enabled/UnitFileState=disabled/' /run/fake/good >/run/fake/said", says: "systemctl enable --now berth-discover.", fix: path + "systemctl enable --now berth-discover.service; systemctl enable --now berth-discover.timer"},
		{name: "failed", text: "berth-discover.service has failed (exit-code)", breaks: "sed '1,5{s/active/failed/;s/success/exit-code/}' /run/fake/good >/run/fake/said", says: "systemctl restart berth-discover.service (journalctl", fix: path + "systemctl restart berth-discover.service"},
		{name: "not started", text: "berth-discover.timer is inactive", breaks: "sed 's/=active/=inactive/' /run/fake/good >/run/fake/said", fix: path + "systemctl start berth-discover.timer"},
		{name: "not there", text: "there is no berth-discover.service", breaks: "sed 's/loaded/not-found/' /run/fake/good >/run/fake/said", says: "install berth's package", fix: "cp /run/fake/good /run/fake/said"},
	} {
		s.id, s.state = "units.discover", "warning"
		t.Run(s.name, func(t *testing.T) {
			n := n.as(t)
			n.sh(s.breaks).ok()
			found, _ := n.examine(doctor)
			if !slices.ContainsFunc(found[s.id], func(f finding) bool {
				return f.State == s.state && strings.Contains(f.Text, s.text) && strings.Contains(f.Fix, s.says)
			}) {
				t.Errorf("got %+v", found[s.id])
			}
			n.sh(s.fix).ok()
			if found, _ = n.examine(doctor); len(found[s.id]) != 1 || found[s.id][0].State != "ok" {
				t.Errorf("got %+v", found[s.id])
			}
		})
	}
	n.sh(": >/etc/systemd/system/berth-discover.service").ok()
	n.sh("rm -f /usr/lib/tmpfiles.d/berth.conf").ok() // the node's own view of it, if the machine has one
	found, _ := n.examine(doctor)
	if f := found["units.tmpfiles"]; len(f) != 1 || f[0].State != "warning" {
		t.Fatalf("got %+v", f)
	}
	n.sh("mkdir -p /etc/tmpfiles.d; " + found["units.tmpfiles"][0].command()).ok()
	if found, _ = n.examine(doctor); found["units.tmpfiles"][0].Text != "/etc/tmpfiles.d/berth.conf" {
		t.Errorf("got %+v", found["units.tmpfiles"])
	}
}

// TestDoctorUser: for a user who isn't root doctor reports no false failure, and says what it
// couldn't check.
func TestDoctorUser(t *testing.T) {
	t.Parallel()
	n := newHealthyNode(t, "one-gpu")
	n.berth("run", image(), "true").ok() // makes files that only root can read
	root, _ := n.examine(doctor)
	for _, c := range []struct{ name, as, who string }{
		{"user", "setpriv --reuid=65534 --regid=65534 --clear-groups ", "user 65534"},
		{"root of a user namespace", "unshare --user --map-root-user ", "uid 0 of a user namespace"},
	} {
		found, r := n.examine(c.as + "env " + doctor)
		for id, all := range found {
			for _, f := range all {
				if f.State == "failure" || f.State == "warning" && id != "access" && !slices.ContainsFunc(root[id], func(g finding) bool { return g.State == "warning" }) {
					t.Errorf("%s sees %+v", c.name, f)
				}
			}
		}
		if f := found["runtime.launcher"]; c.name == "user" && (len(f) != 1 || f[0].State != "ok") {
			t.Errorf("%s sees of the launcher's runtime: %+v", c.name, f)
		}
		f := found["access"]
		if len(f) != 1 || !strings.HasPrefix(f[0].Text, c.who+" can't check: ") || f[0].Fix != "sudo berth doctor" {
			t.Errorf("%s: %s%s", c.name, r.stdout, r.stderr)
			continue
		}
		for _, id := range strings.Split(strings.TrimPrefix(f[0].Text, c.who+" can't check: "), ", ") {
			if root[id] == nil {
				t.Errorf("%s: there is no check %s", c.name, id)
			}
		}
	}
}

// TestDoctorIsReadOnly: doctor writes nothing, also as root, and reports the same the second time.
func TestDoctorIsReadOnly(t *testing.T) {
	t.Parallel()
	n := newNode(t, "dgx-h100", options{})
	const list = "find /run /dev /etc /var/lib/berth -xdev ! -path /dev/pts/\\* ! -path /run/simnode/\\* -printf '%p %T@ %C@ %m %s\n' | sort; cat /run/berth/* 2>/dev/null; true"
	n.equip()
	for _, discovered := range []bool{false, true} {
		if discovered {
			n.berth("discover", "-q").ok()
		}
		before := n.sh(list).ok()
		command := strings.TrimSuffix(doctor, "--json")
		first, second := n.sh(command), n.sh(command)
		if first.code != 0 || first.stdout != second.stdout || first.stderr != "" {
			t.Errorf("code %d: %s\nthen %s%s", first.code, first.stdout, second.stdout, second.stderr)
		}
		if diff := cmp.Diff(before, n.sh(list).ok()); diff != "" {
			t.Errorf("it has changed something: %s", diff)
		}
	}
	n.berth("doctor", "--json", "x").fails(2, `berth: doctor takes no argument, got "x"; berth doctor --help shows the usage`)
	n.berth("doctor", "--jsno").fails(2, `berth: there is no flag --jsno (did you mean --json?); berth doctor --help shows the usage`)
}
