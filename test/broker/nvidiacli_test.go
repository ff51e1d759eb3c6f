package broker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// launcher is what launchers of containers do around a call of nvidia-container-cli: $1 is the root file system, $2 how /dev is mounted, and the
// call follows. Then it prints the nodes of GPUs in the container, and which of them a process of the container opens.
const launcher = `set -e
root=$1 dev=$2; shift 2
mount --bind $root $root
cd $root
mount --rbind /proc proc
case $dev in
host) mount --rbind /dev dev;;
tmpfs) mount -t tmpfs tmpfs dev;;
esac
[ ! -d ../outside ] || mount --bind ../outside tmp
env -i PATH=$PATH "$@" $root
for n in 0 1 2 3 4 5 6 7; do [ -e dev/nvidia$n ] && printf $n; done; echo
cd dev
for n in 0 1 2 3 4 5 6 7; do
	case $( (: <nvidia$n) 2>&1) in *"No such device or address"*) printf $n;; *"ermitted"*|*"No such file"*) ;; *) printf '?';; esac
done; echo
cat ../usr/local/nvidia/lib64/libnvidia-ml.so.1 >/dev/null
ls ../usr/bin
`

// cliHome is a user with a root file system of a container, and with berth under NVIDIA's name.
type cliHome struct {
	home
	root, program string
}

func newCLIHome(t *testing.T) cliHome {
	t.Helper()
	n := start(t)
	n.broker()
	h := cliHome{home: n.home(alice)}
	h.root, h.program = filepath.Join(h.dir, "root"), filepath.Join(h.dir, "nvidia-container-cli")
	rig.Must(t, os.Symlink(h.Berth, h.program))
	for _, dir := range []string{"root", "root/dev", "root/proc", "root/tmp", "root/usr", "root/usr/bin", "root/usr/local", "root/etc", "root/lib64", "outside"} {
		makeDir(t, filepath.Join(h.dir, dir), 0o755, alice)
	}
	// A loader: the root is one of glibc.
	rig.Must(t, os.WriteFile(h.root+"/lib64/ld-linux-x86-64.so.2", nil, 0o755))
	return h
}

// runConfigure runs the launcher within a lease: in a user namespace, as Apptainer and enroot do, or as root.
func (h cliHome) runConfigure(uid int, lease []string, dev string, words ...string) rig.Said {
	h.t.Helper()
	script := append([]string{"sh", "-c", launcher, "launcher", h.root, dev, h.program}, words...)
	if uid == 0 {
		all := append(append([]string{"alloc"}, lease...), append([]string{"--", "unshare", "--mount", "--propagation", "unchanged"}, script...)...)
		return h.Run(h.t, h.Command(h.Berth, all...))
	}
	all := append(append([]string{"alloc"}, lease...), append([]string{"--", "unshare", "--user", "--map-user=4711", "--map-group=4711", "--keep-caps", "--mount"}, script...)...)
	return h.run(uid, h.words(all...)...)
}

