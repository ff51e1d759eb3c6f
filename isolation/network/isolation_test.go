package network

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// newTwoGangs makes a rig with two gangs.
func newTwoGangs(t *testing.T) (r *rig, a, b *space, na, nb Network) {
	t.Helper()
	r = newRig(t)
	a, na = r.connect(gangA)
	b, nb = r.connect(gangB)
	return r, a, b, na, nb
}

func port(a netip.Addr, n int) string { return fmt.Sprintf("%s:%d", a, n) }

func TestTwoGangs(t *testing.T) {
	r, a, b, na, nb := newTwoGangs(t)
	a.listen("0.0.0.0:29500")
	b.listen("0.0.0.0:29500")
	r.host.listen("0.0.0.0:22")
	r.world.listen("198.51.100.1:80")
	r.world.sh("ip route add 10.213.0.0/16 via 203.0.113.2")
	back := newSpace(t)
	r.linkTo(back, "up1", "192.0.2.2/24", "192.0.2.1/24")
	back.sh("ip link set lo up; ip route add default via 192.0.2.2")
	back.listen("192.0.2.1:80")
	_, _ = r.connect("c0c0c0c0c0c0") // the host's second uplink is seen
	r.world.sh("ip route add 192.0.2.0/24 via 203.0.113.2")
	for _, tt := range []struct {
		name      string
		from      *space
		to, tells string
	}{
		{"itself", a, port(na.Address.Addr(), 29500), na.Address.Addr().String()},
		{"itself, the other", b, port(nb.Address.Addr(), 29500), nb.Address.Addr().String()},
		{"the world", a, "198.51.100.1:80", "203.0.113.2"},
		{"another network of the host", b, "192.0.2.1:80", "192.0.2.2"},
		{"the host by its gateway", a, port(na.Gateway, 22), na.Address.Addr().String()},
		{"the host by its address", a, "203.0.113.2:22", na.Address.Addr().String()},
		{"the other gang", a, port(nb.Address.Addr(), 29500), closed},
		{"the other gang, back", b, port(na.Address.Addr(), 29500), closed},
		{"the host by the other's gateway", a, port(nb.Gateway, 22), closed},
		{"a gang from the world", r.world, port(na.Address.Addr(), 29500), closed},
		{"a gang from the host", r.host, port(na.Address.Addr(), 29500), closed},
		{"through the host from the world", r.world, "192.0.2.1:80", closed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ask := tt.from.reach
			if tt.tells == closed {
				ask = tt.from.reachClosed
			}
			if got := ask(tt.to); got != tt.tells {
				t.Errorf("%s answers %q, want %q", tt.to, got, tt.tells)
			}
		})
	}
}

const marker = "berth-was-here"

// receiver receive packets with the marker in a namespace.
type receiver struct {
	mu    sync.Mutex
	heard map[string]bool
}

func (e *receiver) listen(name, where string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard[name+" at "+where] = true
}

// sniff hears all frames that come to an interface.
func (e *receiver) sniff(t *testing.T, s *space, where string) {
	t.Helper()
	e.receive(t, s, where, func() (int, error) {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
		return fd, err
	}, unix.PACKET_OUTGOING)
}

// take receives what is delivered to the host's port 7777.
func (e *receiver) take(t *testing.T, s *space, where string) {
	t.Helper()
	e.receive(t, s, where, func() (int, error) {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fd, err
		}
		return fd, unix.Bind(fd, &unix.SockaddrInet6{Port: 7777})
	}, -1)
}

