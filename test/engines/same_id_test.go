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

// A container id is unique only within one engine, and within one namespace of containerd.
// Containers with the same id have leases of their own, and the end of one ends no other's lease.
func TestSameID(t *testing.T) {
	skipUnlessWanted(t)
	for _, cgroup := range []string{"v1", "v2"} {
		t.Run(cgroup, func(t *testing.T) {
			h := start(t, "forky", cgroup)
			h.once("docker", func() { docker().prepare(t, h) })
			h.once("podman", func() { podman().prepare(t, h) })
			s := server{h}
			d := &dockerHost{server: s, runtime: "berth", request: annotationOf}
			id := d.startContainer(t, "2")
			pod := func(words ...string) []string { return append(rack.Podman("--runtime", program("berth")), words...) }
			s.do(t, slices.Concat(pod("run", "--detach", "--network", "none", "--name", id, "--annotation", "berth.gpus=1"),
				rack.PodmanLimits("--volume", "/dev:/nodes:dev"), []string{"localhost/test", "/wait"})...)
			type tenant struct {
				name    string
				gpus    int
				in, end []string // the arguments of an exec
			}
			all := []tenant{
				{"docker", 2, []string{"docker", "exec", id}, []string{"docker", "rm", "--force", id}},
				{"podman", 1, pod("exec", id), pod("rm", "--force", "--time", "1", id)},
			}
			for _, ns := range []string{"default", "other"} {
				root := filepath.Join(h.dir, "same-"+ns)
				rig.Must(t, os.CopyFS(root, os.DirFS(image)))
				c := &ctrHost{server: s, root: root, hook: ns == "other"}
				words := slices.Insert(c.words(id, "2"), 1, "--namespace", ns)
				s.do(t, words...)
				all = append(all, tenant{
					ns, 2,
					[]string{"ctr", "--namespace", ns, "task", "exec", "--exec-id", newID(), id},
					[]string{"sh", "-c", "ctr --namespace $0 task rm --force $1 && ctr --namespace $0 container rm $1", ns, id},
				})
			}
			had := map[string]string{}
			check := func() {
				t.Helper()
				leases := s.live(t)
				if len(leases) != len(all) {
					t.Errorf("%d containers of one id have %d leases: %+v", len(all), len(leases), leases)
				}
				opened := map[string]string{}
				for _, c := range all {
					own, through := s.runProbe(t, c.in...)
					if got := strings.Join(through, " "); !slices.Equal(own, through) || len(own) != c.gpus || had[c.name] != "" && had[c.name] != got {
						t.Errorf("%s has %v in /dev and opens %v; it had %s", c.name, own, through, had[c.name])
					} else {
						had[c.name] = got
					}
					for _, gpu := range own {
						if by, ok := opened[gpu]; ok {
							t.Errorf("%s is open for %s and %s", gpu, by, c.name)
						}
						opened[gpu] = c.name
					}
				}
			}
			for len(all) > 0 {
				check()
				s.do(t, all[0].end...)
				all = all[1:]
			}
			d.takeGPUs(t, 8)()
			h.waitUntilReleased(t)
		})
	}
}
