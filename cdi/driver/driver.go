// Package driver keeps the user-space files of the accelerator driver (libraries,
// their links, programs) in one directory per driver version and content, ready to
// be bound into containers.
//
// [Build] copies them from the host, rarely; [Load] reads the directory's manifest
// at each container start and touches nothing else. Files are copied or reflinked,
// never hard-linked, since a container could write through a link. A directory is
// complete once it has its name, and nobody changes it any more: containers run on
// it. Old ones stay until somebody removes them.
//
// Layout: lib64 (libraries of the host's word size), lib (32 bits), bin, and
// manifest.json.
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
const schema = 1

// Dir is one directory of driver files.
type Dir struct {
	// Path on the host.
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

// Load reads the manifest of the directory at path. The files themselves are
// trusted to be there: nobody but root can write to the directory.
func Load(path string) (Dir, error) {
	file := filepath.Join(path, manifestName)
	data, err := os.ReadFile(file)
	if err != nil {
		return Dir{}, fmt.Errorf("read driver directory: %w", err)
	}
	m, err := parse(data)
	if err != nil {
		return Dir{}, fmt.Errorf("read driver directory: %s: %w", file, err)
	}
	return Dir{Path: path, Manifest: m}, nil
}

func parse(data []byte) (Manifest, error) {
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Manifest{}, err
	}
	if m.Schema != schema {
		return Manifest{}, fmt.Errorf("schema %d isn't %d: written by another version of berth", m.Schema, schema)
	}
	return Manifest{Driver: m.Driver, Libraries: m.Libraries, Programs: names(m.Programs)}, nil
}

func names(programs []Program) []string {
	all := make([]string, len(programs))
	for i, p := range programs {
		all[i] = p.Name
	}
	return all
}
