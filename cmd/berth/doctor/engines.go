package doctor

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/cmd/berth/engines"
	"github.com/berth-gpu/berth/hook/setup"
)

// Engine is how an engine is set up, and the configuration with which its daemon runs.
type Engine struct {
	Name    string
	Version string
	Options setup.Options
	// Recorded means that berth setup has left a record, RecordErr that it can't be read.
	Recorded  bool
	RecordErr error
	// ByDefault means that berth setup has made berth the default runtime.
	ByDefault bool
	// Plan is what setup would still change, PlanErr why it can't be planned.
	Plan    setup.Plan
	PlanErr error
	Daemon  engines.Daemon
	// DockerFile is dockerd's configuration file.
	DockerFile setup.DockerConfig
	// ChangedSince are files of the setup that were written after the daemon's start.
	ChangedSince []string
}

// decideEngine reports whether an engine is set up. Nothing is reported about an engine
// that isn't installed.
func decideEngine(r *report, e Engine) {
	switch {
	case e.RecordErr != nil && errors.Is(e.RecordErr, fs.ErrPermission), e.PlanErr != nil && errors.Is(e.PlanErr, fs.ErrPermission):
		r.warn("sudo berth doctor", "%v", cmp.Or(e.RecordErr, e.PlanErr))
	case e.RecordErr != nil:
		r.fail("move the file away, then berth setup "+e.Name, "%v", e.RecordErr)
	case errors.Is(e.PlanErr, setup.ErrNotInstalled):
	case errors.Is(e.PlanErr, setup.ErrNoCRI):
		r.ok("isn't set up, and needn't be: its CRI plugin is off")
	case e.PlanErr != nil:
		r.fail("correct it, then berth setup "+e.Name, "%v", e.PlanErr)
	case len(e.Plan.Changes) == 0:
		decideEngineSetUp(r, e)
	case !e.Recorded && e.Name == "containerd":
		r.ok("isn't set up, which only Kubernetes and its like need (berth setup containerd)")
	case !e.Recorded:
		r.warn("berth setup "+e.Name, "isn't set up")
	default:
		var paths []string
		for _, c := range e.Plan.Changes {
			paths = append(paths, c.Path)
		}
		r.fail("berth setup "+e.Name, "isn't set up any more as it was: %s", strings.Join(paths, ", "))
	}
}

// decideEngineSetUp reports whether an engine's daemon runs with its present configuration.
func decideEngineSetUp(r *report, e Engine) {
	r.ok("%sis set up", strings.TrimLeft(e.Version+" ", " "))
	for _, note := range e.Plan.Notes {
		r.warn(note.Fix, "%s", note.Text)
	}
	switch e.Name {
	case "docker":
		decideDocker(r, e)
	case "containerd":
		for _, path := range e.ChangedSince {
			r.fail(setup.RestartCommand(e.Name), "runs with what was in %s before it was changed", path)
		}
	case "podman":
		decideDefaultRuntime(r, e)
	}
}

func decideDocker(r *report, e Engine) {
	restart := setup.RestartCommand(e.Name)
	v := setup.ParseVersion(e.Version)
	switch {
	case v.Before("25.0"):
		r.warn("docker 25.0 or newer; docker run --gpus 2 works", "--device berth/gpus=2 isn't known to this version")
	case v.AtLeast("29.2") && !e.Options.CountIndices:
		r.warn(`policy.nvidia_indices = "count"`, "--gpus 2 are the GPUs 0 and 1 for this version, not two free ones")
	}
	if !e.Daemon.Answers {
		r.warn("systemctl start docker", "doesn't answer, so what it runs with isn't known")
		return
	}
	if path, ok := e.Daemon.Runtimes[setup.Name]; !ok {
		r.fail(restart, "runs without the runtime berth: it hasn't read its configuration since")
	} else if !e.isBerths(path) {
		r.fail(restart, "runs with %s as the runtime berth", path)
	}
	if stubs := setup.StubDir(e.Options.Data); e.Daemon.Path != "" && !slices.Contains(strings.Split(e.Daemon.Path, ":"), stubs) {
		r.warn(restart, "--gpus is refused: dockerd's PATH is without %s", stubs)
	}
	if v.AtLeast("25.0") && len(e.Daemon.CDI) == 0 {
		r.warn(restart, "--device berth/gpus=2 is refused: dockerd runs without CDI")
	}
	decideDockerFile(r, e)
	decideDefaultRuntime(r, e)
}

