// Package network gives a gang a private network: a network namespace of its own in
// which lo is up and, if it is wanted, one interface as the way out.
//
// The way out is a veth pair: eth0 in the gang's namespace, "berth" and ten digits of
// the gang's id on the host, with the two addresses of a /30 that clashes with no route
// and no address of the host. What leaves the host gets the host's address
// (masquerade). The addresses of the host's ends are the only record of which subnets
// are taken; the kernel removes a pair with its namespace, so whenever a program is
// killed, nothing is left once the gang's last process has ended.
//
// Between gangs no packet passes; from outside, answers alone come in. The rules are the
// same for all gangs and are one table of nf_tables, inet berth. They know gangs by the
// names of the interfaces ("berth*"), and are there before the first packet. Besides, a
// gang's interface is allowed to forward, and so are the host's interfaces to the
// outside where the host forwards nothing by itself; what isn't for a gang is still
// not forwarded by these. [Sweep] puts all of it back when there is no gang any more.
//
// There is no IPv6 to the outside. A gang reaches the host itself by the host's
// addresses, as it would from outside, but not what listens on 127.0.0.1 there.
//
// Changes happen under a lock, STATE/network.lock. The host's network namespace is the
// calling thread's. It needs CAP_NET_ADMIN and CAP_SYS_ADMIN in it, and Linux 5.7.
package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var (
	// ErrFirewall: the kernel lacks what separates networks.
	ErrFirewall = errors.New("the kernel has no nf_tables with NAT, conntrack and fib, without which no network is private: use --network none or --network host")
	// ErrFull: each subnet of the pools is taken.
	ErrFull = errors.New("no subnet is free")
	// ErrKind: the kernel can't make veth pairs.
	ErrKind = errors.New("the kernel has no veth interfaces: use --network none or --network host")
)

// Options say what network a gang gets.
type Options struct {
	// Gang is its id, 12 hexadecimal digits. Two gangs of one host differ in the first ten.
	Gang string
	// NetNS is the gang's network namespace.
	NetNS *os.File
	// Out asks for a way out; without it there is lo alone.
	Out bool
	// Names are those of the gang's members, which a network has no use for.
	Names []string
	// State is the directory of the lock, which is there: /run/berth.
	State string
	// Pools are what subnets are taken from; empty stands for [Pools].
	Pools []netip.Prefix
	Host  Host
}

// Host is where a host's files are. The zero value is this machine.
type Host struct {
	Proc string // "" is /proc
	Etc  string // "" is /etc
	Run  string // "" is /run
	// Programs are directories to look for the host's programs in.
	Programs []string
	// RunCommand runs one of them to its end. nil stands for its method Run; who buries all
	// children of this process himself has another. An error that has an ExitCode() is
	// the program's.
	RunCommand func(*exec.Cmd) error
}

func (h Host) withDefaults() Host {
	if h.Proc == "" {
		h.Proc = "/proc"
	}
	if h.Etc == "" {
		h.Etc = "/etc"
	}
	if h.Run == "" {
		h.Run = "/run"
	}
	if h.Programs == nil {
		h.Programs = []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"}
	}
	if h.RunCommand == nil {
		h.RunCommand = (*exec.Cmd).Run
	}
	return h
}

// Network is what a gang has got.
type Network struct {
	// Address is the gang's own: by it the members reach each other.
	Address netip.Prefix
	// Gateway is the host's; invalid without a way out.
	Gateway netip.Addr
	// Interface is eth0, or lo without a way out.
	Interface string
	MTU       int
	// Resolver is the content of the members' /etc/resolv.conf; empty without a way out.
	Resolver []byte
	// Relay says that Resolver names the gateway, where somebody has to run the function
	// [Relay] with these servers of the host, which the gang doesn't reach.
	Relay    bool
	Upstream []netip.Addr
}

const (
	insideName      = "eth0"
	interfacePrefix = "berth"
	interfaceDigits = 10 // of the id, in an interface's name
)

// InterfaceName is the name of the host's end of a gang's way out.
func InterfaceName(gang string) string { return interfacePrefix + gang[:interfaceDigits] }

func isGangID(gang string) bool {
	return len(gang) == 12 && strings.Trim(gang, "0123456789abcdef") == ""
}

// Connect sets up the network of a namespace. It is done when the first packet can
// leave. On an error the namespace has no way out, and may have lo up. A way out that
// the gang had before is gone.
func Connect(ctx context.Context, o Options) (Network, error) {
	o.Host = o.Host.withDefaults()
	n, err := connectGang(ctx, o)
	if err != nil {
		return Network{}, fmt.Errorf("network of gang %s: %w", o.Gang, err)
	}
	return n, nil
}

