package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableName is the name of berth's table in nf_tables, of the family inet.
const tableName = "berth"

func berthTable() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
}

// firewall has the values in which the rules of two hosts differ.
type firewall struct {
	// pools are the ranges of all gangs' subnets.
	pools []netip.Prefix
	// opened are the interfaces of the host that forward for gangs alone.
	opened []string
}

// coverSubnets adds the subnets that no pool contains. They belong to gangs that were
// connected while other pools were in use.
func coverSubnets(pools, subnets []netip.Prefix) []netip.Prefix {
	all := slices.Clone(pools)
	for _, s := range subnets {
		contains := func(p netip.Prefix) bool { return p.Bits() <= s.Bits() && p.Contains(s.Addr()) }
		if !slices.ContainsFunc(pools, contains) {
			all = append(all, s)
		}
	}
	return all
}

// chain is a base chain of berth's table with its rules. In a rule all expressions up to
// the verdict have to match.
type chain struct {
	*nftables.Chain
	rules [][]expr.Any
}

// chains is the content of berth's table.
func (f firewall) chains() []chain {
	accept := nftables.ChainPolicyAccept
	base := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority, rules ...[]expr.Any) chain {
		return chain{&nftables.Chain{Name: name, Table: berthTable(), Type: kind, Hooknum: hook, Priority: priority, Policy: &accept}, rules}
	}
	return []chain{
		base("arrive", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, f.arriveRules()...),
		base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter, f.forwardRules()...),
		// Processes in the host's network, tasks of any user among them, may only answer.
		base("answer", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter,
			slices.Concat(matchToGang(), matchNoCT(expr.CtKeySTATE, ctAnswers), verdictOf(expr.VerdictDrop))),
		base("leave", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource,
			slices.Concat(matchFamily(unix.NFPROTO_IPV4), matchFromGang(), matchNotToGang(), []expr.Any{&expr.Masq{}})),
	}
}

// arriveRules drop packets of gangs before routing and connection tracking.
func (f firewall) arriveRules() (all [][]expr.Any) {
	drop := verdictOf(expr.VerdictDrop)
	ipv4 := slices.Concat(matchFromGang(), matchFamily(unix.NFPROTO_IPV4))
	all = [][]expr.Any{
		slices.Concat(matchFromGang(), matchFamily(unix.NFPROTO_IPV6), drop),
		// The host's loopback, which packets reach where route_localnet is on.
		slices.Concat(ipv4, matchRange(destinationOffset, netip.MustParsePrefix("127.0.0.0/8")), drop),
		// A forged sender: the route back to it is by another interface, or there is none.
		slices.Concat(ipv4, matchRange(sourceOffset, netip.MustParsePrefix("0.0.0.0/32")), drop),
		slices.Concat(ipv4, []expr.Any{&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true}, compareEqual(nativeEndian(0))}, drop),
	}
	// Another gang's gateway: an address of the host that isn't on the packet's interface.
	local := []expr.Any{&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true}, compareEqual(nativeEndian(unix.RTN_LOCAL))}
	elsewhere := []expr.Any{&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true, FlagIIF: true}, compareNotEqual(nativeEndian(unix.RTN_LOCAL))}
	for _, p := range f.pools {
		all = append(all, slices.Concat(ipv4, matchRange(destinationOffset, p), local, elsewhere, drop))
	}
	return all
}

// Bits of conntrack's state and status.
const (
	ctAnswers    = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	ctTranslated = 1 << 5 // IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h): a published port
)

// forwardRules say what the host forwards.
func (f firewall) forwardRules() (all [][]expr.Any) {
	drop, accept := verdictOf(expr.VerdictDrop), verdictOf(expr.VerdictAccept)
	all = [][]expr.Any{
		slices.Concat(matchFromGang(), matchToGang(), drop),
		slices.Concat(matchFromGang(), accept),
		slices.Concat(matchToGang(), matchAnyCT(expr.CtKeySTATE, ctAnswers), accept),
		slices.Concat(matchToGang(), drop),
	}
	for _, name := range f.opened {
		whole := append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
		in := []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, compareEqual(whole)}
		// Traffic inside a bridge comes and goes by the same interface here (br_netfilter).
		elsewhere := []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, compareNotEqual(whole)}
		all = append(all, slices.Concat(in, elsewhere, matchNoCT(expr.CtKeySTATE, ctAnswers), matchNoCT(expr.CtKeySTATUS, ctTranslated), drop))
	}
	return all
}

func verdictOf(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

func compareEqual(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func compareNotEqual(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: data}
}

// matchFromGang matches packets that came by a gang's interface. The kernel compares as many
// bytes as it is given, so a name without its NUL is a prefix.
func matchFromGang() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, compareEqual([]byte(interfacePrefix))}
}

func matchToGang() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, compareEqual([]byte(interfacePrefix))}
}

func matchNotToGang() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, compareNotEqual([]byte(interfacePrefix))}
}

// matchFamily matches IPv4 or IPv6.
func matchFamily(protocol byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, compareEqual([]byte{protocol})}
}

// Offsets of the addresses in the header of IPv4.
const (
	sourceOffset      = 12
	destinationOffset = 16
)

