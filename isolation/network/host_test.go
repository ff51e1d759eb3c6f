package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// connections tests which addresses can be reached through the host, from the outside and from a
// gang.
func (r *rig) second() *space {
	back := newSpace(r.t)
	r.linkTo(back, "up1", "192.0.2.2/24", "192.0.2.1/24")
	back.sh("ip link set lo up; ip route add default via 192.0.2.2")
	back.listen("192.0.2.1:80")
	r.world.sh("ip route add 192.0.2.0/24 via 203.0.113.2")
	return back
}

func (r *rig) forwards(name string) string {
	return strings.TrimSpace(r.host.sh("cat /proc/sys/net/ipv4/conf/" + name + "/forwarding"))
}

// Connect enables forwarding only where it is needed, and RestoreHost restores the old state.
func TestForwarding(t *testing.T) {
	t.Run("off", func(t *testing.T) {
		r := newRig(t)
		r.second()
		r.connect(gangA)
		if r.forwards("all")+r.forwards("up0")+r.forwards("up1")+r.forwards("cup0") != "0110" {
			t.Errorf("while there is a gang:\n%s", r.leftovers())
		}
		if got := r.world.reachClosed("192.0.2.1:80"); got != closed {
			t.Errorf("through the host: %q", got)
		}
		r.sweep()
		if r.forwards("up0") != "1" {
			t.Error("swept under a gang")
		}
		r.disconnect(gangA)
		r.sweep()
		if left := r.leftovers(); left != "" {
			t.Errorf("left:\n%s", left)
		}
	})
	t.Run("on", func(t *testing.T) {
		r := newRig(t)
		r.second()
		r.host.sh("sysctl -qw net.ipv4.ip_forward=1")
		s, n := r.connect(gangA)
		if got := r.world.reach("192.0.2.1:80"); got != "203.0.113.1" {
			t.Errorf("through the host, which is a router: %q", got)
		}
		s.listen("0.0.0.0:29500")
		r.world.sh("ip route add 10.213.0.0/16 via 203.0.113.2")
		if got := r.world.reachClosed(port(n.Address.Addr(), 29500)); got != closed {
			t.Errorf("a gang, from the world: %q", got)
		}
		r.disconnect(gangA)
		r.sweep()
		if r.forwards("all")+r.forwards("up0") != "11" {
			t.Errorf("left:\n%s", r.leftovers())
		}
	})
	t.Run("on for one", func(t *testing.T) {
		r := newRig(t)
		r.second()
		r.host.sh("sysctl -qw net.ipv4.conf.up1.forwarding=1")
		r.connect(gangA)
		r.disconnect(gangA)
		r.sweep()
		if r.forwards("up0")+r.forwards("up1") != "01" {
			t.Errorf("left:\n%s", r.leftovers())
		}
	})
	t.Run("turned on meanwhile", func(t *testing.T) {
		r := newRig(t)
		r.second()
		r.connect(gangA)
		r.host.sh("sysctl -qw net.ipv4.ip_forward=1")
		r.connect(gangB)
		if got := r.world.reach("192.0.2.1:80"); got != "203.0.113.1" {
			t.Errorf("through the host, which is a router now: %q", got)
		}
		r.disconnect(gangA)
		r.disconnect(gangB)
		r.sweep()
		if r.forwards("all")+r.forwards("up0") != "11" {
			t.Errorf("left:\n%s", r.leftovers())
		}
	})
	t.Run("turned off meanwhile", func(t *testing.T) {
		r := newRig(t)
		r.second()
		r.world.listen("198.51.100.1:80")
		r.host.sh("sysctl -qw net.ipv4.ip_forward=1")
		a, _ := r.connect(gangA)
		r.host.sh("sysctl -qw net.ipv4.ip_forward=0")
		if got := a.reachClosed("198.51.100.1:80"); got != closed {
			t.Fatalf("the world, by a host that forwards nothing: %q", got)
		}
		r.connect(gangB)
		if got := a.reach("198.51.100.1:80"); got != "203.0.113.2" {
			t.Errorf("the world, once the next gang is connected: %q", got)
		}
		if got := r.world.reachClosed("192.0.2.1:80"); got != closed {
			t.Errorf("through the host: %q", got)
		}
		r.disconnect(gangA)
		r.disconnect(gangB)
		r.sweep()
		if left := r.leftovers(); left != "" {
			t.Errorf("left:\n%s", left)
		}
	})
	t.Run("turned on meanwhile, and nothing after", func(t *testing.T) {
		r := newRig(t)
		r.connect(gangA)
		r.host.sh("sysctl -qw net.ipv4.ip_forward=1")
		r.disconnect(gangA)
		r.sweep()
		if r.forwards("all")+r.forwards("up0") != "11" || strings.Contains(r.leftovers(), "network.forward") {
			t.Errorf("left:\n%s", r.leftovers())
		}
	})
}

