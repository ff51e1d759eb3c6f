package network

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/testutil"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

func numberToAddress(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

// bounds returns the first and the last address of a prefix, as numbers.
func bounds(p netip.Prefix) (first, last uint32) {
	first = binary.BigEndian.Uint32(p.Masked().Addr().AsSlice())
	return first, first | uint32(1<<(32-p.Bits())-1)
}

func lastAddress(p netip.Prefix) netip.Addr {
	_, last := bounds(p)
	return numberToAddress(last)
}

func TestChoose(t *testing.T) {
	for _, tt := range []struct {
		name         string
		pools, taken []netip.Prefix
		seed         uint32
		want, err    string
	}{
		{"nothing taken", prefixes("10.213.0.0/16"), nil, 0, "10.213.0.0/30", ""},
		{"somewhere within", prefixes("10.213.0.0/16"), nil, 1<<16 + 7, "10.213.0.4/30", ""},
		{"an address", prefixes("10.213.0.0/16"), prefixes("10.213.0.2/32"), 0, "10.213.0.4/30", ""},
		{"a gang's", prefixes("10.213.0.0/16"), prefixes("10.213.0.1/30", "10.213.0.5/30"), 0, "10.213.0.8/30", ""},
		{"a wide route", prefixes("10.213.0.0/16", "172.29.0.0/24"), prefixes("10.0.0.0/8"), 0, "172.29.0.0/30", ""},
		{"around the end", prefixes("10.213.0.0/29"), prefixes("10.213.0.4/30"), 4, "10.213.0.0/30", ""},
		{"the last", prefixes("10.213.0.0/29"), prefixes("10.213.0.0/30"), 0, "10.213.0.4/30", ""},
		{"a pool of one", prefixes("10.213.0.0/30"), nil, 77, "10.213.0.0/30", ""},
		{
			"full", prefixes("10.213.0.0/29", "172.29.0.0/30"), prefixes("10.213.0.0/16", "172.29.0.3/32"), 1, "",
			"no subnet is free in 10.213.0.0/29, 172.29.0.0/30: each meets a route, an address or a name server of this host, or another gang's network: use --network none or --network host",
		},
		{"IPv6", prefixes("fd00::/64"), nil, 0, "", "pool fd00::/64: it has to be IPv4"},
		{"too small", prefixes("10.213.0.0/31"), nil, 0, "", "pool 10.213.0.0/31: it has to be between /8 and /30"},
		{"too wide", prefixes("0.0.0.0/0"), nil, 0, "", "pool 0.0.0.0/0: it has to be between /8 and /30"},
		{"not at its beginning", prefixes("10.213.0.7/24"), nil, 0, "", "pool 10.213.0.7/24: its address is 10.213.0.0"},
		{"loopback", prefixes("127.8.0.0/16"), nil, 0, "", "pool 127.8.0.0/16: no host can have these addresses"},
		{"multicast", prefixes("224.8.0.0/16"), nil, 0, "", "pool 224.8.0.0/16: no host can have these addresses"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := chooseSubnet(tt.pools, tt.taken, tt.seed)
			if err == nil && got.String() != tt.want || err != nil && err.Error() != tt.err {
				t.Errorf("%s, %v; want %s, %s", got, err, tt.want, tt.err)
			}
		})
	}
}

// For any taken prefixes the subnet overlaps with none of them, and ErrFull is returned only if
// there is no such subnet.
func TestChooseFindsFreeSubnet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		within := func(label string, widest, narrowest int) netip.Prefix {
			bits := rapid.IntRange(widest, narrowest).Draw(t, label)
			last := rapid.SampledFrom([]uint32{0, 0xffffff00}).Draw(t, label+" in") // includes the first and the last of all addresses
			return netip.PrefixFrom(numberToAddress(10<<24|last&0xffffff|uint32(rapid.IntRange(0, 255).Draw(t, label+" at"))), bits)
		}
		var pools, taken []netip.Prefix
		for range rapid.IntRange(1, 3).Draw(t, "pools") {
			pools = append(pools, within("pool", 24, 30).Masked())
		}
		for range rapid.IntRange(0, 20).Draw(t, "taken") {
			taken = append(taken, within("taken", 27, 32))
		}
		free := map[netip.Prefix]bool{}
		for _, p := range pools {
			first, last := bounds(p)
			for n := first; n <= last; n += subnetSize {
				s := netip.PrefixFrom(numberToAddress(n), subnetBits)
				free[s] = true
				for _, u := range taken {
					free[s] = free[s] && !u.Masked().Overlaps(s)
				}
				if !free[s] {
					delete(free, s)
				}
			}
		}
		got, err := chooseSubnet(pools, taken, rapid.Uint32().Draw(t, "seed"))
		if errors.Is(err, ErrFull) != (len(free) == 0) || err == nil && !free[got] {
			t.Fatalf("%s, %v; free are %v", got, err, free)
		}
	})
}

func TestPools(t *testing.T) {
	if err := CheckPools(DefaultPools()); err != nil {
		t.Error(err)
	}
}

func TestOuterInterfaces(t *testing.T) {
	link := func(index int, name string, master int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, Name: name, MasterIndex: master}
	}
	n := hostNetwork{
		links: []netlink.Link{
			&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "lo", Flags: net.FlagLoopback}},
			&netlink.Device{LinkAttrs: link(2, "eth0", 0)},
			&netlink.Bridge{LinkAttrs: link(3, "docker0", 0)},
			&netlink.Veth{LinkAttrs: link(4, "veth1", 3)},
			&netlink.Bridge{LinkAttrs: link(5, "br0", 0)},
			&netlink.Device{LinkAttrs: link(6, "eth1", 5)},
			&netlink.Vlan{LinkAttrs: link(7, "bond0.7", 0)},
			&netlink.Veth{LinkAttrs: link(8, "berth0a789d129a", 0)},
			&netlink.Tuntap{LinkAttrs: link(9, "tun0", 0)},
			&netlink.Tuntap{LinkAttrs: link(10, "tun1", 0)},
			&netlink.Device{LinkAttrs: link(11, "eth2", 0)},
			&netlink.Device{LinkAttrs: link(12, "berth0", 0)},
		},
	}
	route := func(kind int, to string, via ...int) {
		_, dst, err := net.ParseCIDR(to)
		testutil.Must(t, err)
		r := netlink.Route{Dst: dst, Type: kind, LinkIndex: via[0]}
		if len(via) > 1 {
			r.LinkIndex = 0
			for _, index := range via {
				r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: index})
			}
		}
		n.routes = append(n.routes, r)
	}
	route(unix.RTN_UNICAST, "0.0.0.0/0", 2)
	route(unix.RTN_UNICAST, "172.17.0.0/16", 3)
	route(unix.RTN_UNICAST, "10.1.0.0/16", 5)
	route(unix.RTN_UNICAST, "10.2.0.0/16", 7, 12)
	route(unix.RTN_UNICAST, "10.213.0.0/30", 8)
	route(unix.RTN_UNICAST, "10.8.0.0/16", 9)
	route(unix.RTN_UNICAST, "128.0.0.0/1", 10)
	route(unix.RTN_LOCAL, "127.0.0.0/8", 1)
	route(unix.RTN_LOCAL, "10.9.9.9/32", 11)
	want := []string{"eth0", "br0", "bond0.7", "tun1", "berth0"}
	if got := n.outerInterfaces(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
