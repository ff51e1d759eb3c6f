package image

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Selection says what Prune removes. The zero value removes layers and images that have no name and aren't used.
type Selection struct {
	// Tasks is the directory of the tasks, each with a LayersFile.
	Tasks string
	// All also removes images with a name that no task uses.
	All bool
	// Labels restricts the removal to images that have all of these labels, and to their layers.
	Labels []Label
	// Names restricts the removal to the images with these names or ids, and to their layers. An image that
	// can't be removed doesn't prevent the removal of the others.
	Names []string
	// Force also removes names of images that a task uses, whose layers stay, and all names of an id.
	Force bool
	// Before restricts the removal to what was pulled before; the zero time means no restriction.
	Before time.Time
	// DryRun removes nothing.
	DryRun bool
}

// ErrUsed means that an image can't be removed because a task uses it.
var ErrUsed = errors.New("is used by a task")

// ErrNames means that an image that was given by its id has several names.
var ErrNames = errors.New("has several names")

// Candidate is one name of an image, as an argument of Choose. Of is the caller's own value.
type Candidate[T any] struct {
	Of T
	// Name is the full name, and Short the shortest name that means the same; "" for an image without a name.
	Name, Short string
	// Digest is the same for all names of an image.
	Digest string
	Pulled time.Time
	// Used means that a task uses the image.
	Used bool
	// Platforms returns an entry with ID and Labels for each platform that is stored.
	Platforms func() []Summary
}

// Choose returns the candidates that a selection removes. The error tells which of Names can't be removed; these
// aren't among the chosen ones.
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

// hasLabels reports whether an image has the labels on each platform. An image that can't be read has none.
func (c *Candidate[T]) hasLabels(asked []Label) bool {
	return len(asked) == 0 || !slices.ContainsFunc(c.Platforms(), func(s Summary) bool {
		return s.ID == "" || slices.ContainsFunc(asked, func(l Label) bool { return !l.Matches(s.Labels) })
	})
}

// chooseNamed is Choose for a selection with Names.
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

// checkOneName returns ErrNames if the images of an id have several names.
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

// findCandidates returns the images that a word means: by name, or by the beginning of an id.
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

// minID is the least number of digits of an id that are accepted.
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
	if bare == "" { // avoids the calls of Platforms
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

// noteShortID returns a hint if a word is the beginning of an id and has fewer than minID digits, "" otherwise.
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

// DeletedIDs returns the ids of chosen images that keep no other name and aren't used.
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
				stay[s.ID] = true // list each id once
				ids = append(ids, s.ID)
			}
		}
	}
	return ids
}
