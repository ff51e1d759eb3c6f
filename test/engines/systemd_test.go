package engines

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// Docker with the systemd cgroup driver, under a real systemd: closed devices stay closed when
// systemd writes its rules again, and leased ones stay open.
func TestSystemd(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on hosts of its own
	h := startWith(t, rack.Options{Cgroup: "v2", Systemd: true}, "-systemd", "forky")
	d := &dockerHost{server: server{h}, runtime: "berth", request: func(gpus string) []string { return []string{"--device", "berth/gpus=" + gpus} }}
	d.write(t, "/etc/docker/daemon.json", `{"iptables": false, "ip6tables": false, "bridge": "none", "exec-opts": ["native.cgroupdriver=systemd"], "runtimes": {"berth": {"path": "`+program("berth")+`"}}}`)
	d.do(t, "systemctl", "restart", "docker")
	d.do(t, "sh", "-c", `tar -C "$0" -c . | docker import - test`, image)
	if driver := strings.TrimSpace(d.do(t, "docker", "info", "--format", "{{.CgroupDriver}}")); driver != "systemd" {
		t.Fatalf("docker's cgroup driver is %s", driver)
	}
	d.do(t, "docker", "run", "--rm", "--network", "none", "--runtime", "berth", "--cap-add", "SYS_ADMIN", "test", "/probe")
	d.takeGPUs(t, 1)()
	d.do(t, "sh", "-c", "systemctl stop netavark-dhcp-proxy.socket netavark-dhcp-proxy.service 2>/dev/null || true") // ends at any time
	units := func() []string {
		return strings.Split(d.do(t, "sh", "-c", "systemctl list-units --all --plain --no-legend '*berth*' 'docker-*' '*.slice'; ls /run/systemd/system /run/systemd/transient"), "\n")
	}
	before, beforeUnits := d.footprint(t), units()
	for _, tt := range []struct {
		name, runtime string
		words         []string
	}{
		{"plain", "berth", nil},
		{"who could lift rules", "berth", []string{"--cap-add", "SYS_ADMIN"}},
		{"privileged", "berth", []string{"--privileged"}},
		{"in a slice", "berth", []string{"--cgroup-parent", "tenants.slice"}},
		{"by the hook", "runc", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d.runtime = tt.runtime
			a, b := d.startContainer(t, "2", tt.words...), d.startContainer(t, "1", append(tt.words, "--restart", "always")...)
			had := map[string][]string{a: d.checkLease(t, a), b: d.checkLease(t, b)}
			if slices.Contains(tt.words, "SYS_ADMIN") {
				got := d.askProbe(t, []string{"detach /sys/fs/cgroup"}, "docker", "exec", "--interactive", a, "/climb")
				if got[0] != "1 detached" {
					t.Errorf("the container takes off its rules: %s", got[0])
				}
			}
			for _, words := range [][]string{
				{"true"},
				{"systemctl", "daemon-reload"},
				{"systemctl", "daemon-reexec"},
				{"systemctl", "set-property", "--runtime", "docker-" + a + ".scope", "TasksMax=1000"},
				{"systemctl", "daemon-reload"},
				{"docker", "update", "--restart", "no", a},
			} {
				d.do(t, words...)
				if diff := cmp.Diff(had, map[string][]string{a: d.checkLease(t, a), b: d.checkLease(t, b)}); diff != "" {
					t.Errorf("GPUs after %v (-before +after):\n%s", words, diff)
				}
			}
			d.waitForHeld(t, map[string]int{a: 2, b: 1})
			d.do(t, "systemctl", "kill", "--signal", "KILL", "docker-"+b+".scope")
			d.waitForState(t, b, "RestartCount", "1")
			d.waitForState(t, b, "State.Status", "running")
			d.waitForHeld(t, map[string]int{a: 2, b: 1})
			d.checkLease(t, b)
			d.do(t, "sh", "-c", "systemctl reset-failed docker && systemctl restart docker") // the name has the number of the start
			d.waitForState(t, a, "State.Running", "false")
			d.waitForState(t, b, "State.Running", "true")
			d.waitForHeld(t, map[string]int{b: 1})
			d.checkLease(t, b)
			d.removeAll(t)
			d.do(t, "sh", "-c", "systemctl stop tenants.slice 2>/dev/null || true") // systemd leaves it
			if tt.runtime != "berth" {
				d.takeGPUs(t, 1)() // without the wrapper, the next acquire removes the leases of ended containers
				// The next container's start removes the drop-ins of earlier ones.
				left := strings.Fields(d.do(t, "sh", "-c", "cd /run/systemd/system; ls -d docker-*.scope.d; rm -r docker-*.scope.d"))
				if len(left) != 1 {
					t.Errorf("systemd still knows %v", left)
				}
			}
			d.waitUntilFree(t, before)
			eventually(t, func() string { return diffOf("units (-before +after):\n", beforeUnits, units()) })
		})
	}
}

// The same with containerd, on both versions of cgroups.
func TestSystemdContainerd(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on hosts of its own
	for _, on := range []struct{ suite, cgroup string }{{"forky", "v2"}, {"bookworm", "v1"}} {
		t.Run(on.suite+"/"+on.cgroup, func(t *testing.T) {
			c := &ctrHost{server: server{startWith(t, rack.Options{Cgroup: on.cgroup, Systemd: true}, "-systemd-containerd", on.suite)}}
			c.root = filepath.Join(c.dir, "root")
			rig.Must(t, os.CopyFS(c.root, os.DirFS(image)))
			c.until(t, "ctr", "version")
			id := newID()
			words := c.words(id, "2", "--runc-systemd-cgroup", "--cgroup", "system.slice:test:"+id)
			c.do(t, words...)
			had := c.checkLease(t, id)
			for _, words := range [][]string{
				{"systemctl", "daemon-reload"},
				{"systemctl", "set-property", "--runtime", "test-" + id + ".scope", "TasksMax=1000"},
				{"systemctl", "daemon-reload"},
				{"systemctl", "restart", "containerd"},
			} {
				c.do(t, words...)
				c.until(t, "ctr", "version")
				if diff := cmp.Diff(had, c.checkLease(t, id)); diff != "" {
					t.Errorf("GPUs after %v (-before +after):\n%s", words, diff)
				}
			}
			c.do(t, "systemctl", "stop", "test-"+id+".scope")
			c.waitForHeld(t, map[string]int{})
			c.waitForStatus(t, id, "STOPPED")
			c.removeTask(t, id)
			eventually(t, func() string {
				if left := c.leases(t); len(left) > 0 {
					return fmt.Sprintf("leases are left: %+v", left)
				}
				return ""
			})
		})
	}
}
