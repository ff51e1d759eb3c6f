package packages

import (
	"strings"
	"testing"
)

// AppArmor 4 reads the package's profile: at boot, and when the package is installed or AppArmor is upgraded. AppArmor 3, which
// can't read it, finds none. An admin's own profile stays, and the removal leaves nothing.
func TestAppArmor(t *testing.T) {
	skipUnlessWanted(t)
	for _, test := range []struct {
		name, suite string
		manager     manager
		reads       bool // AppArmor can read the profile
	}{
		{"AppArmor 3", "bookworm", dpkg(), false},
		{"AppArmor 4", "forky", dpkg(), true},
		{"AppArmor 4 rpm", "forky", redhat(), true},
	} {
		t.Run(test.name, func(t *testing.T) { testAppArmor(boot(t, test.suite, "v2"), test.manager, test.reads) })
	}
}

func testAppArmor(h host, m manager, reads bool) {
	const packaged, used = "/usr/share/berth/apparmor.d/berth", "/etc/apparmor.d/berth"
	t := h.t
	const fake = "/run/apparmor-of-the-kernel"
	// The machine's kernel has no AppArmor. The parser is real, but for what it would tell the kernel.
	h.do("sh", "-c", `parser=$(command -v apparmor_parser) && mv $parser /run/parser && mkdir -p `+fake+`/apparmor && touch `+fake+`/apparmor/.remove &&
printf '#!/bin/sh\nwhile [ $# -gt 1 ]; do [ $1 != --replace ] || echo "$*" >>`+fake+`/loaded; shift; done\nexec /run/parser --skip-kernel-load --skip-cache "$1"\n' >$parser && chmod 755 $parser &&
mount --bind `+fake+` /sys/kernel/security`)
	loaded := func() string {
		return strings.TrimSpace(h.do("sh", "-c", "cat "+fake+"/loaded 2>/dev/null; rm -f "+fake+"/loaded"))
	}
	// want checks that the profile is linked or not, whether it was loaded, and that AppArmor reads all profiles, as at boot.
	want := func(when string, linked bool) {
		t.Helper()
		link, load := "", ""
		if linked {
			link, load = packaged, "--replace --skip-cache "+used
		}
		if got := strings.TrimSpace(h.do("sh", "-c", "readlink "+used+" || ! ls "+used+" 2>/dev/null")); got != link {
			t.Errorf("%s: the profile is %q, want %q", when, got, link)
		}
		if got := loaded(); got != load {
			t.Errorf("%s: loaded: %q, want %q", when, got, load)
		}
		if code, said := h.run("/run/parser", "--skip-kernel-load", "--skip-cache", "/etc/apparmor.d"); code != 0 {
			t.Errorf("%s: at boot AppArmor fails: %s", when, said)
		}
	}
	h.do(m.install(older)...)
	want("installed", reads)
	h.do(m.upgrade(newer)...)
	want("upgraded", reads)
	if m.purge != nil {
		h.do("rm", "-f", used)
		h.do("sh", "-c", "dpkg-trigger --by-package=apparmor /etc/apparmor.d/abi && dpkg --triggers-only berth")
		want("another AppArmor", reads)
	}
	h.do(m.remove...)
	want("removed", false)
	if got := h.do("cat", fake+"/apparmor/.remove"); got != map[bool]string{true: "berth"}[reads] {
		t.Errorf("unloaded: %q", got)
	}
	h.do("sh", "-c", "echo '# mine' >"+used)
	h.do(m.install(newer)...)
	h.do(m.remove...)
	if m.purge != nil {
		h.do(m.purge...)
	}
	if got := h.do("cat", used); got != "# mine\n" {
		t.Errorf("an admin's profile is %q", got)
	}
	h.do("rm", used)
	loaded()

	// Without AppArmor nothing is made.
	h.do("sh", "-c", "rm $(command -v apparmor_parser)")
	h.do(m.install(newer)...)
	want("without AppArmor", false)
}
