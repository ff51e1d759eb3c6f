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

// LayersFile is the file in a task's directory that lists the layers that the task uses.
const LayersFile = "layers"

// NoteLayers records in a task's directory that the task uses the image with these layers, the result of
// Unpack. The layers aren't pruned as long as the directory exists. It must be called before the image is
// closed.
func (img *Image) NoteLayers(task string, layers []string) error {
	if err := os.WriteFile(filepath.Join(task, LayersFile), img.listLayers(layers), 0o600); err != nil {
		return fmt.Errorf("record the task's layers: %w", err)
	}
	return nil
}

// imageKey precedes the digest of the image's manifest in LayersFile. The digest is "" for an image without a
// manifest.
const imageKey = "image:"

// unknownImageKey precedes the name of a layer in the result of usedLayers, if the LayersFile of its task has
// no imageKey.
const unknownImageKey = "unsaid:"

// Removed is what was removed, or with DryRun would be.
type Removed struct {
	Names []string `json:"names"`
	// Deleted are the ids of images without a remaining name, and the digests of layers.
	Deleted []string `json:"deleted"`
	Layers  int      `json:"layers"`
	// Freed is the size of the removed files in bytes.
	Freed int64 `json:"freed"`
}

// ErrUnknownUse means that a task of an older version of berth doesn't record which layers it uses.
var ErrUnknownUse = errors.New("doesn't say which layers it uses: an older berth has begun it")

// Prune removes the selected images and the layers that are no longer needed. It never removes a layer that a
// task uses, or that a process is about to use or unpacks. It may be called concurrently by any number of
// processes. After an error, Removed has what was removed all the same.
func (s Store) Prune(sel Selection) (Removed, error) {
	used, err := s.usedLayers(sel)
	if err != nil {
		return Removed{}, err
	}
	records, err := s.listRecords()
	if err != nil {
		return Removed{}, err // a record that can't be read might need any layer
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
	return done, errors.Join(err, s.collectGarbage(sel, kept, removed, used, &done), s.pruneSIFs(sel, &done))
}

// candidates returns a candidate for each record. Each has one platform.
func (s Store) candidates(records []record, used map[string]bool) (all []*Candidate[record]) {
	for _, r := range records {
		all = append(all, &Candidate[record]{
			Of: r, Name: r.Name, Short: shortName(r.Name), Digest: string(r.Manifest.Digest), Pulled: r.Pulled, Used: s.isUsed(r, used),
			Platforms: sync.OnceValue(func() []Summary { return []Summary{s.summarize(r)} }),
		})
	}
	return all
}

// isUsed reports whether a task uses an image. For a task without imageKey, the image's topmost layer decides,
// because the others may be shared with other images.
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

// neededLayers returns the names of the directories of all layers of these images.
func (s Store) neededLayers(records []record) map[string]bool {
	all := map[string]bool{}
	for _, r := range records {
		for _, chain := range s.chainOf(r) {
			all[chain.fileName()] = true
		}
	}
	return all
}

// collectLayers locks all layers that seem unused, checks again which of them are needed, and removes the
// others. A process that wants one of them meanwhile waits for its lock, and then finds the layer missing.
func (s Store) collectLayers(sel Selection, limit, needed, used map[string]bool, done *Removed) (err error) {
	var locks []*os.File
	defer func() {
		for _, f := range locks {
			f.Close() // a lock
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
	used, e := s.usedLayers(sel)
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

// isOlder reports whether a layer is older than Selection.Before.
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

// collectDocuments removes manifests and configurations that no name needs. It does nothing during a pull,
// whose documents have no name yet.
func (s Store) collectDocuments(sel Selection) error {
	if sel.DryRun {
		return nil
	}
	gate, err := tryLock(s.namesDir(), lock.Exclusive, false)
	if gate == nil || err != nil {
		return err
	}
	defer gate.Close() // a lock
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

// removeHalfWritten removes temporary files of records whose writer was killed, and damaged records. The
// caller holds the exclusive lock of the names, so that no record is being written.
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

// usedLayers returns the lines of all tasks' LayersFiles and of all uses: names of layers, and imageKey with the images'
// digests.
func (s Store) usedLayers(sel Selection) (map[string]bool, error) {
	used := map[string]bool{}
	entries, err := os.ReadDir(sel.Tasks)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for tasks: %w", err)
	}
	for _, e := range entries {
		data, err := readLayersFile(filepath.Join(sel.Tasks, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("task %s %w", e.Name(), err)
		}
		said := bytes.Contains(data, []byte(imageKey))
		for name := range strings.FieldsSeq(string(data)) {
			used[name] = true
			used[unknownImageKey+name] = used[unknownImageKey+name] || !said
		}
	}
	uses, err := s.listUses(!sel.DryRun)
	if err != nil {
		return nil, fmt.Errorf("look for uses of layers: %w", err)
	}
	for _, data := range uses {
		for name := range strings.FieldsSeq(string(data)) {
			used[name] = true
		}
	}
	return used, nil
}

// readLayersFile returns a task's LayersFile, nothing for a task without layers. A task's spec is written after
// the LayersFile and removed before it. So a spec without a LayersFile, seen twice, is no race with a start or
// an end of the task: an older version of berth has started it.
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
