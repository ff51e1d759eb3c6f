package packages

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// manager has the commands of a package manager.
type manager struct {
	install, upgrade func(version string) []string
	remove, purge    []string // purge is nil if the manager has none
	completion       string   // zsh's directory of completions
	stays            string   // files that a removal leaves
}

func dpkg() manager {
	install := func(version string) []string {
		return []string{"dpkg", "--path-include=/usr/share/*", "-i", deb(version)}
	}
	return manager{install, install, []string{"dpkg", "-r", "berth"}, []string{"dpkg", "-P", "berth"}, "/usr/share/zsh/vendor-completions/_berth", ""}
}

func redhat() manager {
	return manager{
		func(version string) []string { return []string{"rpm", "-i", "--nodeps", "--nosignature", rpm(version)} },
		func(version string) []string { return []string{"rpm", "-U", "--nodeps", "--nosignature", rpm(version)} },
		[]string{"rpm", "-e", "berth"},
		nil, "/usr/share/zsh/site-functions/_berth", "/var/lib/berth",
	}
}

// packageFiles are the files that a package installs, with type and mode.
func packageFiles(m manager) map[string]string {
	all := map[string]string{"/etc/berth": "d 0755", "/usr/lib/berth": "d 0755", "/usr/share/berth": "d 0755", "/usr/share/berth/hooks.d": "d 0755", "/usr/share/berth/apparmor.d": "d 0755", "/usr/share/doc/berth": "d 0755"}
	for _, name := range []string{"berth", "berth-runtime", "berth-hook", "berth-broker"} {
		all["/usr/bin/"+name] = "f 0755"
	}
	for _, name := range []string{"berth-nvml", "berth-monitor", "berth-containerd"} {
		all["/usr/lib/berth/"+name] = "f 0755"
	}
	for _, name := range []string{
		"/etc/berth/config.toml", m.completion,
		"/usr/lib/systemd/system/berth-discover.service", "/usr/lib/systemd/system/berth-discover.timer",
		"/usr/lib/systemd/system/berth-guard.service",
		"/usr/lib/systemd/system/berth-broker.socket", "/usr/lib/systemd/system/berth-broker.service",
		"/usr/lib/udev/rules.d/71-berth.rules", "/usr/lib/tmpfiles.d/berth.conf",
		"/usr/share/bash-completion/completions/berth", "/usr/share/fish/vendor_completions.d/berth.fish",
		"/usr/share/berth/apparmor.d/berth", "/usr/share/berth/hooks.d/berth-precreate.json", "/usr/share/berth/hooks.d/berth-poststop.json",
		"/usr/share/man/man1/berth.1.gz", "/usr/share/man/man5/berth-config.5.gz",
		"/usr/share/man/man8/berth-runtime.8.gz", "/usr/share/man/man8/berth-hook.8.gz", "/usr/share/man/man8/berth-broker.8.gz",
		"/usr/share/doc/berth/copyright", "/usr/share/doc/berth/LICENSE",
		"/usr/share/doc/berth/changelog.gz", "/usr/share/doc/berth/libraries.gz",
	} {
		all[name] = "f 0644"
	}
	return all
}

// isMade reports whether a path is made by the package's scripts, or by the discovery that they
// start. All other files of the server stay as they were.
func isMade(path string) bool {
	for _, below := range []string{"/run/berth", "/var/lib/berth"} {
		if path == below || strings.HasPrefix(path, below+"/") {
			return true
		}
	}
	return slices.Contains([]string{
		"/etc/systemd/system/multi-user.target.wants/berth-discover.service",
		"/etc/systemd/system/timers.target.wants/berth-discover.timer",
		"/etc/apparmor.d/berth", // see TestAppArmor
	}, path)
}

// isIgnored reports whether a path isn't compared: a directory above the package's files, which
// package managers make and leave, or a cache that a trigger renews.
func isIgnored(path string) bool {
	return slices.Contains([]string{
		"/usr/share/zsh", "/usr/share/zsh/vendor-completions", "/usr/share/zsh/site-functions", "/usr/share/fish", "/usr/share/fish/vendor_completions.d",
		"/usr/share/man/man1", "/usr/share/man/man5", "/usr/share/man/man8", "/usr/lib/udev", "/usr/lib/udev/rules.d", "/etc/ld.so.cache",
	}, path)
}

// A package installs its files and changes no others; a running container keeps its lease and its
// device rules during an upgrade; the package can't be removed under a container or an engine that
// uses it; and after its removal the file system is as before.
func TestLifecycle(t *testing.T) {
	skipUnlessWanted(t)
	for _, test := range []struct {
		name, suite, cgroup string
		manager             manager
	}{
		{"bookworm v2", "bookworm", "v2", dpkg()},
		{"bookworm v1", "bookworm", "v1", dpkg()},
		{"forky v2", "forky", "v2", dpkg()},
		{"forky v2 rpm", "forky", "v2", redhat()},
	} {
		t.Run(test.name, func(t *testing.T) { testLifecycle(boot(t, test.suite, test.cgroup), test.manager) })
	}
}

