package network

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
)

// A gang has four addresses, of which two are used. The kernel would accept a /31 as well,
// but some programs insist on a broadcast address.
const (
	subnetBits = 30
	subnetSize = 1 << (32 - subnetBits)
)

// DefaultPools are the ranges from which subnets are taken by default: three private ones
// that are rarely routed, and that of RFC 2544, which is free where a VPN routes all private
// ranges.
func DefaultPools() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.213.0.0/16"), netip.MustParsePrefix("172.29.128.0/17"),
		netip.MustParsePrefix("192.168.208.0/20"), netip.MustParsePrefix("198.18.0.0/15"),
	}
}

// CheckPools says what is wrong with pools.
func CheckPools(pools []netip.Prefix) error {
	const widest = 8
	for _, p := range pools {
		switch {
		case !p.Addr().Is4():
			return fmt.Errorf("pool %s: it has to be IPv4", p)
		case p.Masked() != p:
			return fmt.Errorf("pool %s: its address is %s", p, p.Masked().Addr())
		case p.Bits() > subnetBits || p.Bits() < widest:
			return fmt.Errorf("pool %s: it has to be between /%d and /%d", p, widest, subnetBits)
		case p.Addr().IsLoopback() || p.Addr().IsMulticast() || p.Addr().As4()[0] == 0 || p.Addr().As4()[0] >= 240:
			return fmt.Errorf("pool %s: no host can have these addresses", p)
		}
	}
	return nil
}

// searchSeed is where the search for a gang's subnet begins. It differs from gang to gang, so
// that an address isn't given to another gang soon.
func searchSeed(gang string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(gang)) // never fails
	return h.Sum32()
}

// span is a range of addresses, including both.
type span struct{ first, last uint32 }

func spanOf(p netip.Prefix) span {
	first := addressToNumber(p.Masked().Addr())
	return span{first, first | uint32(1<<(32-p.Bits())-1)}
}

func addressToNumber(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func numberToAddress(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

// chooseSubnet chooses a subnet of the first pool that has one which overlaps with nothing
// taken. All prefixes are IPv4. Its error Is [ErrFull].
func chooseSubnet(pools, taken []netip.Prefix, seed uint32) (netip.Prefix, error) {
	if err := CheckPools(pools); err != nil {
		return netip.Prefix{}, err
	}
	used := mergeSpans(taken)
	var names []string
	for _, p := range pools {
		if n, ok := searchPool(spanOf(p), used, seed); ok {
			return netip.PrefixFrom(numberToAddress(n), subnetBits), nil
		}
		names = append(names, p.String())
	}
	return netip.Prefix{}, fmt.Errorf("%w in %s: each meets a route, an address or a name server of this host, or another gang's network: name another pool, or use --network none or --network host",
		ErrFull, strings.Join(names, ", "))
}

// mergeSpans sorts the ranges and joins those that overlap.
func mergeSpans(taken []netip.Prefix) (all []span) {
	for _, p := range taken {
		all = append(all, spanOf(p))
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	merged := all[:0]
	for _, s := range all {
		if n := len(merged); n > 0 && s.first <= merged[n-1].last {
			merged[n-1].last = max(merged[n-1].last, s.last)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// searchPool searches from the seed to the end of the pool, then the rest of it.
func searchPool(pool span, used []span, seed uint32) (uint32, bool) {
	size := pool.last - pool.first + 1
	start := pool.first + seed%size/subnetSize*subnetSize
	if n, ok := searchUpwards(span{start, pool.last}, used); ok {
		return n, true
	}
	return searchUpwards(span{pool.first, start - 1}, used)
}

// searchUpwards finds the first subnet in a range that overlaps with nothing used.
func searchUpwards(within span, used []span) (uint32, bool) {
	at := uint64(within.first)
	for at+subnetSize-1 <= uint64(within.last) && within.first <= within.last {
		i, _ := slices.BinarySearchFunc(used, at, func(s span, at uint64) int {
			return cmp.Compare(uint64(s.last), at) // i is the first that ends at it or later
		})
		if i == len(used) || uint64(used[i].first) > at+subnetSize-1 {
			return uint32(at), true
		}
		at = (uint64(used[i].last) + subnetSize) / subnetSize * subnetSize
	}
	return 0, false
}