// decideDockerFile reports runtimes of dockerd that differ from its configuration file.
func decideDockerFile(r *report, e Engine) {
	const reload = "systemctl reload docker"
	file := e.DockerFile
	for _, name := range slices.Sorted(maps.Keys(file.Runtimes)) {
		path, ok := e.Daemon.Runtimes[name]
		switch want := file.Runtimes[name]; {
		case name == setup.Name: // has a check of its own
		case !ok:
			r.warn(reload, "runs without the runtime %s, which %s has", name, file.Path)
		case path != "" && path != want:
			r.warn(reload, "runs with %s as the runtime %s, and %s says %s", path, name, file.Path, want)
		}
	}
	if name := e.Daemon.Default; file.Default != "" && name != file.Default && !e.ByDefault {
		r.warn(reload, "runs with the default runtime %s, and %s says %s", name, file.Path, file.Default)
	}
}

// isBerths reports whether a path is berth-runtime, or the script that calls it.
func (e Engine) isBerths(path string) bool {
	return path == e.Options.Runtime || strings.HasPrefix(path, e.Options.Data+"/engines/")
}

// decideDefaultRuntime reports the runtime of a container that names none.
func decideDefaultRuntime(r *report, e Engine) {
	name := e.Daemon.Default
	switch {
	case name == "":
	case name == setup.Name, e.isBerths(e.Daemon.Runtimes[name]):
		r.ok("the default runtime is %s", name)
	case e.ByDefault:
		fix := cmp.Or(setup.RestartCommand(e.Name), "look for a file, or a CONTAINERS_CONF, that sets another runtime after "+setup.PodmanDropIn)
		r.fail(fix, "runs with the default runtime %s, and not with %s, which it was set up with", name, setup.Name)
	default:
		r.ok("the default runtime is %s: containers get GPUs %s (berth setup %s --default changes that)", name, describeRequests(e), e.Name)
	}
}

// describeRequests returns how a container requests GPUs if berth isn't the default runtime.
func describeRequests(e Engine) string {
	const runtime = "with --runtime berth"
	switch {
	case e.Name == "podman":
		return runtime + ", and with --device berth/gpus=1 or an annotation that policy trusts, by berth's hooks, with any"
	case setup.ParseVersion(e.Version).AtLeast("25.0"):
		return runtime + ", and with --device berth/gpus=1, by berth's hook, with any"
	}
	return runtime
}

// ReadEngine reads how an engine is set up on this machine.
func ReadEngine(h setup.Host, name string, o setup.Options, daemon engines.Daemon) Engine {
	e := Engine{Name: name, Version: h.Version, Options: o, Daemon: daemon}
	record, err := setup.LoadRecord(h.FS, o.Data, name)
	if err != nil {
		e.RecordErr = err
		return e
	}
	if record != nil {
		e.Recorded, e.ByDefault = true, record.Default
	}
	if e.Plan, e.PlanErr = setup.PlanSetup(name, h, o, record); e.PlanErr != nil {
		return e
	}
	if name == "docker" {
		e.DockerFile, _ = setup.ReadDockerConfig(h) // planning has reported its errors
	}
	if record != nil && !daemon.Started.IsZero() {
		for _, f := range record.Files {
			if h.ModTime(f.Path).After(daemon.Started) {
				e.ChangedSince = append(e.ChangedSince, f.Path)
			}
		}
	}
	return e
}
