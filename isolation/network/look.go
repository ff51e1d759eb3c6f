package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netlink"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Probe says whether this kernel can give gangs a way out. It tries, in a network
// namespace that nobody else sees and that is gone afterwards. A user who may not make
// one gets an error that Is fs.ErrPermission.
func Probe(ctx context.Context, h Host) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	h = h.complete()
	own, err := os.Open(filepath.Join(h.Proc, "thread-self/ns/net"))
	if err != nil {
		return err
	}
	defer own.Close()
	return netlink.Within(own, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		here, err := os.Open(filepath.Join(h.Proc, "thread-self/ns/net"))
		if err != nil {
			return err
		}
		defer here.Close()
		c, err := dial()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		if err := c.makePair(prefix+"0", Options{NetNS: here}, 1500); err != nil {
			return err
		}
		return enforce(rules{pools: Pools(), opened: []string{"eth1"}})
	})
}

// State is how a host stands to gangs' networks.
type State struct {
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

// Look finds out how the host stands to gangs' networks, and changes nothing.
func Look(pools []netip.Prefix, h Host) (s State, err error) {
	h = h.complete()
	here, err := dial()
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, here.Close()) }()
	found, err := here.survey()
	if err != nil {
		return s, err
	}
	for _, l := range found.links {
		if l.gang() {
			s.Gangs = append(s.Gangs, l.name)
		}
	}
	r, err := h.resolver()
	if err != nil {
		return s, err
	}
	_, s.Relayed = r.inside(netip.IPv4Unspecified())
	s.Free, s.Full = choose(Options{Pools: pools}.pools(), append(found.taken(), r.prefixes()...), 0)
	if s.Router, err = h.isRouter(); err != nil {
		return s, err
	}
	return s, s.others(h)
}

// others looks at the tables of nf_tables. A kernel that has none has nothing closed.
func (s *State) others(h Host) (err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	all := []byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, 0}
	chains, err := c.List(ask(unix.NFT_MSG_GETCHAIN), all)
	if err != nil {
		return fmt.Errorf("list the chains of nf_tables: %w", err)
	}
	for _, m := range chains {
		chain := readChain(m)
		s.Rules = s.Rules || chain.table == table && chain.family == "inet"
		s.Firewalld = s.Firewalld || chain.table == "firewalld"
		if !chain.refuses || chain.table == "firewalld" || chain.isIPTables() && h.find("iptables-nft", "iptables") != "" {
			continue
		}
		if knows, err := chain.knowsGangs(c, m.Body[0]); err != nil {
			return err
		} else if !knows {
			s.Closed = append(s.Closed, fmt.Sprintf("table %s %s, chain %s", chain.family, chain.table, chain.name))
		}
	}
	if s.Firewalld {
		trusts, err := h.firewalldTrusts()
		s.Firewalld = !trusts
		return err
	}
	return nil
}

// foreign is a chain of nf_tables.
type foreign struct {
	family, table, name string
	refuses             bool // it drops what is forwarded, if no rule accepts it
}

func (f foreign) isIPTables() bool {
	return f.family == "ip" && f.table == "filter" && f.name == "FORWARD"
}

func readChain(m netlink.Message) (f foreign) {
	a := attributesOf(m)
	if a == nil {
		return f
	}
	f.table, f.name = netlink.Text(a[unix.NFTA_CHAIN_TABLE]), netlink.Text(a[unix.NFTA_CHAIN_NAME])
	switch m.Body[0] {
	case unix.NFPROTO_IPV4:
		f.family = "ip"
	case unix.NFPROTO_INET:
		f.family = "inet"
	default:
		return f // of IPv6, which gangs don't have, or below IP
	}
	hook := netlink.Attributes(a[unix.NFTA_CHAIN_HOOK])[unix.NFTA_HOOK_HOOKNUM]
	policy := a[unix.NFTA_CHAIN_POLICY]
	f.refuses = len(hook) == 4 && binary.BigEndian.Uint32(hook) == unix.NF_INET_FORWARD && len(policy) == 4 && binary.BigEndian.Uint32(policy) == 0
	return f
}

// knowsGangs says whether a rule of the chain's table names gangs' interfaces.
func (f foreign) knowsGangs(c *netlink.Conn, family byte) (bool, error) {
	request := netlink.AppendText([]byte{family, unix.NFNETLINK_V0, 0, 0}, unix.NFTA_RULE_TABLE, f.table)
	rules, err := c.List(ask(unix.NFT_MSG_GETRULE), request)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("list the rules of table %s: %w", f.table, err)
	}
	return slices.ContainsFunc(rules, func(m netlink.Message) bool {
		a := attributesOf(m)
		return netlink.Text(a[unix.NFTA_RULE_TABLE]) == f.table && strings.Contains(string(a[unix.NFTA_RULE_EXPRESSIONS]), prefix)
	}), nil
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
		if strings.Contains(string(data), `"`+wildcard+`"`) {
			return true, nil
		}
	}
	return false, nil
}
