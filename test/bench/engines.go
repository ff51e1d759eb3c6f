package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// engine is a container engine.
type engine struct {
	name    string
	runtime string   // the plain one, which berth-runtime calls as well
	words   []string // arguments that run a container, up to the runtime's name
	plain   string   // the name of the plain runtime
	berth   string
	goal    string // arguments for one container with a GPU
}

// The image's name, and the device that each container of a burst has.
const (
	engineImage = "localhost/bench"
	slice       = "1g.10gb"
)

func engines() ([]engine, error) {
	wrapper, err := filepath.Abs("bin/berth-runtime")
	return []engine{
		{
			name: "docker run", runtime: "runc", plain: "runc", berth: "berth", goal: "≤ +8 ms",
			words: []string{"docker", "run", "--rm", "--network", "none", "--runtime"},
		},
		{
			name: "podman run", runtime: "crun", plain: "/usr/bin/crun", berth: wrapper, goal: "≤ +5 ms",
			words: []string{
				"podman", "--cgroup-manager", "cgroupfs", "--events-backend", "none", "run", "--rm", "--network", "none", "--cgroups=enabled",
				"--pids-limit=0", "--ulimit", "nofile=256:256", "--ulimit", "nproc=256:256", "--runtime",
			},
		},
	}, err
}

// run runs a container that does nothing.
func (e engine) run(runtime string, options ...string) []string {
	words := append(append(append([]string{}, e.words...), runtime), options...)
	return append(words, engineImage, "/bin/true")
}

// engineSections compares berth-runtime with the engines' default runtime.
func engineSections(ctx context.Context, o options) ([]section, error) {
	if err := imports(ctx); err != nil {
		return nil, err
	}
	all, err := engines()
	if err != nil {
		return nil, err
	}
	var sections []section
	each := func(measure func(context.Context, options, engine) (section, error)) error {
		for _, e := range all {
			if err := configure(e.runtime); err != nil {
				return err
			}
			s, err := measure(ctx, o, e)
			if err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			sections = append(sections, s)
		}
		return nil
	}
	if err := each(oneByOne); err != nil {
		return nil, err
	}
	if err := cut(ctx); err != nil { // bursts need more devices
		return nil, err
	}
	return sections, each(bursts)
}

// configure makes berth use a runtime.
func configure(runtime string) error {
	berth, err := filepath.Abs("bin/berth")
	if err != nil {
		return err
	}
	if err := os.MkdirAll("/etc/berth", 0o755); err != nil {
		return err
	}
	return os.WriteFile("/etc/berth/config.toml", fmt.Appendf(nil, "runtime = %q\nberth = %q\n", runtime, berth), 0o644)
}

// imports gives the engines an image.
func imports(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	root := filepath.Join(dir, "root")
	if err := unpack(ctx, "debian", root); err != nil {
		return err
	}
	const script = `tar -C "$0" -cf "$1" . && docker import "$1" "$2" && podman import "$1" "$2"`
	_, err = timed(ctx, nil, "sh", "-c", script, root, filepath.Join(dir, "image.tar"), engineImage)
	return err
}

// cut cuts the GPUs into more slices than any burst has containers at once.
func cut(ctx context.Context) error {
	inv, err := inventory(ctx)
	if err != nil {
		return err
	}
	layout := strings.TrimSuffix(strings.Repeat(slice+",", 7), ",")
	for i := range inv.GPUs {
		if _, err := timed(ctx, nil, filepath.Join(built, "simnode"), "ctl", "mig", strconv.Itoa(i), layout); err != nil {
			return err
		}
	}
	for _, words := range [][]string{{"bin/berth", "discover", "--quiet"}, {"bin/berth", "cdi", "generate"}} {
		if _, err := timed(ctx, nil, words...); err != nil {
			return err
		}
	}
	return nil
}

const aboutEngine = "`%s` of `/bin/true` in a Debian image, from the call to its return, one after another: with plain %[2]s, and with berth-runtime, which calls the same %[2]s. The GPU is asked for as people do, by `--device berth/gpus=1`. In a host of Debian's packages: %[3]s, %[4]s."

func (e engine) about() string {
	return fmt.Sprintf(aboutEngine, e.name, e.runtime, firstLine(e.words[0], "--version"), firstLine(e.runtime, "--version"))
}

// oneByOne compares single runs.
func oneByOne(ctx context.Context, o options, e engine) (section, error) {
	way := func(name, goal, runtime string, options ...string) variant {
		return variant{name: name, goal: goal, run: func(ctx context.Context) (cost, error) {
			return timed(ctx, nil, e.run(runtime, options...)...)
		}}
	}
	results, err := interleave(ctx, o.rounds, []variant{
		way("plain "+e.runtime, "", e.plain),
		way("berth-runtime, no GPU", "", e.berth),
		way("berth-runtime, 1 GPU", e.goal, e.berth, "--device", "berth/gpus=1"),
	})
	if err != nil {
		return section{}, err
	}
	s := section{title: e.name, about: e.about(), rows: [][]string{{"case", "median", "p95", "against plain " + e.runtime, "goal"}}}
	for i, r := range results {
		against := "-"
		if i > 0 {
			against = difference(r, results[0])
		}
		s.rows = append(s.rows, []string{r.name, show(r.median()), show(at(r.walls, 0.95)), against, r.goal})
	}
	return s, nil
}

const aboutBursts = "%d containers by `%s`, so many of them on their way at any time, each with a MIG slice of its own (`--device berth/gpus=%s`), against as many with plain %s and no device. Containers a second; the batches take turns."

// burst is how many containers a batch has.
const burst = 50

// bursts compares the number of containers per second.
func bursts(ctx context.Context, o options, e engine) (section, error) {
	s := section{
		title: e.name + ", many at once", about: fmt.Sprintf(aboutBursts, burst, e.name, slice, e.runtime),
		rows: [][]string{{"in flight", "plain " + e.runtime, "berth-runtime, 1 slice", "ratio", "goal"}},
	}
	for _, flight := range []int{1, 8, 32} {
		// In both orders: other load on the machine then affects both alike.
		var took [2]time.Duration
		order := []int{0, 1, 1, 0}
		if o.rounds < 20 {
			order = order[:2]
		}
		for _, which := range order {
			words := [][]string{e.run(e.plain), e.run(e.berth, "--device", "berth/gpus="+slice)}[which]
			d, err := together(ctx, flight, burst, words)
			if err != nil {
				return s, err
			}
			took[which] += d
		}
		rate := func(d time.Duration) string {
			return fmt.Sprintf("%.1f/s", float64(len(order)/2*burst)/d.Seconds())
		}
		ratio := fmt.Sprintf("%.2f×", took[0].Seconds()/took[1].Seconds())
		s.rows = append(s.rows, []string{strconv.Itoa(flight), rate(took[0]), rate(took[1]), ratio, "≥ 0.93×"})
	}
	return s, nil
}

// together runs a command count times, parallel at once.
func together(ctx context.Context, flight, count int, words []string) (time.Duration, error) {
	start := time.Now()
	errs, slots := make(chan error, count), make(chan struct{}, flight)
	for range count {
		slots <- struct{}{}
		go func() {
			_, err := timed(ctx, nil, words...)
			errs <- err
			<-slots
		}()
	}
	var failed error
	for range count {
		if err := <-errs; err != nil {
			failed = err
		}
	}
	return time.Since(start), failed
}
