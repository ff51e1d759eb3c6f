package doctor

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi/foreign"
	"github.com/berth-gpu/berth/cdi/menu"
	"github.com/berth-gpu/berth/cdi/registry"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/internal/smallfile"
)

const maxSpec = 16 << 20

// ownSpec is one of berth's CDI specs.
type ownSpec struct {
	kind, path string
	// want is the text that discovery would write now, nil for no file. have is the file's
	// text; missing means that there is no file.
	want, have []byte
	missing    bool
}

func (e *examination) checkOwnSpecs(r *report) error {
	m, err := berth.LoadMenu(e.Config)
	if errors.Is(err, fs.ErrPermission) {
		return err
	}
	if err != nil {
		r.fail("rm "+filepath.Join(e.Config.Data, "cdi-menu.json")+" && "+r.command("cdi generate"), "%v", err)
		return nil
	}
	if len(m.Kinds) == 0 {
		path, devices := e.findForeignMenu()
		decideForeignMenu(r, path, devices)
		return nil
	}
	s, err := e.readSnapshot()
	if err != nil {
		return nil //nolint:nilerr // reported by snapshot.fresh, whose fix also writes the specs
	}
	var specs []ownSpec
	for _, kind := range m.Kinds {
		spec := ownSpec{kind: kind, path: filepath.Join(m.Dir, menu.FileName(kind))}
		if spec.want, err = berth.MenuSpec(e.Config, s.Inventory, kind); err != nil {
			return err
		}
		spec.have, err = smallfile.Read(spec.path, maxSpec)
		if spec.missing = errors.Is(err, fs.ErrNotExist); err != nil && !spec.missing {
			return err
		}
		specs = append(specs, spec)
	}
	decideOwnSpecs(r, m.Dir, slices.Contains(e.Config.Host.CDI, m.Dir), specs)
	return nil
}

// decideOwnSpecs reports specs that differ from what discovery would write. searched means
// that host.cdi has their directory.
func decideOwnSpecs(r *report, dir string, searched bool, specs []ownSpec) {
	var kinds []string
	devices := 0
	for _, s := range specs {
		kinds = append(kinds, s.kind)
		switch {
		case s.missing && s.want == nil:
		case s.missing:
			r.warn(r.command("discover"), "there is no %s: --device %s=1 is refused", s.path, s.kind)
		case !bytes.Equal(s.have, s.want):
			r.warn(r.command("discover"), "%s doesn't fit the node's present devices", s.path)
		default:
			devices += bytes.Count(s.have, []byte(`"name"`))
		}
	}
	if !searched {
		r.warn("add it to host.cdi, or "+r.command("cdi generate"), "berth's specs are in %s, where host.cdi doesn't look", dir)
	}
	r.okUnlessReported("%s in %s, %s", strings.Join(kinds, ", "), dir, output.FormatCount(devices, "device"))
}

// findForeignMenu looks for a spec of berth's devices that berth has not written; "" if
// there is none.
func (e *examination) findForeignMenu() (path string, devices int) {
	for _, dir := range e.Config.Host.CDI {
		path := filepath.Join(dir, menu.FileName(menu.KindGPUs))
		if s, err := registry.Validate(path); err == nil {
			return path, len(s.Devices)
		}
	}
	return "", 0
}

func decideForeignMenu(r *report, path string, devices int) {
	if path == "" {
		r.warn(r.command("cdi generate"), "there are no devices berth/gpus=…, so --device berth/gpus=2 is refused")
		return
	}
	r.ok("%s, %s", path, output.FormatCount(devices, "device"))
}

// otherSpecs are the specs of other vendors.
type otherSpecs struct {
	problems []specProblem
	// stale are specs that name files of the host that are gone.
	stale []staleSpec
	// count is the number of readable specs.
	count int
	// nvidiaCTK is the path of NVIDIA's program, "" if it isn't installed.
	nvidiaCTK string
}

type specProblem struct {
	path, reason string
	// conflict means that another spec has the same devices.
	conflict, nvidia bool
}

type staleSpec struct {
	path   string
	nvidia bool
	gone   []string
}

func (e *examination) checkOtherSpecs(r *report) error {
	all := registry.Read(e.Config.Host.CDI)
	facts := otherSpecs{count: len(all.Specs), nvidiaCTK: e.Find("nvidia-ctk")}
	for _, p := range all.Problems {
		problem := specProblem{path: p.Path, reason: p.Reason, conflict: strings.Contains(p.Reason, "conflict")}
		if s, err := registry.Validate(p.Path); err == nil {
			problem.nvidia = s.Kind == menu.KindNVIDIA
		}
		facts.problems = append(facts.problems, problem)
	}
	for _, s := range all.Specs {
		if gone := missingFiles(s); len(gone) > 0 {
			facts.stale = append(facts.stale, staleSpec{s.Path, s.Kind == menu.KindNVIDIA, gone})
		}
	}
	decideOtherSpecs(r, facts)
	return nil
}

// decideOtherSpecs reports specs that can't be read, define the same device, or are stale:
// after an upgrade of the driver, NVIDIA's specs name files that are gone, and no container
// with their devices starts.
func decideOtherSpecs(r *report, f otherSpecs) {
	for _, p := range f.problems {
		fix := "mv " + p.path + " " + p.path + ".broken, or correct it: " + r.command("cdi validate")
		switch {
		case p.conflict && p.nvidia:
			fix = r.command("cdi generate --nvidia --replace")
		case p.conflict:
			fix = "mv " + p.path + " " + p.path + ".replaced, or move the other"
		}
		r.warn(fix, "%s: %s", p.path, p.reason)
	}
	for _, s := range f.stale {
		fix := "have its vendor's program write it again"
		if s.nvidia {
			fix = cmp.Or(f.nvidiaCTK, "nvidia-ctk") + " cdi generate --output=" + s.path
		}
		r.warn(fix+", or mv "+s.path+" "+s.path+".stale", "%s is stale: there is no %s, so no container with its devices starts", s.path, listFirst(s.gone))
	}
	r.okUnlessReported("%s of others", output.FormatCount(f.count, "spec"))
}

// missingFiles returns the files of the host that a spec names and that don't exist.
func missingFiles(s foreign.Spec) (gone []string) {
	add := func(path string) {
		if _, err := os.Stat(path); filepath.IsAbs(path) && errors.Is(err, fs.ErrNotExist) {
			gone = append(gone, path)
		}
	}
	addAll := func(edits cdispecs.ContainerEdits) {
		for _, n := range edits.DeviceNodes {
			add(cmp.Or(n.HostPath, n.Path))
		}
		for _, m := range edits.Mounts {
			add(m.HostPath)
		}
		for _, h := range edits.Hooks {
			add(h.Path)
		}
	}
	addAll(s.Edits)
	for _, d := range s.Devices {
		addAll(d.Edits)
	}
	slices.Sort(gone)
	return slices.Compact(gone)
}
