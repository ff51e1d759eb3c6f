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
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Kept is the file in a task's directory that says which layers it uses.
const Kept = "layers"

// Keep notes in a task's directory that it uses the image with these layers, as Unpack
// gave them. They stay until the directory is gone, whatever becomes of this process. The
// image has to be closed after that.
func (img *Image) Keep(task string, layers []string) error {
	var b bytes.Buffer
	b.WriteString(imageKey + img.Digest + "\n")
	for _, dir := range layers {
		b.WriteString(filepath.Base(filepath.Dir(dir)) + "\n")
	}
	if err := os.WriteFile(filepath.Join(task, Kept), b.Bytes(), 0o600); err != nil {
		return fmt.Errorf("note the task's layers: %w", err)
	}
	return nil
}

// imageKey is what the digest of the image's manifest follows among the names of layers;
// none follows where there is no manifest.
const imageKey = "image:"

// unsaid is what the name of a layer follows that is used by who doesn't say of which image.
const unsaid = "unsaid:"

// Selection says what Prune removes. The zero value is what no name stands for and
// nobody uses.
type Selection struct {
	// Tasks is the directory with one directory for each task (Keep).
	Tasks string
	// All: names that no task uses, too.
	All bool
	// Labels have to be on an image all, or it isn't removed; no other layers go then but
	// what is left over from these images.
	Labels []Label
	// Names are names and ids of images to remove, and then nothing else goes but what
	// is left over from them. What can't be removed keeps none of the others.
	Names []string
	// Force removes names of Names that a task uses, whose layers stay, and all names of
	// an id.
	Force bool
	// Before spares what was pulled since; the zero time spares nothing.
	Before time.Time
	// DryRun only tells.
	DryRun bool
}

// Removed is what was removed, or would be.
type Removed struct {
	Names []string `json:"names"`
	// Deleted are the ids of images that nothing has any more, and the digests of layers.
	Deleted []string `json:"deleted"`
	Layers  int      `json:"layers"`
	// Freed are bytes of files.
	Freed int64 `json:"freed"`
}

// ErrUsed: an image can't be removed, for a task uses it.
var ErrUsed = errors.New("is used by a task")

// ErrNames: an image that was named by its id has several names.
var ErrNames = errors.New("has several names")

// ErrUnknownUse: a task that an older berth has begun doesn't say what it uses.
var ErrUnknownUse = errors.New("doesn't say which layers it uses: an older berth has begun it")

// Prune removes what isn't needed: never a layer that a task uses, or that somebody
// is about to use or unpacks. It may be called at any time, by any number of
// processes. On error what could be removed is, and is told.
func (s Store) Prune(sel Selection) (Removed, error) {
	used, err := s.used(sel.Tasks)
	if err != nil {
		return Removed{}, err
	}
	records, err := s.records()
	if err != nil {
		return Removed{}, err // what isn't understood might name anything
	}
	goes, err := s.choose(sel, records, used)
	if len(goes) == 0 && err != nil {
		return Removed{}, err
	}
	var done Removed
	done.Deleted = s.deleted(records, goes, used)
	for _, r := range goes {
		done.Names = append(done.Names, short(r.Name))
		if !sel.DryRun {
			err = errors.Join(err, removeIfThere(s.file(r.Name, r.Platform)))
		}
	}
	stays := slices.DeleteFunc(records, func(r record) bool { return slices.ContainsFunc(goes, same(r)) })
	return done, errors.Join(err, s.collect(sel, stays, goes, used, &done))
}

// deleted are the ids of images of which no name stays, nor a task.
func (s Store) deleted(records, goes []record, used map[string]bool) (ids []string) {
	stay := map[string]bool{}
	for _, r := range records {
		if !slices.ContainsFunc(goes, same(r)) || s.usesAny(r, used) {
			stay[s.id(r)] = true
		}
	}
	for _, r := range goes {
		if id := s.id(r); id != "" && !stay[id] {
			stay[id] = true // said once
			ids = append(ids, id)
		}
	}
	return ids
}

// id is "" if it can't be told.
func (s Store) id(r record) string {
	img, err := s.offline(r)
	if err != nil {
		return ""
	}
	return string(img.config.Digest)
}

