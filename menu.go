package berth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/cdi/menu"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Menu selects which of berth's own CDI specs are written, and where. It is stored in the
// data directory, because each discovery writes the specs again.
type Menu struct {
	// Dir is the directory of CDI specs, absolute.
	Dir string `json:"dir"`
	// Kinds are those of package cdi/menu: "berth/gpus".
	Kinds []string `json:"kinds"`
	// Setup means that berth setup has written the menu, and removes it with the last engine.
	Setup bool `json:"setup,omitempty"`
}

// maxMenu bounds the size of a stored Menu in bytes.
const maxMenu = 64 << 10

func (c Config) menuPath() string { return filepath.Join(c.Data, "cdi-menu.json") }

// LoadMenu returns the stored menu, the zero Menu if there is none.
func LoadMenu(c Config) (Menu, error) {
	data, err := smallfile.Read(c.menuPath(), maxMenu)
	if errors.Is(err, fs.ErrNotExist) {
		return Menu{}, nil
	}
	var m Menu
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return Menu{}, fmt.Errorf("read which CDI specs are wanted: %s: %w", c.menuPath(), err)
	}
	return m, nil
}

// WriteMenu stores m, writes its specs, each atomically and only if it changes, and
// removes the specs of the former menu that m doesn't select. It returns the paths of the
// specs. A kind of which the node has no device gets no spec.
func WriteMenu(ctx context.Context, c Config, inv gpu.Inventory, m Menu) (paths []string, err error) {
	if m.Dir == "" {
		return nil, errors.New("no directory for CDI specs: host.cdi lists none")
	}
	held, err := c.lockDiscovery(ctx)
	if err != nil {
		return nil, err
	}
	defer held.Close() // nothing was written
	before, err := LoadMenu(c)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Data, 0o755); err != nil {
		return nil, err
	}
	if err := atomicfile.Write(c.menuPath(), data, 0o644, atomicfile.Options{}); err != nil {
		return nil, err
	}
	if paths, err = m.writeSpecs(c, inv); err != nil {
		return nil, err
	}
	return paths, before.removeSpecs(paths)
}

// RemoveMenu removes the menu and all its CDI specs.
func RemoveMenu(ctx context.Context, c Config) error {
	held, err := c.lockDiscovery(ctx)
	if err != nil {
		return err
	}
	defer held.Close() // nothing was written
	m, err := LoadMenu(c)
	if err != nil {
		return err
	}
	if err := m.removeSpecs(nil); err != nil {
		return err
	}
	if err := os.Remove(c.menuPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// renewMenu writes the specs of the stored menu for the node's present inventory.
func renewMenu(c Config, inv gpu.Inventory) error {
	m, err := LoadMenu(c)
	if err == nil {
		_, err = m.writeSpecs(c, inv)
	}
	return err
}

// MenuSpec returns the CDI spec of one of berth's kinds for the node, nil if it would have
// no device.
func MenuSpec(c Config, inv gpu.Inventory, kind string) ([]byte, error) {
	return menu.Spec(kind, inv, menu.Options{Hook: c.HookCommand(), Features: c.offeredFeatures(inv)})
}

func (m Menu) writeSpecs(c Config, inv gpu.Inventory) (paths []string, err error) {
	if len(m.Kinds) > 0 {
		if err := os.MkdirAll(m.Dir, 0o755); err != nil {
			return nil, fmt.Errorf("write CDI specs: %w", err)
		}
	}
	var empty []string
	for _, kind := range m.Kinds {
		path := filepath.Join(m.Dir, menu.FileName(kind))
		data, err := MenuSpec(c, inv, kind)
		switch {
		case err != nil:
			return nil, err
		case data == nil:
			empty = append(empty, path)
			continue
		}
		paths = append(paths, path)
		if have, err := smallfile.Read(path, 16<<20); err == nil && string(have) == string(data) {
			continue // engines watch these directories
		}
		if err := atomicfile.Write(path, data, 0o644, atomicfile.Options{}); err != nil {
			return nil, fmt.Errorf("write CDI spec: %w", err)
		}
	}
	return paths, removeFiles(empty)
}

// removeSpecs removes the menu's specs except those at the paths to keep.
func (m Menu) removeSpecs(keep []string) error {
	kept := map[string]bool{}
	for _, path := range keep {
		kept[path] = true
	}
	var gone []string
	for _, kind := range m.Kinds {
		if path := filepath.Join(m.Dir, menu.FileName(kind)); !kept[path] {
			gone = append(gone, path)
		}
	}
	return removeFiles(gone)
}

func removeFiles(paths []string) (err error) {
	for _, path := range paths {
		if e := os.Remove(path); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// offeredFeatures returns the features for the menu: those that policy allows and the node has.
func (c Config) offeredFeatures(inv gpu.Inventory) []string {
	var all []string
	for _, name := range c.Policy.Features {
		for _, f := range inv.Offers(name) {
			all = append(all, string(f))
		}
	}
	return all
}
