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

// Units tells systemd the rules of cgroups that are units of its own, and remembers
// which: nobody says when a container is gone, and what was said of it has to go too.
type Units struct {
	Tree cgroup.Hierarchy
	// Dir is systemd's, "" for the usual one: see [TellSystemd].
	Dir string
	// State is a directory of root's alone, made when it is needed. In it is a file for
	// each unit, which names its cgroup.
	State string
}

// Tell has systemd know the rules that [Apply] has set for the cgroup at path, and
// forget those of cgroups that are gone. A cgroup that isn't a unit, and a machine that
// systemd doesn't run, need none of it.
func (u Units) Tell(path string, rules []edits.Rule) (err error) {
	unit, ok := Unit(path)
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
	if err := u.forgetGone(); err != nil {
		return err
	}
	// The note comes first: who is killed in between leaves nothing that isn't noted.
	if err := atomicfile.Write(filepath.Join(u.State, unit), []byte(path), 0o600, atomicfile.Options{}); err != nil {
		return fmt.Errorf("tell systemd device rules of %s: %w", unit, err)
	}
	return TellSystemd(u.Dir, unit, rules)
}

// lockState locks the state directory, for a few milliseconds at most. Only root can open it.
func (u Units) lockState() (*lock.Lock, error) {
	if err := os.MkdirAll(u.State, 0o700); err != nil {
		return nil, err
	}
	return lock.Open(context.Background(), u.State, lock.Exclusive)
}

func (u Units) forgetGone() error {
	units, err := smallfile.Names(u.State)
	if err != nil {
		return err
	}
	for _, unit := range units {
		note := filepath.Join(u.State, unit)
		if !isUnit(unit, ".scope") && !isUnit(unit, ".slice") {
			continue // what is being written
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
		if err := errors.Join(ForgetSystemd(u.Dir, unit), os.Remove(note)); err != nil {
			return err
		}
	}
	return nil
}