// A port that an engine publishes later stays reachable.
func TestPublishedPort(t *testing.T) {
	r := newRig(t)
	r.connect(gangA)
	inner := newSpace(t)
	r.host.sh("iptables -t nat -A PREROUTING -i up0 -p tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80")
	r.linkTo(inner, "docker0", "172.17.0.1/24", "172.17.0.2/24")
	r.host.sh("sysctl -qw net.ipv4.conf.docker0.forwarding=1")
	inner.sh("ip link set lo up; ip route add default via 172.17.0.1")
	inner.listen("172.17.0.2:80")
	if got := r.world.reach("203.0.113.2:8080"); got != "203.0.113.1" {
		t.Errorf("published: %q", got)
	}
	r.world.sh("ip route add 172.17.0.0/24 via 203.0.113.2")
	if got := r.world.reachClosed("172.17.0.2:80"); got != closed {
		t.Errorf("not published: %q", got)
	}
}

func TestNoWayOut(t *testing.T) {
	r := newRig(t)
	s := newSpace(t)
	var n Network
	testutil.Must(t, r.host.in(func() (err error) {
		n, err = Connect(context.Background(), Options{Gang: gangA, NetNS: s.file})
		return err
	}))
	if n.Interface != "lo" || n.Address.String() != "127.0.0.1/8" || n.Gateway.IsValid() || n.Relay || n.Resolver != nil || n.MTU != 65536 {
		t.Errorf("%+v", n)
	}
	s.listen("127.0.0.1:29500")
	if got := s.reach("127.0.0.1:29500"); got != "127.0.0.1" {
		t.Errorf("itself: %q", got)
	}
	if text := s.sh("ip -o link show type veth; ip route"); text != "" || r.leftovers() != "" {
		t.Errorf("inside:\n%s\non the host:\n%s", text, r.leftovers())
	}
	if text := s.sh("cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/ipv4/ping_group_range"); strings.Join(strings.Fields(text), " ") != "0 0 2147483647" {
		t.Errorf("inside: %s", text)
	}
}

func TestMTU(t *testing.T) {
	for _, tt := range []struct {
		name, do string
		want     int
	}{
		{"the interface's", "ip link set cup0 mtu 9000; ip link set up0 mtu 8900", 8900},
		{"the route's", "ip route change default via 203.0.113.1 mtu 1280", 1280},
		{"no way", "ip route del default", 1500},
		{"a closed way", "ip route replace unreachable default", 1500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.host.sh(tt.do)
			s, n := r.connect(gangA)
			if n.MTU != tt.want {
				t.Errorf("%d, want %d", n.MTU, tt.want)
			}
			want := fmt.Sprintf(" mtu %d ", tt.want)
			if a, b := s.sh("ip link show eth0"), r.host.sh("ip link show "+InterfaceName(gangA)); !strings.Contains(a, want) || !strings.Contains(b, want) {
				t.Errorf("%s%s", a, b)
			}
		})
	}
}

// No gang gets a subnet that overlaps with an address or a route of the host.
func TestSubnetsDoNotOverlap(t *testing.T) {
	pools := prefixes("10.213.0.0/29", "172.29.0.0/29")
	for _, tt := range []struct{ name, do, want string }{
		{"an address", "ip addr add 10.213.0.2/32 dev lo", "10.213.0.4/30"},
		{"an address of an interface that is down", "ip link add br7 type bridge; ip addr add 10.213.0.6/29 dev br7", "172.29.0.0/30"},
		{"a route", "ip route add 10.213.0.0/30 via 203.0.113.1", "10.213.0.4/30"},
		{"a route of another table", "ip route add 10.0.0.0/8 via 203.0.113.1 table 77", "172.29.0.0/30"},
		{"a closed route", "ip route add unreachable 10.213.0.0/24", "172.29.0.0/30"},
		{"a route with several ways", "ip route add 10.213.0.0/30 nexthop via 203.0.113.1 nexthop via 203.0.113.9", "10.213.0.4/30"},
		{"halves of the default route", "ip route add 0.0.0.0/1 via 203.0.113.1; ip route add 128.0.0.0/1 via 203.0.113.1", "10.213.0.0/30"},
		{"a name server", "", "10.213.0.4/30"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			if tt.name == "a name server" {
				r.resolv("nameserver 10.213.0.3\n")
			}
			r.host.sh(tt.do)
			s := newSpace(t)
			testutil.Must(t, r.host.in(func() error {
				id := 0
				for searchSeed(fmt.Sprintf("%012x", id))%8 >= subnetSize { // so that the search begins at the beginning of the pool
					id++
				}
				o := r.options(fmt.Sprintf("%012x", id), s)
				o.Pools = pools
				n, err := Connect(context.Background(), o)
				if n.Address.Masked().String() != tt.want {
					t.Errorf("%s, %v; want %s", n.Address.Masked(), err, tt.want)
				}
				return err
			}))
		})
	}
}

