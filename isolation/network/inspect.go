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

	"github.com/berth-gpu/berth/internal/netdev"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Probe returns an error unless this kernel supports the networks of gangs. It makes a pair and the
// rules in a new network namespace, which ends with the call. The error Is fs.ErrPermission if the
// process may not make a namespace.
func Probe(ctx context.Context, h Host) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h = h.withDefaults()
	own, err := os.Open(filepath.Join(h.Proc, "thread-self/ns/net"))
	if err != nil {
		return err
	}
	defer own.Close()
	return RunInNamespace(own, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		here, err := os.Open(filepath.Join(h.Proc, "thread-self/ns/net"))
		if err != nil {
			return err
		}
		defer here.Close()
		kernel, err := netdev.OpenRoutes()
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

// HostStatus is the state of a host as far as gangs' networks depend on it.
type HostStatus struct {
	// Gangs are the names of gangs' interfaces.
	Gangs []string
	// Rules says that table inet berth exists.
	Rules bool
	// Router says that the host forwards by itself, between all interfaces.
	Router bool
	// Free is a subnet that the next gang could get. Full is the reason if there is none.
	Free netip.Prefix
	Full error
	// Relayed are the host's name servers that gangs can only ask by a relay.
	Relayed []netip.Addr
	// Closed are chains that drop forwarded packets and have no rule about gangs: "table
	// inet filter, chain forward". iptables' own chain, to which [Connect] adds rules, is
	// among them only if there is no program of iptables.
	Closed []string
	// OnlyIPv6 says that the host has a default route of IPv6 and none of IPv4, which is all
	// that gangs have.
	OnlyIPv6 bool
	// Firewalld says that firewalld is in use, and has gangs' interfaces in no zone.
	Firewalld bool
}

// Inspect reads the state of a host, and changes nothing.
func Inspect(pools []netip.Prefix, h Host) (s HostStatus, err error) {
	h = h.withDefaults()
	kernel, err := netdev.OpenRoutes()
	if err != nil {
		return s, err
	}
	defer kernel.Close()
	found, err := readHostNetwork(kernel)
	if err != nil {
		return s, err
	}
	for _, l := range found.links {
		if isGangInterface(l) {
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
	if s.OnlyIPv6, err = found.leadsOutByIPv6Only(kernel); err != nil {
		return s, err
	}
	return s, s.inspectTables(h)
}

// LeadsOutByIPv6Only reports whether the host has a default route of IPv6 and none of IPv4. Gangs
// then reach nothing outside, for their networks have IPv4 alone.
func LeadsOutByIPv6Only() (bool, error) {
	kernel, err := netdev.OpenRoutes()
	if err != nil {
		return false, err
	}
	defer kernel.Close()
	found, err := readHostNetwork(kernel)
	if err != nil {
		return false, err
	}
	return found.leadsOutByIPv6Only(kernel)
}

// inspectTables reads the tables of nf_tables. A kernel without nf_tables has none.
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

// refusesForwarding reports whether a chain drops forwarded packets of IPv4 that no rule
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

// namesGangs reports whether a rule of the table compares something with the prefix of
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

// firewalldTrusts reports whether a zone of firewalld's configuration has gangs' interfaces.
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
