package apptainer

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// boxes makes the images of other launchers in /images: box with busybox, debian, and debian.sif, all of them the user's, and rootbox, root's.
const boxes = `berth guard on
ln -s berth /usr/local/bin/nvidia-container-cli
cat >/usr/local/bin/opens <<'END'
#!/bin/sh
for n in 0 1 2 3 4 5 6 7; do
	case $( (: </dev/nvidia$n) 2>&1) in
	*"No such device or address"*) printf $n;; # the kernel allows it, and the simulated node has no driver
	*"Operation not permitted"*|*"o such file"*) ;;
	*) printf '?';;
	esac
done
echo
END
chmod 755 /usr/local/bin/opens
cd /images
mkdir -p home box/bin box/dev box/etc box/proc box/sys box/tmp box/home box/usr/bin box/var/tmp
cp /usr/bin/busybox box/bin/busybox
for name in sh cat echo env id ls sleep; do ln -s busybox box/bin/$name; done
touch box/etc/passwd box/etc/group box/etc/hosts box/etc/resolv.conf
cp /usr/local/bin/opens box/bin
apptainer --silent build --sandbox debian oci:$0/debian >build.log 2>&1 || { cat build.log; exit 1; }
cp /usr/local/bin/opens debian/usr/bin
apptainer --silent build --mksquashfs-args "-noI -noD -noF -noX" debian.sif debian >build.log 2>&1 || { cat build.log; exit 1; }
cp -a debian rootbox
chown -R 4711:4711 box debian home
chmod 644 debian.sif
`

// boundNodes is the script of docs/launchers.md.
const boundNodes = `for n in $(nvidia-container-cli list --device=all); do nodes="$nodes --dev-bind-try $n $n"; done
exec bwrap --bind /images/box / --dev /dev $nodes --proc /proc "$@"`