// TestNVIDIACLI: the calls of Apptainer, of enroot's hook and of NVIDIA's hook give a launcher's container the driver and the lease's devices, and
// no others; with the host's /dev the device guard closes these.
func TestNVIDIACLI(t *testing.T) {
	h := newCLIHome(t)
	const apptainer, enroot, sarus = "--user configure --no-cgroups --compute --utility --ldconfig=@/sbin/ldconfig --device=",
		"--user --debug=/dev/stderr configure --no-cgroups --ldconfig=@/sbin/ldconfig --compute --utility --require=cuda>=11.0,driver>=450 --device=",
		"--load-kmods configure --ldconfig=@/sbin/ldconfig --utility --device="
	for _, tt := range []struct {
		name, call, dev string
		want            rig.Said
	}{
		{"Apptainer", apptainer + "all", "host", rig.Said{Out: "01234567\n01\nnvidia-smi\n"}},
		{"Apptainer, contained", apptainer + "all", "tmpfs", rig.Said{Out: "01\n01\nnvidia-smi\n"}},
		{"enroot", enroot + "all", "host", rig.Said{Out: "01234567\n01\nnvidia-smi\n"}},
		{"enroot with its own /dev", enroot + "1", "tmpfs", rig.Said{Out: "1\n1\nnvidia-smi\n"}},
		{"Sarus", sarus + "0,1", "tmpfs", rig.Said{Out: "01\n01\nnvidia-smi\n"}},
		{"no devices", "--user configure --no-cgroups --utility", "tmpfs", rig.Said{Code: 1, Out: "\n\n"}},
		{"a requirement", enroot + "all --require=cuda>=99", "tmpfs", rig.Said{Code: 1}},
		{"a foreign device", apptainer + "3", "tmpfs", rig.Said{Code: 1}},
	} {
		for _, uid := range []int{0, alice} {
			got := h.runConfigure(uid, []string{"2"}, tt.dev, strings.Fields(tt.call)...)
			errs := got.Err
			if tt.want.Code != 0 {
				got.Err = ""
			}
			if tt.name == "a foreign device" && !strings.HasSuffix(errs, "around this process has only GPU 0,1\n") || strings.Contains(tt.name, "requirement") && !strings.Contains(errs, "cuda>=99") {
				t.Errorf("%s: user %d: %s", tt.name, uid, errs)
			}
			h.wantSaid(tt.name, got, tt.want)
		}
	}
	h.waitForLeases(0)
	if got := h.Do(t, "sh", "-c", "grep -c "+h.root+" /proc/self/mountinfo || true"); strings.TrimSpace(got) != "0" {
		t.Errorf("%s mounts are left", got)
	}
}

// TestNVIDIACLIOutside: without a lease a call is refused, and names berth alloc. A caller gets the lease that it is part of, whatever its
// environment says, and no device of another user's. info and list show no others either.
func TestNVIDIACLIOutside(t *testing.T) {
	h := newCLIHome(t)
	h.start(bob, h.Berth, "alloc", "device=5", "--", "sleep", "1000")
	bobs := h.waitForLeases(1)[0]
	for _, uid := range []int{0, alice} {
		for call, want := range map[string]string{
			"info --csv":                         "NVRM version,CUDA version\n550.163.01,12.4\n\nDevice Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture\n",
			"list":                               "berth: this process is part of no lease: berth alloc 1 -- COMMAND runs a launcher with a GPU of its own\n",
			"configure --device=all " + h.root:   "berth: this process is part of no lease: berth alloc 1 -- COMMAND runs a launcher with a GPU of its own\n",
			"--user configure -d all " + bobs.ID: `berth: "` + bobs.ID + `" is not the root directory of a container; berth nvidia-container-cli configure --help shows the usage` + "\n",
		} {
			words := append([]string{"env", "BERTH_LEASE=" + bobs.ID, h.program}, strings.Fields(call)...)
			if got := h.run(uid, words...); got.Out+got.Err != want {
				t.Errorf("user %d: %s: %+v, want %s", uid, call, got, want)
			}
		}
		inside := func(call string) rig.Said {
			return h.run(uid, append([]string{h.Berth, "alloc", "device=0", "--", "env", "BERTH_LEASE=" + bobs.ID, h.program}, strings.Fields(call)...)...)
		}
		if got := inside("info --csv"); strings.Count(got.Out, "\n") != 5 || !strings.Contains(got.Out, "\n0,0,NVIDIA H100 80GB HBM3,nvidia,GPU-") {
			t.Errorf("info: %+v", got)
		}
		got := inside("list --device=all --binaries")
		if lines := strings.Fields(got.Out); got.Code != 0 || strings.Count(got.Out, "/dev/nvidia0\n") != 1 || strings.Contains(got.Out, "nvidia5") || !strings.HasSuffix(lines[len(lines)-1], "/bin/nvidia-smi") {
			t.Errorf("list: %+v", got)
		}
		if got := inside("list --libraries"); !strings.Contains(got.Out, "/libcuda.so.550.163.01\n") {
			t.Errorf("list of libraries: %+v", got)
		}
		if got := inside("list --device=5"); got.Code != 1 || !strings.HasSuffix(got.Err, "around this process has only GPU 0\n") {
			t.Errorf("a device of bob's: %+v", got)
		}
		if got := inside("configure --device=0 " + h.root); got.Code != 1 || got.Out != "" || strings.Count(got.Err, "\n") != 1 {
			t.Errorf("in the host's mount namespace: %+v", got)
		}
	}
	if got := h.Do(t, "ls", h.root+"/dev"); got != "" {
		t.Errorf("/dev of the root has %s", got)
	}
}

