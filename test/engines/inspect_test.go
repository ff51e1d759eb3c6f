package engines

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// TestEnginesNames: inspect and release accept containers of docker, podman and containerd by the
// name and by the id that the engine shows, and name those without a lease.
func TestEnginesNames(t *testing.T) {
	skipUnlessWanted(t)
	h := start(t, "forky", "v2")
	h.once("docker", func() { docker().prepare(t, h) })
	h.once("podman", func() { podman().prepare(t, h) })
	s := server{h}
	d := &dockerHost{server: s, runtime: "berth", request: annotationOf}
	c := &ctrHost{server: s, root: filepath.Join(h.dir, "names")}
	rig.Must(t, os.CopyFS(c.root, os.DirFS(image)))
	pod := func(words ...string) []string { return append(rack.Podman("--runtime", program("berth")), words...) }
	for _, e := range []struct {
		name  string
		start func(name, gpus string) (id string)
		end   func(name string) []string
	}{
		{"docker", func(name, gpus string) string {
			return strings.TrimSpace(s.do(t, d.words("run --detach", name, gpus)...))
		}, func(name string) []string { return []string{"docker", "rm", "--force", name} }},
		{"podman", func(name, gpus string) string {
			words := slices.Concat(pod("run", "--detach", "--network", "none", "--name", name), rack.PodmanLimits())
			if gpus != "" {
				words = append(words, annotationOf(gpus)...)
			}
			return strings.TrimSpace(s.do(t, append(words, "localhost/test", "/wait")...))
		}, func(name string) []string { return pod("rm", "--force", "--time", "1", name) }},
		{"containerd", func(name, gpus string) string {
			words := c.words(name, gpus)
			if gpus == "" {
				words = []string{"ctr", "run", "--detach", "--cpu-shares", "0", "--rootfs", c.root, name, "/wait"}
			}
			s.do(t, words...)
			return name
		}, func(name string) []string {
			return []string{"sh", "-c", "ctr task rm --force $0; ctr container rm $0", name}
		}},
	} {
		t.Run(e.name, func(t *testing.T) {
			holder, bare := e.name+"-holder", e.name+"-bare"
			id, bareID := e.start(holder, "1"), e.start(bare, "")
			defer s.do(t, e.end(bare)...)
			defer s.do(t, e.end(holder)...)
			live := s.live(t)
			if len(live) != 1 || live[0].Owner.Container != id {
				t.Fatalf("leases: %+v", live)
			}
			for _, word := range []string{holder, id, live[0].ID} {
				if got := s.run(t, shared.Berth, "inspect", word); got.code != 0 || !strings.Contains(got.out, `"id": "`+live[0].ID+`"`) || !strings.Contains(got.out, "BERTH_LEASE=") {
					t.Errorf("inspect %s: %+v", word, got)
				}
			}
			for _, word := range []string{bare, bareID} {
				for _, verb := range []string{"inspect", "release"} {
					want := "container " + word + " of " + e.name + " holds no lease"
					if got := s.run(t, shared.Berth, verb, word); got.code != 1 || !strings.Contains(got.err, want) {
						t.Errorf("%s %s: %+v, want %s", verb, word, got, want)
					}
				}
			}
			if got := s.run(t, shared.Berth, "release", "--force", holder); got.code != 0 || !strings.HasPrefix(got.out, "released "+live[0].ID) {
				t.Errorf("release %s: %+v", holder, got)
			}
			if left := s.live(t); len(left) > 0 {
				t.Errorf("leases are left: %+v", left)
			}
		})
	}
}
