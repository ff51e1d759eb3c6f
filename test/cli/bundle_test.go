package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBundles: a bundle that can't be used is refused by the wrapper in one line,
// for a request and without, and nothing is leased.
func TestBundles(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	const asks = `"annotations":{"berth.gpus":"%s"},`
	const rest = `"process":{"args":["true"],"cwd":"/","user":{"uid":0,"gid":0}},"root":{"path":"rootfs"}}`
	config := func(version, request string) string {
		return `{"ociVersion":"` + version + `",` + strings.ReplaceAll(asks, "%s", request) + rest
	}
	for _, c := range []struct{ name, config, line string }{
		{"no config.json", "", "read bundle: DIR/config.json is missing"},
		{"empty", " ", "read DIR/config.json: broken JSON at byte 1: unexpected end of JSON input"},
		{"broken", `{"ociVersion":`, "read DIR/config.json: broken JSON at byte 14: unexpected end of JSON input"},
		{"another document", `[1,2]`, "read DIR/config.json: not a JSON object"},
		{"unknown version", config("2.0.0", "1"), `read DIR/config.json: OCI version "2.0.0" is unknown: 1.x is supported`},
		{"no version", "{" + rest, "read DIR/config.json: ociVersion is missing: 1.x is supported"},
		{"twice the same key", `{"ociVersion":"1.0.0","ociVersion":"1.0.0",` + rest, `read DIR/config.json: key "ociVersion" is there twice`},
		{"invalid request", config("1.0.0", "two"), "request two: node has no two; it has h100; berth gpus lists the node's devices"},
		{"too many", config("1.0.0", "2"), "request 2: node has 1 GPU, 2 asked; berth gpus lists the node's devices"},
		{"no root file system", config("1.0.0", "1"), "root file system DIR/rootfs is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, dir := n.as(t), t.TempDir()
			if c.config != "" {
				check(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(c.config), 0o644))
			}
			n.run("berth-runtime", "create", "--bundle", dir, "task").fails(1, "berth: "+strings.ReplaceAll(c.line, "DIR", dir))
			now, err := os.ReadFile(filepath.Join(dir, "config.json"))
			if c.config != "" && (err != nil || string(now) != c.config) {
				t.Errorf("config.json is now %q (%v)", now, err)
			}
			for _, e := range n.list("/run/berth/leases") {
				t.Errorf("left behind: lease %s", e)
			}
		})
	}
	t.Run("no bundle", func(t *testing.T) {
		n.as(t).run("berth-runtime", "create", "--bundle", "/no/such", "task").fails(1, "berth: open bundle /no/such: there is no such directory")
	})
	t.Run("busy", func(t *testing.T) {
		n, dir := n.as(t), t.TempDir()
		check(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config("1.0.0", "1")), 0o644))
		holder := n.start("berth", "alloc", "1", "--", "sleep", "1000")
		n.waitForLeases(1)
		n.run("berth-runtime", "create", "--bundle", dir, "task").fails(1, "berth: request 1: 1 asked, 0 of 1 free; held: GPU 0 by alloc sleep since TIME; try again when they are free: berth leases shows who holds what")
		holder.signal(15)
		holder.wait()
	})
	n.checkClean(t)
}
