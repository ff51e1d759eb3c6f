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
	"github.com/berth-gpu/berth/internal/smallfile"
)

// ownSpecs: berth's specs are what discovery would write now.
func (e *exam) ownSpecs(r *result) error {
	m, err := berth.LoadMenu(e.Config)
	if errors.Is(err, fs.ErrPermission) {
		return err
	}
	if err != nil {
		r.fail("rm "+filepath.Join(e.Config.Data, "cdi-menu.json")+" && "+e.berth("cdi generate"), "%v", err)
		return nil
	}
	if len(m.Kinds) == 0 {
		e.looseSpec(r)
		return nil
	}
	s, err := e.snapshot()
	if err != nil {
		return nil // which is said already, and mends this too
	}
	before, devices := len(r.findings), 0
	for _, kind := range m.Kinds {
		path := filepath.Join(m.Dir, menu.FileName(kind))
		want, err := berth.MenuSpec(e.Config, s.Inventory, kind)
		if err != nil {
			return err
		}
		have, err := smallfile.Read(path, maxSpec)
		switch {
		case errors.Is(err, fs.ErrNotExist) && want == nil:
		case errors.Is(err, fs.ErrNotExist):
			r.warn(e.berth("discover"), "there is no %s: --device %s=1 is refused", path, kind)
		case err != nil:
			return err
		case !bytes.Equal(have, want):
			r.warn(e.berth("discover"), "%s isn't what the node has now", path)
		default:
			devices += bytes.Count(have, []byte(`"name"`))
		}
	}
	if !slices.Contains(e.Config.Host.CDI, m.Dir) {
		r.warn("add it to host.cdi, or "+e.berth("cdi generate"), "berth's specs are in %s, where host.cdi doesn't look", m.Dir)
	}
	r.fine(before, "%s in %s, %s", strings.Join(m.Kinds, ", "), m.Dir, count(devices, "device"))
	return nil
}

const maxSpec = 16 << 20

// looseSpec is for specs that were put there by other means.
func (e *exam) looseSpec(r *result) {
	for _, dir := range e.Config.Host.CDI {
		path := filepath.Join(dir, menu.FileName(menu.KindGPUs))
		if s, err := registry.Validate(path); err == nil {
			r.ok("%s, %s", path, count(len(s.Devices), "device"))
			return
		}
	}
	r.warn(e.berth("cdi generate"), "there are no devices berth/gpus=…, so --device berth/gpus=2 is refused")
}

// otherSpecs: other vendors' can be read, contradict nobody, and name what is there. After
// an upgrade of the driver they name files that are gone, and no container starts.
func (e *exam) otherSpecs(r *result) error {
	all := registry.Read(e.Config.Host.CDI)
	for _, p := range all.Problems {
		mend := "mv " + p.Path + " " + p.Path + ".broken, or correct it: " + e.berth("cdi validate")
		if strings.Contains(p.Reason, "conflict") {
			mend = "mv " + p.Path + " " + p.Path + ".replaced, or move the other"
			if s, err := registry.Validate(p.Path); err == nil && s.Kind == menu.KindNVIDIA {
				mend = e.berth("cdi generate --nvidia --replace")
			}
		}
		r.warn(mend, "%s: %s", p.Path, p.Reason)
	}
	before := len(r.findings) - len(all.Problems)
	for _, s := range all.Specs {
		gone := missing(s)
		if len(gone) == 0 {
			continue
		}
		mend := "have its vendor's program write it anew, or mv " + s.Path + " " + s.Path + ".stale"
		if s.Kind == menu.KindNVIDIA {
			mend = cmp.Or(e.Find("nvidia-ctk"), "nvidia-ctk") + " cdi generate --output=" + s.Path + ", or mv " + s.Path + " " + s.Path + ".stale"
		}
		r.warn(mend, "%s is stale: there is no %s, so no container with its devices starts", s.Path, listed(gone))
	}
	r.fine(before, "%s of others", count(len(all.Specs), "spec"))
	return nil
}

// missing lists what a spec names of the host and isn't there.
func missing(s foreign.Spec) (gone []string) {
	look := func(edits cdispecs.ContainerEdits) {
		for _, n := range edits.DeviceNodes {
			gone = append(gone, absent(cmp.Or(n.HostPath, n.Path))...)
		}
		for _, m := range edits.Mounts {
			gone = append(gone, absent(m.HostPath)...)
		}
		for _, h := range edits.Hooks {
			gone = append(gone, absent(h.Path)...)
		}
	}
	look(s.Edits)
	for _, d := range s.Devices {
		look(d.Edits)
	}
	slices.Sort(gone)
	return slices.Compact(gone)
}

func absent(path string) []string {
	if !filepath.IsAbs(path) {
		return nil
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return []string{path}
	}
	return nil
}
