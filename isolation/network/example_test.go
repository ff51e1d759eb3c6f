package network_test

import (
	"context"
	"fmt"
	"os"

	"github.com/berth-gpu/berth/isolation/network"
)

// A gang's namespace, which a process of the gang holds open, gets a way out. The process that
// supervises the gang keeps the rules, and relays DNS queries where that is needed.
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
	// After the gang's end:
	cancel()
	_ = network.Disconnect(context.Background(), o.Gang)
	_ = network.RestoreHost(context.Background(), o.State, o.Host)
}
