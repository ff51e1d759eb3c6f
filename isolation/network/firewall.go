package network

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netlink"
)

// table is the one of nf_tables that is berth's, of the family inet.
const table = "berth"

// rules are what differs from host to host.
type rules struct {
	// pools are the ranges of all gangs' subnets.
	pools []netip.Prefix
	// opened are the interfaces that forward for gangs alone.
	opened []string
}

// cover adds the subnets that are in none of the pools: of gangs that were connected
// when others were in use.
func cover(pools, subnets []netip.Prefix) []netip.Prefix {
	all := append([]netip.Prefix(nil), pools...)
	for _, s := range subnets {
		known := false
		for _, p := range pools {
			known = known || p.Bits() <= s.Bits() && p.Contains(s.Addr())
		}
		if !known {
			all = append(all, s)
		}
	}
	return all
}

// Priorities of chains (linux/netfilter_ipv4.h).
const (
	beforeConntrack = -300
	filter          = 0
	sourceNAT       = 100
)

// messages is the table in full.
func (r rules) messages() (all []netlink.Message) {
	all = append(all, chainMessage("arrive", "filter", unix.NF_INET_PRE_ROUTING, beforeConntrack))
	for _, parts := range r.arrive() {
		all = append(all, ruleMessage("arrive", parts))
	}
	all = append(all, chainMessage("forward", "filter", unix.NF_INET_FORWARD, filter))
	for _, parts := range r.forward() {
		all = append(all, ruleMessage("forward", parts))
	}
	// Whoever is in the host's network, a task of anybody's among them, is no member.
	all = append(all, chainMessage("answer", "filter", unix.NF_INET_LOCAL_OUT, filter),
		ruleMessage("answer", rule(toGang(), lacks(unix.NFT_CT_STATE, established), drop())))
	// What a gang sends out gets the host's address.
	return append(all, chainMessage("leave", "nat", unix.NF_INET_POST_ROUTING, sourceNAT),
		ruleMessage("leave", rule(family(unix.NFPROTO_IPV4), fromGang(), notToGang(), masquerade())))
}

// arrive is what a gang's packets have to pass before anybody looks at them.
func (r rules) arrive() (all [][]expression) {
	ip := rule(fromGang(), family(unix.NFPROTO_IPV4))
	all = [][]expression{
		rule(fromGang(), family(unix.NFPROTO_IPV6), drop()),
		// The host's loopback, also where route_localnet is on.
		rule(ip, in(destination, netip.MustParsePrefix("127.0.0.0/8")), drop()),
		// Somebody else's address: the way back to it is another interface, or none.
		rule(ip, in(source, netip.MustParsePrefix("0.0.0.0/32")), drop()),
		rule(ip, []expression{fib(unix.NFT_FIB_RESULT_OIF, unix.NFTA_FIB_F_SADDR|unix.NFTA_FIB_F_IIF), compare(unix.NFT_CMP_EQ, he(0))}, drop()),
	}
	// The host's end of another gang.
	local := []expression{fib(unix.NFT_FIB_RESULT_ADDRTYPE, unix.NFTA_FIB_F_DADDR), compare(unix.NFT_CMP_EQ, he(unix.RTN_LOCAL))}
	elsewhere := []expression{fib(unix.NFT_FIB_RESULT_ADDRTYPE, unix.NFTA_FIB_F_DADDR|unix.NFTA_FIB_F_IIF), compare(unix.NFT_CMP_NEQ, he(unix.RTN_LOCAL))}
	for _, p := range r.pools {
		all = append(all, rule(ip, in(destination, p), local, elsewhere, drop()))
	}
	return all
}

// Bits of conntrack (linux/netfilter/nf_conntrack_common.h).
const (
	established = 1<<1 | 1<<2 // and related
	translated  = 1 << 5      // the destination was changed: somebody publishes a port
)

