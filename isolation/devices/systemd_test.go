package devices

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

func TestUnit(t *testing.T) {
	for _, tt := range []struct {
		name, path, want string
		ok               bool
	}{
		{"docker", "/system.slice/docker-4f0c.scope", "docker-4f0c.scope", true},
		{"kubernetes", "/kubepods.slice/kubepods-pod1.slice/cri-containerd-4f.scope", "cri-containerd-4f.scope", true},
		{"podman with crun", "/machine.slice/libpod-4f.scope/container", "libpod-4f.scope", true},
		{"slice", "/berth.slice/berth-4f.slice", "berth-4f.slice", true},
		{"escaped by systemd", "/_cpu.slice", "cpu.slice", true},
		{"escapes of a name", `/system.slice/a\x2db.scope`, `a\x2db.scope`, true},
		{"no unit", "/docker/4f0c", "", false},
		{"below a scope", "/user.slice/session-3.scope/docker/4f", "", false},
		{"a service", "/system.slice/docker.service", "", false},
		{"below a service", "/system.slice/containerd.service/x.scope", "", false},
		{"a user's own systemd", "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-4f.scope", "", false},
		{"something in a slice", "/system.slice/container", "", false},
		{"invalid name", "/system.slice/a b.scope", "", false},
		{"a line in a name", "/system.slice/a\nb.scope", "", false},
		{"no name", "/system.slice/.scope", "", false},
		{"too long", "/" + strings.Repeat("a", 250) + ".scope", "", false},
		{"root", "/", "", false},
		{"nothing", "", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := UnitOf(tt.path); got != tt.want || ok != tt.ok {
				t.Errorf("got %q, %v", got, ok)
			}
		})
	}
}

const ownText = `# Written by berth; gone when the container is.
[Scope]
DevicePolicy=strict
DeviceAllow=
DeviceAllow=/dev/char/195:0 rw
DeviceAllow=char-508 r
DeviceAllow=/dev/block/8:1 m
DeviceAllow=char-* m
DeviceAllow=block-* m
DeviceAllow=/dev/char/1:3 rwm
DeviceAllow=/dev/char/1:5 rwm
DeviceAllow=/dev/char/1:7 rwm
DeviceAllow=/dev/char/1:8 rwm
DeviceAllow=/dev/char/1:9 rwm
DeviceAllow=/dev/char/5:0 rwm
DeviceAllow=/dev/char/5:2 rwm
DeviceAllow=/dev/char/10:200 rwm
DeviceAllow=char-136 rwm
`

