package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

const aboutPeer = "`create` through %s, in the same run as berth-runtime, both with runc below. It is asked for GPUs by the environment (%s, and all). The last row is what each adds to plain runc for one GPU."

// nvidiaRuntime is the default peer.
const nvidiaRuntime = "nvidia-container-runtime"

// peer measures another OCI runtime that gives containers GPUs: the one that
// PEER_RUNTIME names, or NVIDIA's where it is in PATH. Containers ask it by a variable of
// their environment, NVIDIA_VISIBLE_DEVICES=0 unless PEER_REQUEST says another, and with
// "all" as the value for all GPUs.
func (b *bench) peer(ctx context.Context) ([]section, error) {
	path, err := exec.LookPath(cmp.Or(os.Getenv("PEER_RUNTIME"), nvidiaRuntime))
	if err != nil && os.Getenv("PEER_RUNTIME") == "" {
		return []section{{
			title: nvidiaRuntime, about: "Not measured: it isn't installed here. PEER_RUNTIME=/path names it where it was built.",
			rows: [][]string{{"case", "median", "goal"}},
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	var env []string
	if filepath.Base(path) == nvidiaRuntime {
		if env, err = b.setUpNVIDIA(ctx, path); err != nil {
			return nil, err
		}
	}
	one := cmp.Or(os.Getenv("PEER_REQUEST"), "NVIDIA_VISIBLE_DEVICES=0")
	variable, _, _ := strings.Cut(one, "=")
	asking := func(request, name string) way {
		return way{name: filepath.Base(path) + ", " + name, runtime: []string{path}, env: env, change: func(s *specs.Spec) {
			if request != "" {
				s.Process.Env = append(s.Process.Env, request)
			}
		}}
	}
	conf, err := b.config("runc")
	if err != nil {
		return nil, err
	}
	results, err := b.run(ctx, "peer", []way{
		{name: "plain runc", runtime: []string{"runc"}},
		b.wrapped(conf, 0, ""), b.wrapped(conf, 1, ""), b.wrapped(conf, b.gpus, ""),
		asking("", "no GPU"), asking(one, "1 GPU"), asking(variable+"=all", fmt.Sprintf("%d GPUs", b.gpus)),
	})
	if err != nil {
		return nil, err
	}
	s := compare(filepath.Base(path), fmt.Sprintf(aboutPeer, path, one), results)
	plain, ours, theirs := results[0].median(), results[2].median(), results[5].median()
	s.rows = append(s.rows, []string{"added for 1 GPU", "", "", "", fmt.Sprintf("%s by berth, %s by the peer, %.1f×",
		show(ours-plain), show(theirs-plain), float64(theirs-plain)/float64(ours-plain)), "≥ 20×"})
	return []section{s}, nil
}

// setUpNVIDIA configures NVIDIA's runtime in CDI mode, with a spec that the nvidia-ctk beside it
// generates, and returns the environment by which it finds both. The hook for the driver's
// parameters is left out: it needs the driver in the kernel, and the node's is simulated.
func (b *bench) setUpNVIDIA(ctx context.Context, path string) (env []string, err error) {
	dir, tools := filepath.Join(b.dir, "nvidia"), filepath.Dir(path)
	config := filepath.Join(dir, nvidiaRuntime, "config.toml")
	if err := os.MkdirAll(filepath.Dir(config), 0o755); err != nil {
		return nil, err
	}
	specs := filepath.Join(dir, "cdi")
	_, err = timed(ctx, nil, filepath.Join(tools, "nvidia-ctk"), "cdi", "generate", "--output", filepath.Join(specs, "nvidia.json"),
		"--nvidia-cdi-hook-path", filepath.Join(tools, "nvidia-cdi-hook"), "--disable-hook", "disable-device-node-modification")
	if err != nil {
		return nil, err
	}
	const text = "[nvidia-container-runtime]\nmode = \"cdi\"\nruntimes = [\"runc\"]\nlog-level = \"error\"\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = [%q]\n"
	return []string{"XDG_CONFIG_HOME=" + dir}, os.WriteFile(config, fmt.Appendf(nil, text, specs), 0o644)
}