// matchRange matches an address of the header of IPv4.
func matchRange(offset uint32, p netip.Prefix) []expr.Any {
	network := p.Masked().Addr().As4()
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-p.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		compareEqual(network[:]),
	}
}

// matchAnyCT matches if conntrack's value has one of the bits, matchNoCT if it has none.
func matchAnyCT(key expr.CtKey, bits uint32) []expr.Any {
	return append(loadCTBits(key, bits), compareNotEqual(nativeEndian(0)))
}

func matchNoCT(key expr.CtKey, bits uint32) []expr.Any {
	return append(loadCTBits(key, bits), compareEqual(nativeEndian(0)))
}

func loadCTBits(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: key},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: nativeEndian(bits), Xor: make([]byte, 4)},
	}
}

// nativeEndian returns a number in the byte order of the kernel's registers.
func nativeEndian(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// withNFTables calls f with a connection to nf_tables in the network namespace of the
// calling thread. It is an [ErrFirewall] if the kernel has no netlink of that family.
//
// Requests fail after ten seconds: the library waits for one verdict per message of a
// batch, and a kernel that refuses a batch as a whole sends only one. The socket is one
// for all requests, for the kernel may take milliseconds to close it (nft_rcv_nl_event).
func withNFTables(f func(*nftables.Conn) error) (err error) {
	const limit = 10 * time.Second
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return c.SetDeadline(time.Now().Add(limit))
	}))
	if err != nil {
		return firewallError("open a socket of nf_tables", err)
	}
	defer func() { err = errors.Join(err, c.CloseLasting()) }()
	return f(c)
}

// ruleComment is the comment of all rules: it names berth, and has a hash of all chains and rules.
func ruleComment(chains []chain) ([]byte, error) {
	h := fnv.New64a()
	for _, c := range chains {
		fmt.Fprintln(h, c.Name, c.Type, *c.Hooknum, *c.Priority)
		for _, r := range c.rules {
			for _, e := range r {
				data, err := expr.Marshal(byte(nftables.TableFamilyINet), e)
				if err != nil {
					return nil, err
				}
				_, _ = h.Write(data) // never fails
			}
		}
	}
	return userdata.AppendString(nil, userdata.TypeComment, fmt.Sprintf("networks of berth's gangs, rules %016x", h.Sum64())), nil
}

// enforceRules makes berth's table, in one transaction. A table that has these rules
// already stays as it is: a change of the table takes the kernel milliseconds, and wakes
// the monitors of all gangs.
func enforceRules(f firewall) error {
	chains := f.chains()
	comment, err := ruleComment(chains)
	if err != nil {
		return err
	}
	return withNFTables(func(c *nftables.Conn) error {
		if same, err := hasRules(c, chains, comment); same || err != nil {
			return err
		}
		table := c.AddTable(berthTable()) // so that the next message, which deletes the table, doesn't fail
		c.DelTable(table)
		c.AddTable(table)
		for _, chain := range chains {
			c.AddChain(chain.Chain)
			for _, r := range chain.rules {
				c.AddRule(&nftables.Rule{Table: table, Chain: chain.Chain, Exprs: r, UserData: comment})
			}
		}
		if err := c.Flush(); err != nil {
			return firewallError(fmt.Sprintf("set the rules of table inet %s", tableName), err)
		}
		return nil
	})
}

// hasRules reports whether berth's table has as many rules as the chains, all with this
// comment.
func hasRules(c *nftables.Conn, chains []chain, comment []byte) (bool, error) {
	if has, err := hasTable(c); !has || err != nil {
		return false, err
	}
	for _, chain := range chains {
		rules, err := c.GetRules(chain.Table, chain.Chain)
		if err != nil {
			return false, fmt.Errorf("list the rules of table inet %s: %w", tableName, err)
		}
		if len(rules) != len(chain.rules) {
			return false, nil
		}
		for _, r := range rules {
			if string(r.UserData) != string(comment) {
				return false, nil
			}
		}
	}
	return true, nil
}

func hasTable(c *nftables.Conn) (bool, error) {
	_, err := c.ListTableOfFamily(tableName, nftables.TableFamilyINet)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return false, firewallError(fmt.Sprintf("look for table inet %s", tableName), err)
}

// firewallError is an [ErrFirewall] if the kernel lacks a part of nf_tables. Its text is
// one line: the library joins the errors of all messages of a batch.
func firewallError(doing string, err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	switch errno {
	case unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.ENOENT, unix.EINVAL, unix.ENOPROTOOPT:
		return fmt.Errorf("%w (%s: %w)", ErrFirewall, doing, errno)
	}
	return fmt.Errorf("%s: %w", doing, errno)
}

// removeRules removes berth's table. It is no error if there is none, or if the kernel
// has no nf_tables.
func removeRules() error {
	err := withNFTables(func(c *nftables.Conn) error {
		if has, err := hasTable(c); !has || err != nil {
			return err
		}
		c.DelTable(berthTable())
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return firewallError(fmt.Sprintf("remove table inet %s", tableName), err)
		}
		return nil
	})
	if errors.Is(err, ErrFirewall) {
		return nil
	}
	return err
}
