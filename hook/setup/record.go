package setup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/berth-gpu/berth/hook/setup/edit"
)

// Record is what the setup of an engine has replaced. It is kept as JSON in berth's data
// directory. Records of another version are refused.
type Record struct {
	Version int    `json:"version"`
	Engine  string `json:"engine"`
	// Default means that --default was given once.
	Default bool         `json:"default,omitempty"`
	Files   []EditedFile `json:"files,omitempty"`
	// Base is the containerd runtime whose settings berth's runtime has.
	Base string `json:"base,omitempty"`
	// Dirs are the directories that were made, the outer ones first.
	Dirs []string `json:"dirs,omitempty"`
}

// EditedFile is one file of a record.
type EditedFile struct {
	Path string `json:"path"`
	// Format is "toml" or, for JSON and for berth's own files, "".
	Format string `json:"format,omitempty"`
	// Before is the content without berth's part; nil if there was no file.
	Before []byte `json:"before"`
	// After are the hashes of what berth made of Before.
	After []string `json:"after"`
	// Keys are berth's part of a file that is the admin's. A file of berth's own has none.
	Keys []Key `json:"keys,omitempty"`
}

// Key is a value that berth has set.
type Key struct {
	Path []string `json:"path"`
	// Before is the text of the value that was replaced, nil if there was none.
	Before *string `json:"before"`
	After  string  `json:"after"`
	// Made is how many of the tables around the key were made for it.
	Made int `json:"made,omitempty"`
}

const recordVersion = 1

// RecordPath returns where the record of an engine is kept.
func RecordPath(data, engine string) string { return path.Join(data, "setup", engine+".json") }

// LoadRecord reads the record of an engine; nil if there is none.
func LoadRecord(fsys fs.FS, data, engine string) (*Record, error) {
	name := RecordPath(data, engine)
	text, err := fs.ReadFile(fsys, fsPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, withoutPath(err))
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if r.Version != recordVersion || r.Engine != engine {
		return nil, fmt.Errorf("read %s: it is of version %d and for %q: a newer berth may have written it", name, r.Version, r.Engine)
	}
	return &r, nil
}

// Encode returns the record as it is kept.
func (r *Record) Encode() ([]byte, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	return append(text, '\n'), err
}

func (r *Record) clone() Record {
	c := *r
	c.Files = slices.Clone(r.Files)
	for i := range c.Files {
		c.Files[i].After = slices.Clone(c.Files[i].After)
		c.Files[i].Keys = slices.Clone(c.Files[i].Keys)
	}
	c.Dirs = slices.Clone(r.Dirs)
	return c
}

// file returns the entry of a path, nil if there is none.
func (r *Record) file(name string) *EditedFile {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Files, func(e EditedFile) bool { return e.Path == name })
	if i < 0 {
		return nil
	}
	return &r.Files[i]
}

// addFile remembers a change. keys are those that it sets; base is the file without
// berth's part.
func (r *Record) addFile(c Change, format string, keys []Key, base []byte) {
	e := r.file(c.Path)
	if e == nil {
		r.Files = append(r.Files, EditedFile{Path: c.Path, Format: format, Before: base})
		e = &r.Files[len(r.Files)-1]
	}
	if !bytes.Equal(e.Before, base) {
		e.Before, e.After = base, nil
	}
	e.After = append(e.After, hashFile(c.After))
	for _, k := range keys {
		i := slices.IndexFunc(e.Keys, func(o Key) bool { return slices.Equal(o.Path, k.Path) })
		if i < 0 {
			e.Keys = append(e.Keys, k)
			continue
		}
		// If the replaced value is one that berth has set, the value before that counts.
		if k.Before != nil && editorOf(format).Equal(edit.Raw(*k.Before), edit.Raw(e.Keys[i].After)) {
			k.Before, k.Made = e.Keys[i].Before, e.Keys[i].Made
		}
		e.Keys[i] = k
	}
}

// isUnchanged reports whether a file is as berth has written it.
func (e *EditedFile) isUnchanged(f File) bool { return slices.Contains(e.After, hashFile(f)) }

// hashFile hashes a file's content or the target of a link.
func hashFile(f File) string {
	if !f.Exists {
		return ""
	}
	sum := sha256.Sum256(append([]byte(f.Link+"\x00"), f.Data...))
	return hex.EncodeToString(sum[:])
}
