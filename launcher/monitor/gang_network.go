package monitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/isolation/network"
	"github.com/berth-gpu/berth/launcher/gang/ranks"
)

// connectNetwork creates the gang's network, writes its ranks' /etc/hosts and /etc/resolv.conf, and
// opens its stores.
func (g *gang) connectNetwork() error {
	const loopback = "127.0.0.1"
	m := g.own
	if m.rec.Gang.Network == "host" {
		return errors.Join(g.writeNames(loopback, nil), g.offerStores(loopback))
	}
	ns, err := os.Open(m.path("ns/net"))
	if err != nil {
		return fmt.Errorf("open the gang's network: %w", err)
	}
	defer ns.Close()
	n, err := network.Connect(context.Background(), network.Options{
		Gang: m.ID, NetNS: ns, Out: g.hasUplink(), State: m.Store.State, Host: g.networkHost(),
	})
	if err != nil {
		return err
	}
	address := loopback
	if n.Address.IsValid() && g.hasUplink() {
		address = n.Address.Addr().String()
	}
	g.network = &n
	return errors.Join(g.writeNames(address, n.Resolver), g.maintainNetwork(), g.offerStores(address))
}

// networkHost returns the host side of the network. Programs are run by the reaper, because this
// process is a subreaper.
func (g *gang) networkHost() network.Host { return network.Host{RunCommand: g.own.reaper.run} }

// hasUplink reports whether the gang's network is connected to the host's.
func (g *gang) hasUplink() bool {
	kind := g.own.rec.Gang.Network
	return kind == "private" || kind == "rdma"
}

// disconnectNetwork removes the gang's network.
func (g *gang) disconnectNetwork() error {
	g.closeStores()
	if g.stopNetwork != nil {
		g.stopNetwork()
		g.stopNetwork = nil
	}
	if !g.hasUplink() {
		return nil
	}
	ctx := context.Background()
	return errors.Join(network.Disconnect(ctx, g.own.ID), network.RestoreHost(ctx, g.own.Store.State, g.networkHost()))
}

// writeNames writes the ranks' /etc/hosts and /etc/resolv.conf, with the ranks' names at address, and
// resolver unless the options name a DNS server. The files are changed in place, because the ranks
// have bind mounts of them.
func (g *gang) writeNames(address string, resolver []byte) error {
	if err := os.WriteFile(g.own.path(addressFile), []byte(address), 0o600); err != nil {
		return fmt.Errorf("record the gang's address: %w", err)
	}
	hosts, err := g.originalFile("hosts")
	if err != nil {
		return err
	}
	hosts = append(hosts, address+"\t"+strings.Join(g.own.rec.Gang.Names, " ")+"\n"...)
	asked, err := g.originalFile("resolv.conf")
	if err != nil {
		return err
	}
	if len(asked) == 0 {
		asked = resolver
	}
	return errors.Join(g.writeNameFile("hosts", hosts), g.writeNameFile("resolv.conf", asked))
}

// addressFile has the ranks' IP address.
const addressFile = "files/address"

// originalFile returns a file as the launcher has written it. The first call makes a copy.
func (g *gang) originalFile(name string) ([]byte, error) {
	kept := g.own.path("files/" + name + ".given")
	text, err := os.ReadFile(kept)
	if !errors.Is(err, fs.ErrNotExist) {
		return text, err
	}
	if text, err = os.ReadFile(g.own.path("files/" + name)); err != nil {
		return nil, err
	}
	return text, os.WriteFile(kept, text, 0o600)
}

func (g *gang) writeNameFile(name string, text []byte) error {
	if err := os.WriteFile(g.own.path("files/"+name), text, 0o644); err != nil {
		return fmt.Errorf("write the gang's file: %w", err)
	}
	return nil
}

// networkFile describes the gang's network, for a monitor that adopts the gang.
const networkFile = "files/network.json"

// maintainNetwork starts the background services of the gang's network. DNS queries are relayed if
// the host's resolver can't be reached from the gang. g.keepRules, which the caller calls once the
// ranks run, starts to keep the host's rules.
func (g *gang) maintainNetwork() error {
	if !g.hasUplink() || g.network == nil {
		return nil
	}
	text, err := json.Marshal(g.network)
	if err == nil {
		err = os.WriteFile(g.own.path(networkFile), text, 0o600)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.stopNetwork = cancel
	n := *g.network
	g.keepRules = func() {
		go func() {
			if err := network.KeepRules(ctx, network.Options{Gang: g.own.ID, Out: true, State: g.own.Store.State, Host: g.networkHost()}, n); err != nil {
				g.own.logError(err)
			}
		}()
	}
	if n.Relay {
		go func() {
			if err := network.RelayDNS(ctx, n.Gateway, n.Upstream...); err != nil && ctx.Err() == nil {
				g.own.logError(err)
			}
		}()
	}
	return err
}

// adoptNetwork takes over ports, stores and network services from the previous monitor.
func (g *gang) adoptNetwork() error {
	return errors.Join(g.keepPorts(), g.reopenStores(), g.restoreNetworkServices())
}

// keepPorts leases the gang's ports again. Another gang may have leased them meanwhile, which is an
// error.
func (g *gang) keepPorts() error {
	p := g.own.rec.Gang.Ports
	if p.Count == 0 {
		return nil
	}
	var err error
	g.ports, err = ranks.Resume(g.own.Store.State, p.First, p.Count)
	return err
}

// reopenStores opens the gang's stores, except those that a process still serves: in a user namespace all.
func (g *gang) reopenStores() error {
	if userns.IsInside() {
		return nil
	}
	address, err := os.ReadFile(g.own.path(addressFile))
	if err != nil {
		return err
	}
	return g.offerStores(string(address))
}

// restoreNetworkServices starts maintainNetwork and guard for the network of a previous monitor.
func (g *gang) restoreNetworkServices() error {
	if !g.hasUplink() {
		return nil
	}
	text, err := os.ReadFile(g.own.path(networkFile))
	if err != nil {
		return err
	}
	g.network = &network.Network{}
	if err := json.Unmarshal(text, g.network); err != nil {
		return fmt.Errorf("read the gang's network: %w", err)
	}
	err = g.maintainNetwork()
	g.keepRules()
	return err
}
