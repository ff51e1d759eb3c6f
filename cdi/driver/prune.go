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

// stampBoot says that the directory is in use in this boot.
func stampBoot(home, boot string) error {
	file := filepath.Join(home, bootName)
	if last, err := smallfile.String(file); err == nil && last == boot {
		return nil
	}
	return atomicfile.Write(file, []byte(boot+"\n"), 0o644, atomicfile.Options{})
}

// pruneHomes removes the directories, damaged ones too, that no Build of this boot
// returned: no snapshot names one, for a snapshot counts for one boot, and so
// nothing runs on one that was started since; and what was started before doesn't
// run any more. A driver that is replaced twice in one boot leaves two directories
// until the next. It also removes what builders left that were killed. The caller
// holds the lock of builders.
//
// Ids are compared and not times: clocks may jump. What has no id is kept, and what
// can't be removed is tried again next time.
func pruneHomes(parent, boot string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return // the next time, then
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

// discardHome removes a directory under another name: who is killed while removing
// leaves nothing that looks like one.
func discardHome(home string) {
	old := filepath.Join(filepath.Dir(home), newPrefix+rand.Text())
	if os.Rename(home, old) == nil {
		_ = os.RemoveAll(old)
	}
}

// usedInEarlierBoot says that the directory was last used in another boot.
func usedInEarlierBoot(home, boot string) bool {
	last, err := smallfile.String(filepath.Join(home, bootName))
	return err == nil && last != "" && last != boot
}

// SetAside takes the directory at home out of use. Containers that run on it keep it
// until another one has to be set aside: who can damage one could fill the disk
// otherwise. One that is gone is no error.
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
