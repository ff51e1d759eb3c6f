package packages

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// The package with Apptainer's names, which is the same for all architectures.
func apptainerDeb(version string) string {
	return filepath.Join(shared, "berth-apptainer_"+version+"_all.deb")
}

func apptainerRPM(version string) string {
	return filepath.Join(shared, "berth-apptainer-"+version+"-1.noarch.rpm")
}

// linkFiles are the files that the package berth-apptainer installs, with type, mode, owner and the target of links.
func linkFiles(zsh string) map[string]string {
	link := func(to string) string { return fmt.Sprintf("l 0777 root:root %d %s", len(to), to) }
	return map[string]string{
		"/usr/bin/apptainer": link("berth"), "/usr/bin/singularity": link("berth"), "/usr/bin/run-singularity": "f 0755 root:root",
		"/usr/share/bash-completion/completions/apptainer": "f 0644 root:root", "/usr/share/bash-completion/completions/singularity": link("apptainer"),
		"/usr/share/fish/vendor_completions.d/apptainer.fish": "f 0644 root:root", "/usr/share/fish/vendor_completions.d/singularity.fish": link("apptainer.fish"),
		"/usr/share/man/man1/apptainer.1.gz": link("berth.1.gz"), "/usr/share/man/man1/singularity.1.gz": link("berth.1.gz"),
		"/usr/share/doc/berth-apptainer": link("berth"), zsh + "/_apptainer": "f 0644 root:root",
	}
}

// TestApptainerDeb: beside Debian's Apptainer dpkg refuses berth-apptainer, and apt removes nothing unasked. Without it the
// package gives users without root the names of Apptainer's programs, is upgraded with berth, keeps berth from being removed, and
// leaves nothing.
func TestApptainerDeb(t *testing.T) {
	h := boot(t, "users", "v2")
	h.makeUser()
	h.do("dpkg", "--path-include=/usr/share/*", "-i", deb(older))
	theirs := h.do("apptainer", "--version")
	before := h.files()
	code, said := h.run("dpkg", "-i", apptainerDeb(older))
	if code == 0 || !strings.Contains(said, "conflicting packages - not installing berth-apptainer") {
		t.Errorf("beside Apptainer: exit code %d: %s", code, said)
	}
	code, said = h.run("apt-get", "--option", "APT::Default-Release=", "--yes", "--no-remove", "install", apptainerDeb(older))
	if code == 0 || !strings.Contains(said, "REMOVED:\n  apptainer\n") {
		t.Errorf("apt, beside Apptainer: exit code %d: %s", code, said)
	}
	compare(t, before, h.files(), "")
	if got := h.do("apptainer", "--version"); got != theirs {
		t.Errorf("a refused installation leaves %s, before %s", got, theirs)
	}

	h.do("dpkg", "--purge", "apptainer")
	before = h.files()
	h.do("dpkg", "--path-include=/usr/share/*", "-i", apptainerDeb(older))
	h.checkLinks(before, linkFiles("/usr/share/zsh/vendor-completions"), older)
	code, said = h.run("dpkg", "-r", "berth")
	if code == 0 || !strings.Contains(said, "berth-apptainer depends on berth (= "+older+")") {
		t.Errorf("berth is removed under the links: exit code %d: %s", code, said)
	}
	h.do("dpkg", "--path-include=/usr/share/*", "-i", deb(newer), apptainerDeb(newer))
	h.checkLinks(before, linkFiles("/usr/share/zsh/vendor-completions"), newer)
	h.do("dpkg", "-P", "berth-apptainer")
	compareNames(t, before, h.files())
}

// TestApptainerRPM is the same with rpm. Fedora's packages of Apptainer provide sif-runtime and conflict with it.
func TestApptainerRPM(t *testing.T) {
	h := boot(t, "forky", "v2")
	h.makeUser()
	h.do(redhat().install(older)...)
	h.do("rpm", "-i", "--nodeps", "--nosignature", h.makeSquashfuse())
	theirs := h.makeRPM("apptainer", "Provides: sif-runtime\nConflicts: sif-runtime\n", "%files\n")
	other := h.makeRPM("singularity-pro-or-another", "Provides: sif-runtime\n", "%files\n")
	install := []string{"rpm", "-U", "--nosignature"}
	for _, name := range []string{theirs, other} {
		h.do(append(install, name)...)
		before := h.files()
		code, said := h.run(append(install, apptainerRPM(older))...)
		if code == 0 || !strings.Contains(said, "conflicts with (installed) berth-apptainer") && !strings.Contains(said, "conflicts with berth-apptainer") {
			t.Errorf("beside %s: exit code %d: %s", name, code, said)
		}
		compare(t, before, h.files(), "")
		h.do("sh", "-c", `rpm -e $(rpm -qp "$0")`, name)
	}

	before := h.files()
	h.do(append(install, apptainerRPM(older))...)
	h.checkLinks(before, linkFiles("/usr/share/zsh/site-functions"), older)
	if out := h.do("rpm", "-V", "berth-apptainer"); out != "" {
		t.Errorf("rpm -V: %s", out)
	}
	code, said := h.run("rpm", "-e", "berth")
	if code == 0 || !strings.Contains(said, "is needed by (installed) berth-apptainer") {
		t.Errorf("berth is removed under the links: exit code %d: %s", code, said)
	}
	h.do("rpm", "-U", "--nodeps", "--nosignature", rpm(newer), apptainerRPM(newer))
	h.checkLinks(before, linkFiles("/usr/share/zsh/site-functions"), newer)
	if code, said := h.run(append(install, theirs)...); code == 0 || !strings.Contains(said, "conflicts with") {
		t.Errorf("Apptainer beside the links: exit code %d: %s", code, said)
	}
	h.do("rpm", "-e", "berth-apptainer")
	compareNames(t, before, h.files())
}

