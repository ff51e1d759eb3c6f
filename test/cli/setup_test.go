package cli

import (
	"strings"
	"testing"
)

// TestSetup: berth setup refuses invalid calls in one line; real engines test what it does.
func TestSetup(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	for _, c := range []struct {
		name, args string
		code       int
		line       string
	}{
		{"an unknown engine", "setup dokcer", 2, `there is no engine "dokcer" (did you mean docker?): docker, containerd and podman are known; berth setup --help shows the usage`},
		{"one that nothing is like", "setup x", 2, `there is no engine "x": docker, containerd and podman are known; berth setup --help shows the usage`},
		{"two engines", "setup docker podman", 2, `docker takes no argument, got "podman"; berth setup docker --help shows the usage`},
		{"a flag before the engine", "setup --default docker", 2, `there is no flag --default; berth setup --help shows the usage`},
		{"an unknown flag", "setup podman --dryrun", 2, `there is no flag --dryrun (did you mean --dry-run?); berth setup podman --help shows the usage`},
		{"both ways", "setup containerd --default --remove", 2, `--default and --remove exclude each other; berth setup containerd --help shows the usage`},
		{"an argument of doctor", "doctor x", 2, `doctor takes no argument, got "x"; berth doctor --help shows the usage`},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.as(t).berth(strings.Fields(c.args)...).fails(c.code, "berth: "+c.line)
		})
	}
	t.Run("not root", func(t *testing.T) {
		n := n.as(t)
		user := "setpriv --reuid=65534 --regid=65534 --clear-groups berth setup docker"
		n.sh(user).fails(1, "berth: this needs root, and runs as user 65534: use sudo")
		n.sh(user+" --remove").fails(1, "berth: this needs root, and runs as user 65534: use sudo")
		n.sh("unshare --user --map-root-user berth setup podman").fails(1, "berth: uid 0 of a user namespace is not root of the host: run berth outside of it")
	})
	t.Run("an engine that isn't there", func(t *testing.T) {
		n.as(t).sh("berth=$(command -v berth); PATH=/nowhere $berth setup podman").fails(1, "berth: podman isn't installed here: there is no podman in PATH")
	})
	t.Run("a damaged record", func(t *testing.T) {
		n := n.as(t)
		n.sh("mkdir -p /var/lib/berth/setup && echo '{' >/var/lib/berth/setup/podman.json").ok()
		n.berth("setup", "podman", "--remove").fails(1, "berth: read /var/lib/berth/setup/podman.json: unexpected end of JSON input")
		n.sh("echo '{\"version\": 9}' >/var/lib/berth/setup/podman.json").ok()
		n.berth("setup", "podman", "--remove").fails(1, `berth: read /var/lib/berth/setup/podman.json: it is of version 9 and for "": a newer berth may have written it`)
		n.sh("rm /var/lib/berth/setup/podman.json").ok()
		n.berth("setup", "podman", "--remove").is(0, "note: berth setup podman has left no record in /var/lib/berth\npodman: nothing to change\n", "")
	})
	n.sh("rm -rf /var/lib/berth/setup").ok()
	n.checkClean(t)
}
