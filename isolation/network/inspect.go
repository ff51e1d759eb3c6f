package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// Probe says whether this kernel can give gangs a way out. It tries, in a network
// namespace that nobody else sees and that is gone afterwards. A user who may not make
// one gets an error that Is fs.ErrPermission.
func Probe(ctx context.Context, h Host) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	h = h.withDefaults()
	own, err := os.Open(filepath.Join(h.Proc, "thread-self/ns/net"))
	if err != nil {
		return err
	}
	defer own.Close()
	return runInNamespace(own, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		here, err := os.Open(filepath.Join(h.Proc, "thread-self/ns/net"))
		if err != nil {
			return err
		}
		defer here.Close()
		kernel, err := openRoutes()
		if err != nil {
			return err
		}
		defer kernel.Close()
		if err := makePair(kernel, interfacePrefix+"0", Options{NetNS: here}, 1500); err != nil {
			return err
		}
		return enforceRules(firewall{pools: DefaultPools(), opened: []string{"eth1"}})
	})
}

// HostStatus is how a host stands to gangs' networks.
type HostStatus struct {
	// Gangs are the names of the interfaces of those that have a way out.
	Gangs []string
	// Rules says that the rules are there, as far as their table is.
	Rules bool
	// Router says that the host forwards anyway, for all.
	Router bool
	// Free is a subnet that the next gang could get; Full is why there is none.
	Free netip.Prefix
	Full error
	// Relayed are the host's name servers that gangs only reach by a relay.
	Relayed []netip.Addr
	// Closed are chains of others that drop what is forwarded, and say nothing of gangs:
	// "table inet filter, chain forward". Those of iptables, which [Connect] changes, are
	// among them only where there is no program to change them.
	Closed []string
	// Firewalld says that firewalld is in charge, and treats gangs as strangers.
	Firewalld bool
}

// Inspect finds out how the host stands to gangs' networks, and changes nothing.
func Inspect(pools []netip.Prefix, h Host) (s HostStatus, err error) {
	h = h.withDefaults()
	kernel, err := openRoutes()
	if err != nil {
		return s, err
	}
	defer kernel.Close()
	found, err := readHostNetwork(kernel)
	if err != nil {
		return s, err
	}
	for _, l := range found.links {
		if isGang(l) {
			s.Gangs = append(s.Gangs, l.Attrs().Name)
		}
	}
	r, err := h.readHostResolvConf()
	if err != nil {
		return s, err
	}
	_, s.Relayed = r.contentForGang(netip.IPv4Unspecified())
	s.Free, s.Full = chooseSubnet(Options{Pools: pools}.poolsOrDefault(), append(found.takenPrefixes(), r.reachableServers()...), 0)
	if s.Router, err = h.forwardsAll(); err != nil {
		return s, err
	}
	return s, s.inspectTables(h)
}

// inspectTables looks at the tables of nf_tables. In a kernel without nf_tables nothing is
// closed.
func (s *HostStatus) inspectTables(h Host) error {
	err := withNFTables(func(c *nftables.Conn) error {
		chains, err := c.ListChains()
		if err != nil {
			return firewallError("list the chains of nf_tables", err)
		}
		for _, chain := range chains {
			table := chain.Table
			s.Rules = s.Rules || table.Name == tableName && table.Family == nftables.TableFamilyINet
			s.Firewalld = s.Firewalld || table.Name == "firewalld"
			if !refusesForwarding(chain) || table.Name == "firewalld" || isIPTablesForward(chain) && h.findProgram("iptables-nft", "iptables") != "" {
				continue
			}
			if knows, err := namesGangs(c, chains, table); err != nil {
				return err
			} else if !knows {
				s.Closed = append(s.Closed, fmt.Sprintf("table %s %s, chain %s", familyName(table.Family), table.Name, chain.Name))
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, ErrFirewall) {
		return err
	}
	if s.Firewalld {
		trusts, err := h.firewalldTrusts()
		s.Firewalld = !trusts
		return err
	}
	return nil
}

// refusesForwarding says that a chain drops forwarded packets of IPv4 that no rule
// accepts.
func refusesForwarding(c *nftables.Chain) bool {
	return familyName(c.Table.Family) != "" && c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward &&
		c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
}

// familyName is the name of a family that has packets of IPv4; "" for another.
func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyINet:
		return "inet"
	}
	return ""
}

// namesGangs says whether a rule of the table compares something with the prefix of
// gangs' interfaces.
func namesGangs(c *nftables.Conn, chains []*nftables.Chain, table *nftables.Table) (bool, error) {
	for _, chain := range chains {
		if *chain.Table != *table {
			continue
		}
		rules, err := c.GetRules(table, chain)
		if err != nil {
			return false, fmt.Errorf("list the rules of table %s: %w", table.Name, err)
		}
		for _, r := range rules {
			for _, e := range r.Exprs {
				if compare, ok := e.(*expr.Cmp); ok && strings.HasPrefix(string(compare.Data), interfacePrefix) {
					return true, nil
				}
			}
		}
	}
	return false, nil
}

// firewalldTrusts says whether firewalld's configuration names gangs' interfaces.
func (h Host) firewalldTrusts() (bool, error) {
	zones := filepath.Join(h.Etc, "firewalld/zones")
	names, err := smallfile.Names(zones)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		const most = 1 << 20
		data, err := smallfile.Read(filepath.Join(zones, name), most)
		if err != nil {
			return false, err
		}
		if strings.Contains(string(data), `"`+iptablesWildcard+`"`) {
			return true, nil
		}
	}
	return false, nil
}
