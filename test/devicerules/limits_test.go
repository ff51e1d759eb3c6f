package devicerules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// The tests below show the limits of a container's own rules. They assert nothing that isn't
// promised: if one of them fails, the documentation has to change.

// With CAP_SYS_ADMIN and access to its cgroup a container lifts its own rules: on cgroup v2 it
// detaches its device program, on v1 it writes to devices.allow. Until then the rules hold.
func TestAdministratorInside(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		spec := requesting(w.listedSpec(t), "1")
		c := spec.Process.Capabilities
		for _, set := range []*[]string{&c.Bounding, &c.Permitted, &c.Effective} {
			*set = append([]string{"CAP_SYS_ADMIN"}, *set...)
		}
		spec.Mounts = append(spec.Mounts, bind("/sys/fs/cgroup", "/cgroup"))
		admin := create(t, w, w.configure(t, ""), spec)
		admin.checkNoMknod()
		admin.checkDevices("before it lifts the rules", ways{own: w.nodesOfLease(t, admin.lease()), bound: true, fuse: true})
		command := "detach /cgroup/" + admin.id
		if w.State.Cgroup == "v1" {
			command = "allow /cgroup/devices/" + admin.id
		}
		t.Logf("%s: %s", command, admin.ask(command)[0])
		tries := admin.attempts()
		count := map[string]int{}
		for i, answer := range admin.ask(commandsOf(tries)...) {
			if strings.HasPrefix(tries[i].command, "open") {
				count[answer]++
			}
		}
		t.Logf("opening then answers: %v", count)
	})
}

// A container without a request and without accelerators has an outer cgroup if it could lift its
// own rules. Its filter refuses the call by which it would leave the cgroup.
func TestAdministratorWithoutAccelerators(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		spec := w.plainSpec(t)
		c := spec.Process.Capabilities
		for _, set := range []*[]string{&c.Bounding, &c.Permitted, &c.Effective} {
			*set = append([]string{"CAP_SYS_ADMIN"}, *set...)
		}
		spec.Linux.Seccomp = &specs.LinuxSeccomp{
			DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64},
			Syscalls: []specs.LinuxSyscall{{Names: []string{"fanotify_init"}, Action: specs.ActAllow}, {Names: []string{"acct"}, Action: specs.ActErrno}},
		}
		admin := create(t, w, w.configure(t, ""), spec)
		pid, err := os.ReadFile(admin.bundle + "/pid")
		rig.Must(t, err)
		groups, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cgroup")
		rig.Must(t, err)
		if !regexp.MustCompile(`/berth-\d+\.\d+-[0-9a-f]{8}/` + admin.id).Match(groups) {
			t.Errorf("nothing is around its cgroup:\n%s", groups)
		}
		if got := admin.ask("watch")[0]; got != "EPERM" {
			t.Errorf("fanotify_init: %s", got)
		}
		admin.delete()
	})
}

// An update with device rules: runc ignores the rules, and crun would replace the container's rules
// with them if the wrapper didn't remove them. (docker update and podman update send none;
// containerd's CRI plugin sends those of its own spec.)
func TestUpdateWithDevices(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		c := create(t, w, w.configure(t, ""), requesting(w.listedSpec(t), "1"))
		x := ways{own: w.nodesOfLease(t, c.lease()), bound: true, fuse: true}
		file := filepath.Join(t.TempDir(), "resources")
		rig.Must(t, os.WriteFile(file, []byte(`{"devices":[{"allow":true,"access":"rwm"}]}`), 0o600))
		said := c.act("update", "--resources", file, c.id)
		if said.Code != 0 {
			t.Errorf("update: %+v", said)
		}
		c.checkDevices("after an update with rules", x)
	})
}