func (e *receiver) receive(t *testing.T, s *space, where string, open func() (int, error), but int) {
	t.Helper()
	var fd int
	testutil.Must(t, s.in(func() (err error) {
		fd, err = open()
		return err
	}))
	testutil.Must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000}))
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done; unix.Close(fd) })
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if ll, ok := from.(*unix.SockaddrLinklayer); err == nil && (!ok || int(ll.Pkttype) != but) {
				if _, rest, ok := bytes.Cut(buf[:n], []byte(marker)); ok {
					name, _, _ := strings.Cut(string(rest), ";")
					e.listen(name, where)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

func sum(b []byte) uint16 {
	var n uint32
	for i := 0; i+1 < len(b); i += 2 {
		n += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return ^uint16(n)
}

// frame returns a UDP packet for port 7777 in IPv4 or IPv6 in Ethernet.
func frame(to []byte, src, dst netip.Addr, name string) []byte {
	data := marker + name + ";"
	udp := binary.BigEndian.AppendUint16([]byte{0x1e, 0x61, 0x1e, 0x61}, uint16(8+len(data)))
	udp = append(append(udp, 0, 0), data...)
	eth := append(append(append([]byte{}, to...), 2, 0, 0, 0, 0, 9), 0x08, 0x00)
	if dst.Is6() {
		eth[12], eth[13] = 0x86, 0xdd
		pseudo := append(append(src.AsSlice(), dst.AsSlice()...), 0, 0, 0, byte(len(udp)), 0, 0, 0, 17)
		if len(udp)%2 == 1 {
			udp = append(udp, ' ') // even, for the sum
			udp[5]++
			pseudo[35]++
		}
		binary.BigEndian.PutUint16(udp[6:], sum(append(pseudo, udp...)))
		ip := append([]byte{0x60, 0, 0, 0, 0, byte(len(udp)), 17, 64}, src.AsSlice()...)
		return append(append(eth, append(ip, dst.AsSlice()...)...), udp...)
	}
	ip := append([]byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, 17, 0, 0}, src.AsSlice()...)
	ip = append(ip, dst.AsSlice()...)
	binary.BigEndian.PutUint16(ip[10:], sum(ip))
	return append(append(eth, ip...), udp...)
}

// send puts frames on eth0 as they are.
func send(t *testing.T, s *space, frames ...[]byte) {
	t.Helper()
	testutil.Must(t, s.in(func() error {
		i, err := net.InterfaceByName(insideName)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, f := range frames {
			if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
		}
		return nil
	}))
}

// Where forged packets arrive that a gang's root could send if it had the capability.
func TestForged(t *testing.T) {
	r, a, b, na, nb := newTwoGangs(t)
	r.host.sh("sysctl -qw net.ipv4.conf.all.route_localnet=1 net.ipv4.conf.all.rp_filter=2")
	e := &receiver{heard: map[string]bool{}}
	e.sniff(t, b, "the other gang")
	e.sniff(t, r.world, "the world")
	e.take(t, r.host, "the host")
	sources := map[string]netip.Addr{
		"its own": na.Address.Addr(), "its gateway": na.Gateway, "the other": nb.Address.Addr(), "the other's gateway": nb.Gateway,
		"the host": netip.MustParseAddr("203.0.113.2"), "another server": netip.MustParseAddr("198.51.100.7"),
		"loopback": netip.MustParseAddr("127.0.0.1"), "unspecified": netip.IPv4Unspecified(), "its broadcast": nb.Gateway.Prev().Prev(),
	}
	sources["its broadcast"] = lastAddress(na.Address)
	destinations := map[string]netip.Addr{
		"the other": nb.Address.Addr(), "the other's gateway": nb.Gateway, "the other's broadcast": lastAddress(nb.Address),
		"all": netip.MustParseAddr("255.255.255.255"), "many": netip.MustParseAddr("224.0.0.1"), "loopback": netip.MustParseAddr("127.0.0.1"),
		"the world": netip.MustParseAddr("198.51.100.1"), "the host": netip.MustParseAddr("203.0.113.2"), "its gateway": na.Gateway,
	}
	gateway := hardwareAddress(gangA, 0)
	var frames [][]byte
	for src, from := range sources {
		for dst, to := range destinations {
			for hw, where := range map[string][]byte{"": gateway, ", broadcast": {255, 255, 255, 255, 255, 255}, ", to its card": hardwareAddress(gangB, 1), ", to the other end": hardwareAddress(gangB, 0)} {
				frames = append(frames, frame(where, from, to, src+" to "+dst+hw))
			}
		}
	}
	local := netip.MustParseAddr("fe80::1")
	for dst, to := range map[string]string{"all": "ff02::1", "the other": "fe80::ff:fe00:2", "loopback": "::1", "mapped": "::ffff:127.0.0.1"} {
		frames = append(frames, frame(gateway, local, netip.MustParseAddr(to), "IPv6 to "+dst))
	}
	send(t, a, frames...)
	want := []string{
		"its own to its gateway at the host", "its own to its gateway, broadcast at the host", "its own to the world at the world",
		"its own to the host at the host", "its own to the host, broadcast at the host",
		// Broadcasts reach everything at this end of the veth pair: the host.
		"its own to all at the host", "its own to all, broadcast at the host",
		"its own to the other's broadcast at the host", "its own to the other's broadcast, broadcast at the host",
	}
	sort.Strings(want)
	got := e.after(want)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("heard:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestForgedNeighbours: what a gang with NET_RAW announces about others' addresses (ARP), and about
// itself as a router (IPv6), changes no route, and no neighbour but its own.
func TestForgedNeighbours(t *testing.T) {
	r, a, b, na, nb := newTwoGangs(t)
	r.host.listen("0.0.0.0:22")
	b.reach(port(nb.Gateway, 22)) // both ends know each other
	const look = "ip route; ip -6 route; ip -6 addr show scope global; ip neigh | sed 's/ [A-Z]* *$//; s/ ref [0-9]*//' | sort"
	host := func() string {
		all := strings.Split(r.host.sh(look), "\n")
		return strings.Join(slices.DeleteFunc(all, func(line string) bool { return strings.HasPrefix(line, na.Address.Addr().String()+" ") }), "\n")
	}
	before, beforeOther := host(), b.sh(look)
	attacker, all := []byte{2, 0, 0, 0, 0, 9}, []byte{255, 255, 255, 255, 255, 255}
	var frames [][]byte
	for _, claimed := range []netip.Addr{nb.Address.Addr(), nb.Gateway, na.Gateway, netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")} {
		for _, operation := range []byte{1, 2} {
			for _, to := range [][]byte{all, hardwareAddress(gangA, 0)} {
				arp := slices.Concat(to, attacker, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, operation}, attacker, claimed.AsSlice(), to, claimed.AsSlice())
				frames = append(frames, arp)
			}
		}
	}
	router, everybody := netip.MustParseAddr("fe80::9"), netip.MustParseAddr("ff02::1")
	advert := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
	// Prefix 2001:db8::/64, on link and for addresses.
	advert = slices.Concat(advert, []byte{3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, netip.MustParseAddr("2001:db8::").AsSlice())
	pseudo := slices.Concat(router.AsSlice(), everybody.AsSlice(), []byte{0, 0, 0, byte(len(advert)), 0, 0, 0, 58}, advert)
	binary.BigEndian.PutUint16(advert[2:], sum(pseudo))
	frames = append(frames, slices.Concat([]byte{0x33, 0x33, 0, 0, 0, 1}, attacker, []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(advert)), 58, 255}, router.AsSlice(), everybody.AsSlice(), advert))
	send(t, a, frames...)
	if got := a.reach(port(na.Gateway, 22)); got != na.Address.Addr().String() { // the host has received them before
		t.Errorf("the gang itself comes to the host as %q", got)
	}
	if after := host(); after != before {
		t.Errorf("the host before:\n%s\nand after:\n%s", before, after)
	}
	if after := b.sh(look); after != beforeOther {
		t.Errorf("the other gang before:\n%s\nand after:\n%s", beforeOther, after)
	}
}

// after waits until all expected packets have arrived, and a little longer.
func (e *receiver) after(want []string) (got []string) {
	for range 500 {
		e.mu.Lock()
		missing := false
		for _, w := range want {
			missing = missing || !e.heard[w]
		}
		e.mu.Unlock()
		if !missing {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
	e.mu.Lock()
	defer e.mu.Unlock()
	for h := range e.heard {
		got = append(got, h)
	}
	sort.Strings(got)
	return got
}
