package driver

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/smallfile"
)

const (
	// bootName is the file with the id of the last boot in which a Build returned
	// the directory.
	bootName = "boot"

	newPrefix     = ".new-"
	damagedPrefix = ".damaged-"
)

// recordBoot records that the directory is used in this boot.
func recordBoot(home, boot string) error {
	file := filepath.Join(home, bootName)
	if last, err := smallfile.String(file); err == nil && last == boot {
		return nil
	}
	return atomicfile.Write(file, []byte(boot+"\n"), 0o644, atomicfile.Options{})
}

// pruneHomes removes the directories, including damaged ones, that no Build of this boot has
// returned. No container uses them: containers of an earlier boot are gone, and those of this boot
// use only what this boot's snapshots name. If the driver is replaced during a boot, the old
// directory stays until the next boot. It also removes what killed builders have left. The caller
// holds the builders' lock.
//
// Boot ids are compared instead of times, because clocks may jump. A directory without a boot id is
// kept. Failed removals are retried by the next call.
func pruneHomes(parent, boot string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return // the next call tries again
	}
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), newPrefix):
			_ = os.RemoveAll(path)
		case usedInEarlierBoot(path, boot):
			discardHome(path)
		}
	}
}

// discardHome renames a directory before it removes it, so that a killed process doesn't leave an
// incomplete directory under a valid name.
func discardHome(home string) {
	old := filepath.Join(filepath.Dir(home), newPrefix+rand.Text())
	if os.Rename(home, old) == nil {
		_ = os.RemoveAll(old)
	}
}

// usedInEarlierBoot reports whether the directory was last used in another boot.
func usedInEarlierBoot(home, boot string) bool {
	last, err := smallfile.String(filepath.Join(home, bootName))
	return err == nil && last != "" && last != boot
}

// SetAside takes the directory at home out of use. It stays on disk for running containers until
// another directory is set aside. This bounds the disk space, because a privileged container can
// damage directories repeatedly. A missing directory is not an error.
func SetAside(home string) error {
	if err := setAside(home); err != nil {
		return fmt.Errorf("set damaged driver directory aside: %w", err)
	}
	return nil
}

func setAside(home string) error {
	others, err := filepath.Glob(filepath.Join(filepath.Dir(home), damagedPrefix+"*"))
	if err != nil {
		return err
	}
	for _, o := range others {
		if err := os.RemoveAll(o); err != nil {
			return err
		}
	}
	err = os.Rename(home, filepath.Join(filepath.Dir(home), damagedPrefix+rand.Text()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
