// Command demo shows berth: more containers than GPUs, started at once, each with a GPU of its own;
// none can open another's.
//
// It runs on the machine's own NVIDIA GPUs, or else on a simulated server.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	image   = ".cache/image/debian"
	seconds = "1.5" // time for which a task keeps its GPU
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := outside
	if len(os.Args) > 1 && os.Args[1] == "inside" {
		run = inside
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// outside prepares the demo, and runs it on real GPUs or in a simulated node.
func outside(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("containers with device rules need root: sudo make demo")
	}
	if err := os.MkdirAll(".cache/demo", 0o755); err != nil {
		return err
	}
	if err := stream(ctx, "cc", "-O2", "-Wall", "-o", ".cache/demo/probe", "test/demo/probe/probe.c", "-ldl"); err != nil {
		return fmt.Errorf("compile the tasks' probe: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if _, err := os.Stat("/proc/driver/nvidia/version"); err == nil {
		fmt.Println("This machine has an NVIDIA driver: the demo uses its GPUs.")
		return stream(ctx, self, "inside", "real")
	}
	fmt.Println("This machine has no NVIDIA driver: the GPUs that follow are SIMULATED (the containers and their device rules are real).")
	return stream(ctx, "go", "run", "./test/simnode", "-profile", "dgx-h100", "-cgroup", cgroups(), "--", self, "inside", "simulated")
}

// cgroups chooses the hierarchy: older runtimes refuse hosts with both versions.
func cgroups() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "host"
	}
	return "v1"
}

func stream(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// inside runs on the GPU server, real or simulated.
func inside(ctx context.Context) error {
	kind := os.Args[2]
	for _, verb := range []string{"discover", "gpus"} {
		fmt.Printf("\n$ berth %s\n", verb)
		if err := stream(ctx, "bin/berth", verb); err != nil {
			return err
		}
	}
	gpus, err := listGPUs(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("\n$ berth run oci:debian /bin/true    # once, so that no task's time is that of unpacking the image\n")
	if err := stream(ctx, "bin/berth", "run", "oci:"+image, "/bin/true"); err != nil {
		return err
	}
	count := len(gpus) + len(gpus)/2
	if len(gpus) < 2 {
		count = len(gpus) + 2
	}
	fmt.Printf("\n$ berth run --gpus 1 --wait -v /dev:/host/dev … oci:debian /probe    # %d times at once, %d GPUs\n\n", count, len(gpus))
	tasks := startAll(ctx, count)
	return report(os.Stdout, kind, gpus, tasks)
}

// device has the needed fields of one device of berth gpus --json.
type device struct {
	UUID, Index, Model, State string
	Minor                     int
}

// listGPUs returns the whole GPUs that can be leased.
func listGPUs(ctx context.Context) ([]device, error) {
	out, err := exec.CommandContext(ctx, "bin/berth", "gpus", "--json").Output()
	if err != nil {
		return nil, fmt.Errorf("berth gpus --json: %w", err)
	}
	var node struct{ Devices []device }
	if err := json.Unmarshal(out, &node); err != nil {
		return nil, fmt.Errorf("berth gpus --json: %w", err)
	}
	var free []device
	for _, d := range node.Devices {
		if d.State == "free" && !strings.Contains(d.Index, ":") {
			free = append(free, d)
		}
	}
	if len(free) == 0 {
		return nil, errors.New("no GPU is free on this machine; berth gpus shows why")
	}
	return free, nil
}

// task is one container and its output.
type task struct {
	name     string
	launched time.Time
	seen     sighting
	err      error
}

// sighting is the probe's output.
type sighting struct {
	Nodes                   []node
	Mknod, Libcuda, Devices string
	DlopenError             string `json:"dlopen_error"`
	Start, End              float64
}

// node is one device node that the task tried to open.
type node struct {
	Node    string
	Allowed bool
}

func startAll(ctx context.Context, n int) []task {
	tasks := make([]task, n)
	var wg sync.WaitGroup
	for i := range tasks {
		wg.Go(func() {
			tasks[i] = start(ctx, fmt.Sprintf("task-%02d", i+1))
		})
	}
	wg.Wait()
	return tasks
}

func start(ctx context.Context, name string) task {
	t := task{name: name, launched: time.Now()}
	probe, err := filepath.Abs(".cache/demo/probe")
	if err != nil {
		t.err = err
		return t
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, "bin/berth", "run", "--gpus", "1", "--wait", "--name", name,
		"-v", probe+":/probe:ro", "-v", "/dev:/host/dev", "oci:"+image, "/probe", seconds)
	cmd.Stderr = &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &t.seen)
	}
	if err != nil {
		t.err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return t
}
