package doctor

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/berth-gpu/berth/isolation/network"
)

// otherNetworks are the ways to run a gang without a network of its own.
const otherNetworks = "berth run --network none, or --network host"

func (e *examination) networkHost() network.Host { return network.Host{Proc: e.host.Proc} }

// checkGangKernel creates a gang's network in a namespace of its own. That may load kernel
// modules.
func (e *examination) checkGangKernel(r *report) error {
	return decideGangKernel(r, network.Probe(e.ctx, e.networkHost()))
}

// decideGangKernel reports why no network can be created. An error of missing permissions is
// returned.
func decideGangKernel(r *report, err error) error {
	switch {
	case err == nil:
		r.ok("the kernel has veth interfaces, and nf_tables with NAT")
	case errors.Is(err, fs.ErrPermission) && r.user == "":
		r.warn("call berth outside of this container, or of this service", "this process may make no network for a gang: %v", err)
	case errors.Is(err, fs.ErrPermission):
		return err
	case errors.Is(err, network.ErrFirewall):
		r.warn("modprobe -a nf_tables nft_chain_nat nft_masq nft_ct nft_fib_inet, or "+otherNetworks, "no gang gets a network of its own: %v", err)
	case errors.Is(err, network.ErrKind):
		r.warn("modprobe veth, or "+otherNetworks, "no gang gets a network of its own: %v", err)
	default:
		r.warn(otherNetworks, "no gang gets a network of its own: %v", err)
	}
	return nil
}

func (e *examination) checkFirewall(r *report) error {
	s, err := network.Inspect(nil, e.networkHost())
	if err == nil {
		decideFirewall(r, s)
	}
	return err
}

// decideFirewall reports missing rules between gangs, and other firewalls that drop what
// gangs send.
func decideFirewall(r *report, s network.HostStatus) {
	if len(s.Gangs) > 0 && !s.Rules {
		r.warn("start a gang, which sets them again", "table inet berth is gone, and with it the rules that separate gangs: %s", listFirst(s.Gangs))
	}
	if s.Firewalld {
		r.warn("firewall-cmd --permanent --zone=trusted --add-interface=berth+ && firewall-cmd --reload", "firewalld drops what gangs send, as it does with unknown interfaces")
	}
	if len(s.Closed) > 0 {
		r.warn(`accept iifname "berth*", and oifname "berth*" with ct state established,related, in there`, "what gangs send is dropped by others: %s", listFirst(s.Closed))
	}
	forwards := "net.ipv4.ip_forward is off and stays so: only packets of gangs are forwarded"
	if s.Router {
		forwards = "net.ipv4.ip_forward is on"
	}
	r.okUnlessReported("no firewall drops what gangs send; %s", forwards)
}

func (e *examination) checkGangAddresses(r *report) error {
	s, err := network.Inspect(nil, e.networkHost())
	if err != nil && !errors.Is(err, fs.ErrPermission) { // missing permissions concern the firewall rules, which another check reads
		return err
	}
	decideGangAddresses(r, s)
	return nil
}

// decideGangAddresses reports whether there is a subnet for the next gang.
func decideGangAddresses(r *report, s network.HostStatus) {
	if s.Full != nil {
		r.warn("remove routes to all private networks, or "+otherNetworks, "%v", s.Full)
		return
	}
	if s.OnlyIPv6 {
		r.warn("give the host a default route of IPv4, or run gangs with --network host", "gangs reach nothing outside: their networks have IPv4, and the host has a default route of IPv6 alone")
	}
	names := "gangs ask the host's name servers"
	if len(s.Relayed) > 0 {
		names = fmt.Sprintf("gangs ask %v by a relay", s.Relayed[0])
	}
	r.okUnlessReported("the next gang's network could be %s; %s", s.Free, names)
}
