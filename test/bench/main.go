// Command bench measures what berth adds, as ratios against the plain runtimes in
// one run on one machine. It is a benchmark and never a test: nothing fails
// because it was slow.
//
// It runs inside simulated nodes, the dgx-h100 and one of sixteen GPUs, so that it
// can be repeated anywhere, and for what is compared with other launchers and engines
// inside simulated servers that have them (see tree.sh, and for Apptainer test/engines/tree.sh). NVIDIA's runtime, or with PEER_RUNTIME=/path another one
// that gives containers GPUs, is measured in the same run where there is one (see peer.go).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.write, "write", "", "also write the results to this file")
	flag.IntVar(&o.rounds, "rounds", 40, "how often each case is measured")
	flag.StringVar(&o.only, "only", "", "measure the sections whose names begin so: "+names())
	inside := flag.Bool("inside", false, "run on this node instead of simulated ones")
	host := flag.Bool("host", false, "measure what needs the engines of this host")
	flag.BoolVar(&o.users, "users", false, "with -host: measure what needs Apptainer")
	asks := flag.Bool("ask", false, "ask the broker for a lease at each line of standard input")
	flag.Parse()
	run := outside
	switch {
	case *asks:
		run = func(ctx context.Context, _ options) error { return runAsker(ctx) }
	case *inside:
		run = measure
	case *host:
		run = measureHost
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	write  string
	rounds int
	only   string
	users  bool // of the host: see hostTopic
}

// wants reports whether a topic of that node is to be measured.
func (o options) wants(profile string) bool {
	return slices.ContainsFunc(topics(), func(t topic) bool { return t.profile == profile && strings.HasPrefix(t.name, o.only) })
}

// built is the directory of the programs that the benchmark needs.
const built = ".cache/bench"

// outside enters simulated nodes with a pure cgroup v2 tree, as servers have it, one
// after another.
func outside(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("containers need root: sudo make bench")
	}
	if err := build(ctx); err != nil {
		return err
	}
	text := []byte(heading(o.rounds))
	for _, profile := range profiles() {
		if !o.wants(profile) {
			continue
		}
		part := filepath.Join(built, "part.md")
		err := stream(ctx, filepath.Join(built, "simnode"), "-profile", profile, "-cgroup", "v2", "--",
			filepath.Join(built, "bench"), "-inside", "-write", part, "-rounds", fmt.Sprint(o.rounds), "-only", o.only)
		if err != nil {
			return err
		}
		tables, err := os.ReadFile(part)
		if err != nil {
			return err
		}
		text = append(text, tables...)
	}
	tables, err := measureHosted(ctx, o)
	if err != nil {
		return err
	}
	text = append(text, tables...)
	if o.write == "" {
		return nil
	}
	return os.WriteFile(o.write, text, 0o644)
}

func build(ctx context.Context) error {
	if err := os.MkdirAll(built, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"bench", "soak", "bench/empty", "simnode"} {
		cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", filepath.Join(built, filepath.Base(name)), "./test/"+name)
		cmd.Env, cmd.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build test/%s: %w", name, err)
		}
	}
	programs, err := filepath.Glob("bin/berth*")
	if err != nil {
		return err
	}
	for _, path := range append(programs, filepath.Join(built, "empty")) {
		if err := rewrite(path); err != nil {
			return err
		}
	}
	return nil
}

// rewrite gives a program a new file of the same bytes, as an installation does. The linker writes
// through a mapping, so the page cache has the file in single pages, and each start of a program
// as large as berth-runtime takes a third of a millisecond longer.
func rewrite(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o755); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// stream runs a command in a session of its own. Engines start runtimes without a terminal and without job
// control; where a shell could stop and continue a process, berth also catches the signals for it.
func stream(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
