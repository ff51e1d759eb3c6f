package setup

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/hook/setup/jsonedit"
)

// The places of Docker's configuration.
const (
	dockerConfig = "/etc/docker/daemon.json"
	dockerUnit   = "docker.service"
	// DockerDropIn has dockerd find what it looks for when --gpus is asked for.
	DockerDropIn = "/etc/systemd/system/docker.service.d/berth.conf"
)

// dockerStub is the name of the program without which dockerd refuses --gpus.
const dockerStub = "nvidia-container-runtime-hook"

// StubDir is the directory of programs that is put first in dockerd's PATH.
func StubDir(data string) string { return path.Join(data, "engines", "docker") }

// Docker plans berth in Docker's configuration: the runtime, and --gpus. record is what
// was kept the last time, nil if nothing was.
func Docker(h Host, o Options, record *Record) (Plan, error) {
	if err := h.installed("docker", []string{"dockerd"}, []string{"/etc/docker"}); err != nil {
		return Plan{}, err
	}
	unit := h.unit(dockerUnit)
	b := newBuilder(h, "docker", o, record)
	if err := b.runtime(); err != nil {
		return Plan{}, err
	}
	config, err := unit.dockerConfig()
	if err != nil {
		return Plan{}, err
	}
	wants, err := b.dockerWants(config)
	if err != nil {
		return Plan{}, err
	}
	if err := b.values(config, "", wants); err != nil {
		return Plan{}, err
	}
	b.plan.Check = b.dockerCheck(config)
	daemon := len(b.plan.Changes) > 0
	if err := b.stub(unit); err != nil {
		return Plan{}, err
	}
	b.dockerNotes(config, daemon)
	return b.done(), nil
}

// dockerWants are the values that daemon.json shall have.
func (b *builder) dockerWants(config string) ([]want, error) {
	f, config, err := b.host.read(config)
	if err != nil {
		return nil, err
	}
	text := f.Data
	if blank(text) {
		text = []byte("{}")
	}
	runtime := jsonedit.Object{{Key: "path", Value: b.options.Runtime}}
	wants := []want{{[]string{"runtimes", Name}, runtime}}
	if _, ok, err := jsonedit.Get(text, "runtimes", "nvidia"); err != nil {
		return nil, in(config, err)
	} else if ok {
		wants = append(wants, want{[]string{"runtimes", "nvidia"}, runtime})
	}
	if b.options.Default {
		wants = append(wants, want{[]string{"default-runtime"}, Name})
	}
	_, has, err := jsonedit.Get(text, "features", "cdi")
	if err != nil {
		return nil, in(config, err)
	}
	// From 28.2 on it is on unless it was turned off.
	if v := parseVersion(b.host.Version); v.between("25.0", "28.2") || has && !v.before("25.0") {
		wants = append(wants, want{[]string{"features", "cdi"}, true})
	}
	return wants, nil
}

// dockerCheck has dockerd look at daemon.json, from the version on that can.
func (b *builder) dockerCheck(config string) *Check {
	v, dockerd := parseVersion(b.host.Version), b.host.find("dockerd")
	for _, c := range b.plan.Changes {
		if c.Path == b.resolved(config) && dockerd != "" && v.known && !v.before("23.0") {
			return &Check{
				Command: []string{dockerd, "--validate", "--config-file", Dir + "/daemon.json"},
				Before:  map[string][]byte{"daemon.json": c.Before.Data},
				After:   map[string][]byte{"daemon.json": c.After.Data},
			}
		}
	}
	return nil
}

// stub has dockerd find the program without which it refuses --gpus.
func (b *builder) stub(unit unit) error {
	dir := StubDir(b.options.Data)
	if err := b.link(path.Join(dir, dockerStub), b.options.Hook); err != nil {
		return err
	}
	if !unit.found {
		b.plan.note("there is no %s: have dockerd's PATH begin with %s, or docker run --gpus is refused", dockerUnit, dir)
		return nil
	}
	search, late := unit.searchPath(DockerDropIn, b.host.Path)
	if late != "" {
		b.plan.note("%s sets PATH after berth's drop-in does: have it begin with %s, or docker run --gpus is refused", late, dir)
	}
	if strings.ContainsAny(dir, "\"\\%$ \t") {
		return fmt.Errorf("the data directory %s can't stand in a PATH of systemd's", b.options.Data)
	}
	return b.own(DockerDropIn, fmt.Sprintf("%s[Service]\nEnvironment=\"PATH=%s\"\n", b.header(), withFirst(dir, search)))
}

// withFirst is a search path that begins with a directory.
func withFirst(dir, search string) string {
	dirs := slices.DeleteFunc(strings.Split(search, ":"), func(d string) bool { return d == dir || d == "" })
	return strings.Join(append([]string{dir}, dirs...), ":")
}

// dockerNotes says what to run, and what else to know. daemon says that daemon.json is
// changed.
func (b *builder) dockerNotes(config string, daemon bool) {
	p := &b.plan
	if len(p.Changes) == 0 {
		return
	}
	p.Apply = "systemctl reload docker"
	if b.changes(DockerDropIn) || b.changesKey(config, "features") {
		p.Apply = restart("docker")
		if f, _, err := b.host.read(config); err == nil {
			if live, _, _ := jsonedit.Get(f.Data, "live-restore"); live != "true" {
				p.note("a restart of docker ends its containers unless live-restore is true in %s", config)
			}
		}
	} else if !daemon {
		p.Apply = ""
	}
	v := parseVersion(b.host.Version)
	switch {
	case !v.known:
		p.note("dockerd's version isn't known: from 25.0 to 28.1 it needs \"features\": {\"cdi\": true} for --device berth/gpus=2")
	case v.before("25.0"):
		p.note("docker %s knows no CDI devices: docker run --gpus 2 works, --device berth/gpus=2 needs 25.0", b.host.Version)
	case !v.before("29.2") && !b.options.Count:
		p.note("docker %s has --gpus N name the GPUs 0 to N-1: set policy.nvidia_indices = \"count\" to have it mean N free ones", b.host.Version)
	}
}

// changesKey says that a planned change is about a key at the top of a JSON file.
func (b *builder) changesKey(name, key string) bool {
	for _, c := range b.plan.Changes {
		if c.Path == name || c.Path == b.resolved(name) {
			before, _, _ := jsonedit.Get(c.Before.Data, key)
			after, _, _ := jsonedit.Get(c.After.Data, key)
			return !bytes.Equal([]byte(before), []byte(after))
		}
	}
	return false
}
