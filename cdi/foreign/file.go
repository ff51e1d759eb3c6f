package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// ErrStale: the file isn't there, can't be used, or the host's specs have changed
// since it was written.
var ErrStale = errors.New("list of CDI devices is stale")

// maxFile is ten times what a node with thousands of CDI devices needs.
const maxFile = 16 << 20

const schema = 1

// file is the format: one JSON object.
type file struct {
	Schema   int      `json:"berth_cdi"`
	Stamp    string   `json:"stamp"`
	Registry Registry `json:"registry"`
}

// Stamp returns a short text that changes with the specs in the directories: path, size and time of
// change of each. It costs one stat for each file. A missing directory has no specs.
func Stamp(dirs []string) (string, error) {
	var b strings.Builder
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("list CDI specs: %w", err)
		}
		for _, e := range entries {
			if !IsSpec(e.Name()) {
				continue
			}
			var st unix.Stat_t
			path := filepath.Join(dir, e.Name())
			if err := unix.Stat(path, &st); err != nil {
				continue // removed meanwhile, or a dangling link
			}
			fmt.Fprintf(&b, "%s %d %d %d\n", path, st.Ino, st.Size, st.Ctim.Nano())
		}
	}
	return b.String(), nil
}

// IsSpec reports whether a file of that name in a CDI directory is a spec.
func IsSpec(name string) bool {
	return slices.Contains([]string{".json", ".yaml"}, filepath.Ext(name))
}

// Save writes the list, atomically. The stamp is the one that was taken before
// the specs were read: a change meanwhile makes the file stale.
func Save(path, stamp string, r Registry) error {
	data, err := json.Marshal(file{Schema: schema, Stamp: stamp, Registry: r})
	if err == nil {
		err = atomicfile.Write(path, data, 0o644, atomicfile.Options{})
	}
	if err != nil {
		return fmt.Errorf("save list of CDI devices: %w", err)
	}
	return nil
}

// Load reads the list. If the specs in the directories have changed since it was written, the error
// Is [ErrStale].
func Load(path string, dirs []string) (Registry, error) {
	data, err := smallfile.Read(path, maxFile)
	if err != nil {
		return Registry{}, fmt.Errorf("%w: %w", ErrStale, err)
	}
	var f file
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&f); err != nil || f.Schema != schema {
		return Registry{}, fmt.Errorf("%w: %s was written by another version of berth", ErrStale, path)
	}
	now, err := Stamp(dirs)
	if err != nil {
		return Registry{}, err
	}
	if now != f.Stamp {
		return Registry{}, fmt.Errorf("%w: the specs in %s have changed", ErrStale, strings.Join(dirs, ", "))
	}
	return f.Registry, nil
}
