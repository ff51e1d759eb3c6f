package image

import (
	"errors"
	"os"
	"slices"

	"github.com/berth-gpu/berth/internal/userns"
)

// Stores are all stores of one user. With subordinate ids there are two, whose files have different owners: those of tasks and those of
// [SingleOwnerStore].
type Stores []Store

// StoresIn returns the stores below a data directory that this process can change, that of [StoreIn] first. A user's process outside of a user namespace
// gets all, to read them.
func StoresIn(data string) Stores {
	single := SingleOwnerStore(data)
	tasks := StoreIn(data)
	if os.Geteuid() != 0 && !userns.IsInside() {
		tasks = subordinateStore(data)
	}
	if tasks == single || !pathExists(tasks.Dir) && !userns.IsInside() {
		return Stores{single}
	}
	return Stores{tasks, single}
}

// List is [Store.List] for all stores. An image that is in two is listed once.
func (all Stores) List() (images []Summary, err error) {
	for _, s := range all {
		found, e := s.List()
		err = errors.Join(err, e)
		for _, f := range found {
			if !slices.ContainsFunc(images, func(o Summary) bool { return o.Name == f.Name && o.Platform == f.Platform && o.ID == f.ID }) {
				images = append(images, f)
			}
		}
	}
	return images, err
}

// UnnamedLayers is [Store.UnnamedLayers] for all stores.
func (all Stores) UnnamedLayers(tasks string) (layers []LayerSummary, err error) {
	layers = []LayerSummary{}
	for _, s := range all {
		found, e := s.UnnamedLayers(tasks)
		layers, err = append(layers, found...), errors.Join(err, e)
	}
	slices.SortStableFunc(layers, compareSizes)
	return layers, err
}

// Size is [Store.Size] of all stores.
func (all Stores) Size() (bytes int64) {
	for _, s := range all {
		bytes += s.Size()
	}
	return bytes
}

// Prune is [Store.Prune] for all stores. A name or an id has to be in one of them.
func (all Stores) Prune(sel Selection) (done Removed, err error) {
	for i, s := range all {
		own := sel
		own.Names = slices.DeleteFunc(slices.Clone(sel.Names), func(word string) bool {
			elsewhere := slices.ContainsFunc(all, func(o Store) bool { return o != s && o.hasImage(word) })
			return !s.hasImage(word) && (elsewhere || i > 0)
		})
		if len(own.Names) == 0 && len(sel.Names) > 0 {
			continue
		}
		part, e := s.Prune(own)
		err = errors.Join(err, e)
		done.Names, done.Deleted = appendMissing(done.Names, part.Names), appendMissing(done.Deleted, part.Deleted)
		done.Layers, done.Freed = done.Layers+part.Layers, done.Freed+part.Freed
	}
	return done, err
}

// hasImage reports whether a word is a name or the beginning of an id in the store. A store that can't be read has all.
func (s Store) hasImage(word string) bool {
	records, err := s.listRecords()
	if err != nil {
		return true
	}
	_, err = findCandidates(s.candidates(records, nil), word)
	return !errors.Is(err, ErrNotHere)
}

func appendMissing(to, words []string) []string {
	for _, w := range words {
		if !slices.Contains(to, w) {
			to = append(to, w)
		}
	}
	return to
}
