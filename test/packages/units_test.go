package packages

import (
	"strings"
	"testing"
)

// The timer notices a change of the MIG layout, which makes no event, and renews snapshot and CDI
// specs. Each minute is a second here. No number of starts is too many for systemd.
func TestTimer(t *testing.T) {
	h := boot(t, "forky", "v2")
	h.do(dpkg().install(older)...)
	h.do("berth", "cdi", "generate")
	h.do("sh", "-c", `mkdir /etc/systemd/system/berth-discover.timer.d && printf '[Timer]\nOnCalendar=\nOnCalendar=*:*:*\nAccuracySec=100ms\n' >/etc/systemd/system/berth-discover.timer.d/fast.conf &&
		systemctl daemon-reload && systemctl restart berth-discover.timer`)
	if spec := h.do("sh", "-c", "cat /etc/cdi/*berth*"); strings.Contains(spec, "1g.10gb") {
		t.Fatalf("before any slice there is %s", spec)
	}
	for range 8 { // as udev does, for each GPU
		h.do("systemctl", "start", "berth-discover.service")
	}
	h.do("/src/simnode", "ctl", "mig", "0", "1g.10gb,1g.10gb")
	h.until("grep", "-q", "1g.10gb", "/run/berth/inventory.json")
	h.until("sh", "-c", "grep -q 1g.10gb /etc/cdi/*berth*")
	// systemd itself logs each second that a machine has no pids controller
	said := h.do("sh", "-c", "journalctl --no-pager --quiet --unit berth-discover.service | grep -v pids.max || true")
	if strings.Count(said, "\n") > 4 {
		t.Errorf("the journal fills with %s", said)
	}
}

// On a server without a driver nothing fails, and containers and tasks are looked after all the
// same.
func TestNoDriver(t *testing.T) {
	h := boot(t, "bookworm", "v2")
	h.do("sh", "-c", "while busybox umount /proc/driver/nvidia /proc/driver 2>/dev/null || busybox umount /proc/driver 2>/dev/null; do :; done; [ ! -e /proc/driver/nvidia/version ]")
	h.do(dpkg().install(older)...)
	h.do("systemctl", "start", "berth-discover.service")
	if failed := h.do("systemctl", "list-units", "--failed", "--no-legend"); failed != "" {
		t.Errorf("failed: %s", failed)
	}
	if got := h.do("systemctl", "show", "--property=ConditionResult,Result,ExecMainStatus", "berth-discover.service"); got != "Result=success\nExecMainStatus=0\nConditionResult=yes\n" {
		t.Error(got)
	}
}

// Docker with systemd's cgroups: a daemon-reload, at which systemd writes its device rules again,
// closes no leased GPU and opens no other.
func TestDaemonReload(t *testing.T) {
	h := boot(t, "forky", "v2")
	h.do(dpkg().install(older)...)
	// crun wants the controller io, which a machine that binds it to version 1 lacks on 2.
	h.do("sed", "-i", `s/^runtime = .*/runtime = "runc"/`, "/etc/berth/config.toml")
	h.do("berth", "setup", "docker")
	h.do("systemctl", "daemon-reload")
	h.do("systemctl", "restart", "docker")
	if got := h.do("docker", "info", "--format", "{{.CgroupDriver}} {{.CgroupVersion}}"); got != "systemd 2\n" {
		t.Fatalf("docker's cgroups are by %s", got)
	}
	h.do("sh", "-c", `tar -C "$0" -c . | docker import - test`, shared+"/image")
	opens, _ := h.container("docker", "run", "--rm", "-i", "--network", "none", "--runtime", "berth", "--annotation", "berth.gpus=2",
		"--volume", "/dev:/nodes", "test", "/probe")
	had := opens()
	if len(had) != 2 {
		t.Fatalf("a container with two GPUs opens %q", had)
	}
	for range 3 {
		h.do("systemctl", "daemon-reload")
		if got := opens(); got != had {
			t.Errorf("after daemon-reload it opens %q, before %q", got, had)
		}
	}
	h.do("systemctl", "daemon-reexec")
	if got := opens(); got != had {
		t.Errorf("after daemon-reexec it opens %q, before %q", got, had)
	}
}
