package engines

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// podman with the packaged directory of hooks: an annotated container gets what the wrapper would
// give it, and releases it at its end.
func TestPodmanHooks(t *testing.T) {
	podmen := map[string][]engine{"forky": {podman()}, "bookworm": {podman()}}
	eachOf(t, podmen, []string{"runc", "crun", "berth"}, func(t *testing.T, p place) {
		hooks := []string{"--hooks-dir", packagedHooks(t, p.host)}
		p.start(t, containerOptions{global: hooks}).end() // a container without a request
		before := p.footprint(t)
		c := p.start(t, containerOptions{global: hooks, annotation: "berth.gpus=2"})
		if got := c.opens(); len(got) != 2 {
			t.Errorf("it opens %v", got)
		}
		c.checkDriverFiles()
		leases := p.live(t)
		if len(leases) != 1 || leases[0].Owner.EntryPoint != "podman" || !slices.Contains(c.ask("cat /proc/self/environ"), "BERTH_LEASE="+leases[0].ID) {
			t.Errorf("leases: %+v", leases)
		}
		held := p.footprint(t)
		// crun discards the output of hooks.
		text := p.wantRefused(t, containerOptions{global: hooks, annotation: "berth.gpus=7"})
		if p.runtime != "crun" && (!strings.Contains(text, "7 asked, 6 of 8 free") || strings.Count(text, "asked") != 1) {
			t.Errorf("podman says %s", text)
		}
		p.waitForLeases(t, held, 1)
		c.end()
		p.waitForLeases(t, before, 0)
		if left := p.leases(t); len(left) > 0 {
			t.Errorf("poststop has left %+v", left)
		}
	})
}

// packagedHooks returns a copy of the packaged directory of hooks, with the program's path on this
// host.
func packagedHooks(t *testing.T, h *host) string {
	t.Helper()
	const packaged = "../../packaging/hooks.d"
	dir := filepath.Join(h.dir, "hooks.d")
	rig.Must(t, os.MkdirAll(dir, 0o755))
	files, err := os.ReadDir(packaged)
	rig.Must(t, err)
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(packaged, f.Name()))
		rig.Must(t, err)
		here := strings.Replace(string(text), `"/usr/bin/berth-hook"`, `"`+filepath.Join(shared.Dir, "berth-hook")+`"`, 1)
		if here == string(text) {
			t.Fatalf("%s doesn't name /usr/bin/berth-hook", f.Name())
		}
		rig.Must(t, os.WriteFile(filepath.Join(dir, f.Name()), []byte(here), 0o644))
	}
	return dir
}