// makeUser makes the home directory of a user, ann, with an image. The user has no name, since not every server has useradd. FUSE is open to users as udev makes it.
func (h host) makeUser() {
	h.t.Helper()
	if out, err := exec.Command("../image/make.sh").CombinedOutput(); err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	image := rig.MakeSIF(h.t, "busybox", map[string]string{".singularity.d/runscript": "#!/bin/sh\necho run \"$@\"\n"})
	testutil.Must(h.t, exec.Command("cp", image, filepath.Join(shared, "image.sif")).Run())
	h.do("sh", "-ec", `chmod 666 /dev/fuse
mkdir /home/ann
chown 4711:4711 /home/ann
install -o 4711 -m 755 "$0"/image.sif /home/ann/image.sif`, shared)
}

// checkLinks checks the package's files, and that its programs are berth's.
func (h host) checkLinks(before, placed map[string]string, version string) {
	t := h.t
	t.Helper()
	h.checkFiles(before, placed)
	h.do("systemctl", "enable", "--now", "berth-broker.socket")
	const opens = `for n in 0 1 2 3 4 5 6 7; do [ -e /dev/nvidia$n ] && printf %s $n; done; echo`
	for _, tt := range []struct{ words, want string }{
		{"apptainer exec image.sif true", ""},
		{"singularity exec image.sif id -u", "4711\n"},
		{"apptainer --silent exec image.sif sh -c '" + opens + "'", "\n"},
		{"apptainer exec --nv image.sif sh -c '" + opens + "'", "0\n"},
		{"./image.sif a 'b c'", "run a b c\n"},
		{"berth --version", "berth version " + version + "\n"},
		{"bash --norc -c '. /usr/share/bash-completion/completions/singularity; compopt() { :; }; COMP_WORDS=(singularity exe) COMP_CWORD=1; _berth_apptainer; echo $COMPREPLY'", "exec\n"},
		{"gzip -dc /usr/share/man/man1/singularity.1.gz | grep -c '^.TH berth 1'", "1\n"},
		{"ls /usr/share/doc/berth-apptainer/copyright", "/usr/share/doc/berth-apptainer/copyright\n"},
	} {
		if got := h.do("setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups", "env", "-C", "/home/ann", "HOME=/home/ann", "sh", "-c", tt.words); got != tt.want {
			t.Errorf("%s prints %q, want %q", tt.words, got, tt.want)
		}
	}
	// The broker is again as it was after the installation, and the image's mount and the user's own files are gone.
	h.do("systemctl", "disable", "--now", "berth-broker.socket", "berth-broker.service")
	h.until("sh", "-c", "! grep -l squashfuse_ll /proc/[0-9]*/comm")
	h.do("rm", "-rf", "/home/ann/.local")
}

// checkFiles checks the files that a package has installed.
func (h host) checkFiles(before, placed map[string]string) {
	h.t.Helper()
	installed := h.files()
	for path, want := range placed {
		if got := installed[path]; !strings.HasPrefix(got, want) {
			h.t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	for path := range installed {
		if _, there := before[path]; !there && placed[path] == "" && !isIgnored(path) && !isMade(path) {
			h.t.Errorf("the package installs %s", path)
		}
	}
}

// compareNames compares the names of files before and after, and contents where they are links or files of Apptainer's names.
func compareNames(t *testing.T, before, after map[string]string) {
	t.Helper()
	for path := range after {
		if _, there := before[path]; !there && !isIgnored(path) && !isMade(path) {
			t.Errorf("it leaves %s", path)
		}
	}
	for path := range before {
		if _, there := after[path]; !there {
			t.Errorf("it removes %s", path)
		}
	}
}

// makeRPM makes a package in the server, and returns its path.
func (h host) makeRPM(name, head, tail string) string {
	h.t.Helper()
	return strings.TrimSpace(h.do("sh", "-ec", `mkdir -p /tmp/rpm
cat >/tmp/rpm/"$0".spec <<END
Name: $0
Version: 1.0
Release: 1
Summary: $0
License: none
BuildArch: noarch
$1
%description
%install
$2
END
cd /tmp/rpm && rpmbuild -bb --quiet --nodeps --define '_topdir /tmp/rpm' --define '_binaries_in_noarch_packages_terminate_build 0' "$0".spec >log 2>&1 || { cat log >&2; exit 1; }
ls /tmp/rpm/RPMS/noarch/"$0"-1.0-1*.rpm`, name, head, tail))
}

// makeSquashfuse makes an rpm of Debian's squashfuse with its libraries, from the tree that has it.
func (h host) makeSquashfuse() string {
	h.t.Helper()
	tree, err := rack.Tree("users")
	testutil.Must(h.t, err)
	const pack = `mkdir -p "$1"/squashfuse && cd "$0" && tar -c usr/bin/squashfuse_ll usr/lib/*/libsquashfuse* usr/lib/*/libfuse3* usr/lib/*/liblzo2* | tar -x -C "$1"/squashfuse`
	if out, err := exec.Command("sh", "-ec", pack, tree, shared).CombinedOutput(); err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	path := h.makeRPM("squashfuse", "AutoReqProv: no\n", "cp -a "+shared+"/squashfuse/usr %{buildroot}\n%files\n/usr\n")
	return path
}
