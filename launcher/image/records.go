package image

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// recordVersion is the version of the files in DIR/names. Records of other versions are an error.
const recordVersion = 1

// record is what a name stands for on one platform. It is written when all layers are unpacked.
type record struct {
	Version  int    `json:"version"`
	Name     string `json:"name"`
	Platform string `json:"platform"`
	// Digest is the digest in the registry: that of a manifest, or of an index.
	Digest   digest     `json:"digest"`
	Manifest descriptor `json:"manifest"`
	Pulled   time.Time  `json:"pulled"`
}

func (s Store) namesDir() string { return filepath.Join(s.Dir, "names") }

// recordPath returns the path of a record. It is a hash, because names may be too long for file names and
// contain slashes.
func (s Store) recordPath(name, platform string) string {
	key := sha256.Sum256([]byte(name + "\n" + platform))
	return filepath.Join(s.namesDir(), fmt.Sprintf("%x.json", key[:16]))
}

func (s Store) writeRecord(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.recordPath(r.Name, r.Platform), data, 0o600, atomicfile.Options{})
}

// readName reads the record of a name. The error Is fs.ErrNotExist if there is none.
func (s Store) readName(name, platform string) (record, error) {
	return readRecord(s.recordPath(name, platform))
}

// damagedError is the error for a record that can't be decoded, as after a power failure. Such a record counts
// as missing: the error Is fs.ErrNotExist.
type damagedError struct {
	path string
	err  error
}

func (e *damagedError) Error() string { return "read " + e.path + ": it is damaged: " + e.err.Error() }

func (e *damagedError) Is(err error) bool { return err == fs.ErrNotExist }

func readRecord(path string) (r record, err error) {
	data, err := smallfile.Read(path, maxJSON)
	if errors.Is(err, smallfile.ErrTooLarge) {
		return r, &damagedError{path, err}
	}
	if err != nil {
		return r, err
	}
	var v struct{ Version int }
	if err := json.Unmarshal(data, &v); err != nil {
		return r, &damagedError{path, err}
	}
	if v.Version != recordVersion {
		return r, fmt.Errorf("read %s: version %d is not known: a newer berth wrote it", path, v.Version)
	}
	err = json.Unmarshal(data, &r)
	if err == nil {
		err = checkDocument(r.Manifest)
	}
	if err != nil {
		return r, &damagedError{path, err}
	}
	return r, nil
}

// Damaged lists the records that cannot be decoded. They count as missing: the next pull of
// such an image writes its record again, and Prune removes the others.
func (s Store) Damaged() (paths []string, err error) {
	entries, err := smallfile.Names(s.namesDir())
	for _, name := range entries {
		path := filepath.Join(s.namesDir(), name)
		var damaged *damagedError
		if _, e := readRecord(path); strings.HasSuffix(name, ".json") && errors.As(e, &damaged) {
			paths = append(paths, path)
		}
	}
	return paths, err
}

// listRecords returns all records that can be read. The error tells which can't be.
func (s Store) listRecords() (all []record, unread error) {
	entries, err := smallfile.Names(s.namesDir())
	if err != nil {
		return nil, err
	}
	for _, name := range entries {
		if !strings.HasSuffix(name, ".json") {
			continue
		}
		r, err := readRecord(filepath.Join(s.namesDir(), name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile, or damaged
		}
		if err != nil {
			unread = errors.Join(unread, err)
			continue
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b record) int {
		return strings.Compare(a.Name+"\n"+a.Platform, b.Name+"\n"+b.Platform)
	})
	return all, unread
}

// documentPath returns the path of a manifest or configuration.
func (s Store) documentPath(d digest) string { return filepath.Join(s.Dir, blobsDir, d.path()) }

// readDocument reads and verifies a document of the store.
func (s Store) readDocument(d descriptor) ([]byte, error) {
	if err := checkDocument(d); err != nil {
		return nil, err
	}
	data, err := smallfile.Read(s.documentPath(d.Digest), maxJSON)
	if err != nil {
		return nil, err
	}
	return data, checkBlob(d, data)
}

func (s Store) writeDocument(d descriptor, data []byte) error {
	path := s.documentPath(d.Digest)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600, atomicfile.Options{})
}

