package packages

import (
	"path/filepath"
	"strings"
	"testing"
)

// The package with the name of NVIDIA's program, which is the same for all architectures.
func nvidiaDeb(version string) string {
	return filepath.Join(shared, "berth-nvidia-container-cli_"+version+"_all.deb")
}

func nvidiaRPM(version string) string {
	return filepath.Join(shared, "berth-nvidia-container-cli-"+version+"-1.noarch.rpm")
}

// nvidiaFiles are the files that the package installs, with type, mode, owner and target.
func nvidiaFiles() map[string]string {
	return map[string]string{
		"/usr/bin/nvidia-container-cli": "l 0777 root:root 5 berth", "/usr/share/man/man1/nvidia-container-cli.1.gz": "l 0777 root:root 10 berth.1.gz",
		"/usr/share/doc/berth-nvidia-container-cli": "l 0777 root:root 5 berth",
	}
}

// checkNVIDIA checks the package's files, and that a user gets answers by berth.
func (h host) checkNVIDIA(before map[string]string, version string) {
	t := h.t
	t.Helper()
	h.checkFiles(before, nvidiaFiles())
	h.do("systemctl", "enable", "--now", "berth-broker.socket")
	for words, want := range map[string]string{
		"nvidia-container-cli --version":                                          "cli-version: " + version + "\nlib-version: " + version + "\n",
		"berth alloc 1 -- nvidia-container-cli list -d all | grep '/nvidia[0-9]'": "/dev/nvidia0\n",
	} {
		if got := h.do("setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups", "sh", "-c", words); got != want {
			t.Errorf("%s prints %q, want %q", words, got, want)
		}
	}
	h.do("systemctl", "disable", "--now", "berth-broker.socket", "berth-broker.service")
}

// TestNVIDIACLIDeb: beside NVIDIA's libnvidia-container-tools dpkg refuses the package. Without it the package gives launchers the program,
// is upgraded with berth, and leaves nothing.
func TestNVIDIACLIDeb(t *testing.T) {
	h := boot(t, "users", "v2")
	h.do("dpkg", "--path-include=/usr/share/*", "-i", deb(older))
	h.do("sh", "-ec", `mkdir -p /tmp/tools/DEBIAN /tmp/tools/usr/bin
printf '#!/bin/sh\n' >/tmp/tools/usr/bin/nvidia-container-cli
printf 'Package: libnvidia-container-tools\nVersion: 1.17.8-1\nArchitecture: all\nMaintainer: a <a@localhost>\nDescription: a\n' >/tmp/tools/DEBIAN/control
dpkg-deb --build /tmp/tools /tmp/tools.deb && dpkg -i /tmp/tools.deb`)
	before := h.files()
	code, said := h.run("dpkg", "-i", nvidiaDeb(older))
	if code == 0 || !strings.Contains(said, "conflicting packages - not installing berth-nvidia-container-cli") {
		t.Errorf("beside NVIDIA's: exit code %d: %s", code, said)
	}
	compare(t, before, h.files(), "")
	h.do("dpkg", "--purge", "libnvidia-container-tools")

	before = h.files()
	h.do("dpkg", "--path-include=/usr/share/*", "-i", nvidiaDeb(older))
	h.checkNVIDIA(before, older)
	h.do("dpkg", "--path-include=/usr/share/*", "-i", deb(newer), nvidiaDeb(newer))
	h.checkNVIDIA(before, newer)
	h.do("dpkg", "-P", "berth-nvidia-container-cli")
	compareNames(t, before, h.files())
}

// TestNVIDIACLIRPM is the same with rpm.
func TestNVIDIACLIRPM(t *testing.T) {
	h := boot(t, "forky", "v2")
	h.do(redhat().install(older)...)
	install := []string{"rpm", "-U", "--nosignature"}
	theirs := h.makeRPM("libnvidia-container-tools", "", "%files\n")
	h.do(append(install, theirs)...)
	before := h.files()
	if code, said := h.run(append(install, nvidiaRPM(older))...); code == 0 || !strings.Contains(said, "conflicts with") {
		t.Errorf("beside NVIDIA's: exit code %d: %s", code, said)
	}
	compare(t, before, h.files(), "")
	h.do("rpm", "-e", "libnvidia-container-tools")

	before = h.files()
	h.do(append(install, nvidiaRPM(older))...)
	h.checkNVIDIA(before, older)
	if code, said := h.run(append(install, theirs)...); code == 0 || !strings.Contains(said, "conflicts with") {
		t.Errorf("NVIDIA's beside berth's: exit code %d: %s", code, said)
	}
	h.do("rpm", "-e", "berth-nvidia-container-cli")
	compareNames(t, before, h.files())
}
