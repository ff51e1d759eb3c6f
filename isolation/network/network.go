// Package network connects gangs to the network. Each gang has a network namespace of its
// own with lo and, if asked for, one interface as its way out.
//
// The way out is a veth pair: eth0 in the gang's namespace, and on the host an interface
// named "berth" and the first ten digits of the gang's id. Their addresses are the two of
// a /30 that overlaps with no address, route or name server of the host. Packets leave the
// host with the host's address (masquerade). There is no IPv6 to the outside.
//
// Gangs can't reach each other, and from the host and the outside only answers reach a
// gang. A gang reaches the host by the host's addresses, as from outside, but not what
// listens on 127.0.0.1 there. The rules for this are one table of nf_tables, inet berth.
// They match interfaces by the prefix of their names, so they are the same for all gangs,
// and they are set before the first interface exists.
//
// The host has to forward for gangs. A gang's own interface is allowed to. Where the host
// doesn't forward by itself, its interfaces to the outside are switched on too, and the
// rules drop what passes them and isn't a gang's.
//
// No rule and no file belongs to one gang. Which subnets are taken is read from the host's
// interfaces. The kernel removes a pair with the gang's namespace, so nothing of a gang is
// left once its last process has ended, whichever program is killed at whichever moment.
// [RestoreHost] undoes the rest when there is no gang any more.
//
// The package uses vishvananda/netlink and google/nftables. With them, and package net,
// each monitor takes 0.05 MB more (0.89 MB). Rules of iptables are set by its own program,
// for two reasons: what berth's table accepts is still dropped by a base chain of another
// table, so hosts whose chain FORWARD drops need a rule in there; and the legacy variant is
// out of nf_tables' reach, while chains of iptables-nft may hold only rules in the form
// that iptables can print.
//
// Changes are made under a lock, STATE/network.lock. The host's network namespace is the
// calling thread's. The package needs CAP_NET_ADMIN and CAP_SYS_ADMIN in it, and Linux 5.7.
package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/netdev"
)

var (
	// ErrFirewall: the kernel lacks what isolates networks from each other.
	ErrFirewall = errors.New("the kernel has no nf_tables with NAT, conntrack and fib, without which no network is private: use --network none or --network host")
	// ErrFull: all subnets of the pools are taken.
	ErrFull = errors.New("no subnet is free")
	// ErrKind: the kernel can't make veth pairs.
	ErrKind = errors.New("the kernel has no veth interfaces: use --network none or --network host")
)

// Options say what network a gang gets.
type Options struct {
	// Gang is the gang's id, 12 hexadecimal digits. The ids of a host differ in the first ten.
	Gang string
	// NetNS is the gang's network namespace.
	NetNS *os.File
	// Out asks for a way out. Without it there is only lo.
	Out bool
	// State is the directory of the lock and of network.forward: /run/berth. It exists.
	State string
	// Pools are the ranges from which subnets are taken; empty stands for [DefaultPools].
	Pools []netip.Prefix
	Host  Host
}

// Host says where a host's files and programs are. The zero value is this machine.
type Host struct {
	Proc string // "" is /proc
	Etc  string // "" is /etc
	Run  string // "" is /run
	// Programs are the directories in which the host's programs are looked for; nil stands
	// for the usual ones.
	Programs []string
	// RunCommand runs one of them to its end; nil stands for the command's method Run. A process
	// that reaps all its children itself has to set it. An error with a method ExitCode is the
	// program's.
	RunCommand func(*exec.Cmd) error
}

func (h Host) withDefaults() Host {
	h.Proc, h.Etc, h.Run = cmp.Or(h.Proc, "/proc"), cmp.Or(h.Etc, "/etc"), cmp.Or(h.Run, "/run")
	if h.Programs == nil {
		h.Programs = []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"}
	}
	if h.RunCommand == nil {
		h.RunCommand = (*exec.Cmd).Run
	}
	return h
}