func testLifecycle(h host, m manager) {
	t := h.t
	before := h.files()
	h.do(m.install(older)...)
	installed := h.files()
	placed := packageFiles(m)
	for path, want := range placed {
		if got := installed[path]; !strings.HasPrefix(got, want+" root:root") {
			t.Errorf("%s is %q", path, got)
		}
	}
	for path, is := range installed {
		if _, ours := placed[path]; !ours && !isMade(path) && !isIgnored(path) && before[path] != is {
			t.Errorf("installing changes %s: %q, before %q", path, is, before[path])
		}
	}
	for path, want := range map[string]string{"/run/berth": "d 0755 root:root", "/var/lib/berth": "d 0755 root:root"} {
		if installed[path] != want {
			t.Errorf("%s is %q", path, installed[path])
		}
	}
	checkWorks(h)

	opens, end := h.container("berth", "run", "-i", "--gpus", "2", "--volume", "/dev:/nodes", shared+"/image", "/probe")
	had, lease := opens(), h.do("berth", "leases", "--json")
	if len(had) != 2 || strings.Count(lease, `"live": true`) != 1 {
		t.Errorf("a container with two GPUs opens %q; leases: %s", had, lease)
	}
	h.do(m.upgrade(newer)...)
	if got := h.do("berth", "--version"); !strings.Contains(got, newer) {
		t.Errorf("after the upgrade it is %s", got)
	}
	if got := opens(); got != had {
		t.Errorf("after the upgrade the container opens %q, before %q", got, had)
	}
	if got := h.do("berth", "leases", "--json"); id(got) != id(lease) || !strings.Contains(got, `"live": true`) {
		t.Errorf("after the upgrade the leases are %s, before %s", got, lease)
	}
	checkRefused(h, m, "containers hold GPUs (live leases: 1)")
	end()
	h.do("sh", "-c", "cd /run/berth && mv ledger.json kept && echo '{' >ledger.json")
	if code, said := h.run(m.remove...); code == 0 || !strings.Contains(said, "the ledger can't be read") {
		t.Errorf("with a broken ledger: exit code %d: %s", code, said)
	}
	h.do("mv", "/run/berth/kept", "/run/berth/ledger.json")

	h.do("sh", "-c", `mkdir /etc/containerd/conf.d && cd /etc/containerd/conf.d && echo 'BinaryName = "/usr/bin/berth-runtime"' >by-hand.toml`)
	checkRefused(h, m, "/etc/containerd/conf.d/by-hand.toml names berth-runtime")
	h.do("rm", "-r", "/etc/containerd/conf.d")
	h.do("berth", "setup", "docker")
	h.do("berth", "cdi", "generate")
	checkRefused(h, m, "berth setup docker --remove")
	h.do("berth", "setup", "docker", "--remove")

	h.do(m.remove...)
	h.do(m.install(newer)...) // for dpkg this isn't the first time
	checkWorks(h)
	h.do(m.remove...)
	if m.purge != nil {
		h.do(m.purge...)
	}
	compare(t, before, h.files(), m.stays)
	if out := h.do("sh", "-c", "cat /proc/self/mountinfo; find /sys/fs/cgroup -name '*berth*'; systemctl list-units --all --no-legend 'berth*'"); strings.Contains(out, "berth.") || strings.Contains(out, "/berth/") {
		t.Errorf("it leaves %s", out)
	}
}

// id returns the id of the first lease.
func id(leases string) string {
	_, rest, _ := strings.Cut(leases, `"id": "`)
	first, _, _ := strings.Cut(rest, `"`)
	return first
}

// checkWorks checks that the units run, and that systemd accepts them.
func checkWorks(h host) {
	t := h.t
	for _, unit := range []string{"berth-discover.service", "berth-discover.timer"} {
		if got := h.do("systemctl", "is-enabled", unit); got != "enabled\n" {
			t.Errorf("%s is %s", unit, got)
		}
		if code, said := h.run("systemd-analyze", "verify", "--man=no", "/usr/lib/systemd/system/"+unit); code != 0 || strings.Contains(said, "berth") {
			t.Errorf("systemd says of %s: %s", unit, said)
		}
	}
	if got := h.do("systemctl", "show", "--property=Result,ExecMainStatus", "berth-discover.service"); got != "Result=success\nExecMainStatus=0\n" {
		t.Errorf("the discovery: %s", got)
	}
	h.do("systemctl", "is-active", "berth-discover.timer")
	h.do("test", "-s", "/run/berth/inventory.json")
	if got := h.do("berth", "gpus"); strings.Count(got, "free") != 8 {
		t.Errorf("the node has %s", got)
	}
}

// checkRefused checks that the removal fails with a reason, and that everything still works.
func checkRefused(h host, m manager, why string) {
	h.t.Helper()
	code, said := h.run(m.remove...)
	if code == 0 || !strings.Contains(said, why) {
		h.t.Errorf("%v: exit code %d: %s", m.remove, code, said)
	}
	if code, said := h.run("sh", "-c", "berth gpus && systemctl is-enabled berth-discover.timer && systemctl is-active berth-discover.timer"); code != 0 {
		h.t.Errorf("after a refused removal: %s", said)
	}
}

// compare returns the differences of two file systems.
func compare(t *testing.T, before, after map[string]string, stays string) {
	t.Helper()
	all := maps.Clone(before)
	maps.Copy(all, after)
	for path := range all {
		if before[path] != after[path] && !isIgnored(path) && (stays == "" || path != stays && !strings.HasPrefix(path, stays+"/")) {
			t.Errorf("%s is %q, before it all %q", path, after[path], before[path])
		}
	}
}
