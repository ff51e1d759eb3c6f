package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/test/rack"
)

// hosted is the part of the engines, measured in a host that has them. Where none can
// be made, it says so in the place of the tables.
func hosted(ctx context.Context, o options) ([]byte, error) {
	if !strings.HasPrefix("engines", o.only) {
		return nil, nil
	}
	tree, err := rack.Tree("forky")
	if err != nil {
		s := section{title: "docker run, podman run", about: "Not measured: there are no engines here.", rows: [][]string{{"why"}, {oneLine(err)}}}
		var text bytes.Buffer
		err := errors.Join(s.print(&text), s.print(os.Stdout))
		return text.Bytes(), err
	}
	return inHost(ctx, o, tree)
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
	words := []string{filepath.Join(built, "bench"), "-engines", "-write", part, "-rounds", fmt.Sprint(o.rounds)}
	cmd := h.Command(append([]string{"sh", "-c", `cd "$0" && exec "$@"`, here}, words...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("measure engines: %w", err)
	}
	return os.ReadFile(part)
}
