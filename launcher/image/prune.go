package image

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// LayersFile is the file in a task's directory that says which layers it uses.
const LayersFile = "layers"

// NoteLayers notes in a task's directory that it uses the image with these layers, as Unpack
// gave them. They stay until the directory is gone, whatever becomes of this process. The
// image has to be closed after that.
func (img *Image) NoteLayers(task string, layers []string) error {
	var b bytes.Buffer
	b.WriteString(imageKey + img.Digest + "\n")
	for _, dir := range layers {
		b.WriteString(filepath.Base(filepath.Dir(dir)) + "\n")
	}
	if err := os.WriteFile(filepath.Join(task, LayersFile), b.Bytes(), 0o600); err != nil {
		return fmt.Errorf("note the task's layers: %w", err)
	}
	return nil
}

// imageKey is what the digest of the image's manifest follows among the names of layers;
// none follows where there is no manifest.
const imageKey = "image:"

// unknownImageKey precedes the name of a layer that is used by a task that does not say of which image.
const unknownImageKey = "unsaid:"

// Removed is what was removed, or would be.
type Removed struct {
	Names []string `json:"names"`
	// Deleted are the ids of images that nothing has any more, and the digests of layers.
	Deleted []string `json:"deleted"`
	Layers  int      `json:"layers"`
	// Freed are bytes of files.
	Freed int64 `json:"freed"`
}

// ErrUnknownUse: a task that an older berth has begun doesn't say what it uses.
var ErrUnknownUse = errors.New("doesn't say which layers it uses: an older berth has begun it")

// Prune removes what isn't needed: never a layer that a task uses, or that somebody
// is about to use or unpacks. It may be called at any time, by any number of
// processes. On error what could be removed is, and is told.
func (s Store) Prune(sel Selection) (Removed, error) {
	used, err := s.usedLayers(sel.Tasks)
	if err != nil {
		return Removed{}, err
	}
	records, err := s.listRecords()
	if err != nil {
		return Removed{}, err // what isn't understood might name anything
	}
	all := s.candidates(records, used)
	chosen, err := Choose(sel, all)
	if len(chosen) == 0 && err != nil {
		return Removed{}, err
	}
	done := Removed{Deleted: DeletedIDs(all, chosen)}
	var kept, removed []record
	for _, c := range chosen {
		removed = append(removed, c.Of)
		done.Names = append(done.Names, c.Short)
		if !sel.DryRun {
			err = errors.Join(err, removeIfThere(s.recordPath(c.Of.Name, c.Of.Platform)))
		}
	}
	for _, c := range all {
		if !slices.Contains(chosen, c) {
			kept = append(kept, c.Of)
		}
	}
	return done, errors.Join(err, s.collectGarbage(sel, kept, removed, used, &done))
}

// candidates are those that records stand for. Each has one platform.
func (s Store) candidates(records []record, used map[string]bool) (all []*Candidate[record]) {
	for _, r := range records {
		all = append(all, &Candidate[record]{
			Of: r, Name: r.Name, Short: shortName(r.Name), Digest: string(r.Manifest.Digest), Pulled: r.Pulled, Used: s.isUsed(r, used),
			Platforms: sync.OnceValue(func() []Summary { return []Summary{s.summarize(r)} }),
		})
	}
	return all
}

// isUsed reports whether a task uses an image. Of one that doesn't say which it uses, the
// topmost layer tells: the others may be shared with other images.
func (s Store) isUsed(r record, used map[string]bool) bool {
	if used[imageKey+string(r.Manifest.Digest)] || len(used) == 0 {
		return len(used) > 0
	}
	top := s.topLayer(r)
	return top != "" && used[unknownImageKey+top.fileName()]
}

// topLayer returns the chain id of the topmost layer, "" if it cannot be read.
func (s Store) topLayer(r record) digest {
	chain := s.chainOf(r)
	if len(chain) == 0 {
		return ""
	}
	return chain[len(chain)-1]
}

// chainOf returns the chain ids of an image, none if its documents cannot be read.
func (s Store) chainOf(r record) (all []digest) {
	img, err := s.openRecorded(r)
	if err != nil {
		return nil
	}
	for _, l := range img.layers {
		all = append(all, l.chain)
	}
	return all
}

// collectGarbage removes layers and documents that no name needs.
func (s Store) collectGarbage(sel Selection, kept, removed []record, used map[string]bool, done *Removed) error {
	limit := map[string]bool(nil)
	if len(sel.Names) > 0 || len(sel.Labels) > 0 {
		limit = s.neededLayers(removed)
	}
	err := s.collectLayers(sel, limit, s.neededLayers(kept), used, done)
	return errors.Join(err, s.collectDocuments(sel))
}

// neededLayers are the directories' names of all layers of images.
func (s Store) neededLayers(records []record) map[string]bool {
	all := map[string]bool{}
	for _, r := range records {
		for _, chain := range s.chainOf(r) {
			all[chain.fileName()] = true
		}
	}
	return all
}

