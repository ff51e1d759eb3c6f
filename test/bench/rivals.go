package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rack"
)

// smallImage has one static program; it is in the registry, and all rivals with images have pulled
// it.
const smallImage = registry + "/busybox:latest"

const aboutRivals = "From the call to the exit of `/bin/true` in the same small root file system (busybox), all with the host's network and all files in memory: crun, berth and apptainer have it as a directory, docker, podman and berth by name as an image from the same registry, pulled before. crun alone does what `runc spec` writes: no seccomp filter, and no throw-away layer above the root; all others but apptainer have both. docker's and podman's defaults otherwise (`--rm`), but for limits that can't be set here. apptainer takes `--userns` as root, since it wants CAP_SYS_RESOURCE otherwise, which root lacks here; people call it as another user, the row below, whose time has setpriv's in it (1 ms). It makes no cgroup and no PID namespace. CPU is the processor time of the command and its children; docker's daemons and podman's conmon have theirs beside it. In a host of Debian's packages: %s, %s, %s, %s. berth's and podman's runtime is the same crun, docker's is %s."

// rivals compares berth run with other programs that start a command in a root file system.
func rivals(ctx context.Context, o options) ([]section, error) {
	b, err := readyRivals(ctx, o)
	if err != nil {
		return nil, err
	}
	results, err := interleave(ctx, o.rounds, b.rivals())
	if err != nil {
		return nil, err
	}
	about := fmt.Sprintf(aboutRivals, firstLine("crun", "--version"), firstLine("apptainer", "--version"),
		firstLine("podman", "--version"), firstLine("docker", "--version"), firstLine("runc", "--version"))
	s := section{title: "berth run, apptainer, podman, docker", about: about, rows: [][]string{{"case", "median", "p95", "CPU", "against crun run", "against berth run", "goal"}}}
	for _, r := range results {
		s.rows = append(s.rows, []string{r.name, show(r.median()), show(at(r.walls, 0.95)), show(at(r.cpus, 0.5)), times(r, results[0]), times(r, results[1]), r.goal})
	}
	return []section{s}, nil
}

// readyRivals makes the root file system, the bundle and the images.
func readyRivals(ctx context.Context, o options) (*bench, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	b := &bench{options: o, dir: dir, root: filepath.Join(dir, "root")}
	if err := unpack(ctx, "busybox", b.root); err != nil {
		return nil, err
	}
	if err := b.bundle(way{dir: filepath.Join(dir, "run"), change: hostNetwork}); err != nil {
		return nil, err
	}
	if err := pullSmall(ctx); err != nil {
		return nil, err
	}
	const user = `chmod 755 "$0" && mkdir "$0/home" && chown 1000:1000 "$0/home" && echo "user:x:1000:1000::$0/home:/bin/sh" >>/etc/passwd && echo user:x:1000: >>/etc/group`
	_, err = timed(ctx, nil, "sh", "-c", user, dir)
	return b, err
}

// pullSmall pulls the small image with every engine.
func pullSmall(ctx context.Context) error {
	if err := push(ctx, ".cache/image/busybox:latest", "busybox:latest"); err != nil {
		return err
	}
	for _, words := range [][]string{
		{"bin/berth", "pull", "--quiet", smallImage},
		{"podman", "pull", "--quiet", "--tls-verify=false", smallImage},
		{"docker", "pull", "--quiet", smallImage},
	} {
		if _, err := timed(ctx, nil, words...); err != nil {
			return err
		}
	}
	return nil
}

// hostNetwork removes the network namespace from a spec, and what needs one.
func hostNetwork(s *specs.Spec) {
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace })
}

func (b *bench) rivals() []variant {
	run := func(name, goal string, env []string, words ...string) variant {
		return variant{name: name, goal: goal, run: func(ctx context.Context) (cost, error) { return timed(ctx, env, words...) }}
	}
	berth := func(name, image string, flags ...string) variant {
		return run(name, "≤ 2× crun", nil, slices.Concat([]string{"bin/berth", "run"}, flags, []string{image, "/bin/true"})...)
	}
	crun := func(ctx context.Context) (cost, error) {
		b.next++
		return timed(ctx, nil, "crun", "run", "--bundle", filepath.Join(b.dir, "run"), fmt.Sprintf("bench%d", b.next))
	}
	user := []string{"setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--"}
	exec := []string{"apptainer", "--quiet", "exec"}
	truth := []string{b.root, "/bin/true"}
	podman := slices.Concat(rack.Podman("run", "--rm", "--network", "host"), rack.PodmanLimits(smallImage, "/bin/true"))
	return []variant{
		{name: "crun run", run: crun},
		berth("berth run", b.root),
		berth("berth run, by name", smallImage),
		berth("berth run --gpus 1", b.root, "--gpus", "1"),
		berth("berth run --gpus 1, by name", smallImage, "--gpus", "1"),
		run("apptainer exec --userns", "≥ 3× berth", nil, slices.Concat(exec, []string{"--userns"}, truth)...),
		run("apptainer exec, as a user", "≥ 3× berth", []string{"HOME=" + b.dir + "/home"}, slices.Concat(user, exec, truth)...),
		run("podman run", "", nil, podman...),
		run("docker run", "", nil, "docker", "run", "--rm", "--network", "host", smallImage, "/bin/true"),
	}
}