// openNamed opens an image by its name, from the store or its registry. In the store it also finds images by
// the beginning of an id.
func (s Store) openNamed(ctx context.Context, text string, want platform, how Search) (*Image, error) {
	name, err := registry.Parse(text)
	if err != nil {
		return nil, err
	}
	if how.Pull != Always {
		img, err := s.openKnown(ctx, name, want, how)
		if errors.Is(err, ErrNotHere) && idDigits(text) != "" {
			if img, err := s.openByID(ctx, text, want, how); !errors.Is(err, ErrNotHere) {
				return img, err
			}
		}
		if err == nil || how.Pull == Never {
			return img, err
		}
	}
	if how.Connect == nil {
		return nil, fmt.Errorf("image %s %w", name.Short(), ErrPullNeeded)
	}
	img, err := s.resolveImage(ctx, name, want, how)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		near := ""
		if errors.Is(err, registry.ErrNotFound) || errors.Is(err, registry.ErrDenied) { // some registries deny access to missing images
			near = s.suggestKnown(name.Short())
		}
		return nil, fmt.Errorf("pull %s%s: %w", name.Short(), near, err)
	}
	return img, nil
}

// openKnown opens an image that was pulled. Unpack fetches layers that were removed.
func (s Store) openKnown(ctx context.Context, name registry.Name, want platform, how Search) (*Image, error) {
	r, err := s.readName(name.String(), want.String())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image %s %w%s, and pulling wasn't wanted", name.Short(), ErrNotHere, s.suggestKnown(name.Short()))
	}
	if err != nil {
		return nil, err
	}
	return s.openRecord(ctx, name, r, want, how)
}

// openRecord opens the image of a record. If nothing may be fetched, a missing layer is an error.
func (s Store) openRecord(ctx context.Context, name registry.Name, r record, want platform, how Search) (*Image, error) {
	o := s.openRemote(ctx, name, how)
	img, err := loadImage(ctx, o, r.Manifest, want)
	if err != nil {
		return nil, fmt.Errorf("open image %s: %w", name.Short(), err)
	}
	img.Name = name.String()
	if how.Connect == nil {
		if img.unpacked, err = s.lockReady(ctx, img); err == nil && img.unpacked == nil {
			_, err = o.connect() // returns the error for a missing part
		}
		if err != nil {
			img.Close()
			return nil, fmt.Errorf("open image %s: %w", name.Short(), err)
		}
	}
	return img, nil
}

// openByID opens an image that was pulled, by the beginning of its id.
func (s Store) openByID(ctx context.Context, word string, want platform, how Search) (*Image, error) {
	records, err := s.listRecords()
	if err != nil && len(records) == 0 {
		return nil, err
	}
	found, err := FindByID(s.candidates(records, nil), word)
	if err != nil {
		return nil, err
	}
	name, err := registry.Parse(found[0].Name)
	if err != nil {
		return nil, err
	}
	return s.openRecord(ctx, name, found[0].Of, want, how)
}

// suggestKnown returns the nearest name of an image in the store, as the end of a sentence, or "".
func (s Store) suggestKnown(word string) string {
	records, err := s.listRecords()
	if err != nil && len(records) == 0 {
		return ""
	}
	var names []string
	for _, r := range records {
		if known := shortName(r.Name); known != word {
			names = append(names, known)
		}
	}
	return SuggestName(word, names)
}

// resolveImage asks the registry for a name, and fetches manifest and configuration. Unpack fetches the layers.
func (s Store) resolveImage(ctx context.Context, name registry.Name, want platform, how Search) (*Image, error) {
	gate, err := s.lockNames()
	if err != nil {
		return nil, err
	}
	o := s.openRemote(ctx, name, how)
	img, top, err := s.fetchDocuments(ctx, o, want)
	if err != nil {
		gate.Close() // a lock
		return nil, err
	}
	img.Name = name.String()
	img.held = append(img.held, gate)
	img.pulled = &record{
		Version: recordVersion, Name: img.Name, Platform: want.String(),
		Digest: top.Digest, Manifest: img.manifest, Pulled: time.Now().UTC().Truncate(time.Second),
	}
	return img, nil
}

func (s Store) fetchDocuments(ctx context.Context, o *remote, want platform) (*Image, descriptor, error) {
	top, _, err := o.fetchTop(ctx)
	if err != nil {
		return nil, top, err
	}
	d, err := pickManifest(ctx, o, []descriptor{top}, want)
	if err != nil {
		return nil, top, err
	}
	d.Annotations, d.Platform = nil, nil
	img, err := loadImage(ctx, o, d, want)
	return img, top, err
}

// lockNames takes the shared lock of the names: until the returned file is closed, no documents are removed.
func (s Store) lockNames() (*os.File, error) {
	if err := os.MkdirAll(s.namesDir(), 0o700); err != nil {
		return nil, err
	}
	return lock.OpenShared(context.Background(), s.namesDir())
}
