package network

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netlink"
)

// This is the language of nf_tables' rules as the kernel reads it. Source of all
// numbers: linux/netfilter/nf_tables.h. A rule is a list of expressions; all have to
// hold, up to the verdict.

// expression is one of a rule: its name and attributes.
type expression struct {
	name string
	data []byte
}

// be is a number in the order of the network, which nf_tables' attributes are in.
func be(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// he is a number in the order of the machine, which registers are in.
func he(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// pairs are attributes with a number each.
func pairs(all ...uint32) (data []byte) {
	for i := 0; i < len(all); i += 2 {
		data = netlink.Append(data, uint16(all[i]), be(all[i+1]))
	}
	return data
}

func value(data []byte) []byte { return netlink.Append(nil, unix.NFTA_DATA_VALUE, data) }

func compare(how uint32, data []byte) expression {
	return expression{"cmp", netlink.AppendNested(pairs(unix.NFTA_CMP_SREG, unix.NFT_REG_1, unix.NFTA_CMP_OP, how), unix.NFTA_CMP_DATA, value(data))}
}

func meta(key uint32) expression {
	return expression{"meta", pairs(unix.NFTA_META_DREG, unix.NFT_REG_1, unix.NFTA_META_KEY, key)}
}

func ct(key uint32) expression {
	return expression{"ct", pairs(unix.NFTA_CT_DREG, unix.NFT_REG_1, unix.NFTA_CT_KEY, key)}
}

func fib(result, flags uint32) expression {
	return expression{"fib", pairs(unix.NFTA_FIB_DREG, unix.NFT_REG_1, unix.NFTA_FIB_RESULT, result, unix.NFTA_FIB_FLAGS, flags)}
}

func verdict(code uint32) []expression {
	v := netlink.AppendNested(nil, unix.NFTA_DATA_VERDICT, pairs(unix.NFTA_VERDICT_CODE, code))
	return []expression{{"immediate", netlink.AppendNested(pairs(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT), unix.NFTA_IMMEDIATE_DATA, v)}}
}

// Verdicts (linux/netfilter.h).
func drop() []expression   { return verdict(0) }
func accept() []expression { return verdict(1) }

func masquerade() []expression { return []expression{{"masq", nil}} }

// from matches packets that came by an interface, or by any whose name begins so.
func from(name string, isWhole bool) []expression {
	return named(unix.NFT_META_IIFNAME, unix.NFT_CMP_EQ, name, isWhole)
}

// gangs' interfaces, as where packets come from, go to, and don't go to.
func fromGang() []expression { return from(prefix, false) }

func toGang() []expression { return named(unix.NFT_META_OIFNAME, unix.NFT_CMP_EQ, prefix, false) }

func notToGang() []expression { return named(unix.NFT_META_OIFNAME, unix.NFT_CMP_NEQ, prefix, false) }

// named compares as many bytes as it gets, so a name without its NUL is a beginning.
func named(key, how uint32, name string, isWhole bool) []expression {
	data := []byte(name)
	if isWhole {
		data = append(data, make([]byte, unix.IFNAMSIZ-len(data))...)
	}
	return []expression{meta(key), compare(how, data)}
}

// family matches IPv4 or IPv6.
func family(n byte) []expression {
	return []expression{meta(unix.NFT_META_NFPROTO), compare(unix.NFT_CMP_EQ, []byte{n})}
}

// Where an address is in the header of IPv4.
const (
	source      = 12
	destination = 16
)

// in matches addresses of a range. A rule says before that this is IPv4.
func in(offset uint32, p netip.Prefix) []expression {
	ip := p.Masked().Addr().As4()
	mask := be(^uint32(0) << (32 - p.Bits()))
	load := pairs(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1, unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER,
		unix.NFTA_PAYLOAD_OFFSET, offset, unix.NFTA_PAYLOAD_LEN, 4)
	return []expression{{"payload", load}, masked(mask), compare(unix.NFT_CMP_EQ, ip[:])}
}

func masked(mask []byte) expression {
	data := pairs(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1, unix.NFTA_BITWISE_DREG, unix.NFT_REG_1, unix.NFTA_BITWISE_LEN, uint32(len(mask)))
	data = netlink.AppendNested(data, unix.NFTA_BITWISE_MASK, value(mask))
	return expression{"bitwise", netlink.AppendNested(data, unix.NFTA_BITWISE_XOR, value(make([]byte, len(mask))))}
}

// has matches if conntrack's word has one of the bits; lacks, if it has none.
func has(key, bits uint32) []expression {
	return []expression{ct(key), masked(he(bits)), compare(unix.NFT_CMP_NEQ, he(0))}
}

func lacks(key, bits uint32) []expression {
	return []expression{ct(key), masked(he(bits)), compare(unix.NFT_CMP_EQ, he(0))}
}

// rule is a list of matches and a verdict.
func rule(parts ...[]expression) (all []expression) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// generic is a struct nfgenmsg for the family inet.
func generic() []byte { return []byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0} }

func chainMessage(name, kind string, hook uint32, priority int32) netlink.Message {
	b := netlink.AppendText(generic(), unix.NFTA_CHAIN_TABLE, table)
	b = netlink.AppendText(b, unix.NFTA_CHAIN_NAME, name)
	b = netlink.AppendNested(b, unix.NFTA_CHAIN_HOOK, pairs(unix.NFTA_HOOK_HOOKNUM, hook, unix.NFTA_HOOK_PRIORITY, uint32(priority)))
	b = netlink.Append(b, unix.NFTA_CHAIN_POLICY, accepting())
	b = netlink.AppendText(b, unix.NFTA_CHAIN_TYPE, kind)
	return netlink.Message{Kind: unix.NFT_MSG_NEWCHAIN, Flags: unix.NLM_F_CREATE, Body: b}
}

func accepting() []byte { return be(1) }

func ruleMessage(chain string, parts []expression) netlink.Message {
	var list []byte
	for _, e := range parts {
		b := netlink.AppendText(nil, unix.NFTA_EXPR_NAME, e.name)
		list = netlink.AppendNested(list, unix.NFTA_LIST_ELEM, netlink.AppendNested(b, unix.NFTA_EXPR_DATA, e.data))
	}
	b := netlink.AppendText(generic(), unix.NFTA_RULE_TABLE, table)
	b = netlink.AppendText(b, unix.NFTA_RULE_CHAIN, chain)
	b = netlink.AppendNested(b, unix.NFTA_RULE_EXPRESSIONS, list)
	return netlink.Message{Kind: unix.NFT_MSG_NEWRULE, Flags: unix.NLM_F_CREATE | unix.NLM_F_APPEND, Body: b}
}
