package network

import (
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berth-gpu/berth/internal/testutil"
)

// reloadFirewalld does to nf_tables what firewalld 1.3.3 does at its start and at a reload:
// it replaces its own table, inet firewalld, in one transaction. What is forwarded is
// refused, unless it belongs to a connection or its interface is in the zone trusted.
func (r *rig) reloadFirewalld(trustsGangs bool) {
	r.t.Helper()
	testutil.Must(r.t, r.host.in(func() error {
		return withNFTables(func(c *nftables.Conn) error {
			table := c.AddTable(&nftables.Table{Name: "firewalld", Family: nftables.TableFamilyINet})
			c.DelTable(table)
			c.AddTable(table)
			forward := c.AddChain(&nftables.Chain{
				Name: "filter_FORWARD", Table: table, Type: nftables.ChainTypeFilter,
				Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter + 10),
			})
			add := func(parts ...[]expr.Any) {
				c.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: slices.Concat(parts...)})
			}
			add(matchAnyCT(expr.CtKeySTATE, ctAnswers), verdictOf(expr.VerdictAccept))
			if trustsGangs {
				add(matchFromGang(), verdictOf(expr.VerdictAccept))
			}
			add(verdictOf(expr.VerdictDrop))
			return c.Flush()
		})
	}))
}

// TestFirewalldReload: with gangs' interfaces in the zone trusted, as berth doctor advises, a
// gang reaches the outside before and after reloads of firewalld. Without, firewalld refuses
// its packets, which doctor says.
func TestFirewalldReload(t *testing.T) {
	r := newRig(t)
	r.world.listen("198.51.100.1:80")
	a, _ := r.connect(gangA)
	r.reloadFirewalld(false)
	if got := a.reachClosed("198.51.100.1:80"); got != closed {
		t.Errorf("the world, in no zone: %q", got)
	}
	if !r.inspect().Firewalld {
		t.Error("it isn't known that firewalld refuses")
	}
	for range 3 {
		r.reloadFirewalld(true)
		if got := a.reach("198.51.100.1:80"); got != "203.0.113.2" {
			t.Errorf("the world, after a reload: %q", got)
		}
	}
	if !r.inspect().Rules {
		t.Error("the gangs' own rules are gone")
	}
}
