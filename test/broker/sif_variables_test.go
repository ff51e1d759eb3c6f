package broker

import (
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestSIFVariables: Apptainer's environment variables are its flags, by both prefixes and by the second names that some have. The command line comes first,
// and a variable for a flag that berth refuses is refused.
func TestSIFVariables(t *testing.T) {
	h, image := sifHome(t, nil)
	for _, tt := range []struct {
		what      string
		variables []string
		words     []string
		want      rig.Said
	}{
		{"nvccli", []string{"APPTAINER_NVCCLI=1"}, []string{image, "sh", "-c", openNodes}, rig.Said{Out: "0\n"}},
		{"a false value", []string{"SINGULARITY_NV=false"}, []string{image, "sh", "-c", openNodes}, rig.Said{Out: "\n"}},
		{"fakeroot", []string{"SINGULARITY_FAKEROOT=yes"}, []string{image, "id", "-u"}, rig.Said{Out: "0\n"}},
		{"dns", []string{"APPTAINER_DNS=1.2.3.4,::1"}, []string{image, "cat", "/etc/resolv.conf"}, rig.Said{Out: "nameserver 1.2.3.4\nnameserver ::1\n"}},
		{"host name", []string{"APPTAINER_HOSTNAME=other"}, []string{image, "hostname"}, rig.Said{Out: "other\n"}},
		{"the flag comes first", []string{"APPTAINER_HOSTNAME=other"}, []string{"--hostname", "first", image, "hostname"}, rig.Said{Out: "first\n"}},
		{"scratch", []string{"APPTAINER_SCRATCHDIR=/a,/b"}, []string{image, "sh", "-c", "touch /a/x /b/x"}, rig.Said{}},
		{"no mount", []string{"APPTAINER_NO_MOUNT=tmp,home,cwd"}, []string{"--pwd", "/", image, "ls", "/tmp"}, rig.Said{}},
		{"overlay", []string{"APPTAINER_OVERLAYIMAGE=/nosuch"}, []string{image, "true"}, rig.Said{Code: 255, Err: "berth: --overlay: stat /nosuch: no such file or directory\n"}},
		{"writable", []string{"APPTAINER_WRITABLE=1"}, []string{image, "true"}, rig.Said{Code: 255, Err: "berth: --writable: SIF files and images of the store never change; --writable-tmpfs keeps changes in memory\n"}},
		{"umask", []string{"APPTAINER_NO_UMASK=1"}, []string{image, "sh", "-c", "umask"}, rig.Said{Out: "0022\n"}},
		{"refused", []string{"APPTAINER_KEEP_PRIVS=1"}, []string{image, "true"}, rig.Said{Code: 255, Err: "berth: --keep-privs: a process of an image has no rights that its user hasn't\n"}},
		{"no address", []string{"APPTAINER_DNS=nosuch"}, []string{image, "true"}, rig.Said{Code: 255, Err: "berth: --dns nosuch: it is no IP address\n"}},
		{"no such mount", nil, []string{"--no-mount", "nosuch,/etc/hosts", image, "true"}, rig.Said{Err: "berth: --no-mount nosuch: there is no such mount: the names are proc, sys, dev, devpts, tmp, home, cwd, hostfs, bind-paths\n"}},
		{"no such mount, with processes of its own", nil, []string{"--pid", "--no-mount", "nosuch", image, "true"}, rig.Said{Err: "berth: --no-mount nosuch: there is no such mount: the names are proc, sys, dev, devpts, tmp, home, cwd, hostfs, bind-paths\n"}},
	} {
		words := append(append([]string{"env"}, tt.variables...), h.apptainer(append([]string{"exec"}, tt.words...)...)...)
		h.wantSaid(tt.what, h.run(alice, append([]string{"sh", "-c", `umask 027; exec "$@"`, "sh"}, words...)...), tt.want)
	}
}
