package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/test/rack"
)

// hostTopic is one or several sections that are measured in a host with engines.
type hostTopic struct {
	name    string
	measure func(context.Context, options) ([]section, error)
}

// hostTopics are in the order in which they are measured: the last one cuts the GPUs
// into slices.
func hostTopics() []hostTopic {
	return []hostTopic{
		{"rivals", rivals},
		{"detached", detached},
		{"pull", pulls},
		{"engines", engineSections},
	}
}

func (o options) wantsHost() bool {
	return slices.ContainsFunc(hostTopics(), func(t hostTopic) bool { return strings.HasPrefix(t.name, o.only) })
}

// hosted measures the topics that need engines, in a host that has them. If no host can be made, a
// note takes the place of the tables.
func hosted(ctx context.Context, o options) ([]byte, error) {
	if !o.wantsHost() {
		return nil, nil
	}
	tree, err := exec.CommandContext(ctx, "test/bench/tree.sh").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		s := section{title: "berth and others", about: "Not measured: there are no engines here.", rows: [][]string{{"why"}, {oneLine(err)}}}
		var text bytes.Buffer
		err := errors.Join(s.print(&text), s.print(os.Stdout))
		return text.Bytes(), err
	}
	return inHost(ctx, o, strings.TrimSpace(string(tree)))
}

func oneLine(err error) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(err.Error()), " "), "|", "/")
}

func inHost(ctx context.Context, o options, tree string) (tables []byte, err error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	simnode := filepath.Join(here, built, "simnode")
	if err := stream(ctx, simnode, "-profile", small, "-driver", "stub", "--", "true"); err != nil { // its cache
		return nil, err
	}
	rack.Sweep()
	h, err := rack.Start(rack.Options{Tree: tree, Cgroup: "v2", Simnode: simnode, Share: here, Key: "bench"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Stop()) }()
	if err := h.LeaveRoot(); err != nil {
		return nil, err
	}
	part := filepath.Join(built, "part.md")
	words := []string{filepath.Join(built, "bench"), "-host", "-write", part, "-rounds", fmt.Sprint(o.rounds), "-only", o.only}
	cmd := h.Command(append([]string{"sh", "-c", `cd "$0" && exec "$@"`, here}, words...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("measure in a host with engines: %w", err)
	}
	return os.ReadFile(part)
}
