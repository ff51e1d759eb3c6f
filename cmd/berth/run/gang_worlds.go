package run

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/gang/gangfile"
	"github.com/berth-gpu/berth/launcher/gang/ranks"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// makeWorlds groups the ranks into worlds (as in WORLD_SIZE): the ranks of a world communicate
// with each other. It also sets whose devices each rank sees.
func makeWorlds(all []launcher.Rank, parts []request.Request, f gangfile.File, network string) (found []ranks.World) {
	of := func(r launcher.Rank) string {
		if f.World == "gang" && r.Part >= 0 {
			return ""
		}
		return r.Role
	}
	members := map[string][]int{}
	for i, r := range all {
		members[of(r)] = append(members[of(r)], i)
	}
	for _, first := range all {
		in := members[of(first)]
		if in == nil {
			continue // it is in a world already
		}
		delete(members, of(first))
		w := ranks.World{Apart: f.BindGPUs == "rank" || hasSlices(all, parts, in)}
		addMembers(&w, all, in, network)
		for n, i := range in {
			all[i].World, all[i].InWorld = len(found), n
		}
		found = append(found, w)
	}
	return found
}

// hasSlices reports whether a world has MIG slices. A CUDA process can use only one slice, so
// a rank only needs to see its own.
func hasSlices(all []launcher.Rank, parts []request.Request, in []int) bool {
	return slices.ContainsFunc(in, func(i int) bool { return all[i].Part >= 0 && parts[all[i].Part].Profile() != "" })
}

// addMembers adds ranks to a world, and sets whose devices each of them sees.
func addMembers(w *ranks.World, all []launcher.Rank, in []int, network string) {
	switch network {
	case "none":
		w.Interface = "lo"
	case "host":
		w.Shared = true
	default:
		w.Interface = "eth0"
	}
	for _, i := range in {
		r := &all[i]
		w.Ranks = append(w.Ranks, ranks.Rank{Host: r.Role + "-" + strconv.Itoa(r.Index), Role: r.Role, Index: r.Index})
		if r.Part < 0 {
			continue
		}
		r.Sees = []int{r.Part}
		if w.Apart {
			continue
		}
		for _, k := range in {
			if all[k].Part >= 0 && k != i {
				r.Sees = append(r.Sees, all[k].Part)
			}
		}
		slices.Sort(r.Sees)
	}
}

// assignPorts gives each world ports of its own. In a network that is shared with the host the
// ports are reserved, so that no other gang gets them.
func assignPorts(g *launcher.GangOptions, state string) error {
	first, count := ranks.DefaultPort, 0
	for _, w := range g.Worlds {
		count += ranks.Ports(len(w.Ranks))
	}
	if g.Network == "host" {
		if err := os.MkdirAll(cmp.Or(state, "/run/berth"), 0o755); err != nil {
			return err
		}
		var err error
		if g.Ports, err = ranks.Lease(cmp.Or(state, "/run/berth"), count); err != nil {
			return fmt.Errorf("ports for the gang: %w", err)
		}
		first = g.Ports.First
	}
	for i := range g.Worlds {
		w := &g.Worlds[i]
		w.Port, w.Rendezvous = first, len(w.Ranks) > 1 && g.Network != "host" // on the host's network other users could reach the store
		first += ranks.Ports(len(w.Ranks))
		if w.Rendezvous {
			g.Stores = append(g.Stores, tasks.GangStore{Port: w.RendezvousPort(), Scopes: w.RendezvousScopes()})
		}
	}
	return nil
}
