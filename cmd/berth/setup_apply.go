package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-gpu/berth/hook/setup"
	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/lock"
)

// lockSetup has one process set up engines at a time, until the returned file is closed.
func lockSetup(ctx context.Context, data string) (*os.File, error) {
	path := filepath.Join(data, "setup", ".lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	return lock.Create(ctx, path, 0o600, lock.Exclusive)
}

// temp is what atomicfile and relink call a file that isn't there yet.
func temp(path string) string { return path + ".tmp" }

// apply does what a plan says, file by file, each in one step. The record comes first:
// whatever is written can be taken back.
func apply(h setup.Host, plan setup.Plan, record string) error {
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
			return fmt.Errorf("%s was changed meanwhile by somebody else: run this again", c.Path)
		}
		if err := write(c); err != nil {
			return fmt.Errorf("write %s: %w", c.Path, err)
		}
	}
	return nil
}

// write makes one change. A file keeps its owner and permissions.
func write(c setup.Change) error {
	f := c.After
	if !f.Exists {
		return os.Remove(c.Path)
	}
	if err := os.MkdirAll(filepath.Dir(c.Path), 0o755); err != nil {
		return err
	}
	if f.Link != "" {
		return relink(f.Link, c.Path)
	}
	return atomicfile.Write(c.Path, f.Data, f.Mode, atomicfile.Options{Sync: true, FixedTemp: true, Owner: &atomicfile.Owner{UID: f.UID, GID: f.GID}})
}

// relink puts a symbolic link where there may be one already.
func relink(target, path string) error {
	next := temp(path)
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// removeDirs removes directories that were made, the inner ones first. One that isn't
// empty has become somebody else's.
func removeDirs(dirs []string) {
	for _, dir := range slices.Backward(dirs) {
		_ = os.Remove(dir) // it isn't empty, or gone
	}
}
