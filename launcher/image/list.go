package image

import (
	"context"
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

// Summary describes a named image in the store.
type Summary struct {
	// Name is the full name, and Short the shortest name that means the same.
	Name  string `json:"name"`
	Short string `json:"short"`
	// ID is the digest of the configuration, as in docker. Digest is the digest in the registry: that of a
	// manifest or an index.
	ID       string    `json:"id"`
	Digest   string    `json:"digest"`
	Platform string    `json:"platform"`
	Created  time.Time `json:"created,omitzero"`
	Pulled   time.Time `json:"pulled"`
	// Size is the size of the unpacked files in bytes; shared layers count in each image. Broken means that
	// a part is missing, which the next run or pull fetches.
	Size   int64 `json:"size"`
	Broken bool  `json:"broken,omitempty"`

	Labels map[string]string `json:"labels,omitempty"`
}

// List returns the images by name. An error tells which couldn't be read; the others are returned all the
// same.
func (s Store) List() ([]Summary, error) {
	records, err := s.listRecords()
	var all []Summary
	for _, r := range records {
		all = append(all, s.summarize(r))
	}
	return all, err
}

func (s Store) summarize(r record) Summary {
	sum := Summary{Name: r.Name, Short: shortName(r.Name), Digest: string(r.Digest), Platform: r.Platform, Pulled: r.Pulled}
	img, err := s.openRecorded(r)
	if err != nil {
		sum.Broken = true
		return sum
	}
	sum.ID, sum.Labels = string(img.config.Digest), img.Config.Labels
	if created, err := time.Parse(time.RFC3339Nano, img.created); err == nil {
		sum.Created = created
	}
	for _, l := range img.layers {
		home := s.layerDir(l.chain)
		sum.Size += layerSize(home)
		sum.Broken = sum.Broken || !pathExists(filesDir(home))
	}
	return sum
}

// openRecorded opens a record's image without fetching anything.
func (s Store) openRecorded(r record) (*Image, error) {
	name, err := registry.Parse(r.Name)
	if err != nil {
		return nil, err
	}
	want, err := parsePlatform(r.Platform)
	if err != nil {
		return nil, err
	}
	return loadImage(context.Background(), s.openRemote(context.Background(), name, Search{}), r.Manifest, want)
}

func shortName(name string) string {
	n, err := registry.Parse(name)
	if err != nil {
		return name
	}
	return n.Short()
}

// SuggestName returns the nearest of short names as the end of a sentence, or "".
func SuggestName(word string, names []string) string {
	known := slices.Clone(names)
	for _, n := range names {
		if bare := strings.TrimSuffix(n, ":latest"); bare != n {
			known = append(known, bare)
		}
	}
	return spell.Suggestion(word, known...)
}

// layerSize returns the size of a layer's files in bytes, from the file "size" or by counting.
func layerSize(home string) int64 {
	if text, err := smallfile.String(filepath.Join(home, "size")); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil {
			return n
		}
	}
	return CountSize(home)
}

// Size returns the size of the files of all complete layers and of SIF files, in bytes.
func (s Store) Size() (total int64) {
	for _, home := range s.listLayerDirs() {
		if pathExists(filesDir(home)) {
			total += layerSize(home)
		}
	}
	return total + CountSize(s.sifDir())
}

// CountSize returns the sum of the sizes of the regular files in a directory, in bytes. Files that can't be
// read don't count.
func CountSize(dir string) (total int64) {
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // unreadable files don't count
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