// forward is what may go between interfaces.
func (r rules) forward() (all [][]expression) {
	all = [][]expression{
		rule(fromGang(), toGang(), drop()),
		rule(fromGang(), accept()),
		rule(toGang(), has(unix.NFT_CT_STATE, established), accept()),
		rule(toGang(), drop()),
	}
	for _, name := range r.opened {
		// What comes and goes by one interface may be a bridge's own, which others see here.
		elsewhere := named(unix.NFT_META_OIFNAME, unix.NFT_CMP_NEQ, name, true)
		all = append(all, rule(from(name, true), elsewhere, lacks(unix.NFT_CT_STATE, established), lacks(unix.NFT_CT_STATUS, translated), drop()))
	}
	return all
}

// tableData is NFTA_TABLE_USERDATA, and in it the comment (libnftnl's
// NFTNL_UDATA_TABLE_COMMENT).
const (
	tableData    = 6
	tableComment = 0
)

// comment says what rules are in the table, and to people whose they are.
func comment(messages []netlink.Message) []byte {
	h := fnv.New64a()
	for _, m := range messages {
		_, _ = h.Write(m.Body) // a hash takes everything
	}
	text := fmt.Sprintf("networks of berth's gangs, rules %016x", h.Sum64())
	return append([]byte{tableComment, byte(len(text) + 1)}, append([]byte(text), 0)...)
}

// enforce has the kernel follow these rules, in one step. If it does already, nothing is
// changed.
func enforce(r rules) (err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return without(err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	messages := r.messages()
	mark := comment(messages)
	if same, err := inPlace(c, mark, messages); same || err != nil {
		return err
	}
	plain := netlink.AppendText(generic(), unix.NFTA_TABLE_NAME, table)
	marked := netlink.Append(netlink.AppendText(generic(), unix.NFTA_TABLE_NAME, table), tableData, mark)
	batch := []netlink.Message{
		{Kind: unix.NFT_MSG_NEWTABLE, Flags: unix.NLM_F_CREATE, Body: plain}, // or there is nothing to delete
		{Kind: unix.NFT_MSG_DELTABLE, Body: plain},
		{Kind: unix.NFT_MSG_NEWTABLE, Flags: unix.NLM_F_CREATE, Body: marked},
	}
	if err := c.Batch(unix.NFNL_SUBSYS_NFTABLES, append(batch, messages...)); err != nil {
		return without(fmt.Errorf("set the rules of table inet %s: %w", table, err))
	}
	return nil
}

// without tells a kernel that lacks a part of nf_tables from other failures.
func without(err error) error {
	for _, e := range []error{unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.ENOENT, unix.EINVAL, unix.ENOPROTOOPT} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w (%w)", ErrFirewall, err)
		}
	}
	return err
}

func ask(kind uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | kind }

// inPlace says whether the table is there with this mark, and has as many rules. Kernels
// before 5.10 keep no mark: never.
func inPlace(c *netlink.Conn, mark []byte, messages []netlink.Message) (bool, error) {
	answers, err := c.Ask(ask(unix.NFT_MSG_GETTABLE), 0, netlink.AppendText(generic(), unix.NFTA_TABLE_NAME, table))
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil || len(answers) == 0 {
		return false, without(err)
	}
	if string(attributesOf(answers[0])[tableData]) != string(mark) {
		return false, nil
	}
	there, err := c.List(ask(unix.NFT_MSG_GETRULE), netlink.AppendText(generic(), unix.NFTA_RULE_TABLE, table))
	if err != nil {
		return false, err
	}
	wanted := 0
	for _, m := range messages {
		if m.Kind == unix.NFT_MSG_NEWRULE {
			wanted++
		}
	}
	for _, m := range there {
		if netlink.Text(attributesOf(m)[unix.NFTA_RULE_TABLE]) == table {
			wanted--
		}
	}
	return wanted == 0, nil
}

func attributesOf(m netlink.Message) map[uint16][]byte {
	if len(m.Body) < len(generic()) {
		return nil
	}
	return netlink.Attributes(m.Body[len(generic()):])
}

// abolish removes the table. None is no error, nor a kernel that knows no tables.
func abolish() (err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	name := netlink.AppendText(generic(), unix.NFTA_TABLE_NAME, table)
	err = c.Batch(unix.NFNL_SUBSYS_NFTABLES, []netlink.Message{{Kind: unix.NFT_MSG_DELTABLE, Body: name}})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("remove table inet %s: %w", table, err)
	}
	return nil
}
