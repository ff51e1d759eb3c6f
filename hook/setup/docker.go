package setup

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/hook/setup/edit"
)

const (
	dockerConfigPath = "/etc/docker/daemon.json"
	dockerUnit       = "docker.service"
	// dockerDropIn puts [StubDir] into dockerd's PATH.
	dockerDropIn = "/etc/systemd/system/docker.service.d/berth.conf"
	// dockerStub is the name of the program without which dockerd refuses --gpus.
	dockerStub = "nvidia-container-runtime-hook"
)

// StubDir returns the directory that is first in dockerd's PATH.
func StubDir(data string) string { return path.Join(data, "engines", "docker") }

// DockerConfig is the part of dockerd's configuration file that is about runtimes.
type DockerConfig struct {
	// Path is the file, behind links.
	Path string
	// Runtimes are the paths of the runtimes by name.
	Runtimes map[string]string
	Default  string
}

// ReadDockerConfig reads the file that dockerd is started with.
func ReadDockerConfig(h Host) (DockerConfig, error) {
	name, err := h.readUnit(dockerUnit).dockerConfig()
	if err != nil {
		return DockerConfig{}, err
	}
	f, name, err := h.readTarget(name)
	if err != nil {
		return DockerConfig{}, err
	}
	var file struct {
		Runtimes map[string]struct{ Path string }
		Default  string `json:"default-runtime"`
	}
	if !edit.IsBlank(f.Data) {
		if err := json.Unmarshal(f.Data, &file); err != nil {
			return DockerConfig{}, inFile(name, err)
		}
	}
	c := DockerConfig{Path: name, Default: file.Default, Runtimes: map[string]string{}}
	for name, runtime := range file.Runtimes {
		c.Runtimes[name] = runtime.Path
	}
	return c, nil
}

// planDocker plans the runtime berth and what makes dockerd accept --gpus.
func planDocker(h Host, o Options, record *Record) (Plan, error) {
	if err := h.checkInstalled("docker", "dockerd", "/etc/docker"); err != nil {
		return Plan{}, err
	}
	p := newPlanner(h, "docker", o, record)
	if err := p.planRuntimeScript(); err != nil {
		return Plan{}, err
	}
	unit := h.readUnit(dockerUnit)
	config, err := unit.dockerConfig()
	if err != nil {
		return Plan{}, err
	}
	settings, err := p.dockerSettings(config)
	if err != nil {
		return Plan{}, err
	}
	if err := p.planSettings(config, "", settings); err != nil {
		return Plan{}, err
	}
	p.plan.Check = p.dockerCheck(config)
	configChanges := len(p.plan.Changes) > 0
	if err := p.planStub(unit); err != nil {
		return Plan{}, err
	}
	if len(p.plan.Changes) > 0 {
		p.planDockerRestart(config, configChanges)
		p.addDockerNotes()
	}
	return p.finish(), nil
}

// dockerSettings returns the values to set in daemon.json.
func (p *planner) dockerSettings(config string) ([]setting, error) {
	f, config, err := p.host.readTarget(config)
	if err != nil {
		return nil, err
	}
	runtime := map[string]string{"path": p.options.Runtime}
	settings := []setting{{[]string{"runtimes", Name}, runtime}}
	if _, ok, err := (edit.JSON{}).Get(f.Data, "runtimes", "nvidia"); err != nil {
		return nil, inFile(config, err)
	} else if ok {
		settings = append(settings, setting{[]string{"runtimes", "nvidia"}, runtime})
	}
	if p.options.Default {
		settings = append(settings, setting{[]string{"default-runtime"}, Name})
	}
	_, hasCDI, err := (edit.JSON{}).Get(f.Data, "features", "cdi")
	if err != nil {
		return nil, inFile(config, err)
	}
	// From 28.2 on CDI is on unless the file turns it off.
	v := ParseVersion(p.host.Version)
	if v.AtLeast("25.0") && v.Before("28.2") || hasCDI && !v.Before("25.0") {
		settings = append(settings, setting{[]string{"features", "cdi"}, true})
	}
	return settings, nil
}