func same(a record) func(record) bool {
	return func(b record) bool { return a.Name == b.Name && a.Platform == b.Platform }
}

// choose says which names go.
func (s Store) choose(sel Selection, records []record, used map[string]bool) (goes []record, err error) {
	if len(sel.Names) > 0 {
		return s.meant(sel, records, used)
	}
	if !sel.All {
		return nil, nil
	}
	for _, r := range records {
		if (sel.Before.IsZero() || r.Pulled.Before(sel.Before)) && !s.usesAny(r, used) && s.labelled(r, sel.Labels) {
			goes = append(goes, r)
		}
	}
	return goes, nil
}

func (s Store) labelled(r record, asked []Label) bool {
	if len(asked) == 0 {
		return true
	}
	img, err := s.offline(r)
	return err == nil && fitAll(asked, img.Config.Labels)
}

// meant finds what words mean, and what of it can go.
func (s Store) meant(sel Selection, records []record, used map[string]bool) (goes []record, err error) {
	ids := s.ids(records)
	var meant []record
	for _, word := range sel.Names {
		found, e := find(records, ids, word)
		if e == nil && !sel.Force {
			e = alone(word, found)
		}
		if err = errors.Join(err, e); e != nil {
			continue
		}
		for _, r := range found {
			if !slices.ContainsFunc(meant, same(r)) {
				meant = append(meant, r)
			}
		}
	}
	for _, r := range meant {
		if !sel.Force && s.usesAny(r, used) && !s.elsewhere(r, records, append(goes, r)) {
			err = errors.Join(err, fmt.Errorf("image %s %w", short(r.Name), ErrUsed))
			continue
		}
		goes = append(goes, r)
	}
	return goes, err
}

