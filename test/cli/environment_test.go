package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// configured writes a configuration file and returns its path.
func configured(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	check(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// TestConfiguration: a configuration that can't be used stops every verb.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	for _, c := range []struct{ name, text, why string }{
		{"unknown key", "runtim = 'crun'", `line 1: unknown key "runtim" (did you mean runtime?)`},
		{"unknown section", "[hosts]\nproc = '/proc'", `line 1: unknown key "hosts" (did you mean host?)`},
		{"wrong type", "runtime = 5", `line 1, column 11: runtime: it is a text, in quotes`},
		{"broken", "runtime = 'crun", `line 1, column 15: unterminated literal string`},
		{"relative path", "state = 'run'", `state: "run" is not an absolute path`},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, path := n.as(t), configured(t, c.text)
			line := "berth: read configuration " + path + ": " + c.why
			for _, verb := range []string{"gpus", "leases", "discover", "repair"} {
				n.berth("--config", path, verb).fails(1, line)
			}
			n.berth("--config", path, "release", "x").fails(1, line)
			n.berth("--config", path, "run", "--gpus", "1", image(), "true").fails(125, line)
			n.berth("--config", path, "alloc", "1", "true").fails(125, line)
		})
	}
	t.Run("missing", func(t *testing.T) {
		n.as(t).berth("--config", "/no/such.toml", "gpus").fails(1, "berth: read configuration /no/such.toml: no such file or directory")
	})
	t.Run("missing, by environment", func(t *testing.T) {
		n.as(t).sh("BERTH_CONFIG=/no/such.toml berth run IMAGE").fails(125, "berth: read configuration /no/such.toml: no such file or directory")
	})
	n.checkClean(t)
}

// TestNoDriver: the driver is in another directory than the configuration says.
func TestNoDriver(t *testing.T) {
	t.Parallel()
	n := newNode(t, "one-gpu", options{driverRoot: "/run/nvidia/driver"})
	const why = "load libnvidia-ml.so.1: cannot open shared object file: No such file or directory; load the NVIDIA driver, or set host.driver_root in /etc/berth/config.toml"
	n.berth("discover").fails(1, "berth: "+why)
	n.berth("gpus").fails(1, "berth: take the node's inventory: "+why)
	n.berth("run", "--gpus", "1", image(), "true").fails(125, "berth: take the node's inventory: "+why)
	n.berth("alloc", "1", "true").fails(125, "berth: take the node's inventory: "+why)
	n.berth("run", "--gpus", "1", "--wait", image(), "true").fails(125, "berth: take the node's inventory: "+why)
	n.berth("leases").is(0, "there are no leases and no waiting requests\n", "")
	n.berth("run", image(), "echo", "hi").is(0, "hi\n", "")
	n.checkClean(t)
}

func TestNoRuntime(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	const hint = "; install crun or runc, or set runtime in /etc/berth/config.toml"
	missing := configured(t, "runtime = '/no/such/crun'")
	n.berth("--config", missing, "run", "--gpus", "1", image(), "true").fails(125, "berth: no OCI runtime: /no/such/crun is not an executable file"+hint)
	unknown := configured(t, "runtime = 'youki'")
	n.berth("--config", unknown, "run", "--gpus", "1", image(), "true").fails(125, "berth: no OCI runtime: there is no youki in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"+hint)
	hidden := n.run("unshare", "--mount", "sh", "-c", `for p in $(which -a crun runc); do mount --bind /dev/null $p; done; exec berth run --gpus 1 "$IMAGE" true`)
	hidden.fails(125, "berth: no OCI runtime: neither crun nor runc is installed"+hint)
	n.checkClean(t)
}

// noBroker is what a user is told beside, of verbs that a broker would serve.
const noBroker = ", or have the admin start the broker: systemctl enable --now berth-broker.socket"

// TestNotRoot: verbs that need root say so, and the others work.
func TestNotRoot(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	for _, c := range []struct {
		name string
		as   []string
		line string
		run  string
	}{
		{
			"user",
			[]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/nonexistent"},
			"berth: this needs root, and runs as user 65534: use sudo",
			"berth: there is no place for this user's tasks and images: mkdir /nonexistent: permission denied; set XDG_DATA_HOME to a directory of this user's",
		},
		{
			"root of a user namespace",
			[]string{"unshare", "--user", "--map-root-user"},
			"berth: uid 0 of a user namespace is not root of the host: run berth outside of it",
			"berth: uid 0 of a user namespace is not root of the host: run berth outside of it",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := n.as(t)
			berth := func(args ...string) result { return n.run(append(append(c.as, "berth"), args...)...) }
			berth("run", "--gpus", "1", image(), "true").fails(125, c.run)
			berth("run", image(), "true").fails(125, c.run)
			berth("alloc", "1", "true").fails(125, c.line+noBroker)
			berth("leases").is(0, "there are no leases and no waiting requests\n", "")
			berth("gpus").ok()
			berth("run", "--rm", image(), "true").fails(125, c.run) // a flag that is known
		})
	}
	t.Run("root of a user namespace, changes", func(t *testing.T) {
		n := n.as(t)
		const line = "uid 0 of a user namespace is not root of the host: run berth outside of it"
		for _, verb := range []string{"discover", "repair", "cdi generate"} {
			n.run(append([]string{"unshare", "--user", "--map-root-user", "berth"}, strings.Fields(verb)...)...).fails(1, "berth: "+line)
		}
		n.run("unshare", "--user", "--map-root-user", "berth", "release", "x").fails(1, "berth: "+line+noBroker)
		tenant := "setpriv --reuid=65534 --regid=65534 --clear-groups unshare --user --map-root-user berth "
		n.berth("alloc", "1", "true").ok() // makes a ledger of a user whom the namespace doesn't map
		n.sh(tenant+"leases").fails(1, "berth: /run/berth: ledger could have been written by others: it belongs to user 65534; "+line)
	})
	t.Run("user, changes", func(t *testing.T) {
		n := n.as(t)
		berth := func(args ...string) result {
			return n.run(append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "berth"}, args...)...)
		}
		const hint = ": permission denied; this needs root: use sudo"
		held := n.start("berth", "alloc", "1", "--", "sleep", "1000")
		id := n.waitForLeases(1)[0].ID
		berth("discover").fails(1, "berth: open /run/berth/discover.lock"+hint)
		berth("repair").fails(1, "berth: open /run/berth/ledger.lock"+hint)
		berth("release", "--force", id).fails(1, "berth: this needs root, and runs as user 65534: use sudo"+noBroker)
		berth("leases").fails(1, "berth: this needs root, and runs as user 65534: use sudo"+noBroker)
		n.waitForLeases(1)
		held.signal(15)
		held.wait()
		check(t, os.Remove(n.path("/run/berth/inventory.json")))
		berth("gpus").fails(1, "berth: take the node's inventory: open /run/berth/discover.lock"+hint)
		n.berth("discover", "-q").ok()
	})
	n.checkClean(t)
}
