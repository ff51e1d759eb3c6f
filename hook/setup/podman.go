package setup

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/hook/setup/tomledit"
)

// The places of podman's configuration.
const (
	podmanDropIn = "/etc/containers/containers.conf.d/50-berth.conf"
	podmanHooks  = "/etc/containers/oci/hooks.d"
	// sharedHooks are those of packages. Where it is missing podman runs no hooks at all.
	sharedHooks = "/usr/share/containers/oci/hooks.d"
)

// podmanFiles are those that podman reads, what counts more later.
func (h Host) podmanFiles() []string {
	all := []string{"/usr/share/containers/containers.conf", "/etc/containers/containers.conf"}
	dir := path.Dir(podmanDropIn)
	names := h.names(dir)
	slices.Sort(names)
	for _, name := range names {
		if strings.HasSuffix(name, ".conf") {
			all = append(all, path.Join(dir, name))
		}
	}
	return all
}

// Podman plans berth among podman's runtimes, and hooks for containers that are run with
// another one. record is what was kept the last time, nil if nothing was.
func Podman(h Host, o Options, record *Record) (Plan, error) {
	if err := h.installed("podman", []string{"podman"}, nil); err != nil {
		return Plan{}, err
	}
	b := newBuilder(h, "podman", o, record)
	if err := b.runtime(); err != nil {
		return Plan{}, err
	}
	text, err := b.podmanText()
	if err != nil {
		return Plan{}, err
	}
	if err := b.own(podmanDropIn, text); err != nil {
		return Plan{}, err
	}
	if len(b.plan.Changes) > 0 {
		b.plan.Check = b.podmanCheck(text)
	}
	for _, stage := range []string{"precreate", "poststop"} {
		hook, err := podmanHook(b.options, stage)
		if err != nil {
			return Plan{}, err
		}
		if err := b.own(path.Join(podmanHooks, "berth-"+stage+".json"), hook); err != nil {
			return Plan{}, err
		}
	}
	if len(b.plan.Changes) > 0 {
		b.plan.note("podman reads this at each call; its service, where it runs, at its next start (systemctl restart podman)")
	}
	return b.done(), nil
}

// podmanText is berth's drop-in.
func (b *builder) podmanText() (string, error) {
	supports, late, err := b.host.podmanList("runtime_supports_json", []string{"crun", "crun-vm", "kata", "krun", "runc", "runsc", "youki"})
	if err != nil {
		return "", err
	}
	b.overruled(late, "runtime_supports_json")
	dirs, late, err := b.host.podmanList("hooks_dir", []string{sharedHooks})
	if err != nil {
		return "", err
	}
	b.overruled(late, "hooks_dir")
	for _, dir := range dirs {
		if !b.host.exists(dir) {
			b.make(dir)
			b.plan.Dirs = append(b.plan.Dirs, dir)
		}
	}
	text := b.header() + "[engine]\nhooks_dir = " + string(tomledit.Text(with(dirs, podmanHooks))) + "\n"
	if b.options.Default {
		text += "runtime = " + string(tomledit.Text(Name)) + "\n"
		if _, late, err = b.host.podmanList("runtime", nil); err != nil {
			return "", err
		}
		b.overruled(late, "runtime")
	}
	text += "# Whose errors podman reads as they are meant: those that it knows of itself, and berth.\n"
	text += "runtime_supports_json = " + string(tomledit.Text(with(supports, Name))) + "\n"
	if b.options.Crun {
		none, late, err := b.host.podmanList("runtime_supports_nocgroups", []string{"crun", "krun"})
		if err != nil {
			return "", err
		}
		b.overruled(late, "runtime_supports_nocgroups")
		text += "runtime_supports_nocgroups = " + string(tomledit.Text(with(none, Name))) + "\n"
	}
	return text + "\n[engine.runtimes]\n" + Name + " = " + string(tomledit.Text([]string{b.options.Runtime})) + "\n", nil
}

// overruled says that a file that counts more sets the same key.
func (b *builder) overruled(late, key string) {
	if late != "" {
		b.plan.note("%s sets engine.%s after berth's file does, and counts: add berth there", late, key)
	}
}

// podmanList is a list of podman's as it is without berth's file. late is a file that sets
// it after that one, "" if none does.
func (h Host) podmanList(key string, otherwise []string) (words []string, late string, err error) {
	words = otherwise
	for _, name := range h.podmanFiles() {
		f, target, err := h.read(name)
		if err != nil {
			return nil, "", err
		}
		if name == podmanDropIn || !f.Exists {
			continue
		}
		values, err := tomledit.Decode(f.Data)
		if err != nil {
			return nil, "", in(target, err)
		}
		value, set := table(values, "engine")[key]
		switch {
		case !set:
			continue
		case path.Dir(name) == path.Dir(podmanDropIn) && path.Base(name) > path.Base(podmanDropIn):
			late = name
		case appends(value):
			words = append(slices.Clone(words), list(value)...)
		default:
			words = list(value)
		}
	}
	return words, late, nil
}

// appends says that a list goes on with the one of the files before.
func appends(value any) bool {
	all, _ := value.([]any)
	return slices.ContainsFunc(all, func(v any) bool {
		t, _ := v.(map[string]any)
		return t["append"] == true
	})
}

// podmanCheck has podman read berth's file.
func (b *builder) podmanCheck(text string) *Check {
	return &Check{
		Command: []string{"env", "CONTAINERS_CONF=" + Dir + "/50-berth.conf", b.host.find("podman"), "info", "--format", "{{.Host.OCIRuntime.Path}}"},
		After:   map[string][]byte{"50-berth.conf": []byte(text)},
		Judge: func(said string) error {
			if said = strings.TrimSpace(said); b.options.Default && said != b.options.Runtime {
				return fmt.Errorf("podman would take %s for its runtime", said)
			}
			return nil
		},
	}
}

// podmanHook is a file for a directory of hooks: what a container that is annotated gets
// with any runtime. packaging/hooks.d shows the same.
func podmanHook(o Options, stage string) (string, error) {
	args := []string{path.Base(o.Hook)}
	if o.Config != "" {
		args = append(args, "--config", o.Config)
	}
	words, err := json.Marshal(append(args, stage))
	if err != nil {
		return "", err
	}
	program, err := json.Marshal(o.Hook)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`{
  "version": "1.0.0",
  "hook": {"path": %s, "args": %s},
  "when": {"annotations": {"^berth\\.gpus$": "."}},
  "stages": [%q]
}
`, program, strings.ReplaceAll(string(words), `","`, `", "`), stage), nil
}
