package engines

import "testing"

// A container that an engine started without berth, privileged, opens every GPU: until the
// next discovery finds it where the engine's runtime keeps its state. One with a lease, and
// one that the admin exempts, keep what they have.
func TestRunningContainersAreClosed(t *testing.T) {
	const key = "a-key-that-only-the-admin-knows"
	newest := map[string][]engine{"forky": {docker(), podman(), containerd()}}
	among(t, newest, []string{"berth"}, func(t *testing.T, p place) {
		p.keys(t, key)
		open := func(c *container) int { return wholeGPUs(c.reachable()["nodes"]) }
		plain := p
		plain.runtime = "runc"
		older := plain.start(t, wish{options: []string{"--privileged"}})
		if got := open(older); got != 8 {
			t.Fatalf("without berth it opens %d GPUs", got)
		}
		exempt := p.start(t, wish{options: []string{"--privileged"}, annotation: "berth.exempt=" + key})
		holder := p.start(t, wish{annotation: "berth.gpus=1"})
		for range 2 { // twice is the same as once
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
		p.settles(t, nil, 0)
	})
}