func TestFull(t *testing.T) {
	r := newRig(t)
	connect := func(gang string) (err error) {
		s := newSpace(t)
		return r.host.in(func() error {
			o := r.options(gang, s)
			o.Pools = prefixes("10.213.7.0/29")
			_, err = Connect(context.Background(), o)
			return err
		})
	}
	testutil.Must(t, errors.Join(connect(gangA), connect(gangB), connect(gangA))) // the third gang gets the subnet of the first
	err := connect("c0c0c0c0c0c0")
	if !errors.Is(err, ErrFull) || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "network of gang c0c0c0c0c0c0: no subnet is free in 10.213.7.0/29: ") {
		t.Errorf("%v", err)
	}
	if left := r.leftovers(); strings.Contains(left, "berthc0c0") {
		t.Errorf("left:\n%s", left)
	}
	r.disconnect(gangB)
	testutil.Must(t, connect("c0c0c0c0c0c0"))
}

func TestBadOptions(t *testing.T) {
	s := &space{t: t}
	for _, gang := range []string{"", "0a789d129a5", "0a789d129a522", "0A789D129A52", "../../../../x"} {
		if _, err := Connect(context.Background(), Options{Gang: gang, NetNS: s.file, Out: true}); err == nil || !strings.Contains(err.Error(), "not the id of a gang") {
			t.Errorf("%q: %v", gang, err)
		}
		if err := Disconnect(context.Background(), gang); err == nil {
			t.Errorf("%q", gang)
		}
	}
}

// Without nf_tables in the kernel Connect returns an error of one line, and leaves nothing behind.
func TestPlainKernel(t *testing.T) {
	r := newRig(t)
	s := newSpace(t)
	cmd, out := r.child(s, "plain-kernel", gangA, r.state)
	err := cmd.Wait()
	if err == nil || strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), "--network none or --network host") {
		t.Errorf("%v: %s", err, out)
	}
	r.sweep()
	if left := r.leftovers(); left != "" {
		t.Errorf("left:\n%s", left)
	}
}

// As many gangs at once as there are subnets: each gets its own, and reaches the outside.
func TestAtOnce(t *testing.T) {
	r := newRig(t)
	r.world.listen("198.51.100.1:80")
	const many = 64
	spaces, networks, errs := make([]*space, many), make([]Network, many), make([]error, many)
	gang := func(i int) string { return fmt.Sprintf("%010x00", i*7919) }
	for i := range many {
		spaces[i] = newSpace(t)
	}
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			errs[i] = r.host.in(func() (err error) {
				o := r.options(gang(i), spaces[i])
				o.Pools = prefixes("10.213.0.0/24")
				networks[i], err = Connect(context.Background(), o)
				return err
			})
		})
	}
	all.Wait()
	testutil.Must(t, errors.Join(errs...))
	seen := map[netip.Prefix]bool{}
	for i, n := range networks {
		if seen[n.Address.Masked()] {
			t.Errorf("%s twice", n.Address)
		}
		seen[n.Address.Masked()] = true
		if got := spaces[i].reach("198.51.100.1:80"); got != "203.0.113.2" {
			t.Errorf("gang %d: %q", i, got)
		}
	}
	for i := range many {
		all.Go(func() {
			_ = r.host.in(func() error {
				errs[i] = errors.Join(Disconnect(context.Background(), gang(i)), RestoreHost(context.Background(), r.state, r.files))
				return nil
			})
		})
	}
	all.Wait()
	testutil.Must(t, errors.Join(errs...))
	if left := r.leftovers(); left != "" {
		t.Errorf("left:\n%s", left)
	}
}

