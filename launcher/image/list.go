package image

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// Summary is an image that the store knows by name.
type Summary struct {
	// Name is full, Short as people type it.
	Name  string `json:"name"`
	Short string `json:"short"`
	// ID is the digest of the configuration, as in docker. Digest is what the registry
	// has under the name.
	ID       string    `json:"id"`
	Digest   string    `json:"digest"`
	Platform string    `json:"platform"`
	Created  time.Time `json:"created,omitzero"`
	Pulled   time.Time `json:"pulled"`
	// Size is that of the unpacked files in bytes; layers that images share count in
	// each. Broken: a part of it is gone, and the next run or pull fetches it.
	Size   int64 `json:"size"`
	Broken bool  `json:"broken,omitempty"`

	Labels map[string]string `json:"labels,omitempty"`
}

// List tells what images there are, by name. An error says what couldn't be read; the
// others are listed all the same.
func (s Store) List() ([]Summary, error) {
	records, err := s.records()
	var all []Summary
	for _, r := range records {
		all = append(all, s.summary(r))
	}
	return all, err
}

func (s Store) summary(r record) Summary {
	sum := Summary{Name: r.Name, Short: short(r.Name), Digest: string(r.Digest), Platform: r.Platform, Pulled: r.Pulled}
	img, err := s.offline(r)
	if err != nil {
		sum.Broken = true
		return sum
	}
	sum.ID, sum.Labels = string(img.config.Digest), img.Config.Labels
	if created, err := time.Parse(time.RFC3339Nano, img.created); err == nil {
		sum.Created = created
	}
	for _, l := range img.layers {
		home := s.home(l.chain)
		sum.Size += sizeOf(home)
		sum.Broken = sum.Broken || !exists(filesIn(home))
	}
	return sum
}

// offline opens a record's image with what the store has.
func (s Store) offline(r record) (*Image, error) {
	name, err := registry.Parse(r.Name)
	if err != nil {
		return nil, err
	}
	want, err := parsePlatform(r.Platform)
	if err != nil {
		return nil, err
	}
	return load(context.Background(), s.remote(context.Background(), name, Search{}), r.Manifest, want)
}

func short(name string) string {
	n, err := registry.Parse(name)
	if err != nil {
		return name
	}
	return n.Short()
}

// Meant is the nearest of names, as people type them, as the end of a sentence, or "".
func Meant(word string, names []string) string {
	known := slices.Clone(names)
	for _, n := range names {
		if bare := strings.TrimSuffix(n, ":latest"); bare != n {
			known = append(known, bare)
		}
	}
	return spell.Suggestion(word, known...)
}

// sizeOf is what was noted when a layer was unpacked, or else is counted.
func sizeOf(home string) int64 {
	if text, err := smallfile.String(filepath.Join(home, "size")); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil {
			return n
		}
	}
	return sizeBelow(home)
}

func sizeBelow(dir string) (total int64) {
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it is a sum of what can be seen
		}
		if fi, err := d.Info(); err == nil && fi.Mode().IsRegular() {
			total += fi.Size()
		}
		return nil
	})
	if err != nil {
		return 0
	}
	return total
}

// find says which record a person means: by name, or by the beginning of an id or
// digest.
func find(records []record, ids map[string]string, word string) ([]record, error) {
	full := fullName(word)
	var found []record
	var names []string
	for _, r := range records {
		names = append(names, short(r.Name))
		if r.Name == full {
			found = append(found, r)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	bare := idOf(word)
	if bare == "" {
		return nil, fmt.Errorf("image %q %w%s", word, ErrNotHere, cmp.Or(Meant(word, names), tooShort(ids, word)))
	}
	meant := map[string]bool{}
	for _, r := range records {
		if id := ids[r.Name+"\n"+r.Platform]; strings.HasPrefix(id, "sha256:"+bare) {
			found = append(found, r)
			meant[id] = true
		}
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("image %q %w%s", word, ErrNotHere, Meant(word, names))
	case len(meant) > 1:
		return nil, fmt.Errorf("image %q is the beginning of several ids", word)
	}
	return found, nil
}

// minID is how many digits of an id say which is meant.
const minID = 4

// idOf returns the digits of a word that can be the beginning of an id, or "".
func idOf(word string) string {
	bare := strings.TrimPrefix(word, "sha256:")
	if len(bare) < minID || strings.Trim(bare, "0123456789abcdef") != "" {
		return ""
	}
	return bare
}

// tooShort says that an id begins with the word, or is "".
func tooShort(ids map[string]string, word string) string {
	for _, id := range ids {
		if word != "" && strings.HasPrefix(id, "sha256:"+word) {
			return fmt.Sprintf(" (an id is given with %d digits or more)", minID)
		}
	}
	return ""
}

// ids are those of records, by name and platform.
func (s Store) ids(records []record) map[string]string {
	ids := map[string]string{}
	for _, r := range records {
		ids[r.Name+"\n"+r.Platform] = s.id(r)
	}
	return ids
}
