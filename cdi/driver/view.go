package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/gpu"
)

// view is a selection of the driver's files, shared by all sets of capabilities that select the same
// files.
type view struct {
	// name is the name of the first set that selects these files, others are the names of the other
	// sets.
	name    string
	others  []string
	files   []source // libraries, then programs, by place
	extras  []source
	version string
}

// listViews returns all distinct views; the first has all files. Seven capabilities have 128 sets,
// but many select the same files.
func listViews(version string, files []source) []view {
	all := []view{viewOf(whole, version, files)}
	at := map[string]int{selectionKey(whole, files): 0}
	for set := gpu.Capabilities(0); set < whole; set++ {
		key := selectionKey(set, files)
		if i, ok := at[key]; ok {
			all[i].others = append(all[i].others, setName(set))
			continue
		}
		at[key] = len(all)
		all = append(all, viewOf(set, version, files))
	}
	return all
}

// selectionKey returns a string that is equal for sets that select the same files.
func selectionKey(set gpu.Capabilities, files []source) string {
	key := make([]byte, len(files))
	for i, s := range files {
		if s.isIn(set) {
			key[i] = 1
		}
	}
	return string(key)
}

func viewOf(set gpu.Capabilities, version string, files []source) view {
	v := view{name: setName(set), version: version}
	for _, s := range files {
		switch {
		case !s.isIn(set):
		case s.destinations != nil:
			v.extras = append(v.extras, s)
		default:
			v.files = append(v.files, s)
		}
	}
	return v
}

func (v view) newManifest() manifest {
	m := manifest{Schema: schema, Driver: v.version, View: v.name, Libraries: []Library{}, Programs: []string{}, Extras: []placed{}}
	for _, s := range v.files {
		if s.lib.File == "" {
			m.Programs = append(m.Programs, filepath.Base(s.to))
		} else {
			m.Libraries = append(m.Libraries, s.lib)
		}
	}
	for _, s := range v.extras {
		m.Extras = append(m.Extras, placed{File: s.to, To: s.destinations})
	}
	return m
}

// makeView makes the view below home; put puts a file and its names into it.
func (v view) makeView(home string, put func(s source, shown string) error) error {
	shown := filepath.Join(home, v.name, filesName)
	if err := makeDirectories(home, filepath.Join(v.name, filesName)); err != nil {
		return err
	}
	for _, dir := range v.newManifest().viewDirectories() {
		if err := makeDirectory(filepath.Join(shown, dir)); err != nil {
			return err
		}
	}
	for _, s := range v.files {
		if err := put(s, shown); err != nil {
			return err
		}
	}
	for _, name := range v.others {
		if err := os.Symlink(v.name, filepath.Join(home, name)); err != nil {
			return err
		}
	}
	return nil
}

// linkNames makes the library's names beside it.
func (l Library) linkNames(shown string) error {
	for _, name := range l.linkPaths() {
		if err := os.Symlink(filepath.Base(l.File), filepath.Join(shown, name)); err != nil {
			return err
		}
	}
	return nil
}

// linkPaths are the paths of the links beside the library.
func (l Library) linkPaths() []string {
	var all []string
	for _, name := range l.Names {
		all = append(all, filepath.Join(filepath.Dir(l.File), name))
	}
	return all
}

// linkFrom returns a function that hard-links files and symbolic links from the view with all files.
// New inodes for every view would take most of Build's time.
func linkFrom(all string) func(s source, shown string) error {
	return func(s source, shown string) error {
		for _, name := range append(s.lib.linkPaths(), s.to) {
			if err := os.Link(filepath.Join(all, name), filepath.Join(shown, name)); err != nil {
				return err
			}
		}
		return nil
	}
}

// sealView writes the manifest. It must be called after all views are complete, because a new hard
// link changes the sealed ctime.
func (v view) sealView(home string) error {
	dir := filepath.Join(home, v.name)
	m := v.newManifest()
	var err error
	if m.Seal, err = m.sealOf(filepath.Join(dir, filesName)); err != nil {
		return fmt.Errorf("seal view %s: %w", v.name, err)
	}
	return m.writeManifest(dir)
}

// writeManifest makes the directory a view: without a manifest it isn't one.
func (m manifest) writeManifest(dir string) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, manifestName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	return errors.Join(err, f.Close())
}
