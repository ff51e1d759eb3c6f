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

// CheckPools returns an error that names the first pool that can't be used.
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

// chooseSubnet chooses a subnet of the first pool that has one which overlaps with nothing
// taken. All prefixes are IPv4. Its error Is [ErrFull].
func chooseSubnet(pools, taken []netip.Prefix, seed uint32) (netip.Prefix, error) {
	if err := CheckPools(pools); err != nil {
		return netip.Prefix{}, err
	}
	var names []string
	for _, p := range pools {
		if subnet, ok := searchPool(p, taken, seed); ok {
			return subnet, nil
		}
		names = append(names, p.String())
	}
	return netip.Prefix{}, fmt.Errorf("%w in %s: each meets a route, an address or a name server of this host, or another gang's network: use --network none or --network host",
		ErrFull, strings.Join(names, ", "))
}

// searchPool searches from the seed to the end of the pool, then the rest of it.
func searchPool(pool netip.Prefix, taken []netip.Prefix, seed uint32) (netip.Prefix, bool) {
	taken = slices.DeleteFunc(slices.Clone(taken), func(p netip.Prefix) bool { return !p.Overlaps(pool) })
	slices.SortFunc(taken, func(a, b netip.Prefix) int { return cmp.Compare(a.Bits(), b.Bits()) }) // a wide one excludes most
	first, count := binary.BigEndian.Uint32(pool.Addr().AsSlice()), uint32(1)<<(subnetBits-pool.Bits())
	for i := range count {
		n := first + (seed/subnetSize+i)%count*subnetSize
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n))), subnetBits)
		if !slices.ContainsFunc(taken, subnet.Overlaps) {
			return subnet, true
		}
	}
	return netip.Prefix{}, false
}