// listLaunchers returns the command lines of other launchers, before that of a command in the container. Those of Apptainer as root leave out a capability
// that test machines withhold.
func listLaunchers(uid string) map[string][]string {
	all := map[string][]string{
		"bwrap":                         {"bwrap", "--bind", "/images/box", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--die-with-parent"},
		"bwrap with namespaces":         {"bwrap", "--unshare-all", "--bind", "/images/box", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"},
		"bwrap with chosen nodes":       {"sh", "-c", boundNodes, "bwrap"},
		"charliecloud":                  {"ch-run", "/images/box", "--"},
		"charliecloud with a fake root": {"ch-run", "--uid=0", "--gid=0", "/images/box", "--"},
	}
	apptainer := func(name string, words ...string) {
		all["apptainer "+name] = append([]string{"apptainer", "--silent", "exec"}, words...)
	}
	if uid == "root" {
		apptainer("--nv", "--nv", "--drop-caps", "CAP_SYS_RESOURCE", "/images/rootbox")
		apptainer("--nvccli", "--nvccli", "--drop-caps", "CAP_SYS_RESOURCE", "/images/rootbox")
		apptainer("--nvccli --no-privs", "--nvccli", "--no-privs", "/images/rootbox")
		apptainer("--nvccli --userns", "--nvccli", "--userns", "/images/rootbox")
		return all
	}
	apptainer("--nv", "--nv", "/images/debian.sif")
	apptainer("--nv --containall", "--nv", "--containall", "/images/debian.sif")
	apptainer("--nvccli", "--nvccli", "/images/debian.sif")
	apptainer("--nvccli, a directory", "--nvccli", "/images/debian")
	apptainer("--nvccli --writable", "--nvccli", "--writable", "/images/debian")
	apptainer("--nvccli --userns --writable-tmpfs", "--nvccli", "--userns", "--writable-tmpfs", "/images/debian.sif")
	apptainer("--nvccli --fakeroot", "--nvccli", "--fakeroot", "/images/debian")
	apptainer("--nvccli --pid", "--nvccli", "--pid", "/images/debian.sif")
	return all
}

// wrapForUser returns the words of a command line that a user runs in /images.
func wrapForUser(uid string, words ...string) []string {
	if uid == "root" {
		return append([]string{"env", "-C", "/images"}, words...)
	}
	return append(asUser(), append([]string{"env", "-C", "/images", "HOME=/home/ann"}, words...)...)
}

// runAs runs a command of a user, and returns what it prints and its exit code.
func (s *server) runAs(t *testing.T, uid string, words ...string) (said rig.Said) {
	t.Helper()
	cmd := s.Command(wrapForUser(uid, words...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return rig.Said{Code: cmd.ProcessState.ExitCode(), Out: out.String(), Err: errs.String()}
}

// TestLaunchers: under berth alloc, commands in containers of Apptainer, charliecloud and bubblewrap open the leased GPUs, and no others. When a
// lease is ended with force, nothing of a container runs on, and the GPUs are free.
func TestLaunchers(t *testing.T) {
	s := startPlainServer(t)
	s.do(t, "sh", "-ec", boxes, shared.Dir)
	held := s.Command("berth", "alloc", "device=0", "--", "sleep", "1000")
	rig.Must(t, held.Start())
	defer func() { _ = held.Process.Kill(); _ = held.Wait() }()
	for _, uid := range []string{user, "root"} {
		for name, words := range listLaunchers(uid) {
			t.Run(uid+"/"+name, func(t *testing.T) {
				command := func(inside ...string) []string {
					return append(append([]string{"berth", "alloc", "device=1,2", "--"}, words...), inside...)
				}
				if got := s.runAs(t, uid, command("opens")...); got.Code != 0 || got.Out != "12\n" {
					t.Errorf("with GPUs 1 and 2: %+v", got)
				}
				if uid != "root" { // the guard lets root open all GPUs
					inside := strings.Contains(name, "nvccli")
					if got := s.runAs(t, uid, append(words, "opens")...); !inside && (got.Code != 0 || got.Out != "\n") || inside && !strings.Contains(got.Err, "this process is part of no lease: berth alloc 1") {
						t.Errorf("without a lease: %+v", got)
					}
				}
				s.endWithForce(t, uid, command("sh", "-c", "sleep 7777 & exec sleep 7777"))
			})
		}
	}
}

// endWithForce starts a command, waits until its container runs, and ends its lease.
func (s *server) endWithForce(t *testing.T, uid string, words []string) {
	t.Helper()
	const count = "pgrep -c '^sleep$' || true"
	before := s.runAs(t, "root", "sh", "-c", count).Out
	cmd := s.Command(wrapForUser(uid, words...)...)
	rig.Must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	rig.WaitUntil(t, "the container runs", func() bool {
		var one, two int
		_, _ = fmt.Sscan(before, &one)
		_, _ = fmt.Sscan(s.runAs(t, "root", "sh", "-c", count).Out, &two)
		return two == one+2
	})
	id := strings.TrimSpace(s.runAs(t, "root", "sh", "-c", "berth leases | awk '$2 == \"1,2\" {print $1}'").Out)
	if got := s.runAs(t, uid, "berth", "release", "--force", id); got.Code != 0 {
		t.Fatalf("release: %+v", got)
	}
	if got := s.runAs(t, "root", "sh", "-c", count).Out; got != before {
		t.Errorf("%s processes sleep, and before %s", got, before)
	}
	if got := s.runAs(t, uid, "berth", "alloc", "device=1,2", "--", "true"); got.Code != 0 {
		t.Errorf("afterwards: %+v", got)
	}
}

// TestNVCCLI: Apptainer's --nvccli gives a container the driver's programs and libraries and, with --contain, no other device nodes.
// Devices that the lease lacks are refused, and so is another's lease.
func TestNVCCLI(t *testing.T) {
	s := startPlainServer(t)
	s.do(t, "sh", "-ec", boxes, shared.Dir)
	for _, uid := range []string{user, "root"} {
		exec := func(env string, words ...string) rig.Said {
			image := []string{"/images/debian"}
			if uid == "root" {
				image = []string{"--drop-caps", "CAP_SYS_RESOURCE", "/images/rootbox"}
			}
			call := append([]string{"berth", "alloc", "device=3,4", "--", "env", "NVIDIA_VISIBLE_DEVICES=" + env, "apptainer", "--silent", "exec", "--nvccli", words[0]}, image...)
			return s.runAs(t, uid, append(call, words[1:]...)...)
		}
		got := exec("all", "--contain", "sh", "-c", "nvidia-smi -L | wc -l; ls /dev | grep -E 'nvidia([0-9]|ctl|-uvm)'; opens; ldconfig -p | grep -c libcuda.so.1; ls /proc/driver/nvidia/gpus/*/information 2>/dev/null | wc -l")
		if want := "2\nnvidia-uvm\nnvidia-uvm-tools\nnvidia3\nnvidia4\nnvidiactl\n34\n1\n2\n"; got.Out != want {
			t.Errorf("%s: %+v, want %q", uid, got, want)
		}
		if got := exec("4", "--contain", "sh", "-c", "ls /dev/nvidia[0-9]; opens"); got.Out != "/dev/nvidia4\n4\n" {
			t.Errorf("%s: one of two: %+v", uid, got)
		}
		if got := exec("0", "--contain", "true"); got.Code != 255 || !strings.Contains(got.Err, "around this process has only GPU 3,4") {
			t.Errorf("%s: not leased: %+v", uid, got)
		}
		if got := exec("", "--contain", "sh", "-c", "ls /dev/nvidia*"); got.Code == 0 {
			t.Errorf("%s: contained without NVIDIA_VISIBLE_DEVICES: %+v", uid, got)
		}
	}
	got := s.runAs(t, user, "sh", "-c", "grep -c nvidia /proc/self/mountinfo; find /home/ann /tmp -maxdepth 1 -name 'berth-[0-9]*' -o -name .local")
	if got.Out != "0\n" {
		t.Errorf("left on the host: %+v", got)
	}
}
