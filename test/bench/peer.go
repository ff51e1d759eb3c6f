package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

const aboutPeer = "`create` through %s, in the same run as berth-runtime. It is used as it is set up on this machine, and calls whatever runtime that says; it was asked for GPUs by the environment (%s, and all)."

// peer measures another OCI runtime that gives containers GPUs: the one that
// PEER_RUNTIME names. Containers ask it by a variable of their environment,
// NVIDIA_VISIBLE_DEVICES=0 unless PEER_REQUEST says another, and with "all" as the
// value for all GPUs.
func (b *bench) peer(ctx context.Context) ([]section, error) {
	path := os.Getenv("PEER_RUNTIME")
	if path == "" {
		return nil, nil
	}
	one := cmp.Or(os.Getenv("PEER_REQUEST"), "NVIDIA_VISIBLE_DEVICES=0")
	variable, _, _ := strings.Cut(one, "=")
	asking := func(request, name string) way {
		return way{name: filepath.Base(path) + ", " + name, runtime: []string{path}, change: func(s *specs.Spec) {
			if request != "" {
				s.Process.Env = append(s.Process.Env, request)
			}
		}}
	}
	cases := []way{{name: "plain runc", runtime: []string{"runc"}}, {name: "plain crun", runtime: []string{"crun"}}}
	for _, runtime := range []string{"runc", "crun"} {
		conf, err := b.config(runtime)
		if err != nil {
			return nil, err
		}
		for _, gpus := range []int{0, 1, b.gpus} {
			c := b.wrapped(conf, gpus, "")
			c.name += ", " + runtime
			cases = append(cases, c)
		}
	}
	cases = append(cases, asking("", "no GPU"), asking(one, "1 GPU"), asking(variable+"=all", fmt.Sprintf("%d GPUs", b.gpus)))
	results, err := b.run(ctx, "peer", cases)
	return []section{compare(filepath.Base(path), fmt.Sprintf(aboutPeer, path, one), results)}, err
}