// alone fails if an id stands for images of several names: who knows the one may need the
// other.
func alone(word string, found []record) error {
	var names []string
	for _, r := range found {
		if n := short(r.Name); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	if len(names) > 1 {
		return fmt.Errorf("image %q %w: %s", word, ErrNames, strings.Join(names, ", "))
	}
	return nil
}

// elsewhere says whether another name stays that stands for the same image.
func (s Store) elsewhere(r record, records, goes []record) bool {
	return slices.ContainsFunc(records, func(o record) bool {
		return o.Manifest.Digest == r.Manifest.Digest && !slices.ContainsFunc(goes, same(o))
	})
}

// usesAny says whether a task uses an image. Of one that doesn't say which it uses, the
// topmost layer tells: the others may be shared with other images.
func (s Store) usesAny(r record, used map[string]bool) bool {
	if used[imageKey+string(r.Manifest.Digest)] {
		return true
	}
	top := s.top(r)
	return top != "" && used[unsaid+top.base()]
}

// top is the topmost layer, "" if there is none, or it can't be told.
func (s Store) top(r record) digest {
	chain := s.chainOf(r)
	if len(chain) == 0 {
		return ""
	}
	return chain[len(chain)-1]
}

// chainOf is empty if it can't be told.
func (s Store) chainOf(r record) (all []digest) {
	img, err := s.offline(r)
	if err != nil {
		return nil
	}
	for _, l := range img.layers {
		all = append(all, l.chain)
	}
	return all
}

// collect removes layers and documents that no name needs.
func (s Store) collect(sel Selection, stays, goes []record, used map[string]bool, done *Removed) error {
	limit := map[string]bool(nil)
	if len(sel.Names) > 0 || len(sel.Labels) > 0 {
		limit = s.needed(goes)
	}
	err := s.collectLayers(sel, limit, s.needed(stays), used, done)
	return errors.Join(err, s.collectDocuments(sel))
}

// needed are the directories' names of all layers of images.
func (s Store) needed(records []record) map[string]bool {
	all := map[string]bool{}
	for _, r := range records {
		for _, chain := range s.chainOf(r) {
			all[chain.base()] = true
		}
	}
	return all
}

// collectLayers takes the locks of all layers that seem to go, looks again who needs
// them, and removes the rest. Who wants one of them meanwhile waits for its lock, and
// finds that it is gone.
func (s Store) collectLayers(sel Selection, limit, needed, used map[string]bool, done *Removed) (err error) {
	var locks []*os.File
	defer func() {
		for _, f := range locks {
			f.Close() // only locked
		}
	}()
	for _, home := range s.homes() {
		name := filepath.Base(home)
		if needed[name] || used[name] || limit != nil && !limit[name] || !s.old(sel, home) {
			continue
		}
		held, e := tryLock(home, lock.Exclusive, false)
		err = errors.Join(err, e)
		if held != nil {
			locks = append(locks, held)
		}
	}
	used, e := s.used(sel.Tasks)
	records, e2 := s.records()
	if err = errors.Join(err, e, e2); err != nil {
		return err
	}
	if !sel.DryRun {
		needed = s.needed(records)
	}
	for _, held := range locks {
		if name := filepath.Base(held.Name()); needed[name] || used[name] {
			continue
		}
		err = errors.Join(err, remove(sel, held.Name(), done))
	}
	return err
}

// old says whether a layer is from before the selection's time.
func (s Store) old(sel Selection, home string) bool {
	if sel.Before.IsZero() {
		return true
	}
	fi, err := os.Stat(home)
	return err == nil && fi.ModTime().Before(sel.Before)
}

// remove takes a layer away whose lock is held: first from its name, so that no half
// of it is ever taken for the whole.
func remove(sel Selection, home string, done *Removed) error {
	done.Layers++
	done.Deleted = append(done.Deleted, filepath.Base(filepath.Dir(home))+":"+filepath.Base(home))
	done.Freed += sizeOf(home)
	if sel.DryRun {
		return nil
	}
	if exists(filesIn(home)) {
		tmp := filepath.Join(home, "tmp")
		if err := errors.Join(os.RemoveAll(tmp), os.Rename(filesIn(home), tmp)); err != nil {
			return err
		}
	}
	return os.RemoveAll(home)
}

// collectDocuments removes manifests and configurations that no name needs, unless
// somebody pulls: its own have no name yet. They are small; the next time will do.
func (s Store) collectDocuments(sel Selection) error {
	if sel.DryRun {
		return nil
	}
	gate, err := tryLock(s.names(), lock.Exclusive, false)
	if gate == nil || err != nil {
		return err
	}
	defer gate.Close() // only locked
	records, err := s.records()
	if err != nil {
		return err
	}
	needed := map[digest]bool{}
	for _, r := range records {
		needed[r.Manifest.Digest] = true
		needed[r.Digest] = true
		if img, err := s.offline(r); err == nil {
			needed[img.config.Digest] = true
		}
	}
	return errors.Join(s.removeDocuments(needed), s.removeHalves())
}

// removeHalves removes what was killed while it wrote a record, and what is damaged:
// whoever writes one holds the gate.
func (s Store) removeHalves() (err error) {
	names, err := smallfile.Names(s.names())
	for _, name := range names {
		if !strings.HasSuffix(name, ".json") {
			err = errors.Join(err, removeIfThere(filepath.Join(s.names(), name)))
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

// used are the names of layers that tasks have noted, and their images.
func (s Store) used(tasks string) (map[string]bool, error) {
	used := map[string]bool{}
	entries, err := os.ReadDir(tasks)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for tasks: %w", err)
	}
	for _, e := range entries {
		data, err := noted(filepath.Join(tasks, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("task %s %w", e.Name(), err)
		}
		said := bytes.Contains(data, []byte(imageKey))
		for name := range strings.FieldsSeq(string(data)) {
			used[name] = true
			used[unsaid+name] = used[unsaid+name] || !said
		}
	}
	return used, nil
}

// noted is what a task has noted of its layers. A spec is made after that, and removed
// before it: if a second look finds a spec alone, nobody has just begun or ended the task.
func noted(task string) ([]byte, error) {
	for range 2 {
		data, err := os.ReadFile(filepath.Join(task, Kept))
		if err == nil {
			return data, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return nil, fmt.Errorf("doesn't say which layers it uses: %w", err)
		}
		if !exists(filepath.Join(task, "bundle/config.json")) {
			return nil, nil
		}
	}
	return nil, ErrUnknownUse
}
