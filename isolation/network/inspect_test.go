package network

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berth-gpu/berth/internal/testutil"
)

func TestProbe(t *testing.T) {
	r := newRig(t)
	testutil.Must(t, r.host.in(func() error { return Probe(context.Background(), r.files) }))
	if left := r.leftovers(); left != "" {
		t.Errorf("left:\n%s", left)
	}
	cmd, out := r.child(nil, "probe-plain-kernel")
	if err := cmd.Wait(); err == nil {
		t.Errorf("a kernel without nf_tables: %s", out)
	}
}

func (r *rig) inspect() (s HostStatus) {
	r.t.Helper()
	testutil.Must(r.t, r.host.in(func() (err error) {
		s, err = Inspect(nil, r.files)
		return err
	}))
	return s
}

func TestInspect(t *testing.T) {
	r := newRig(t)
	r.resolv("nameserver 127.0.0.1\n")
	want := "{Gangs:[] Rules:false Router:false Free:10.213.0.0/30 Full:<nil> Relayed:[127.0.0.1] Closed:[] OnlyIPv6:false Firewalld:false}"
	if got := fmt.Sprintf("%+v", r.inspect()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	r.connect(gangA)
	r.host.sh("sysctl -qw net.ipv4.ip_forward=1; iptables-nft -P FORWARD DROP")
	r.closeForward("strict", "forward", false)
	r.closeForward("kind", "forward", true)
	r.closeForward("firewalld", "filter_FORWARD", false)
	want = "{Gangs:[berth0a789d129a] Rules:true Router:true Free:10.213.0.0/30 Full:<nil> Relayed:[127.0.0.1] Closed:[table inet strict, chain forward] OnlyIPv6:false Firewalld:true}"
	if got := fmt.Sprintf("%+v", r.inspect()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	zones := filepath.Join(r.files.Etc, "firewalld/zones")
	testutil.Must(t, os.MkdirAll(zones, 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(zones, "trusted.xml"), []byte(`<zone target="ACCEPT"><interface name="berth+"/></zone>`), 0o600))
	r.host.sh("ip route add 10.0.0.0/8 via 203.0.113.1; ip route add 172.16.0.0/12 via 203.0.113.1; ip route add 192.168.0.0/16 via 203.0.113.1; ip route add 198.18.0.0/15 via 203.0.113.1")
	r.files.Programs = []string{"/nowhere"}
	s := r.inspect()
	if s.Firewalld || s.Full == nil || len(s.Closed) != 2 {
		t.Errorf("%+v", s)
	}
}

// closeForward makes a chain that drops forwarded packets. It may have a rule that accepts packets
// from gangs.
func (r *rig) closeForward(name, chain string, acceptsGangs bool) {
	r.t.Helper()
	drop := nftables.ChainPolicyDrop
	testutil.Must(r.t, r.host.in(func() error {
		return withNFTables(func(c *nftables.Conn) error {
			closed := c.AddChain(&nftables.Chain{
				Name: chain, Table: c.AddTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet}), Type: nftables.ChainTypeFilter,
				Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop,
			})
			if acceptsGangs {
				c.AddRule(&nftables.Rule{Table: closed.Table, Chain: closed, Exprs: slices.Concat(matchFromGang(), verdictOf(expr.VerdictAccept))})
			}
			return c.Flush()
		})
	}))
}

// TestOnlyIPv6: a host with only a default route of IPv6 is recognised.
func TestOnlyIPv6(t *testing.T) {
	for _, tt := range []struct {
		name, do string
		want     bool
	}{
		{"IPv4", "", false},
		{"both", "ip -6 addr add fd00::2/64 dev up0 nodad; ip -6 route add default via fd00::1", false},
		{"IPv6", "ip -6 addr add fd00::2/64 dev up0 nodad; ip -6 route add default via fd00::1; ip route del default", true},
		{"neither", "ip route del default", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.host.sh(tt.do)
			var s HostStatus
			testutil.Must(t, r.host.in(func() (err error) {
				s, err = Inspect(nil, r.files)
				return err
			}))
			if s.OnlyIPv6 != tt.want {
				t.Errorf("it is %t", s.OnlyIPv6)
			}
		})
	}
}