// dockerCheck has dockerd validate daemon.json. dockerd can do so from 23.0 on.
func (p *planner) dockerCheck(config string) *Check {
	c, dockerd := p.plan.findChange(p.host, config), p.host.findProgram("dockerd")
	if c == nil || dockerd == "" || !ParseVersion(p.host.Version).AtLeast("23.0") {
		return nil
	}
	return &Check{
		Command: []string{dockerd, "--validate", "--config-file", Dir + "/daemon.json"},
		Before:  map[string][]byte{"daemon.json": c.Before.Data},
		After:   map[string][]byte{"daemon.json": c.After.Data},
	}
}

// planStub plans the program that dockerd looks for at --gpus, and a drop-in that has
// dockerd find it. The program fails when it is run.
func (p *planner) planStub(unit unit) error {
	dir := StubDir(p.options.Data)
	if err := p.planLink(path.Join(dir, dockerStub), p.options.Hook); err != nil {
		return err
	}
	if fix := "have dockerd's PATH begin with " + dir + ", or docker run --gpus is refused"; !unit.found {
		p.plan.addNote(fix, "there is no %s", dockerUnit)
		return nil
	}
	search, late := unit.searchPath(dockerDropIn, p.host.Path)
	if late != "" {
		p.plan.addNote("have it begin with "+dir+", or docker run --gpus is refused", "%s sets PATH after berth's drop-in does", late)
	}
	if strings.ContainsAny(dir, "\"\\%$ \t") {
		return fmt.Errorf("the data directory %s can't stand in a PATH of systemd's", p.options.Data)
	}
	others := slices.DeleteFunc(strings.Split(search, ":"), func(d string) bool { return d == dir || d == "" })
	search = strings.Join(append([]string{dir}, others...), ":")
	return p.planOwnFile(dockerDropIn, fmt.Sprintf("%s[Service]\nEnvironment=\"PATH=%s\"\n", p.fileHeader(), search))
}

// planDockerRestart chooses between a reload, which applies runtimes, and a restart.
// configChanges means that daemon.json changes.
func (p *planner) planDockerRestart(config string, configChanges bool) {
	plan := &p.plan
	c := plan.findChange(p.host, config)
	if plan.findChange(p.host, dockerDropIn) == nil && (c == nil || !changesKey(c, "features")) {
		if configChanges {
			plan.Apply = "systemctl reload docker"
		}
		return
	}
	plan.Apply = RestartCommand("docker")
	if f, _, err := p.host.readTarget(config); err == nil {
		if live, _, _ := (edit.JSON{}).Get(f.Data, "live-restore"); live != "true" {
			plan.addNote("", "a restart of docker ends its containers unless live-restore is true in %s", config)
		}
	}
}

// changesKey reports whether a change of a JSON file is about a key at its top.
func changesKey(c *Change, key string) bool {
	before, _, _ := edit.JSON{}.Get(c.Before.Data, key)
	after, _, _ := edit.JSON{}.Get(c.After.Data, key)
	return before != after
}

func (p *planner) addDockerNotes() {
	switch v := ParseVersion(p.host.Version); {
	case !v.Known:
		p.plan.addNote("from 25.0 to 28.1 it needs \"features\": {\"cdi\": true} for --device berth/gpus=2", "dockerd's version isn't known")
	case v.Before("25.0"):
		p.plan.addNote("docker run --gpus 2 works, --device berth/gpus=2 needs 25.0", "docker %s knows no CDI devices", p.host.Version)
	case !v.Before("29.2") && !p.options.CountIndices:
		p.plan.addNote("set policy.nvidia_indices = \"count\" to have it mean N free ones", "docker %s has --gpus N name the GPUs 0 to N-1", p.host.Version)
	}
}
