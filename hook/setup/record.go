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
)

// Record is what setting up an engine has replaced.
type Record struct {
	Version int    `json:"version"`
	Engine  string `json:"engine"`
	// Default says that --default was given, once.
	Default bool     `json:"default,omitempty"`
	Files   []Edited `json:"files,omitempty"`
	// Base is the runtime of containerd's that berth's is like.
	Base string `json:"base,omitempty"`
	// Dirs are the directories that were made, the outer ones first.
	Dirs []string `json:"dirs,omitempty"`
}

// Edited is one file of a record.
type Edited struct {
	Path string `json:"path"`
	// Format is that of a file with keys: "toml", or JSON.
	Format string `json:"format,omitempty"`
	// Before is the content without berth's part; nil if there was no file.
	Before []byte `json:"before"`
	// After are the hashes of what berth made of Before.
	After []string `json:"after"`
	// Keys are berth's part of a file that is the admin's; none in one of berth's own.
	Keys []Key `json:"keys,omitempty"`
}

// Key is a value that berth has set.
type Key struct {
	Path []string `json:"path"`
	// Before is the text of what was there, nil if there was nothing.
	Before *string `json:"before"`
	After  string  `json:"after"`
	// Made is how many of the tables around it were made for it.
	Made int `json:"made,omitempty"`
}

// recordVersion is that of the format.
const recordVersion = 1

// RecordPath is where the record of an engine is kept.
func RecordPath(data, engine string) string { return path.Join(data, "setup", engine+".json") }

// LoadRecord reads the record of an engine; nil if there is none.
func LoadRecord(fsys fs.FS, data, engine string) (*Record, error) {
	name := RecordPath(data, engine)
	text, err := fs.ReadFile(fsys, inside(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, bare(err))
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

// Text is the record as it is kept.
func (r *Record) Text() ([]byte, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	return append(text, '\n'), err
}

// file is the entry of a path, nil if there is none.
func (r *Record) file(name string) *Edited {
	if r == nil {
		return nil
	}
	for i := range r.Files {
		if r.Files[i].Path == name {
			return &r.Files[i]
		}
	}
	return nil
}

// keep remembers a change. keys are those that it has set.
func (r *Record) keep(c Change, format string, keys []Key, base []byte) {
	e := r.file(c.Path)
	if e == nil {
		r.Files = append(r.Files, Edited{Path: c.Path, Format: format})
		e = r.file(c.Path)
		e.Before = base
	}
	if !bytes.Equal(e.Before, base) {
		e.Before, e.After = base, nil
	}
	e.After = append(e.After, hash(c.After))
	for _, k := range keys {
		i := slices.IndexFunc(e.Keys, func(o Key) bool { return slices.Equal(o.Path, k.Path) })
		if i < 0 {
			e.Keys = append(e.Keys, k)
			continue
		}
		// What is replaced may be what berth set before: then what was there first counts.
		if k.Before != nil && formatOf(format).equal(*k.Before, e.Keys[i].After) {
			k.Before, k.Made = e.Keys[i].Before, e.Keys[i].Made
		}
		e.Keys[i] = k
	}
}

// wrote says that a file is as berth has made it.
func (e *Edited) wrote(f File) bool { return slices.Contains(e.After, hash(f)) }

// hash stands for a file's content, or for where a link points to.
func hash(f File) string {
	if !f.Exists {
		return ""
	}
	sum := sha256.Sum256(append([]byte(f.Link+"\x00"), f.Data...))
	return hex.EncodeToString(sum[:])
}
