package setup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"
)

// State is how bad a finding is.
type State string

// The states.
const (
	OK      State = "ok"
	Warning State = "warning" // something doesn't work, or not as people expect
	Failure State = "failure" // containers don't get GPUs
)

// Finding is what was found about one thing.
type Finding struct {
	State State  `json:"state"`
	About string `json:"about"`
	Text  string `json:"text"`
	// Mend is what to do about it: a command, or what to write where. "" if it's fine.
	Mend string `json:"mend,omitempty"`
}

// Running is what an engine's daemon says of itself, as far as it does.
type Running struct {
	// Answers says that it was asked and has answered.
	Answers bool
	// Runtimes are the paths of its runtimes by name, Default the name of that which
	// containers get.
	Runtimes map[string]string
	Default  string
	// CDI are the directories in which it looks for CDI devices; none means that it does
	// so nowhere, or doesn't say.
	CDI []string
	// Path is the PATH of its process, "" if it isn't known.
	Path string
	// Started is when it has read its configuration, zero if that isn't known.
	Started time.Time
}

// Diagnose says how an engine stands with berth. Of one that isn't installed it says
// nothing.
func Diagnose(engine string, h Host, o Options, record *Record, r Running) []Finding {
	d := diagnosis{engine: engine, host: h, options: o, running: r, byDefault: record != nil && record.Default}
	plan, err := For(engine, h, o, record)
	if errors.Is(err, ErrNotInstalled) {
		return nil
	}
	switch {
	case errors.Is(err, ErrNoCRI):
		d.add(OK, "", "isn't set up, and needn't be: its CRI plugin is off")
		return d.findings
	case errors.Is(err, fs.ErrPermission):
		d.add(Warning, "sudo berth doctor", "%v", err)
		return d.findings
	case err != nil:
		d.add(Failure, "put it right, then berth setup "+engine, "%v", err)
		return d.findings
	case len(plan.Changes) > 0 && record == nil && engine == "containerd":
		d.add(OK, "", "isn't set up, which only Kubernetes and its like need (berth setup containerd)")
		return d.findings
	case len(plan.Changes) > 0 && record == nil:
		d.add(Warning, "berth setup "+engine, "isn't set up")
		return d.findings
	case len(plan.Changes) > 0:
		var paths []string
		for _, c := range plan.Changes {
			paths = append(paths, c.Path)
		}
		d.add(Failure, "berth setup "+engine, "isn't set up any more as it was: %s", strings.Join(paths, ", "))
		return d.findings
	}
	d.add(OK, "", "%sis set up", spaced(h.Version))
	for _, note := range plan.Notes {
		what, mend, ok := strings.Cut(note, ": ")
		if !ok {
			what, mend = note, ""
		}
		d.add(Warning, mend, "%s", what)
	}
	switch engine {
	case "docker":
		d.docker()
	case "containerd":
		d.read(record)
	case "podman":
		d.isDefault()
	}
	return d.findings
}

type diagnosis struct {
	engine   string
	host     Host
	options  Options
	running  Running
	findings []Finding
	// byDefault says that the configuration has made berth the default runtime.
	byDefault bool
}

func (d *diagnosis) add(state State, mend, format string, values ...any) {
	d.findings = append(d.findings, Finding{state, d.engine, fmt.Sprintf(format, values...), mend})
}

func spaced(word string) string {
	if word == "" {
		return ""
	}
	return word + " "
}

func (d *diagnosis) docker() {
	v := ParseVersion(d.host.Version)
	switch {
	case v.Before("25.0"):
		d.add(Warning, "docker 25.0 or newer; docker run --gpus 2 works", "--device berth/gpus=2 isn't known to this version")
	case v.Known && !v.Before("29.2") && !d.options.CountIndices:
		d.add(Warning, `policy.nvidia_indices = "count"`, "--gpus 2 are the GPUs 0 and 1 for this version, not two free ones")
	}
	if !d.running.Answers {
		d.add(Warning, "systemctl start docker", "doesn't answer, so what it runs with isn't known")
		return
	}
	if path, ok := d.running.Runtimes[Name]; !ok {
		d.add(Failure, RestartCommand(d.engine), "runs without the runtime berth: it hasn't read its configuration since")
	} else if !d.ours(path) {
		d.add(Failure, RestartCommand(d.engine), "runs with %s as the runtime berth", path)
	}
	if stubs := StubDir(d.options.Data); d.running.Path != "" && !slices.Contains(strings.Split(d.running.Path, ":"), stubs) {
		d.add(Warning, RestartCommand(d.engine), "--gpus is refused: dockerd's PATH is without %s", stubs)
	}
	if v.Known && !v.Before("25.0") && len(d.running.CDI) == 0 {
		d.add(Warning, RestartCommand(d.engine), "--device berth/gpus=2 is refused: dockerd runs without CDI")
	}
	d.asWritten()
	d.isDefault()
}

// asWritten says where dockerd runs with other runtimes than its file has.
func (d *diagnosis) asWritten() {
	file, err := ReadDockerConfig(d.host)
	if err != nil {
		return // which planning has said
	}
	const mend = "systemctl reload docker"
	for _, name := range slices.Sorted(maps.Keys(file.Runtimes)) {
		path, ok := d.running.Runtimes[name]
		switch want := file.Runtimes[name]; {
		case name == Name: // is a failure
		case !ok:
			d.add(Warning, mend, "runs without the runtime %s, which %s has", name, file.Path)
		case path != "" && path != want:
			d.add(Warning, mend, "runs with %s as the runtime %s, and %s says %s", path, name, file.Path, want)
		}
	}
	if name := d.running.Default; file.Default != "" && name != file.Default && !d.byDefault {
		d.add(Warning, mend, "runs with the default runtime %s, and %s says %s", name, file.Path, file.Default)
	}
}

// read says which files of the record were changed after the daemon has started.
func (d *diagnosis) read(record *Record) {
	if record == nil || d.running.Started.IsZero() {
		return
	}
	for _, f := range record.Files {
		if info, err := fs.Stat(d.host.FS, fsPath(f.Path)); err == nil && info.ModTime().After(d.running.Started) {
			d.add(Failure, RestartCommand(d.engine), "runs with what was in %s before it was changed", f.Path)
		}
	}
}

// ours says that a path is that of berth's runtime, or of the script that calls it.
func (d *diagnosis) ours(path string) bool {
	return path == d.options.Runtime || strings.HasPrefix(path, d.options.Data+"/engines/")
}

// isDefault says what a container gets whose user names no runtime.
func (d *diagnosis) isDefault() {
	name := d.running.Default
	switch {
	case name == "":
	case name == Name, d.ours(d.running.Runtimes[name]):
		d.add(OK, "", "the default runtime is %s", name)
	case d.byDefault:
		mend := cmp.Or(RestartCommand(d.engine), "look for a file, or a CONTAINERS_CONF, that sets another runtime after "+PodmanDropIn)
		d.add(Failure, mend, "runs with the default runtime %s, and not with %s, which it was set up with", name, Name)
	default:
		d.add(OK, "", "the default runtime is %s: containers get GPUs %s (berth setup %s --default changes that)", name, d.ways(), d.engine)
	}
}

// ways are how a container asks where berth isn't the default runtime.
func (d *diagnosis) ways() string {
	const runtime = "with --runtime berth"
	switch v := ParseVersion(d.host.Version); {
	case d.engine == "podman":
		return runtime + ", and with --device berth/gpus=1 or an annotation that policy trusts, by berth's hooks, with any"
	case v.Known && !v.Before("25.0"):
		return runtime + ", and with --device berth/gpus=1, by berth's hook, with any"
	}
	return runtime
}
