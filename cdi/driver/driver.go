// Package driver keeps the user-space files of the accelerator driver (libraries,
// their links, programs, firmware, configuration) in one directory per driver
// version and content, ready to be bound into containers.
//
// [Build] copies them from the host, rarely, and makes a view for each set of capabilities that
// selects other files; the table in table.go has the type of each file and the sets to which it
// belongs. [Load] reads a view's manifest at each container start and looks at the attributes of its
// files.
//
// Files are copied or reflinked from the host and never hard-linked, since a container could write
// through a link. The views, though, are hard links among these copies: they cost names, and no
// space. A directory gets its name when it is complete and is never changed afterwards, because
// containers use it. Build removes directories that no Build of this boot has returned.
//
// A container that may mount (CAP_SYS_ADMIN) can remount its bind writable and change the files,
// which all containers share. This is not prevented but detected: at the next start [Load] refuses
// the directory and a new one is built. Containers that already run keep the changed files.
//
// Layout of VERSION-DIGEST, below data/driver:
//
//	boot                 the last boot in which it was in use
//	extras               files that are bound one by one, at their places in a container
//	SET/manifest.json    what is in a view, out of the containers' sight
//	SET/files            what they see: lib64 (the host's word size), lib (32 bits), bin
//
// SET is a set of capabilities such as compute-utility; one that selects the same
// files as another is a link to it.
package driver

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/json"
	"github.com/berth-gpu/berth/internal/smallfile"
)

const (
	// manifestName is the file that makes a directory a view.
	manifestName = "manifest.json"
	// filesName is the part of a view that containers see.
	filesName = "files"
	// extrasName is the directory of files with places of their own.
	extrasName = "extras"

	// schema is the version of the manifest's format and of the layout.
	schema = 3

	maxManifest = 1 << 20
)

// Dir is a directory of driver files as containers with certain capabilities see it.
type Dir struct {
	// Home is the directory of all views: what [Build] returned.
	Home string
	// Path on the host of what containers see. Sets of capabilities that select
	// the same files share it.
	Path string
	Manifest
	// Extras are bound one by one.
	Extras []File
}

// Manifest says what a view holds.
type Manifest struct {
	// Driver is the version that the files belong to.
	Driver string
	// Libraries by file name.
	Libraries []Library
	// Programs are the names in bin, sorted.
	Programs []string
}

// Library is one shared library, and the names under which the dynamic loader is
// to find it.
type Library struct {
	// File is the path of the library in the view: "lib64/libcuda.so.550.163.01".
	File string `json:"file"`
	// Names are its SONAME and links beside the file: "libcuda.so.1", "libcuda.so".
	Names []string `json:"names"`
	// Bits is 64 or 32.
	Bits int `json:"bits"`
}

// File is one that has a place of its own in a container.
type File struct {
	// Source is its absolute path on the host; Destination that in a container.
	// A source may have several destinations.
	Source, Destination string
}

// manifest is the format of a view's file.
type manifest struct {
	Schema int    `json:"schema"`
	Driver string `json:"driver"`
	// View is the name of the directory that the manifest is in.
	View      string    `json:"view"`
	Libraries []Library `json:"libraries"`
	Programs  []string  `json:"programs"`
	Extras    []placed  `json:"extras"`
	// Seal tells whether the files were changed.
	Seal string `json:"seal"`
}

// placed is an extra: its path below the directory of extras, and its places.
type placed struct {
	File string   `json:"file"`
	To   []string `json:"to"`
}

// LibDir is the directory, below Path, of libraries of so many bits.
func LibDir(bits int) string {
	if bits == 32 {
		return "lib"
	}
	return "lib64"
}

// HomeOf returns the directory that a [Dir.Path] belongs to, "" for what can't be one.
func HomeOf(path string) string {
	if filepath.Base(path) != filesName {
		return ""
	}
	return filepath.Dir(filepath.Dir(path))
}

// Load reads what containers with these capabilities get of the directory at home,
// which [Build] returned, and compares the files' attributes with what they were.
// A directory that was changed, or isn't one, is an error that Is [ErrDamaged].
func Load(home string, caps gpu.Capabilities) (Dir, error) {
	if caps&^whole != 0 {
		return Dir{}, fmt.Errorf("load driver files %s: unknown capabilities %#x", home, uint8(caps&^whole))
	}
	dir, err := loadView(home, setName(caps))
	if err != nil {
		return Dir{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return dir, nil
}

// loadView loads the view of that name, or that a link of that name leads to.
func loadView(home, name string) (Dir, error) {
	file := filepath.Join(home, name, manifestName)
	data, err := smallfile.Read(file, maxManifest)
	if err != nil {
		return Dir{}, err
	}
	m, err := parseManifest(data)
	if err != nil {
		return Dir{}, fmt.Errorf("%s: %w", file, err)
	}
	path := filepath.Join(home, m.View, filesName)
	if err := m.checkFiles(path); err != nil {
		return Dir{}, err
	}
	return Dir{
		Home: home, Path: path, Extras: m.listFiles(filepath.Join(home, extrasName)),
		Manifest: Manifest{Driver: m.Driver, Libraries: m.Libraries, Programs: m.Programs},
	}, nil
}

func parseManifest(data []byte) (m manifest, err error) {
	if err := new(json.Codec).Unmarshal(data, &m); err != nil {
		return manifest{}, err
	}
	if m.Schema != schema {
		return manifest{}, fmt.Errorf("schema %d isn't %d: written by another version of berth", m.Schema, schema)
	}
	return m, nil
}

func (m manifest) listFiles(extras string) []File {
	var all []File
	for _, e := range m.Extras {
		for _, to := range e.To {
			all = append(all, File{Source: filepath.Join(extras, e.File), Destination: to})
		}
	}
	return all
}

// setName is the name of a set's view, or of a link to it.
func setName(caps gpu.Capabilities) string { return strings.ReplaceAll(caps.String(), ",", "-") }
