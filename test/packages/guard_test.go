package packages

import (
	"slices"
	"strings"
	"testing"
)

// The device guard as a unit of systemd: users open no GPU, containers of docker, whose cgroups
// systemd makes, open their lease's, and exempt services open all.
func TestDeviceGuard(t *testing.T) {
	h := boot(t, "forky", "v2")
	h.do(dpkg().install(older)...)
	h.do("sed", "-i", `s/^runtime = .*/runtime = "runc"/; s!^exempt = .*!exempt = ["/system.slice/exporter.service"]!`, "/etc/berth/config.toml")
	h.do("berth", "setup", "docker")
	h.do("systemctl", "restart", "docker")
	h.do("sh", "-c", `tar -C "$0" -c . | docker import - test`, shared+"/image")

	const open = `for i in 0 1 2 3 4 5 6 7; do case $( (: </dev/nvidia$i) 2>&1) in *"No such device or address"*) printf %s $i;; esac; done; echo .`
	user := []string{"setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups", "sh", "-c", open}
	want := func(what, got, want string) {
		t.Helper()
		if got = strings.TrimSpace(got); got != want+"." {
			t.Errorf("%s opens GPUs %q, want %q", what, got, want+".")
		}
	}
	want("a user without the guard", h.do(user...), "01234567")
	h.do("systemctl", "enable", "--now", "berth-guard.service")
	want("a user", h.do(user...), "")
	want("a user's service", h.do("systemd-run", "--quiet", "--pipe", "--wait", "--expand-environment=no", "--uid", "nobody", "sh", "-c", open), "")
	want("root's service", h.do("systemd-run", "--quiet", "--pipe", "--wait", "--expand-environment=no", "sh", "-c", open), "01234567")
	want("alloc", h.do("berth", "alloc", "2", "--", "sh", "-c", open), "01")

	h.do("systemctl", "enable", "--now", "berth-broker.socket")
	asUser := append(slices.Clone(user[:6]), "berth", "alloc", "2", "--", "sh", "-c", open)
	want("a user's alloc", h.do(asUser...), "01")
	h.do("systemctl", "kill", "--signal", "KILL", "berth-broker.service")
	want("a user's alloc with the next broker", h.do(asUser...), "01")
	want("a user's service with alloc", h.do("systemd-run", "--quiet", "--pipe", "--wait", "--expand-environment=no", "--uid", "nobody", "berth", "alloc", "1", "--", "sh", "-c", open), "0")
	want("a user afterwards", h.do(user...), "")
	if got := h.do("sh", "-c", "journalctl --quiet --unit berth-broker --output cat | grep -E 'level=|berth-broker:' || true"); got != "" {
		t.Errorf("the broker has logged %s", got)
	}

	docker := []string{"docker", "run", "--rm", "-i", "--network", "none", "--volume", "/dev:/nodes"}
	opens, end := h.container(append(docker, "--runtime", "berth", "--annotation", "berth.gpus=2", "test", "/probe")...)
	if got := opens(); got != "01" {
		t.Errorf("a container with two GPUs opens %q", got)
	}
	h.do("systemctl", "daemon-reload")
	if got := opens(); got != "01" {
		t.Errorf("after daemon-reload it opens %q", got)
	}
	other, endOther := h.container(append(docker, "--runtime", "runc", "--privileged", "test", "/probe")...)
	if got := other(); got != "" {
		t.Errorf("a privileged container of runc opens %q", got)
	}
	endOther()
	end()
	h.do("systemd-run", "--quiet", "--unit", "exporter", "--uid", "nobody", "sleep", "1000")
	h.do("systemctl", "reload", "berth-guard.service")
	want("an exempt service", h.do("sh", "-c", "echo $$ >/sys/fs/cgroup/system.slice/exporter.service/cgroup.procs; exec "+strings.Join(user[:6], " ")+" sh -c '"+open+"'"), "01234567")

	h.do("systemctl", "stop", "berth-guard.service")
	want("a user without the guard again", h.do(user...), "01234567")
	h.do("systemctl", "start", "berth-guard.service")
	h.do("systemctl", "stop", "exporter")
	h.do("berth", "setup", "docker", "--remove")
	h.do(dpkg().remove...)
	want("a user when berth is gone", h.do(user...), "01234567")
}
