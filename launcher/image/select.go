package image

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Selection says what Prune removes. The zero value is what no name stands for and
// nobody uses.
type Selection struct {
	// Tasks is the directory with one directory for each task (NoteLayers).
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

// ErrUsed: an image can't be removed, for a task uses it.
var ErrUsed = errors.New("is used by a task")

// ErrNames: an image that was named by its id has several names.
var ErrNames = errors.New("has several names")

// Candidate is an image under one of its names, as Choose sees it. Of is what the caller keeps
// of it.
type Candidate[T any] struct {
	Of T
	// Name is full, Short as people type it. Short is "" for an image that only goes by its id.
	Name, Short string
	// Digest is the same for all names of an image.
	Digest string
	Pulled time.Time
	// Used says that a task uses the image.
	Used bool
	// Platforms returns an entry with ID and Labels for each platform of which something is here.
	Platforms func() []Summary
}

// Choose says which candidates a selection removes. What an error says can't be removed isn't
// among them.
func Choose[T any](sel Selection, all []*Candidate[T]) (chosen []*Candidate[T], err error) {
	if len(sel.Names) > 0 {
		return chooseNamed(sel, all)
	}
	for _, c := range all {
		old := sel.Before.IsZero() || c.Pulled.Before(sel.Before)
		if !c.Used && old && (sel.All || c.Short == "") && c.hasLabels(sel.Labels) {
			chosen = append(chosen, c)
		}
	}
	return chosen, nil
}

// hasLabels reports whether an image has the labels, on each platform. One that can't be read has none.
func (c *Candidate[T]) hasLabels(asked []Label) bool {
	return len(asked) == 0 || !slices.ContainsFunc(c.Platforms(), func(s Summary) bool {
		return s.ID == "" || slices.ContainsFunc(asked, func(l Label) bool { return !l.Matches(s.Labels) })
	})
}

// chooseNamed finds what words mean, and what of it can go.
func chooseNamed[T any](sel Selection, all []*Candidate[T]) (chosen []*Candidate[T], err error) {
	var meant []*Candidate[T]
	for _, word := range sel.Names {
		found, e := findCandidates(all, word)
		if e == nil && !sel.Force {
			e = checkOneName(word, found)
		}
		if err = errors.Join(err, e); e != nil {
			continue
		}
		for _, c := range found {
			if !slices.Contains(meant, c) {
				meant = append(meant, c)
			}
		}
	}
	for _, c := range meant {
		otherName := func(o *Candidate[T]) bool {
			return o.Digest == c.Digest && o.Short != "" && o != c && !slices.Contains(chosen, o)
		}
		if !sel.Force && c.Used && !slices.ContainsFunc(all, otherName) {
			err = errors.Join(err, fmt.Errorf("image %s %w", cmp.Or(c.Short, c.Name), ErrUsed))
			continue
		}
		chosen = append(chosen, c)
	}
	return chosen, err
}

// checkOneName fails if an id stands for images of several names, of which others may be needed.
func checkOneName[T any](word string, found []*Candidate[T]) error {
	var names []string
	for _, c := range found {
		if c.Short != "" && !slices.Contains(names, c.Short) {
			names = append(names, c.Short)
		}
	}
	if len(names) > 1 {
		return fmt.Errorf("image %q %w: %s", word, ErrNames, strings.Join(names, ", "))
	}
	return nil
}

// findCandidates says which images a person means: by name, or by the beginning of an id.
func findCandidates[T any](all []*Candidate[T], word string) (found []*Candidate[T], err error) {
	full := parseFullName(word)
	var names []string
	for _, c := range all {
		if c.Name == full {
			found = append(found, c)
		}
		if c.Short != "" {
			names = append(names, c.Short)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	if found, err = FindByID(all, word); errors.Is(err, ErrNotHere) {
		err = fmt.Errorf("image %q %w%s", word, ErrNotHere, cmp.Or(SuggestName(word, names), noteShortID(all, word)))
	}
	return found, err
}

// minID is how many digits of an id say which is meant.
const minID = 4

// idDigits returns the digits of a word that can be the beginning of an id, or "".
func idDigits(word string) string {
	bare := strings.TrimPrefix(word, "sha256:")
	if len(bare) < minID || strings.Trim(bare, "0123456789abcdef") != "" {
		return ""
	}
	return bare
}

// FindByID finds the images of the one id that begins with a word. The error Is ErrNotHere if
// there is none.
func FindByID[T any](all []*Candidate[T], word string) (found []*Candidate[T], err error) {
	bare := idDigits(word)
	if bare == "" { // before anything is asked of an engine
		return nil, fmt.Errorf("image %q %w", word, ErrNotHere)
	}
	meant := map[string]bool{}
	for _, c := range all {
		for _, s := range c.Platforms() {
			if !strings.HasPrefix(s.ID, "sha256:"+bare) {
				continue
			}
			if meant[s.ID] = true; !slices.Contains(found, c) {
				found = append(found, c)
			}
		}
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("image %q %w", word, ErrNotHere)
	case len(meant) > 1:
		return nil, fmt.Errorf("image %q is the beginning of several ids", word)
	}
	return found, nil
}

// noteShortID says that an id begins with a word that is too short for one, or is "".
func noteShortID[T any](all []*Candidate[T], word string) string {
	for _, c := range all {
		for _, s := range c.Platforms() {
			if idDigits(word) == "" && word != "" && strings.HasPrefix(s.ID, "sha256:"+word) {
				return fmt.Sprintf(" (an id is given with %d digits or more)", minID)
			}
		}
	}
	return ""
}

// DeletedIDs are the ids of images of which no name stays, nor a task.
func DeletedIDs[T any](all, chosen []*Candidate[T]) (ids []string) {
	stay := map[string]bool{"": true}
	for _, c := range all {
		if !slices.Contains(chosen, c) || c.Used {
			for _, s := range c.Platforms() {
				stay[s.ID] = true
			}
		}
	}
	for _, c := range chosen {
		for _, s := range c.Platforms() {
			if !stay[s.ID] {
				stay[s.ID] = true // said once
				ids = append(ids, s.ID)
			}
		}
	}
	return ids
}