// TestNVIDIACLIHostileRoot: whatever links an image has, also to directories of the host that the launcher has bound into the container, no file of
// the host is written, made or removed.
func TestNVIDIACLIHostileRoot(t *testing.T) {
	h := newCLIHome(t)
	rig.Must(t, os.WriteFile(h.dir+"/outside/file", []byte("of the host"), 0o666))
	makeDir(t, h.dir+"/outside/dir", 0o777, alice)
	for _, attack := range []string{
		"rmdir etc && ln -s /tmp/dir etc", "ln -s /tmp/file etc/ld.so.cache", "ln -s /tmp/dir etc/ld.so.conf.d", "ln -s ../../../outside/dir etc/ld.so.conf.d",
		"rmdir usr/local && ln -s /tmp/dir usr/local", "ln -s /tmp/dir usr/local/nvidia", "ln -s /tmp/new usr/local/nvidia",
		"rmdir usr/bin && ln -s /tmp/dir usr/bin", "ln -s /tmp/file usr/bin/nvidia-smi", "ln -s /tmp/new usr/bin/nvidia-smi",
		"rmdir dev && ln -s /tmp/dir dev", "mkdir -p run && ln -s /tmp/dir usr/lib", "rmdir usr/local usr/bin usr && ln -s /tmp/dir usr",
		"ln -s " + h.dir + "/outside/file etc/ld.so.cache",
	} {
		for _, uid := range []int{0, alice} {
			h.Do(t, "sh", "-ec", "cd "+h.root+"; rm -rf ./*; mkdir -p dev proc tmp usr/bin usr/local etc lib64; touch lib64/ld-linux-x86-64.so.2; "+attack+"; find . -exec chown -h 4711:4711 {} +")
			h.runConfigure(uid, []string{"1"}, "none", strings.Fields("configure --no-cgroups --compute --utility --device=all")...) // it may fail
			if got := h.Do(t, "sh", "-c", "cd "+h.dir+"/outside; find . -mindepth 1 | sort; cat file"); got != "./dir\n./file\nof the host" {
				t.Fatalf("user %d: %s: the host's files are %s", uid, attack, got)
			}
		}
	}
	h.waitForLeases(0)
}

// TestNVIDIACLIByPID: root's call from outside enters the container's mount namespace, as NVIDIA's hook has it.
func TestNVIDIACLIByPID(t *testing.T) {
	h := newCLIHome(t)
	script := `unshare --mount sh -ec 'mount --bind . .; cd $PWD; mount --rbind /proc proc; mount -t tmpfs tmpfs dev; touch made; exec sleep 1000' &
while [ ! -e made ]; do sleep 0.01; done
$0 --load-kmods configure --utility --device=all --pid=$! $PWD && ls -l /proc/$!/root$PWD/dev/nvidia0 /proc/$!/root$PWD/usr/bin/nvidia-smi | wc -l && ls usr/bin dev
kill $!`
	got := h.Run(t, h.Command(h.Berth, "alloc", "1", "--", "env", "-C", h.root, "sh", "-c", script, h.program))
	h.wantSaid("by PID", got, rig.Said{Out: "2\ndev:\n\nusr/bin:\nnvidia-smi\n"})
}
