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
	// PodmanDropIn is berth's part of podman's configuration.
	PodmanDropIn = "/etc/containers/containers.conf.d/50-berth.conf"
	// podmanHooks is a directory of berth's own, which the drop-in names. podman build reads
	// /usr/share/containers/oci/hooks.d and /etc/containers/oci/hooks.d, whatever hooks_dir
	// is, and fails on a hook of the stage precreate, which only podman run knows.
	podmanHooks = "/etc/containers/oci/berth-hooks.d"
	// formerPodmanHooks is the directory that earlier versions wrote berth's hooks to.
	formerPodmanHooks = "/etc/containers/oci/hooks.d"
	// packagedHooks is the hooks directory of packages. podman runs no hooks at all if one
	// of its hooks directories is missing.
	packagedHooks = "/usr/share/containers/oci/hooks.d"
)

// podmanStages are the stages of berth's hooks.
func podmanStages() []string { return []string{"precreate", "poststop"} }

// hookPath returns the path of a hook file of berth's.
func hookPath(dir, stage string) string { return path.Join(dir, "berth-"+stage+".json") }

// podmanFiles returns the files that podman merges; later ones take precedence.
func (h Host) podmanFiles() []string {
	all := []string{"/usr/share/containers/containers.conf", "/etc/containers/containers.conf"}
	dir := path.Dir(PodmanDropIn)
	for _, name := range h.listDir(dir) {
		if strings.HasSuffix(name, ".conf") {
			all = append(all, path.Join(dir, name))
		}
	}
	return all
}

// planPodman plans the runtime berth, and hooks for containers with another runtime.
func planPodman(h Host, o Options, record *Record) (Plan, error) {
	if err := h.checkInstalled("podman", "podman"); err != nil {
		return Plan{}, err
	}
	p := newPlanner(h, "podman", o, record)
	if err := p.planRuntimeScript(); err != nil {
		return Plan{}, err
	}
	// Before the drop-in, which names their directory: podman runs no hooks at all if one is missing.
	for _, stage := range podmanStages() {
		hook, err := podmanHook(p.options, stage)
		if err != nil {
			return Plan{}, err
		}
		if err := p.planOwnFile(hookPath(podmanHooks, stage), hook); err != nil {
			return Plan{}, err
		}
	}
	text, err := p.podmanDropIn()
	if err != nil {
		return Plan{}, err
	}
	if err := p.planOwnFile(PodmanDropIn, text); err != nil {
		return Plan{}, err
	}
	if len(p.plan.Changes) > 0 {
		p.plan.Check = p.podmanCheck(text)
	}
	if err := p.removeFormerHooks(); err != nil {
		return Plan{}, err
	}
	if len(p.plan.Changes) > 0 {
		p.plan.addNote("", "podman reads this at each call; its service, where it runs, at its next start (systemctl restart podman)")
	}
	return p.finish(), nil
}

// removeFormerHooks plans the removal of the hooks that an earlier version has written. The
// record keeps them: a setup that is killed before their removal can still be undone.
func (p *planner) removeFormerHooks() error {
	for _, stage := range podmanStages() {
		name := hookPath(formerPodmanHooks, stage)
		e := p.record.file(name)
		if e == nil {
			continue
		}
		before, err := p.host.ReadFile(name)
		if err != nil {
			return err
		}
		after, kept, err := e.restore(before)
		if err != nil {
			return inFile(name, err)
		}
		if len(kept) > 0 {
			p.plan.addNote("remove it", "%s isn't as berth has written it, and stays: podman build may fail on it", name)
		}
		if !before.Same(after) {
			p.plan.Changes = append(p.plan.Changes, Change{name, before, after})
		}
	}
	return nil
}

// podmanDropIn returns the text of berth's drop-in. A list of the drop-in replaces the
// same list of earlier files, so it has their values, too.
func (p *planner) podmanDropIn() (string, error) {
	var lines []string
	addList := func(key, berths string, byDefault ...string) (list []string, err error) {
		list, late, err := p.host.podmanList(key, byDefault)
		p.noteOverride(late, key)
		list = addPatterns(list, berths)
		lines = append(lines, key+" = "+edit.TOMLList(list))
		return list, err
	}
	dirs, err := addList("hooks_dir", podmanHooks, packagedHooks)
	if err != nil {
		return "", err
	}
	for _, dir := range dirs {
		if dir != podmanHooks && !p.host.exists(dir) {
			p.recordNewDirs(dir)
			p.plan.Dirs = append(p.plan.Dirs, dir)
		}
	}
	if p.options.Default {
		lines = append(lines, "runtime = "+edit.TOMLString(Name))
		_, late, err := p.host.podmanList("runtime", nil)
		if err != nil {
			return "", err
		}
		p.noteOverride(late, "runtime")
	}
	lines = append(lines, "# Whose errors podman reads as they are meant: those that it knows of itself, and berth.")
	if _, err := addList("runtime_supports_json", Name, "crun", "crun-vm", "kata", "krun", "runc", "runsc", "youki"); err != nil {
		return "", err
	}
	if p.options.Crun {
		if _, err := addList("runtime_supports_nocgroups", Name, "crun", "krun"); err != nil {
			return "", err
		}
	}
	return p.fileHeader() + "[engine]\n" + strings.Join(lines, "\n") + "\n\n[engine.runtimes]\n" + Name + " = " + edit.TOMLList([]string{p.options.Runtime}) + "\n", nil
}

// noteOverride notes that a later file sets the same key.
func (p *planner) noteOverride(late, key string) {
	if late != "" {
		p.plan.addNote("add berth there", "%s sets engine.%s after berth's file does, and counts", late, key)
	}
}

// podmanList returns a list of podman's configuration as it is without berth's drop-in.
// late is a file that sets it after the drop-in, "" if none does.
func (h Host) podmanList(key string, byDefault []string) (words []string, late string, err error) {
	words = byDefault
	for _, name := range h.podmanFiles() {
		f, target, err := h.readTarget(name)
		if err != nil {
			return nil, "", err
		}
		if name == PodmanDropIn || !f.Exists {
			continue
		}
		values, err := edit.DecodeTOML(f.Data)
		if err != nil {
			return nil, "", inFile(target, err)
		}
		value, set := innerTable(values, "engine")[key]
		switch {
		case !set:
			continue
		case path.Dir(name) == path.Dir(PodmanDropIn) && path.Base(name) > path.Base(PodmanDropIn):
			late = name
		case isAppending(value):
			words = append(slices.Clone(words), stringList(value)...)
		default:
			words = stringList(value)
		}
	}
	return words, late, nil
}

// isAppending reports whether a list continues the one of earlier files.
func isAppending(value any) bool {
	all, _ := value.([]any)
	return slices.ContainsFunc(all, func(v any) bool {
		t, _ := v.(map[string]any)
		return t["append"] == true
	})
}

// podmanCheck has podman read the drop-in.
func (p *planner) podmanCheck(text string) *Check {
	return &Check{
		Command: []string{"env", "CONTAINERS_CONF=" + Dir + "/50-berth.conf", p.host.findProgram("podman"), "info", "--format", "{{.Host.OCIRuntime.Path}}"},
		After:   map[string][]byte{"50-berth.conf": []byte(text)},
		Verify: func(runtime string) error {
			if runtime = strings.TrimSpace(runtime); p.options.Default && runtime != p.options.Runtime {
				return fmt.Errorf("podman would take %s for its runtime", runtime)
			}
			return nil
		},
	}
}

// podmanHook returns a hook file of the OCI hooks directory, for annotated containers of
// any runtime. packaging/hooks.d has the same.
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
