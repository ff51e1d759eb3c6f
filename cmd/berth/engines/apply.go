package engines

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/hook/setup"
	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/lock"
)

// Lock waits for the lock under which one process at a time sets up engines. The caller
// closes the lock.
func Lock(ctx context.Context, data string) (*lock.Lock, error) {
	path := filepath.Join(data, "setup", ".lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	return lock.Create(ctx, path, 0o600, lock.Exclusive)
}

// Validate has the engine check the files that the plan would write. It changes nothing.
func Validate(ctx context.Context, plan setup.Plan) error {
	c := plan.Check
	if c == nil {
		return nil
	}
	out, refusal, err := runOnFiles(ctx, c.Command, c.After)
	if err != nil {
		return err
	}
	if refusal == nil {
		if c.Verify == nil {
			return nil
		}
		if err := c.Verify(out); err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
		return nil
	}
	program := filepath.Base(c.Command[0])
	if c.Before != nil {
		if _, old, err := runOnFiles(ctx, c.Command, c.Before); err == nil && old != nil {
			return fmt.Errorf("%s refuses its configuration as it is, so nothing was changed: %w", program, old)
		}
	}
	return fmt.Errorf("%s refuses what would be written, so nothing was changed: %w", program, refusal)
}

// runOnFiles calls a program on files in a temporary directory. refusal is the program's
// own error.
func runOnFiles(ctx context.Context, command []string, files map[string][]byte) (out string, refusal, err error) {
	// Not in TMPDIR, which sudo may leave: its owner could exchange the directory for a link.
	dir, err := os.MkdirTemp("/tmp", "berth-setup-")
	if err != nil {
		return "", nil, fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for name, text := range files {
		text = []byte(strings.ReplaceAll(string(text), setup.Dir, dir))
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return "", nil, err
		}
	}
	var words []string
	for _, w := range command {
		words = append(words, strings.ReplaceAll(w, setup.Dir, dir))
	}
	if out, refusal = Run(ctx, words...); refusal != nil {
		refusal = errors.New(strings.ReplaceAll(refusal.Error(), dir+"/", ""))
	}
	return out, refusal, nil
}

// Apply writes what a plan changes, each file atomically. The record comes first, so that
// a setup that is killed can be removed, or run again.
func Apply(h setup.Host, plan setup.Plan, record string) error {
	if plan.Record != nil {
		text, err := plan.Record.Encode()
		if err != nil {
			return err
		}
		if err := atomicfile.Write(record, text, 0o600, atomicfile.Options{Sync: true, FixedTemp: true}); err != nil {
			return fmt.Errorf("write record: %w", err)
		}
	}
	for _, dir := range plan.Dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	for _, c := range plan.Changes {
		now, err := h.ReadFile(c.Path)
		if err != nil {
			return err
		}
		if !now.Same(c.Before) {
			return fmt.Errorf("%s was changed meanwhile by another process: run this again", c.Path)
		}
		if err := writeChange(c); err != nil {
			return fmt.Errorf("write %s: %w", c.Path, err)
		}
	}
	return nil
}

// writeChange makes one change. A file keeps its owner and permissions.
func writeChange(c setup.Change) error {
	f := c.After
	if !f.Exists {
		return os.Remove(c.Path)
	}
	if err := os.MkdirAll(filepath.Dir(c.Path), 0o755); err != nil {
		return err
	}
	if f.Link != "" {
		return replaceLink(f.Link, c.Path)
	}
	return atomicfile.Write(c.Path, f.Data, f.Mode, atomicfile.Options{Sync: true, FixedTemp: true, Owner: &atomicfile.Owner{UID: f.UID, GID: f.GID}})
}

// tempPath is the name of a file or link that is about to replace another one; atomicfile
// uses the same.
func tempPath(path string) string { return path + ".tmp" }

// replaceLink creates a symbolic link atomically. An existing file or link is replaced.
func replaceLink(target, path string) error {
	next := tempPath(path)
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// Forget removes the record of an engine whose changes are undone, temporary files of a
// setup that was killed, and the directories that setup has made and that are empty.
func Forget(h setup.Host, data, engine string) error {
	record, err := setup.LoadRecord(h.FS, data, engine)
	if record == nil || err != nil {
		return err
	}
	if err := os.Remove(setup.RecordPath(data, engine)); err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	for _, f := range record.Files {
		_ = os.Remove(tempPath(f.Path)) // it exists only after a kill
	}
	for _, dir := range slices.Backward(record.Dirs) {
		_ = os.Remove(dir) // it fails if the directory is in use or gone
	}
	return nil
}
