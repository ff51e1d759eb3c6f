package doctor

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/berth-gpu/berth/isolation/network"
)

// otherNetworks are what a gang can have where it can't have one of its own.
const otherNetworks = "berth run --network none, or --network host"

func (e *exam) networkHost() network.Host { return network.Host{Proc: e.host.Proc} }

// networkKernel: a module that is there is loaded by the first gang, and by this.
func (e *exam) networkKernel(r *result) error {
	err := network.Probe(e.ctx, e.networkHost())
	switch {
	case err == nil:
		r.ok("the kernel has veth interfaces, and nf_tables with NAT")
	case errors.Is(err, fs.ErrPermission) && e.User == "":
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

// networkFirewall: what others hold back of what gangs send, and whether there is a wall
// between those that are there.
func (e *exam) networkFirewall(r *result) error {
	s, err := network.Inspect(nil, e.networkHost())
	if err != nil {
		return err
	}
	before := len(r.findings)
	if len(s.Gangs) > 0 && !s.Rules {
		r.warn("start a gang, which sets them anew", "table inet berth is gone, and with it the wall between gangs: %s", listed(s.Gangs))
	}
	if s.Firewalld {
		r.warn("firewall-cmd --permanent --zone=trusted --add-interface=berth+ && firewall-cmd --reload", "firewalld holds back what gangs send, as it does with strangers")
	}
	if len(s.Closed) > 0 {
		r.warn(`accept iifname "berth*", and oifname "berth*" with ct state established,related, in there`, "what gangs send is dropped by others: %s", listed(s.Closed))
	}
	forwards := "net.ipv4.ip_forward is off, and stays so: only what is a gang's is forwarded"
	if s.Router {
		forwards = "net.ipv4.ip_forward is on"
	}
	r.fine(before, "nobody holds back what gangs send; %s", forwards)
	return nil
}

// networkAddresses: there is room for a gang, and names are found in it.
func (e *exam) networkAddresses(r *result) error {
	s, err := network.Inspect(nil, e.networkHost())
	if err != nil && !errors.Is(err, fs.ErrPermission) { // of the rules, which are another check's
		return err
	}
	if s.Full != nil {
		r.warn("take away routes to all private networks, or "+otherNetworks, "%v", s.Full)
		return nil
	}
	names := "gangs ask the host's name servers"
	if len(s.Relayed) > 0 {
		names = fmt.Sprintf("gangs ask %v by a relay", s.Relayed[0])
	}
	r.ok("the next gang's network could be %s; %s", s.Free, names)
	return nil
}