func TestWriteUnitRules(t *testing.T) {
	dir := t.TempDir()
	rules := []edits.Rule{denyAll(), allow("c", 195, 0, "wr"), allow("c", 508, every, "r"), allow("b", 8, 1, "m")}
	file := filepath.Join(dir, "docker-4f.scope.d", dropIn)
	for range 2 {
		testutil.Must(t, WriteUnitRules(dir, "docker-4f.scope", rules))
		got, err := os.ReadFile(file)
		testutil.Must(t, err)
		if d := cmp.Diff(ownText, string(got)); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	}
	for range 2 {
		testutil.Must(t, RemoveUnitFiles(dir, "docker-4f.scope"))
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
	testutil.Must(t, WriteUnitRules(dir, "berth-4f.slice", []edits.Rule{allow("a", every, every, "rwm")}))
	got, err := os.ReadFile(filepath.Join(dir, "berth-4f.slice.d", dropIn))
	if want := "# Written by berth; gone when the container is.\n[Slice]\nDevicePolicy=auto\nDeviceAllow=\n"; string(got) != want || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	other := filepath.Join(dir, "berth-4f.slice.d/10-other.conf")
	testutil.Must(t, os.WriteFile(other, nil, 0o600))
	testutil.Must(t, RemoveUnitFiles(dir, "berth-4f.slice"))
	if _, err := os.Stat(other); err != nil {
		t.Error("another's file is gone")
	}
}

func TestWriteUnitRulesErrors(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		name, unit string
		rules      []edits.Rule
		want       string
	}{
		{"minor of every major", "a.scope", []edits.Rule{allow("c", every, 3, "r")}, "tell systemd device rules of a.scope: allow c *:3 r: systemd can't express one minor of every major"},
		{"hole", "a.scope", []edits.Rule{allow("c", 195, every, "r"), deny("c", 195, 1, "r")}, "tell systemd device rules of a.scope: deny c 195:1 r: it denies a part of the rule allow c 195:* r"},
		{"path", "../a.scope", nil, `"../a.scope" is neither a scope nor a slice of systemd`},
		{"service", "docker.service", nil, `"docker.service" is neither a scope nor a slice of systemd`},
		{"nothing", "", nil, `"" is neither a scope nor a slice of systemd`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := WriteUnitRules(dir, tt.unit, tt.rules); err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	none := filepath.Join(dir, "none")
	testutil.Must(t, WriteUnitRules(none, "a.scope", nil))
	testutil.Must(t, RemoveUnitFiles(none, "a.scope"))
	if _, err := os.Stat(none); !os.IsNotExist(err) {
		t.Errorf("made where no systemd runs: %v", err)
	}
}

// TestWriteAndRemoveAtOnce: concurrent calls for the drop-in of one unit make no error; the removal
// for an earlier container can remove only the file.
func TestWriteAndRemoveAtOnce(t *testing.T) {
	dir := t.TempDir()
	ended := make(chan error)
	for range 2 {
		go func() {
			for range 300 {
				if err := WriteUnitRules(dir, "a.scope", nil); err != nil {
					ended <- err
					return
				}
				if err := RemoveUnitFiles(dir, "a.scope"); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// bootSystemd runs a systemd in a cgroup of its own, on a file system that it can't write to, with only
// itself and a bus. It returns the pid of its init.
func bootSystemd(t *testing.T, h cgroup.Hierarchy, path string) (init int, in func(words ...string) *exec.Cmd) {
	t.Helper()
	const script = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -o remount,bind,ro /
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/systemd/system
cd /run/systemd/system
printf '[Unit]\nDefaultDependencies=no\nWants=dbus.service\n' >berth-test.target
printf '[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream=/run/dbus/system_bus_socket\n' >dbus.socket
printf '[Unit]\nDefaultDependencies=no\nRequires=dbus.socket\nAfter=dbus.socket\n[Service]\nType=notify\nExecStart=/usr/bin/dbus-daemon --system --address=systemd: --nofork --nopidfile\n' >dbus.service
cd /
export container=other
exec /usr/lib/systemd/systemd --system --unit=berth-test.target --log-target=console --show-status=0`
	dir, err := h.OpenDir(path)
	testutil.Must(t, err)
	defer dir.Close()
	cmd := exec.Command("unshare", "--pid", "--mount", "--fork", "--cgroup", "--uts", "--ipc", "--net", "sh", "-c", script)
	cmd.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Setsid: true}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() { testutil.Must(t, h.Kill(context.Background(), path)); _ = cmd.Wait() })
	for range 300 {
		time.Sleep(20 * time.Millisecond)
		pids, err := h.PIDs(path)
		testutil.Must(t, err)
		for _, pid := range pids {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if string(name) != "systemd\n" {
				continue
			}
			in = func(words ...string) *exec.Cmd {
				return exec.CommandContext(t.Context(), "nsenter", append([]string{"-t", strconv.Itoa(pid), "-m", "-p", "-C", "-u", "-i", "--"}, words...)...)
			}
			if state, err := in("systemctl", "is-system-running").Output(); err == nil && string(state) == "running\n" {
				return pid, in
			}
		}
	}
	t.Fatal("systemd doesn't run: " + said.String())
	return 0, nil
}

// systemdTree returns the tree in which a systemd can run.
func systemdTree(t *testing.T) cgroup.Hierarchy {
	t.Helper()
	all := trees(t)
	h := all[len(all)-1]
	for _, program := range []string{"/usr/lib/systemd/systemd", "/usr/bin/systemd-run", "/usr/bin/dbus-daemon", "/usr/bin/nsenter"} {
		if _, err := os.Stat(program); err != nil {
			testutil.SkipOrFail(t, "needs "+program)
		}
	}
	if h.Version != cgroup.V2 {
		testutil.SkipOrFail(t, "needs cgroup v2")
	}
	return h
}

// TestRealSystemd: at a daemon-reload systemd sets the rules that it knows. Rules in a drop-in
// persist, rules that only Apply has set are lost.
func TestRealSystemd(t *testing.T) {
	h := systemdTree(t)
	path := newOuterPath(t, h)
	testutil.Must(t, h.Create(path))
	init, in := bootSystemd(t, h, path)
	reload := func() { t.Helper(); testutil.Must(t, in("systemctl", "daemon-reload").Run()) }
	scope := in("systemd-run", "--scope", "--unit=docker-x.scope", "-p", "DevicePolicy=strict", "-p", "DeviceAllow=/dev/char/195:3 rw", "sleep", "1000")
	testutil.Must(t, scope.Start())
	t.Cleanup(func() { _ = scope.Process.Kill(); _ = scope.Wait() })
	inner := path + "/system.slice/docker-x.scope"
	for range 300 {
		if pids, err := h.PIDs(inner); err == nil && len(pids) > 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	devices := []question{{"c", 195, 3, "rw"}, {"c", 195, 5, "rw"}, {"c", 508, 3, "r"}, {"c", 1, 3, "rw"}}
	p := probe(t, h, inner, devices)
	see := func(when string, want ...bool) {
		t.Helper()
		if got := p.ask(t, devices); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	see("as the runtime asked", true, false, false, false)
	rules := []edits.Rule{denyAll(), allow("c", 195, 5, "rw"), allow("c", 508, every, "r")}
	testutil.Must(t, Apply(h, inner, rules))
	see("applied", false, true, true, true)
	reload()
	see("reloaded, and systemd wasn't told", false, false, false, false)
	testutil.Must(t, Apply(h, inner, rules))
	dir := fmt.Sprintf("/proc/%d/root/run/systemd/system", init)
	unit, ok := UnitOf(strings.TrimPrefix(inner, path))
	if !ok {
		t.Fatal("no unit")
	}
	testutil.Must(t, WriteUnitRules(dir, unit, rules))
	for range 2 {
		reload()
		see("reloaded, and systemd was told", false, true, true, true)
	}
	testutil.Must(t, RemoveUnitFiles(dir, unit))
	if _, err := os.Stat(filepath.Join(dir, unit+".d")); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}