// Wherever a program that connects a gang is killed: after the end of the namespace RestoreHost
// leaves nothing, and until then other gangs reach the outside.
func TestKilled(t *testing.T) {
	r := newRig(t)
	r.second()
	r.world.listen("198.51.100.1:80")
	r.host.sh("iptables -P FORWARD DROP")
	before := r.host.sh("iptables -S")
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	whole := 0
	for i := range rounds {
		s := newSpace(t)
		gang := fmt.Sprintf("%012x", rand.Uint64()>>16)
		cmd, out := r.child(s, "connect", gang, r.state)
		time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
		_ = cmd.Process.Kill()
		if cmd.Wait() == nil {
			whole++
			if got := s.reach("198.51.100.1:80"); got != "203.0.113.2" {
				t.Fatalf("round %d, gang %s: %q\n%s", i, gang, got, out)
			}
		}
		if i%4 == 0 { // a call after another one was killed
			other, _ := r.connect(gangA)
			if got := other.reach("198.51.100.1:80"); got != "203.0.113.2" {
				t.Fatalf("round %d: %q", i, got)
			}
			other.file.Close()
		}
		s.file.Close()
	}
	t.Logf("%d of %d came to their end", whole, rounds)
	var left string
	for range 500 { // the kernel removes namespaces asynchronously
		r.sweep()
		if left = r.leftovers(); left == "" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if left != "" {
		t.Errorf("left:\n%s", left)
	}
	if after := r.host.sh("iptables -S"); after != before {
		t.Errorf("iptables:\n%s\nbefore:\n%s", after, before)
	}
	names, err := os.ReadDir(r.state)
	testutil.Must(t, err)
	for _, n := range names {
		if n.Name() != "network.lock" && n.Name() != "etc" {
			t.Errorf("left: %s", n.Name())
		}
	}
}

// A call that waits for the lock ends with its context.
func TestLocked(t *testing.T) {
	state := t.TempDir()
	testutil.Must(t, withLock(t.Context(), state, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		err := withLock(ctx, state, func() error { t.Error("twice"); return nil })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		return nil
	}))
	if err := withLock(t.Context(), state+"/none", nil); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
}

// A gang's network namespace may belong to a user namespace of its own.
func TestUserNamespace(t *testing.T) {
	r := newRig(t)
	r.world.listen("198.51.100.1:80")
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo; exec cat")
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	_, err = io.ReadFull(out, make([]byte, 1))
	testutil.Must(t, err)
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	testutil.Must(t, err)
	t.Cleanup(func() { f.Close() })
	s := &space{t: t, file: f}
	_, err = r.attach(gangA, s)
	testutil.Must(t, err)
	if got := s.reach("198.51.100.1:80"); got != "203.0.113.2" {
		t.Errorf("%q", got)
	}
	if text := s.sh("cat /proc/sys/net/ipv4/ip_unprivileged_port_start"); text != "0\n" {
		t.Errorf("%q", text)
	}
}

// A connection of an address's previous gang doesn't continue with the next one.
func TestReusedAddress(t *testing.T) {
	r := newRig(t)
	entries := func() int { return strings.Count(r.host.sh("cat /proc/net/nf_conntrack"), "dst=198.51.100.1 ") }
	r.world.listen("198.51.100.1:80")
	for i := range 2 {
		s, n := r.connect(gangA)
		if got := entries(); got != 0 {
			t.Errorf("gang %d begins with %d connections of %s", i, got, n.Address)
		}
		if got := s.reach("198.51.100.1:80"); got != "203.0.113.2" {
			t.Errorf("%q", got)
		}
		if entries() == 0 {
			t.Error("the kernel keeps no connections")
		}
		r.disconnect(gangA)
	}
}

// The rules don't affect virtual machines on a bridge with the host's uplink, also where bridged
// packets pass the firewall of IP.
func TestBridge(t *testing.T) {
	r := newRig(t)
	r.host.sh("ip link add br0 type bridge; ip addr add 192.0.2.2/24 dev br0; ip link set br0 up; sysctl -qw net.bridge.bridge-nf-call-iptables=1")
	lan, machine := newSpace(t), newSpace(t)
	for name, s := range map[string]*space{"1": lan, "3": machine} {
		r.linkTo(s, "port"+name, "198.18.99."+name+"/32", "192.0.2."+name+"/24")
		r.host.sh("ip link del port" + name + "; ip link set cport" + name + " master br0; ip link show cport" + name)
		s.sh("ip link set lo up")
	}
	r.host.sh("ip link show br0; ip route replace default via 192.0.2.1 dev br0")
	machine.listen("192.0.2.3:80")
	r.connect(gangA)
	if r.forwards("br0") != "1" {
		t.Fatal("the bridge isn't opened")
	}
	if got := lan.reach("192.0.2.3:80"); got != "192.0.2.1" {
		t.Errorf("%q", got)
	}
}