func connectGang(ctx context.Context, o Options) (n Network, err error) {
	if !isGangID(o.Gang) {
		return n, errors.New("this is no id of a gang")
	}
	if !o.Out {
		return loopbackNetwork(), runInNamespace(o.NetNS, func() error { return setUpInside(o.Host, Network{}) })
	}
	kernel, err := openRoutes()
	if err != nil {
		return n, err
	}
	defer kernel.Close()
	err = withLock(ctx, o.State, func() error {
		n, err = o.planNetwork(kernel)
		if err != nil {
			return err
		}
		return o.makeWayOut(kernel, n)
	})
	if err != nil {
		return n, err
	}
	err = runInNamespace(o.NetNS, func() error { return setUpInside(o.Host, n) })
	if err == nil {
		err = awaitCarrier(kernel, InterfaceName(o.Gang))
	}
	if err != nil {
		err = errors.Join(err, removeInterface(kernel, InterfaceName(o.Gang)))
	}
	return n, err
}

// loopbackNetwork is the network that has lo only.
func loopbackNetwork() Network {
	return Network{Address: netip.MustParsePrefix("127.0.0.1/8"), Interface: "lo", MTU: loopbackMTU}
}

const loopbackMTU = 1 << 16

// planNetwork looks at the host, picks a subnet, and has the host ready for it.
func (o Options) planNetwork(kernel *netlink.Handle) (n Network, err error) {
	if err := removeInterface(kernel, InterfaceName(o.Gang)); err != nil {
		return n, err
	}
	host, err := readHostNetwork(kernel)
	if err != nil {
		return n, err
	}
	r, err := o.Host.readHostResolvConf()
	if err != nil {
		return n, err
	}
	subnet, err := chooseSubnet(o.poolsOrDefault(), append(host.takenPrefixes(), r.reachableServers()...), searchSeed(o.Gang))
	if err != nil {
		return n, err
	}
	n.Gateway = subnet.Addr().Next()
	n.Address = netip.PrefixFrom(n.Gateway.Next(), subnet.Bits())
	n.Interface = insideName
	if n.MTU, err = host.outerMTU(kernel); err != nil {
		return n, err
	}
	n.Resolver, n.Upstream = r.contentForGang(n.Gateway)
	n.Relay = len(n.Upstream) > 0
	return n, o.openHost(host, o.poolsOrDefault(), n)
}

func (o Options) poolsOrDefault() []netip.Prefix {
	if len(o.Pools) == 0 {
		return DefaultPools()
	}
	return o.Pools
}

// openHost has the host forward for gangs, and nothing else that it didn't before. The rules
// come first.
func (o Options) openHost(host hostNetwork, pools []netip.Prefix, n Network) error {
	outer := host.outerInterfaces()
	opened, err := o.Host.interfacesToOpen(o.State, outer)
	if err != nil {
		return err
	}
	if err := enforceRules(firewall{pools: coverSubnets(pools, host.gangSubnets()), opened: opened}); err != nil {
		return err
	}
	if err := o.Host.openInterfaces(o.State, opened); err != nil {
		return err
	}
	return o.Host.openIPTables(outer, n.Relay)
}

// Disconnect takes away the way out of a gang. One that has none is no error.
func Disconnect(ctx context.Context, gang string) error {
	if !isGangID(gang) {
		return fmt.Errorf("network of gang %s: this is no id of a gang", gang)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	kernel, err := openRoutes()
	if err != nil {
		return err
	}
	defer kernel.Close()
	if err := removeInterface(kernel, InterfaceName(gang)); err != nil {
		return fmt.Errorf("network of gang %s: %w", gang, err)
	}
	return nil
}

// RestoreHost puts back what the host does for gangs, if no gang has a way out any more: the
// rules go, and interfaces that forward for gangs alone stop it. It changes nothing as
// long as there is one.
func RestoreHost(ctx context.Context, state string, h Host) error {
	h = h.withDefaults()
	if unix.Access(lockPath(state), unix.F_OK) != nil {
		return nil // no gang has ever been connected
	}
	err := withLock(ctx, state, func() error {
		kernel, err := openRoutes()
		if err != nil {
			return err
		}
		defer kernel.Close()
		links, err := listLinks(kernel)
		if err != nil {
			return err
		}
		for _, l := range links {
			if isGang(l) {
				return nil
			}
		}
		// The rules last: until then they hold back what forwarding lets through.
		return errors.Join(h.closeInterfaces(state), h.closeIPTables(), removeRules())
	})
	if err != nil {
		return fmt.Errorf("put back the host's network: %w", err)
	}
	return nil
}
