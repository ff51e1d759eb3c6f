package backend

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/engines"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// FindLease returns the lease whose id is word; else the lease whose holder's id is word; else the lease whose holder's
// name is word, or of which one of these ids begins with word; else the lease of the container that docker, podman or
// containerd knows as word. Users of the broker choose their names freely, so theirs count only if nothing else is
// called word. The error is [ledger.ErrNotFound] if there is neither such a lease nor such a container. A container
// without a lease and a word that matches several leases are other errors.
func FindLease(ctx context.Context, view ledger.View, word string) (ledger.Status, error) {
	var found []ledger.Status
	for _, matches := range []func(l ledger.Status) bool{
		func(l ledger.Status) bool { return l.ID == word },
		func(l ledger.Status) bool { return l.Owner.Container == word },
		func(l ledger.Status) bool {
			return l.Owner.Name == word && !isNamedByUser(l.Owner) ||
				strings.HasPrefix(l.ID, word) || strings.HasPrefix(l.Owner.Container, word)
		},
	} {
		if found == nil && word != "" {
			found = selectLeases(view, matches)
		}
	}
	var containers []engines.Container
	if found == nil && word != "" {
		containers = engines.FindContainers(ctx, word)
		found = selectLeases(view, func(l ledger.Status) bool {
			return slices.ContainsFunc(containers, func(c engines.Container) bool { return l.Owner.Container == c.ID })
		})
	}
	if found == nil && word != "" && containers == nil {
		found = selectLeases(view, func(l ledger.Status) bool { return l.Owner.Name == word })
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		var all []string
		for _, l := range found {
			all = append(all, fmt.Sprintf("%s (%s, GPU %s)", l.ID, output.FormatHolder(l.Owner), output.JoinIndexes(l.Devices)))
		}
		return ledger.Status{}, fmt.Errorf("it matches %d leases: %s; give the id of one", len(found), strings.Join(all, ", "))
	case containers != nil:
		c := containers[0]
		return ledger.Status{}, fmt.Errorf("container %s of %s holds no lease", word, c.Engine)
	}
	var known []string
	for _, l := range view.Leases {
		known = append(known, l.Owner.Name, l.Owner.Container, l.ID)
	}
	return ledger.Status{}, fmt.Errorf("%w%s", ledger.ErrNotFound, spell.Suggestion(word, known...))
}

// isNamedByUser reports whether a user other than root has named a lease, by the broker.
func isNamedByUser(o ledger.Owner) bool {
	return o.EntryPoint == "alloc" && o.UID != 0 && berth.IsCommandCgroup(o.Cgroup)
}

// selectLeases returns the leases of a view that match.
func selectLeases(view ledger.View, matches func(ledger.Status) bool) (found []ledger.Status) {
	for _, l := range view.Leases {
		if matches(l) {
			found = append(found, l)
		}
	}
	return found
}

// View returns the leases and the queue. It is empty if the ledger can't be read.
func View(node *berth.Node) ledger.View {
	view, err := node.View()
	if err != nil {
		return ledger.View{}
	}
	return view
}
