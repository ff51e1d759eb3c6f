package engines

import "testing"

// A privileged container that an engine has started without berth can open every GPU until the next
// discovery, which finds it in the state of the engine's runtime. Containers with a lease, and
// exempt ones, keep their devices.
func TestRunningContainersAreClosed(t *testing.T) {
	const key = "a-key-that-only-the-admin-knows"
	newest := map[string][]engine{"forky": {docker(), podman(), containerd()}}
	eachOf(t, newest, []string{"berth"}, func(t *testing.T, p place) {
		p.keys(t, key)
		open := func(c *container) int { return wholeGPUs(c.reachable()["nodes"]) }
		plain := p
		plain.runtime = "runc"
		older := plain.start(t, containerOptions{options: []string{"--privileged"}})
		if got := open(older); got != 8 {
			t.Fatalf("without berth it opens %d GPUs", got)
		}
		exempt := p.start(t, containerOptions{options: []string{"--privileged"}, annotation: "berth.exempt=" + key})
		holder := p.start(t, containerOptions{annotation: "berth.gpus=1"})
		for range 2 { // a second call changes nothing
			p.do(t, shared.Berth, "discover", "--if-stale", "--quiet")
			for _, tt := range []struct {
				name string
				*container
				want int
			}{{"without berth", older, 0}, {"exempt", exempt, 8}, {"with a lease", holder, 1}} {
				if got := open(tt.container); got != tt.want {
					t.Errorf("%s: it opens %d GPUs, want %d", tt.name, got, tt.want)
				}
			}
		}
		older.end()
		exempt.end()
		holder.end()
		p.waitForLeases(t, nil, 0)
	})
}
