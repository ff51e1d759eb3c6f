package nvml_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/discover"
	"github.com/berth-gpu/berth/gpu/nodes"
	"github.com/berth-gpu/berth/gpu/nvml"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/gpu/snapshot"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// The test binary is four programs: the tests; with outsideEnv set, the program that enters a
// simulated node; with insideEnv set, the program that works in there; with serveEnv set, the child
// of a probe.
const (
	outsideEnv = "NVML_TEST_OUTSIDE"
	insideEnv  = "NVML_TEST_INSIDE"
	serveEnv   = "NVML_TEST_SERVE"
)

// job is what a test does inside a node, in the order of the fields.
type job struct {
	Profile string
	Options sim.Options
	Prepare bool       // load uvm and make nodes, twice
	Actions [][]string // of sim.Control
	Name    bool       // compute the slices' profiles
	Library string
	Timeout time.Duration // of one call
	Child   time.Duration // if set, read in a child with this timeout
}

// result is the outcome of a job.
type result struct {
	Inventory gpu.Inventory
	Error     string
	NoDriver  bool
	Stale     []string          // the changes of the machine's key by the actions
	UVM       bool              // loaded by the first preparation
	Computed  map[string]string // profiles by UUID
	Made      [2][]nodes.Change
}

func TestMain(m *testing.M) {
	ctx := context.Background()
	if was, err := sim.Loader(os.Args); was { // the node's modprobe is this binary too
		exitWith(err)
	}
	switch {
	case os.Getenv(serveEnv) != "":
		exitWith(probe.Serve(ctx, os.Stdout, source(parse(serveEnv))))
	case os.Getenv(insideEnv) != "":
		exitWith(json.NewEncoder(os.Stdout).Encode(parse(insideEnv).inside(ctx)))
	case os.Getenv(outsideEnv) != "":
		j := parse(outsideEnv)
		env := append(os.Environ(), insideEnv+"="+os.Getenv(outsideEnv))
		exitWith(sim.Exec(j.Profile, j.Options, os.Args, env))
	}
	os.Exit(m.Run())
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func parse(env string) (j job) {
	if err := json.Unmarshal([]byte(os.Getenv(env)), &j); err != nil {
		exitWith(err)
	}
	return j
}

func source(j job) nvml.Source {
	h := gpu.Host{DriverRoot: j.Options.DriverRoot}
	return nvml.Source{Library: nvml.Find(j.Library, h), Timeout: j.Timeout}
}

// runJob does a job in a new node.
func runJob(t *testing.T, j job) result {
	t.Helper()
	testutil.NeedRoot(t)
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), outsideEnv+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var r result
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %q\n%s", err, out, &stderr)
	}
	return r
}

func (j job) inside(ctx context.Context) (r result) {
	err := j.act(ctx, &r)
	if err != nil {
		r.Error, r.NoDriver = err.Error(), errors.Is(err, gpu.ErrNoDriver)
	}
	return r
}

func (j job) act(ctx context.Context, r *result) error {
	h := gpu.Host{DriverRoot: j.Options.DriverRoot}
	if err := j.prepare(ctx, h, r); err != nil {
		return err
	}
	before, err := snapshot.ReadKey(h)
	if err != nil {
		return err
	}
	for _, a := range j.Actions {
		if err := sim.Control(a...); err != nil {
			return fmt.Errorf("change node: %w", err)
		}
	}
	after, err := snapshot.ReadKey(h)
	if err != nil {
		return err
	}
	r.Stale = before.Changes(after)
	src, err := j.source()
	if err != nil {
		return err
	}
	if r.Inventory, err = discover.Inventory(ctx, src, h); err != nil || !j.Name {
		return err
	}
	r.Computed, err = source(j).ComputedProfiles(ctx)
	return err
}

func (j job) source() (gpu.Source, error) {
	if j.Child == 0 {
		return source(j), nil
	}
	text, err := json.Marshal(j)
	env := append(os.Environ(), serveEnv+"="+string(text))
	return probe.Child{Path: "/proc/self/exe", Env: env, Timeout: j.Child}, err
}

func (j job) prepare(ctx context.Context, h gpu.Host, r *result) error {
	if !j.Prepare {
		return nil
	}
	for i := range r.Made {
		loaded, err := nodes.LoadUVM(ctx, h)
		if err != nil {
			return err
		}
		r.UVM = r.UVM || loaded
		plan, err := nodes.Plan(h)
		if err != nil {
			return err
		}
		made, err := nodes.Make(h, plan)
		if err != nil {
			return err
		}
		r.Made[i] = made
	}
	return nil
}

// withoutMachine returns an inventory without the values that depend on the machine that simulates it.
func withoutMachine(inv gpu.Inventory) gpu.Inventory {
	mask := func(cpus *string) {
		if *cpus != "" {
			*cpus = "(of this machine)"
		}
	}
	for i := range inv.GPUs {
		mask(&inv.GPUs[i].CPUs)
	}
	for i := range inv.NUMA {
		mask(&inv.NUMA[i].CPUs)
	}
	for i := range inv.FeatureNodes {
		inv.FeatureNodes[i].Major = 0 // the kernel assigns free majors
	}
	return inv
}

func golden(name string) string { return "testdata/" + strings.ReplaceAll(name, " ", "-") + ".json" }
