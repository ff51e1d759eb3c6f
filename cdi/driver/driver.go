// Package driver keeps the user-space files of the accelerator driver (libraries,
// their links, programs) in one directory per driver version and content, ready to
// be bound into containers.
//
// [Build] copies them from the host, rarely; [Load] reads the directory's manifest
// at each container start and looks at each file's attributes. Files are copied or
// reflinked, never hard-linked, since a container could write through a link. A
// directory is complete once it has its name, and nobody changes it any more:
// containers run on it. Old ones stay until somebody removes them.
//
// A container that may mount (CAP_SYS_ADMIN) can lift the read-only of its bind and
// write to the files, which are those of all containers. That isn't prevented but
// found out at the next start, when [Load] refuses the directory and another is
// made; containers that run meanwhile keep the files.
//
// Layout of VERSION-DIGEST, below data/driver:
//
//	manifest.json  what is there, out of the containers' sight
//	files          what they see: lib64 (the host's word size), lib (32 bits), bin
package driver

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// manifestName is the file that makes a directory one of driver files.
const manifestName = "manifest.json"

// schema is the version of the manifest's format.
const schema = 2

// filesName is the part of a directory that containers see.
const filesName = "files"

// Dir is one directory of driver files.
type Dir struct {
	// Path on the host of what containers see.
	Path string
	Manifest
}

// Manifest says what a directory holds.
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
	// File is the path of the library in the directory: "lib64/libcuda.so.550.163.01".
	File string `json:"file"`
	// Names are its SONAME and links beside the file: "libcuda.so.1", "libcuda.so".
	Names []string `json:"names"`
	// Bits is 64 or 32.
	Bits int   `json:"bits"`
	Size int64 `json:"size"`
}

// manifest is the file's format.
type manifest struct {
	Schema    int       `json:"schema"`
	Driver    string    `json:"driver"`
	Libraries []Library `json:"libraries"`
	Programs  []Program `json:"programs"`
	// Seal tells whether the files were changed.
	Seal string `json:"seal"`
}

// Program is one file in bin.
type Program struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// LibDir is the directory, below Path, of libraries of so many bits.
func LibDir(bits int) string {
	if bits == 32 {
		return "lib"
	}
	return "lib64"
}

// Load reads the manifest of the directory whose files are at path, and compares
// their attributes with it. A directory that was changed, or isn't one, is an error
// that Is [ErrDamaged].
func Load(path string) (Dir, error) {
	dir, err := load(path)
	if err != nil {
		return Dir{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return dir, nil
}

func load(path string) (Dir, error) {
	file := filepath.Join(filepath.Dir(path), manifestName)
	data, err := os.ReadFile(file)
	if err != nil {
		return Dir{}, err
	}
	m, err := parse(data)
	if err != nil {
		return Dir{}, fmt.Errorf("%s: %w", file, err)
	}
	if err := m.check(path); err != nil {
		return Dir{}, err
	}
	return Dir{Path: path, Manifest: Manifest{Driver: m.Driver, Libraries: m.Libraries, Programs: names(m.Programs)}}, nil
}

func parse(data []byte) (m manifest, err error) {
	if err := json.Unmarshal(data, &m); err != nil {
		return manifest{}, err
	}
	if m.Schema != schema {
		return manifest{}, fmt.Errorf("schema %d isn't %d: written by another version of berth", m.Schema, schema)
	}
	return m, nil
}

func names(programs []Program) []string {
	all := make([]string, len(programs))
	for i, p := range programs {
		all[i] = p.Name
	}
	return all
}
