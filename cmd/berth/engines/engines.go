// Package engines acts on the container engines of this machine for berth setup and berth
// doctor: it queries docker, containerd, podman and systemd, has an engine validate a
// [setup.Plan], and writes the plan's files. Package setup makes the plan.
package engines

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/hook/setup"
	"github.com/berth-gpu/berth/internal/runtimestate"
)

// answerTimeout is how long a program may take to answer.
const answerTimeout = 10 * time.Second

// Run runs a program and returns its output. If the program fails, the error is its output
// on one line.
func Run(ctx context.Context, words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = ownEnvironment()
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", errors.New(cmp.Or(joinLines(stderr.String()), joinLines(stdout.String()), err.Error()))
	}
	return stdout.String(), nil
}

// ownEnvironment returns the environment without the directories of settings that belong to another user, which sudo may
// leave to root: the docker command runs the plugins in them.
func ownEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, dir, _ := strings.Cut(entry, "=")
		if !slices.Contains([]string{"HOME", "DOCKER_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"}, name) {
			return false
		}
		var st unix.Stat_t
		return unix.Stat(dir, &st) == nil && int(st.Uid) != os.Geteuid()
	})
}

func joinLines(text string) string { return strings.Join(strings.Fields(text), " ") }

// tryRun is [Run] for optional output: it returns "" on an error.
func tryRun(ctx context.Context, words ...string) string {
	out, _ := Run(ctx, words...)
	return strings.TrimSpace(out)
}

// Find looks for a program in PATH; "" if there is none.
func Find(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// ReadHost returns this machine as [setup.PlanSetup] needs it for an engine.
func ReadHost(ctx context.Context, engine string) setup.Host {
	h := setup.Host{FS: os.DirFS("/"), Find: Find}
	program := engine
	if engine == "docker" {
		program = "dockerd"
	}
	if program = Find(program); program != "" {
		h.Version = setup.FindVersion(tryRun(ctx, program, "--version"))
	}
	if words := h.ContainerdDumpCommand(); engine == "containerd" && words != nil {
		var err error
		if h.Dump, err = Run(ctx, words...); err != nil {
			h.Refusal = err.Error()
		}
	}
	for line := range strings.Lines(tryRun(ctx, "systemctl", "show-environment")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "PATH="); ok {
			h.Path = value
		}
	}
	return h
}

// Container is a container of an engine, by the id that the engine gives to the runtime.
type Container struct{ Engine, ID string }

// FindContainers returns the containers of docker and podman whose name or id is word, or whose id
// begins with it, and the running containers of containerd whose id is word. It calls docker and podman;
// containerd's containers are found in the state directories of runtimes.
func FindContainers(ctx context.Context, word string) (found []Container) {
	for _, engine := range []string{"docker", "podman"} {
		if id := tryRun(ctx, engine, "container", "inspect", "--format", "{{.Id}}", "--", word); id != "" {
			found = append(found, Container{engine, id})
		}
	}
	roots := slices.DeleteFunc(runtimestate.Roots(""), func(root string) bool { return !strings.HasPrefix(root, "/run/containerd/") })
	for _, c := range runtimestate.List(roots) {
		if c.ID == word {
			found = append(found, Container{"containerd", c.ID})
		}
	}
	return found
}

// ContainersOfBerth returns the names of an engine's containers that have the runtime
// berth. For containerd it returns none.
func ContainersOfBerth(ctx context.Context, engine string) (names []string) {
	format := map[string]string{"docker": "{{.HostConfig.Runtime}} {{.Name}}", "podman": "{{.OCIRuntime}} {{.Name}}"}[engine]
	if format == "" {
		return nil
	}
	ids := strings.Fields(tryRun(ctx, engine, "ps", "--all", "--quiet"))
	if len(ids) == 0 {
		return nil
	}
	for line := range strings.Lines(tryRun(ctx, append([]string{engine, "inspect", "--format", format}, ids...)...)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), setup.Name+" "); ok {
			names = append(names, strings.TrimPrefix(name, "/"))
		}
	}
	return names
}
