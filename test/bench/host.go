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

// hostTopic is one or several sections that are measured in a host with other launchers.
type hostTopic struct {
	name    string
	measure func(context.Context, options) ([]section, error)
	// users is set for the host of test/engines/tree.sh that is made for users without root.
	users bool
}

// hostTopics are in the order in which they are measured: the last one with engines cuts the GPUs
// into slices.
func hostTopics() []hostTopic {
	return []hostTopic{
		{name: "rivals", measure: rivals},
		{name: "detached", measure: detached},
		{name: "pull", measure: pulls},
		{name: "engines", measure: engineSections},
		{name: "apptainer", measure: compareApptainers, users: true},
	}
}

// wantsHost reports whether a topic of that host is to be measured.
func (o options) wantsHost(users bool) bool {
	return slices.ContainsFunc(hostTopics(), func(t hostTopic) bool { return t.users == users && strings.HasPrefix(t.name, o.only) })
}

// measureHosted measures the topics that need other launchers, in hosts that have them. If a host can't be made, a
// note takes the place of its tables.
func measureHosted(ctx context.Context, o options) (text []byte, err error) {
	for _, users := range []bool{false, true} {
		if !o.wantsHost(users) {
			continue
		}
		o.users = users
		tree, err := makeTree(ctx, users)
		if err != nil {
			s := section{title: "berth and others", about: "Not measured: there are no engines here.", rows: [][]string{{"why"}, {oneLine(err)}}}
			if users {
				s.title, s.about = "berth apptainer exec", "Not measured: there is no Apptainer here."
			}
			var note bytes.Buffer
			if err := errors.Join(s.print(&note), s.print(os.Stdout)); err != nil {
				return nil, err
			}
			text = append(text, note.Bytes()...)
			continue
		}
		tables, err := inHost(ctx, o, tree)
		if err != nil {
			return nil, err
		}
		text = append(text, tables...)
	}
	return text, nil
}

// makeTree returns the root file system of a host.
func makeTree(ctx context.Context, users bool) (string, error) {
	if users {
		tree, err := rack.Tree("users")
		if err != nil {
			return "", err
		}
		_, err = os.Stat(filepath.Join(tree, "usr/bin/apptainer"))
		return tree, err
	}
	tree, err := exec.CommandContext(ctx, "test/bench/tree.sh").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(tree)), err
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
	words := []string{filepath.Join(built, "bench"), "-host", "-write", part, "-rounds", fmt.Sprint(o.rounds), "-only", o.only, fmt.Sprintf("-users=%t", o.users)}
	cmd := h.Command(append([]string{"sh", "-c", `cd "$0" && exec "$@"`, here}, words...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("measure in a host with engines: %w", err)
	}
	return os.ReadFile(part)
}
