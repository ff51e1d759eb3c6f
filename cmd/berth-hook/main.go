// Command berth-hook is berth's OCI hook: "berth-hook createRuntime --request 2", with
// the container's state on standard input. Package hook describes the stages.
//
// It changes to / and clears its environment: a runtime may have started it with the
// environment of the image.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/guard"
	"github.com/berth-gpu/berth/hook"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/hook/message"
	"github.com/berth-gpu/berth/internal/netdev"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/devices"
	"github.com/berth-gpu/berth/isolation/ledger"
)

const usage = "usage: berth-hook [--config FILE] {createRuntime|prestart|precreate} [--request R] [--nvidia R]... [--with FEATURE]..., " +
	"or bind --lease ID, mount SOURCE DESTINATION, netdev HOST NAME [HOST NAME]..., rdma NAME|net:NAME..., refuse REASON, poststop; with the container's state (precreate: its spec) on standard input"

// errNotBerth is returned if berth-hook was called by the name of NVIDIA's hook. The
// berth runtime removes that hook from each spec, so the container has another runtime.
var errNotBerth = errors.New("--gpus was asked for, and the container's runtime isn't berth: add --runtime berth, " +
	"or make it the default runtime (berth setup docker --default)")

func main() {
	os.Clearenv()
	err := os.Chdir("/")
	if self, _ := os.Executable(); entry.IsLegacyHook(os.Args[0]) || entry.IsLegacyHook(self) {
		err = errNotBerth
	}
	if err == nil {
		err = runHook(context.Background(), os.Args[min(1, len(os.Args)):], os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-hook:", message.OneLine(err.Error()))
		os.Exit(1)
	}
}

// runHook runs the stage that the arguments name. All arguments are checked before any file
// is opened.
func runHook(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	config, words := entry.CutConfig(args)
	if config == "" {
		config = berth.ConfigPath
	}
	switch {
	case len(words) == 0:
		return errors.New(usage)
	case slices.Contains([]string{"--help", "-h", "help"}, words[0]):
		_, err := fmt.Fprintln(out, usage)
		return err
	}
	stage, err := stageOf(words)
	if err != nil {
		return err
	}
	c, err := berth.LoadConfig(config)
	if err != nil {
		return err
	}
	return stage(ctx, c, streams{in, out, ownCall(args, words)})
}

// streams are the input and output of a stage, and the command line by which a hook that
// it adds calls this program.
type streams struct {
	in   io.Reader
	out  io.Writer
	call []string
}

type stage func(context.Context, berth.Config, streams) error

func stageOf(words []string) (stage, error) {
	first, rest := words[0], words[1:]
	asked, isRequest, err := entry.Parse(words)
	if first == "precreate" {
		asked, _, err = entry.Parse(append([]string{"createRuntime"}, rest...))
		isRequest = true
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %s", err, usage)
	case isRequest:
		return createStage(first == "precreate", asked), nil
	case first == "bind" && len(rest) == 2 && rest[0] == "--lease":
		return bindStage(rest[1]), nil
	case first == "mount" && len(rest) == 2:
		return mountStage(rest[0], rest[1]), nil
	case first == "netdev" && len(rest) > 0 && len(rest)%2 == 0:
		return netDevicesStage(rest), nil
	case first == "rdma" && len(rest) > 0:
		return rdmaStage(rest), nil
	case first == "poststop" && len(rest) == 0:
		return poststopStage, nil
	case first == entry.Refused && len(rest) == 1:
		return refuseStage(rest[0]), nil
	case slices.Contains([]string{"bind", "mount", "netdev", "rdma", "poststop", entry.Refused}, first):
		return nil, errors.New(usage)
	}
	return nil, fmt.Errorf("unknown stage %q: %s", first, usage)
}

func createStage(early bool, asked entry.RequestSet) stage {
	return func(ctx context.Context, c berth.Config, s streams) error {
		h, err := openHook(c, s.call)
		if err != nil {
			return err
		}
		if early {
			return message.WithAdvice(h.Precreate(ctx, s.in, s.out, asked, os.Getppid()))
		}
		return message.WithAdvice(h.Create(ctx, s.in, asked))
	}
}

func bindStage(lease string) stage {
	return func(ctx context.Context, c berth.Config, s streams) error {
		h, err := openHook(c, s.call)
		if err != nil {
			return err
		}
		return h.Bind(ctx, s.in, lease)
	}
}

func mountStage(source, destination string) stage {
	return func(ctx context.Context, c berth.Config, s streams) error {
		return hook.Hook{Proc: c.Host.Proc, Dev: c.Host.Dev}.Mount(ctx, s.in, source, destination)
	}
}

func netDevicesStage(words []string) stage {
	return func(_ context.Context, c berth.Config, s streams) error {
		var devices []netdev.Device
		for pair := range slices.Chunk(words, 2) {
			devices = append(devices, netdev.Device{Host: pair[0], Name: pair[1]})
		}
		return hook.Hook{Proc: c.Host.Proc}.NetDevices(s.in, devices)
	}
}

func rdmaStage(words []string) stage {
	return func(_ context.Context, c berth.Config, s streams) error {
		var links, interfaces []string
		for _, word := range words {
			if name, ok := strings.CutPrefix(word, "net:"); ok {
				interfaces = append(interfaces, name)
			} else {
				links = append(links, word)
			}
		}
		return hook.Hook{Proc: c.Host.Proc}.RDMA(s.in, links, interfaces)
	}
}

// refuseStage fails a container that precreate has refused.
func refuseStage(why string) stage {
	return func(context.Context, berth.Config, streams) error { return errors.New(why) }
}

func poststopStage(ctx context.Context, c berth.Config, s streams) error {
	n, err := berth.Open(c)
	if err != nil {
		return err
	}
	return hook.Poststop(ctx, s.in, leases{n.Guard().Ledger})
}

func openHook(c berth.Config, call []string) (hook.Hook, error) {
	n, err := berth.Open(c)
	if err != nil {
		return hook.Hook{}, err
	}
	h := n.Cgroups()
	return hook.Hook{
		Node: node{n, n.Guard(), leases{n.Guard().Ledger}}, Cgroups: h, Proc: c.Host.Proc, Dev: c.Host.Dev, Call: call,
		Trust:    trustOf(c.Policy),
		SetRules: func(path string, rules []rule) error { return setRules(c, h, path, rules) },
	}, nil
}

// trustOf returns the policy on requests that an image's author may have written.
func trustOf(p berth.Policy) entry.Trust {
	return entry.Trust{
		PodmanAnnotation: p.PodmanAnnotation,
		VisibleDevices:   entry.Visible(p.VisibleDevices), CountIndices: p.NVIDIAIndices == "count",
	}
}

// setRules sets device rules, and records them in the systemd unit of the cgroup: otherwise
// systemd would replace them when it reloads its units.
func setRules(c berth.Config, h cgroup.Hierarchy, path string, rules []rule) error {
	if err := devices.Apply(h, path, rules); err != nil {
		return err
	}
	return devices.Units{Tree: h, State: filepath.Join(c.State, "units")}.Write(path, rules)
}

// ownCall returns how a hook that this one adds calls this program.
func ownCall(args, words []string) []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return append([]string{self}, args[:len(args)-len(words)]...)
}

type rule = edits.Rule

// leases adapts a node's ledger, which tells the device guard of each change, to package hook.
type leases struct{ *ledger.Ledger }

// Leases implements hook.Leases. Unlike a node's view it does not need the inventory.
func (l leases) Leases() ([]ledger.Status, error) {
	view, err := l.View()
	return view.Leases, err
}

// node adapts berth.Node to package hook.
type node struct {
	*berth.Node
	guard.Guard
	leases leases
}

// Leases implements hook.Node.
func (n node) Leases() ([]ledger.Status, error) { return n.leases.Leases() }

// Bind implements hook.Node.
func (n node) Bind(ctx context.Context, id string, o ledger.Owner) error {
	return n.leases.Bind(ctx, id, o)
}
