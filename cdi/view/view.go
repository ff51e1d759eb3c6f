// Package view keeps small directories of text files and links that containers get bound in place of
// the host's own: what they show is chosen by the devices of a lease. They are created once and
// reused by later starts.
//
// A directory is complete once it has its name. A container that may mount (CAP_SYS_ADMIN) can
// remount its bind writable and change it. So the seal is checked at each use, and a changed
// directory is created again. Leases are exclusive, so a change affects only the container that made
// it.
//
// What it doesn't do: it never opens or follows a file that a container could have created, and it
// doesn't know which views are in use. [Store.InUse] tells it.
//
// Layout of Dir/KEY:
//
//	seal    the seal, whose devices these are, and the names in the tree
//	tree    what containers see
package view

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tree is the content of a directory, by clean paths relative to it. The directories above files
// and links needn't be named.
type Tree struct {
	Dirs  []string
	Files map[string]string // content
	Links map[string]string // target
}

const (
	sealName = "seal"
	treeName = "tree"
	tempName = ".new-"

	// unusedGrace is how long a directory stays after its last use even without a lease: a runtime that
	// got its path binds it within that time.
	unusedGrace = time.Minute
	// maxViews is the number of directories from which on unused ones are removed.
	maxViews = 256
)

// Store is a directory of views. Any number of processes may use it at once.
type Store struct {
	// Dir is made when it is needed. Only root may write to it.
	Dir string
	// InUse reports whether a container may run on the view of these devices. nil means that all
	// views are in use.
	InUse func(devices []string) bool
	// DryRun makes Get return paths and create nothing.
	DryRun bool
}

// Get returns the path of the tree of that key, a single name. If the view is missing or was
// changed, it is created with the content that fill returns.
func (s Store) Get(key string, devices []string, fill func() (Tree, error)) (path string, err error) {
	dir := filepath.Join(s.Dir, key)
	path = filepath.Join(dir, treeName)
	if s.DryRun {
		return path, nil
	}
	if checkView(dir) == nil {
		return path, noteUse(dir)
	}
	tree, err := fill()
	if err != nil {
		return "", err
	}
	if err := s.makeView(dir, devices, tree); err != nil {
		return "", fmt.Errorf("make view %s: %w", dir, err)
	}
	return path, nil
}

// makeView makes the directory in one step, in place of a damaged one.
func (s Store) makeView(dir string, devices []string, tree Tree) error {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	if names, err := os.ReadDir(s.Dir); err == nil && len(names) >= maxViews {
		if err := s.Prune(); err != nil {
			return err
		}
	}
	temp := filepath.Join(s.Dir, tempName+rand.Text())
	err := writeTree(temp, devices, tree)
	if err == nil {
		err = renameToView(temp, dir)
	}
	return errors.Join(err, os.RemoveAll(temp))
}

// renameToView renames the new directory to its final name. If another process has created the view
// meanwhile, that one is kept. A damaged view is removed: only the container that damaged it uses
// it.
func renameToView(temp, dir string) error {
	for range 8 {
		err := os.Rename(temp, dir)
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTDIR) {
			return err
		}
		if checkView(dir) == nil {
			return nil
		}
		old := temp + "-old"
		if err := os.Rename(dir, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s is damaged repeatedly", dir)
}

// Prune removes the views that no container can run on, and incomplete views of killed processes.
func (s Store) Prune() error {
	names, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("prune views: %w", err)
	}
	for _, n := range names {
		dir := filepath.Join(s.Dir, n.Name())
		if !s.isUnused(dir) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("prune views: %w", err)
		}
	}
	return nil
}

func (s Store) isUnused(dir string) bool {
	file := filepath.Join(dir, sealName)
	fi, err := os.Lstat(file)
	if err != nil {
		fi, err = os.Lstat(dir) // its creator was killed before the view was complete
	}
	if err != nil || time.Since(fi.ModTime()) < unusedGrace {
		return false
	}
	sealed, err := readSeal(dir)
	return err != nil || s.InUse != nil && !s.InUse(sealed.devices)
}

// noteUse notes that the view was used.
func noteUse(dir string) error {
	now := time.Now()
	return os.Chtimes(filepath.Join(dir, sealName), now, now)
}

func writeTree(dir string, devices []string, tree Tree) error {
	root := filepath.Join(dir, treeName)
	paths := tree.listPaths()
	for _, d := range append([]string{dir}, paths...) {
		if d != dir {
			d = filepath.Join(root, d)
		}
		if err := tree.makePath(root, d); err != nil {
			return err
		}
	}
	digest, err := digestTree(root, paths)
	if err != nil {
		return err
	}
	lines := append([]string{digest, strings.Join(devices, " ")}, paths...)
	return os.WriteFile(filepath.Join(dir, sealName), []byte(strings.Join(lines, "\n")), 0o600)
}

// makePath makes one path of the tree, whatever the umask.
func (t Tree) makePath(root, path string) error {
	name, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	if target, ok := t.Links[name]; ok {
		return os.Symlink(target, path)
	}
	if content, ok := t.Files[name]; ok {
		if err := os.WriteFile(path, []byte(content), 0o444); err != nil {
			return err
		}
		return os.Chmod(path, 0o444)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

// listPaths lists everything in the tree, parents first. "." is the tree itself.
func (t Tree) listPaths() []string {
	all := map[string]bool{".": true}
	add := func(name string) {
		for ; name != "." && name != "/"; name = filepath.Dir(name) {
			all[name] = true
		}
	}
	for _, name := range t.Dirs {
		add(name)
	}
	for name := range t.Files {
		add(name)
	}
	for name := range t.Links {
		add(name)
	}
	var paths []string
	for name := range all {
		paths = append(paths, name)
	}
	slices.Sort(paths) // "." sorts before all other names, and a parent before its entries
	return paths
}