// collectLayers locks all layers that seem to be unused, checks again which of them are
// needed, and removes the others. A process that wants one of them meanwhile waits for its
// lock, and then finds that the layer is gone.
func (s Store) collectLayers(sel Selection, limit, needed, used map[string]bool, done *Removed) (err error) {
	var locks []*os.File
	defer func() {
		for _, f := range locks {
			f.Close() // only locked
		}
	}()
	for _, home := range s.listLayerDirs() {
		name := filepath.Base(home)
		if needed[name] || used[name] || limit != nil && !limit[name] || !s.isOlder(sel, home) {
			continue
		}
		held, e := tryLock(home, lock.Exclusive, false)
		err = errors.Join(err, e)
		if held != nil {
			locks = append(locks, held)
		}
	}
	used, e := s.usedLayers(sel.Tasks)
	records, e2 := s.listRecords()
	if err = errors.Join(err, e, e2); err != nil {
		return err
	}
	if !sel.DryRun {
		s.sweepAside()
		needed = s.neededLayers(records)
	}
	for _, held := range locks {
		if name := filepath.Base(held.Name()); needed[name] || used[name] {
			continue
		}
		err = errors.Join(err, removeLayer(sel, held.Name(), done))
	}
	return err
}

// isOlder reports whether a layer is from before the selection's time.
func (s Store) isOlder(sel Selection, home string) bool {
	if sel.Before.IsZero() {
		return true
	}
	fi, err := os.Stat(home)
	return err == nil && fi.ModTime().Before(sel.Before)
}

// removeLayer removes a layer whose lock is held.
func removeLayer(sel Selection, home string, done *Removed) error {
	done.Layers++
	done.Deleted = append(done.Deleted, filepath.Base(filepath.Dir(home))+":"+filepath.Base(home))
	done.Freed += layerSize(home)
	if sel.DryRun {
		return nil
	}
	return removeAside(home)
}

// collectDocuments removes manifests and configurations that no name needs, unless
// somebody pulls: its own have no name yet. They are small; the next time will do.
func (s Store) collectDocuments(sel Selection) error {
	if sel.DryRun {
		return nil
	}
	gate, err := tryLock(s.namesDir(), lock.Exclusive, false)
	if gate == nil || err != nil {
		return err
	}
	defer gate.Close() // only locked
	records, err := s.listRecords()
	if err != nil {
		return err
	}
	needed := map[digest]bool{}
	for _, r := range records {
		needed[r.Manifest.Digest] = true
		needed[r.Digest] = true
		if img, err := s.openRecorded(r); err == nil {
			needed[img.config.Digest] = true
		}
	}
	return errors.Join(s.removeDocuments(needed), s.removeHalfWritten())
}

// removeHalfWritten removes what was killed while it wrote a record, and what is damaged:
// whoever writes one holds the gate.
func (s Store) removeHalfWritten() (err error) {
	names, err := smallfile.Names(s.namesDir())
	for _, name := range names {
		if !strings.HasSuffix(name, ".json") {
			err = errors.Join(err, removeIfThere(filepath.Join(s.namesDir(), name)))
		}
	}
	damaged, e := s.Damaged()
	err = errors.Join(err, e)
	for _, path := range damaged {
		err = errors.Join(err, removeIfThere(path))
	}
	return err
}

func (s Store) removeDocuments(needed map[digest]bool) (err error) {
	for _, algorithm := range algorithms() {
		dir := filepath.Join(s.Dir, blobsDir, algorithm)
		names, e := smallfile.Names(dir)
		err = errors.Join(err, e)
		for _, name := range names {
			if !needed[digest(algorithm+":"+name)] {
				err = errors.Join(err, removeIfThere(filepath.Join(dir, name)))
			}
		}
	}
	return err
}

// usedLayers are the names of layers that tasks have noted, and their images.
func (s Store) usedLayers(tasks string) (map[string]bool, error) {
	used := map[string]bool{}
	entries, err := os.ReadDir(tasks)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for tasks: %w", err)
	}
	for _, e := range entries {
		data, err := readLayersFile(filepath.Join(tasks, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("task %s %w", e.Name(), err)
		}
		said := bytes.Contains(data, []byte(imageKey))
		for name := range strings.FieldsSeq(string(data)) {
			used[name] = true
			used[unknownImageKey+name] = used[unknownImageKey+name] || !said
		}
	}
	return used, nil
}

// readLayersFile returns what a task has noted of its layers (NoteLayers). A task's spec is written after
// the note and removed before it. A spec without a note at the second reading is therefore no
// race with a start or an end of the task: an older berth has started it.
func readLayersFile(task string) ([]byte, error) {
	for range 2 {
		data, err := os.ReadFile(filepath.Join(task, LayersFile))
		if err == nil {
			return data, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return nil, fmt.Errorf("doesn't say which layers it uses: %w", err)
		}
		if !pathExists(filepath.Join(task, "bundle/config.json")) {
			return nil, nil
		}
	}
	return nil, ErrUnknownUse
}
