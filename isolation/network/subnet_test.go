package network

import (
	"errors"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
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
			"no subnet is free in 10.213.0.0/29, 172.29.0.0/30: each meets a route, an address or a name server of this host, or another gang's network: name another pool, or use --network none or --network host",
		},
		{"IPv6", prefixes("fd00::/64"), nil, 0, "", "pool fd00::/64: it has to be IPv4"},
		{"too small", prefixes("10.213.0.0/31"), nil, 0, "", "pool 10.213.0.0/31: it has to be between /8 and /30"},
		{"too wide", prefixes("0.0.0.0/0"), nil, 0, "", "pool 0.0.0.0/0: it has to be between /8 and /30"},
		{"not at its beginning", prefixes("10.213.0.7/24"), nil, 0, "", "pool 10.213.0.7/24: its address is 10.213.0.0"},
		{"loopback", prefixes("127.8.0.0/16"), nil, 0, "", "pool 127.8.0.0/16: no host can have these addresses"},
		{"multicast", prefixes("224.8.0.0/16"), nil, 0, "", "pool 224.8.0.0/16: no host can have these addresses"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := choose(tt.pools, tt.taken, tt.seed)
			if err == nil && got.String() != tt.want || err != nil && err.Error() != tt.err {
				t.Errorf("%s, %v; want %s, %s", got, err, tt.want, tt.err)
			}
		})
	}
}

// Whatever is taken: the subnet meets nothing, and none is found only if there is none.
func TestChooseAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		within := func(label string, widest, narrowest int) netip.Prefix {
			bits := rapid.IntRange(widest, narrowest).Draw(t, label)
			last := rapid.SampledFrom([]uint32{0, 0xffffff00}).Draw(t, label+" in") // both ends of all addresses are tried
			return netip.PrefixFrom(address(10<<24|last&0xffffff|uint32(rapid.IntRange(0, 255).Draw(t, label+" at"))), bits)
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
			for n := spanOf(p).first; n <= spanOf(p).last; n += subnetSize {
				s := netip.PrefixFrom(address(n), subnetBits)
				free[s] = true
				for _, u := range taken {
					free[s] = free[s] && !u.Masked().Overlaps(s)
				}
				if !free[s] {
					delete(free, s)
				}
			}
		}
		got, err := choose(pools, taken, rapid.Uint32().Draw(t, "seed"))
		if errors.Is(err, ErrFull) != (len(free) == 0) || err == nil && !free[got] {
			t.Fatalf("%s, %v; free are %v", got, err, free)
		}
	})
}

func TestPools(t *testing.T) {
	if err := CheckPools(Pools()); err != nil {
		t.Error(err)
	}
}

func TestOuter(t *testing.T) {
	s := survey{
		links: []link{
			{index: 1, name: "lo", isLoopback: true},
			{index: 2, name: "eth0"},
			{index: 3, name: "docker0", kind: "bridge"},
			{index: 4, name: "veth1", kind: "veth", master: 3},
			{index: 5, name: "br0", kind: "bridge"},
			{index: 6, name: "eth1", master: 5},
			{index: 7, name: "bond0.7", kind: "vlan"},
			{index: 8, name: "berth0a789d129a", kind: "veth"},
			{index: 9, name: "tun0", kind: "tun"},
			{index: 10, name: "tun1", kind: "tun"},
			{index: 11, name: "eth2"},
			{index: 12, name: "berth0", kind: ""},
		},
	}
	way := func(to string, via ...int32) {
		s.routes = append(s.routes, route{to: netip.MustParsePrefix(to), via: via, isWay: true})
	}
	way("0.0.0.0/0", 2)
	way("172.17.0.0/16", 3)
	way("10.1.0.0/16", 5)
	way("10.2.0.0/16", 7, 12)
	way("10.213.0.0/30", 8)
	way("10.8.0.0/16", 9)
	way("128.0.0.0/1", 10)
	s.routes = append(s.routes, route{to: netip.MustParsePrefix("127.0.0.0/8"), via: []int32{1}}, route{to: netip.MustParsePrefix("10.9.9.9/32"), via: []int32{11}})
	want := []string{"eth0", "br0", "bond0.7", "tun1", "berth0"}
	if got := s.outer(); len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] || got[3] != want[3] || got[4] != want[4] {
		t.Errorf("%q, want %q", got, want)
	}
}
