package broker

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestForbiddenNamespaces: where users can't make user namespaces, berth run and berth doctor name the switch that forbids it and
// what root does about it.
func TestForbiddenNamespaces(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	forbid, err := shared.Compile("forbid", "testdata/forbid.c")
	rig.Must(t, err)
	const (
		debian   = "kernel/unprivileged_userns_clone"
		apparmor = "kernel/apparmor_restrict_unprivileged_userns"
		outside  = "call berth outside of that container or service, or have the filter allow clone and unshare with CLONE_NEWUSER"
	)
	profile := "kernel.apparmor_restrict_unprivileged_userns is 1, and no AppArmor profile allows them to " + n.Berth
	install := "install berth's package, which has a profile for /usr/bin/berth, or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	for _, c := range []struct{ name, how, files, reason, fix string }{
		{"limit of 0", "limit", "", "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000"},
		{"Debian's switch", "clone", debian + "=0", "kernel.unprivileged_userns_clone is 0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"AppArmor without a namespace", "profile", apparmor + "=1", profile, install},
		{"AppArmor without capabilities", "capability", apparmor + "=1", profile, install},
		{"AppArmor without mounts", "mount", apparmor + "=1", profile, install},
		{"a filter", "clone", debian + "=1", "a system call filter (seccomp) around this process forbids them, as those of container engines do", outside},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node{n.Node, t}
			// sysctl/KEY=VALUE are the machine's sysctls and those of other kernels.
			script := `[ -z "$0" ] || { cp -r /proc/sys/kernel $PWD/kernel 2>/dev/null; echo ${0#*=} >${0%=*} && mount --bind kernel /proc/sys/kernel; }; exec "$@"`
			around := func(words ...string) rig.Said {
				words = append([]string{"--mount", "--wd=" + t.TempDir(), "sh", "-c", script, c.files, forbid, c.how}, words...)
				return n.Run(t, n.Command("unshare", words...))
			}
			for _, words := range [][]string{{"run", rig.ImagePath(t, "busybox"), "true"}, {"pull", rig.ImagePath(t, "busybox")}, {"ps"}} {
				n.wantSaid("berth "+words[0], around(as(alice, h.words(words...)...)...),
					rig.Said{Code: 125, Err: "berth: users of this machine can't make user namespaces, which tasks without root need: " + c.reason + "; fix: " + c.fix + "\n"})
			}
			for who, words := range map[string][]string{"root": {n.Berth, "doctor", "--json"}, "alice": as(alice, h.words("doctor", "--json")...)} {
				var all []struct{ ID, State, Text, Fix string }
				rig.Decode(t, around(words...).Out, &all)
				found := ""
				for _, f := range all {
					if f.ID == "rootless" {
						found += f.State + ": " + f.Text + "; fix: " + f.Fix
					}
				}
				if want := "warning: users can't make user namespaces, which berth run and podman need without root: " + c.reason + "; fix: " + c.fix; found != want {
					t.Errorf("doctor of %s says %q, want %q", who, found, want)
				}
			}
		})
	}
	n.Do(t, "sh", "-c", `mkdir /run/private && cp "$0" /run/private && chmod 700 /run/private/berth`, n.Berth)
	t.Cleanup(func() { n.Do(t, "rm", "-r", "/run/private") })
	if got := n.Run(t, n.Command("/run/private/berth", "doctor")).Out; !strings.Contains(got, "can't be tried: ordinary users can't execute /run/private/berth; fix: install berth where users may execute it") {
		t.Errorf("with a program of root's alone doctor says %s", got)
	}
	if got := h.berth("doctor").Out; !strings.Contains(got, "users may make user namespaces") {
		t.Errorf("otherwise doctor says %s", got)
	}
	h.wantClean()
}
