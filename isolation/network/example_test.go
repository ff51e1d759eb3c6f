package network_test

import (
	"context"
	"fmt"
	"os"

	"github.com/berth-gpu/berth/isolation/network"
)

// A gang's namespace, held open by a process of the gang, gets a way out. Whoever watches
// over the gang keeps it, and passes queries for names on where that is needed.
func ExampleConnect() {
	ns, err := os.Open("/proc/4711/ns/net")
	if err != nil {
		return
	}
	defer ns.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	o := network.Options{Gang: "0a789d129a52", NetNS: ns, Out: true, State: "/run/berth"}
	n, err := network.Connect(ctx, o)
	if err != nil {
		return
	}
	go func() { fmt.Println(network.KeepRules(ctx, o, n)) }()
	if n.Relay {
		go func() { fmt.Println(network.RelayDNS(ctx, n.Gateway, n.Upstream...)) }()
	}
	fmt.Printf("%s on %s\n", n.Address, n.Interface)
	// When the gang has ended:
	cancel()
	_ = network.Disconnect(context.Background(), o.Gang)
	_ = network.RestoreHost(context.Background(), o.State, o.Host)
}