// Network is the network that a gang has got. Monitors keep it in a file as JSON.
type Network struct {
	// Address is the gang's own. The ranks reach each other by it.
	Address netip.Prefix
	// Gateway is the host's address; invalid without a way out.
	Gateway netip.Addr
	// Interface is eth0, or lo without a way out.
	Interface string
	MTU       int
	// Resolver is the content of the ranks' /etc/resolv.conf; empty without a way out.
	Resolver []byte
	// Relay says that Resolver names the gateway, and that the caller has to run [RelayDNS]
	// there. Upstream are the servers of the host that the gang can't reach itself.
	Relay    bool
	Upstream []netip.Addr
}

const (
	insideName      = "eth0"
	interfacePrefix = "berth"
	interfaceDigits = 10 // digits of the id in an interface's name, which has at most 15 bytes
)

// InterfaceName is the name of the host's end of a gang's way out. The id is valid.
func InterfaceName(gang string) string { return interfacePrefix + gang[:interfaceDigits] }

func isGangID(gang string) bool {
	return len(gang) == 12 && strings.Trim(gang, "0123456789abcdef") == ""
}

// Connect sets up the network of a gang's namespace. When it returns, packets can leave. A
// way out that the gang had before is replaced. On an error the namespace has no way out,
// and lo may be up.
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
		return n, errors.New("not the id of a gang")
	}
	if !o.Out {
		return loopbackNetwork(), RunInNamespace(o.NetNS, func() error { return setUpInside(o.Host, Network{}) })
	}
	kernel, err := netdev.OpenRoutes()
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
	err = RunInNamespace(o.NetNS, func() error { return setUpInside(o.Host, n) })
	if err == nil {
		err = awaitCarrier(kernel, InterfaceName(o.Gang))
	}
	if err != nil {
		err = errors.Join(err, removeInterface(kernel, InterfaceName(o.Gang)))
	}
	return n, err
}

// loopbackNetwork is a network without a way out.
func loopbackNetwork() Network {
	return Network{Address: netip.MustParsePrefix("127.0.0.1/8"), Interface: "lo", MTU: loopbackMTU}
}

const loopbackMTU = 1 << 16

// planNetwork chooses a subnet and prepares the host for it.
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

// openHost has the host forward for gangs, and nothing else that it didn't forward before.
// The rules are set first, as they drop that. It is idempotent.
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
	if err := o.Host.openGangs(host); err != nil {
		return err
	}
	return o.Host.openIPTables(outer, n.Relay)
}

// Disconnect removes a gang's way out. It is no error if the gang has none.
func Disconnect(ctx context.Context, gang string) error {
	if !isGangID(gang) {
		return fmt.Errorf("network of gang %s: not the id of a gang", gang)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	kernel, err := netdev.OpenRoutes()
	if err != nil {
		return err
	}
	defer kernel.Close()
	if err := removeInterface(kernel, InterfaceName(gang)); err != nil {
		return fmt.Errorf("network of gang %s: %w", gang, err)
	}
	return nil
}

// RestoreHost undoes what the host does for gangs, if no gang has a way out any more: it
// removes the rules, and switches off the interfaces that forward for gangs alone. It
// changes nothing as long as a gang has one.
func RestoreHost(ctx context.Context, state string, h Host) error {
	h = h.withDefaults()
	if unix.Access(lockPath(state), unix.F_OK) != nil {
		return nil // no gang has ever been connected
	}
	err := withLock(ctx, state, func() error {
		kernel, err := netdev.OpenRoutes()
		if err != nil {
			return err
		}
		defer kernel.Close()
		links, err := listLinks(kernel)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(links, isGangInterface) {
			return nil
		}
		// The rules are removed last: they drop what the interfaces still forward.
		return errors.Join(h.closeInterfaces(state), h.closeIPTables(), removeRules())
	})
	if err != nil {
		return fmt.Errorf("restore the host's network: %w", err)
	}
	return nil
}

func lockPath(state string) string { return filepath.Join(state, "network.lock") }

// withLock calls f while it holds the lock of this host's networks. The file is never
// removed.
func withLock(ctx context.Context, state string, f func() error) (err error) {
	held, err := lock.Create(ctx, lockPath(state), 0o600, lock.Exclusive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	return f()
}
