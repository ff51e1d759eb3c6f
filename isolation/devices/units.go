package devices

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// Units writes systemd drop-ins for the cgroups of containers, and remembers them in State: no event
// reports the end of a container, so later calls remove the drop-ins of cgroups that are gone.
type Units struct {
	Tree cgroup.Hierarchy
	// Dir is systemd's directory, "" for the default: see [WriteUnitRules].
	Dir string
	// State is a directory that only root can access; it is created when needed. It has one file per
	// unit, which contains the path of the unit's cgroup.
	State string
}

// Write writes the drop-in with the rules that [Apply] has set for the cgroup at path, and removes
// the drop-ins of cgroups that are gone. It does nothing for a cgroup that isn't a unit, or if
// systemd isn't running.
func (u Units) Write(path string, rules []edits.Rule) (err error) {
	unit, ok := UnitOf(path)
	if !ok {
		return nil
	}
	dir, err := unitDir(u.Dir, unit)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Dir(dir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	held, err := u.lockState()
	if err != nil {
		return fmt.Errorf("tell systemd device rules of %s: %w", unit, err)
	}
	defer held.Close() // nothing was written
	if err := u.removeGone(); err != nil {
		return err
	}
	// The file in State is written first, so a process that is killed in between leaves no drop-in
	// without it.
	if err := atomicfile.Write(filepath.Join(u.State, unit), []byte(path), 0o600, atomicfile.Options{}); err != nil {
		return fmt.Errorf("tell systemd device rules of %s: %w", unit, err)
	}
	return WriteUnitRules(u.Dir, unit, rules)
}

// lockState locks the state directory, for a few milliseconds at most. Only root can open it.
func (u Units) lockState() (*lock.Lock, error) {
	if err := os.MkdirAll(u.State, 0o700); err != nil {
		return nil, err
	}
	return lock.Open(context.Background(), u.State, lock.Exclusive)
}

func (u Units) removeGone() error {
	units, err := smallfile.Names(u.State)
	if err != nil {
		return err
	}
	for _, unit := range units {
		note := filepath.Join(u.State, unit)
		if !isUnit(unit, ".scope") && !isUnit(unit, ".slice") {
			continue // a temporary file
		}
		path, err := smallfile.String(note)
		if err != nil {
			return err
		}
		dir, err := u.Tree.Dir(path)
		if err != nil {
			return fmt.Errorf("read %s: %w", note, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := errors.Join(RemoveUnitFiles(u.Dir, unit), os.Remove(note)); err != nil {
			return err
		}
	}
	return nil
}
