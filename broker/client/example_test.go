package client_test

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// A job runner's child takes a lease and becomes the job, which is in the lease's cgroup.
func ExampleClient_Acquire() {
	ask := protocol.Acquire{Request: "2", WaitSeconds: -1, Command: "python train.py"}
	granted, err := client.New("/run/berth").Acquire(context.Background(), ask, func(b ledger.BusyError) {
		fmt.Fprintf(os.Stderr, "%d of %d free, %d ahead\n", b.Free, b.Total, b.Ahead)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	err = syscall.Exec("/usr/bin/python3", []string{"python3", "train.py"}, append(os.Environ(), granted.Environment...))
	fmt.Fprintln(os.Stderr, err)
}
