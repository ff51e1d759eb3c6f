package berth_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// A job runner leases two GPUs, prepares the bundle of the job's container, has
// its OCI runtime run it, and releases the GPUs.
func Example() {
	conf, err := berth.LoadConfig(berth.ConfigPath)
	if err != nil {
		log.Fatal(err)
	}
	node, err := berth.Open(conf)
	if err != nil {
		log.Fatal(err)
	}
	if err := runJob(context.Background(), node, "job-17", "/srv/jobs/17"); err != nil {
		log.Fatal(err)
	}
}

func runJob(ctx context.Context, node *berth.Node, id, bundle string) error {
	request, err := request.Parse("h100:2")
	if err != nil {
		return err
	}
	lease, err := node.Acquire(ctx, ledger.Ask{
		Owner:   ledger.Owner{EntryPoint: "api", Container: id, Bundle: bundle, Cgroup: "/jobs/" + id},
		Request: request,
		Wait:    10 * time.Minute,
		Waiting: func(b ledger.BusyError) { log.Printf("job %s waits: %v", id, &b) },
	})
	if err != nil {
		return err
	}
	// If this process dies, the lease ends when the cgroup is empty.
	defer func() {
		if err := node.Release(context.WithoutCancel(ctx), lease.ID); err != nil {
			log.Print(err)
		}
	}()
	return prepareAndRun(ctx, node, lease, bundle)
}

func prepareAndRun(ctx context.Context, node *berth.Node, lease ledger.Lease, bundle string) error {
	raw, err := os.ReadFile(bundle + "/config.json")
	if err != nil {
		return err
	}
	var spec specs.Spec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return err
	}
	root, err := berth.OpenRoot(bundle + "/rootfs")
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := node.Prepare(ctx, &spec, &lease, root); err != nil {
		return err
	}
	if raw, err = json.Marshal(spec); err != nil {
		return err
	}
	if err := os.WriteFile(bundle+"/config.json", raw, 0o644); err != nil {
		return err
	}
	return nil // and now the OCI runtime
}

func ExampleNode_Inventory() {
	node, err := berth.Open(berth.Config{State: "/run/berth", Data: "/var/lib/berth"})
	if err != nil {
		log.Fatal(err)
	}
	inv, err := node.Inventory(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range inv.GPUs {
		fmt.Println(g.Index, g.Model, g.Lost)
	}
}
