package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestSetup: what berth setup refuses, by one line; what it does is tried on real engines.
func TestSetup(t *testing.T) {
	t.Parallel()
	n := discovered(t, "one-gpu")
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
	n.isClean(t)
}

// TestDoctor: each line that isn't in order has its state, and says how to mend it.
func TestDoctor(t *testing.T) {
	t.Parallel()
	n := discovered(t, "one-gpu")
	fine := n.berth("doctor")
	for _, line := range []string{
		"ok       configuration  there is no /etc/berth/config.toml: everything is as it is by itself\n",
		"ok       driver         550.163.01, 1 GPU\n",
		"ok       ledger         0 leases, 0 waiting\n",
		"; mend: berth cdi generate\n",
	} {
		if !strings.Contains(fine.stdout, line) {
			t.Errorf("%q isn't there: %s", line, fine.stdout)
		}
	}
	for _, c := range []struct{ name, script, line string }{
		{"configuration", "berth --config " + configured(t, "x") + " doctor", ": toml: line 1: unexpected EOF; expected key separator '='; mend: edit it: every key is explained in the one that is packaged\n"},
		{"ledger", "berth alloc 1 true; echo x >>/run/berth/ledger.json; berth doctor", "failure  ledger         /run/berth/ledger.json: ledger is corrupt: the checksum doesn't match: the file was cut or edited; mend: berth repair"},
		{"runtime", "berth=$(command -v berth); PATH=/nowhere $berth doctor", "failure  runtime        neither crun nor runc is there, and no other is configured; mend: install crun or runc, or set runtime\n"},
		{"runtime by name", "berth --config " + configured(t, "runtime = 'krun'") + " doctor", "failure  runtime        there is no krun, which runtime names; mend: install it, or set another\n"},
		{"snapshot", "rm -f /run/berth/inventory.json; berth doctor || exit 0", "warning  driver         inventory snapshot /run/berth/inventory.json is stale: there is none yet; mend: berth discover\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := n.as(t).sh(c.script)
			if !strings.Contains(got.stdout, c.line) || strings.HasPrefix(c.line, "warning") != (got.code == 0) {
				t.Errorf("exit code %d: %s%s", got.code, got.stdout, got.stderr)
			}
		})
	}
	n.sh("berth discover -q; berth repair; rm /run/berth/ledger.json.bad-*").ok()
	var findings []map[string]string
	if err := json.Unmarshal([]byte(n.berth("doctor", "--json").stdout), &findings); err != nil || len(findings) < 5 || findings[0]["state"] != "ok" {
		t.Errorf("got %v, %v", findings, err)
	}
	n.isClean(t)
}
