package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth/cdi/ldcache"
)

const aboutImages = "`create` of a container with one GPU through the wrapper, by what its image's loader cache holds. Cold: no container of the image was started since boot. Remembered: one was, and this is a new container of it. Again: the same container's root, which has the driver in its cache."

// manyEntries is the number of entries in the loader cache of a very large image.
const manyEntries = 5000

// images compares loader caches.
func (b *bench) images(ctx context.Context) (section, error) {
	conf, err := b.config("crun")
	if err != nil {
		return section{}, err
	}
	cases := []way{{name: "plain crun", runtime: []string{"crun"}}}
	for _, more := range []int{0, manyEntries} {
		root := filepath.Join(b.dir, fmt.Sprintf("image%d", more))
		if err := unpack(ctx, "debian", root); err != nil {
			return section{}, err
		}
		count, err := fill(root, more)
		if err != nil {
			return section{}, err
		}
		reset, err := resetting(root)
		if err != nil {
			return section{}, err
		}
		for _, c := range []way{
			{name: "again"},
			{name: "remembered", before: reset},
			{name: "cold", before: func() error { return errors.Join(reset(), forget()) }, after: func(string) error { return remember() }},
		} {
			w := b.wrapped(conf, 1, "")
			w.name, w.root, w.before, w.after = fmt.Sprintf("%d entries, %s", count, c.name), root, c.before, c.after
			cases = append(cases, w)
		}
	}
	results, err := b.run(ctx, "image", cases)
	return compare("loader caches", aboutImages, results), err
}

// memory is the directory in which berth stores merged caches.
const memory = "/run/berth/ldmemo"

// forget moves the stored caches away for the other cases; remember moves them back.
func forget() error {
	err := os.Rename(memory, memory+".kept")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func remember() error {
	if _, err := os.Stat(memory + ".kept"); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(memory); err != nil {
		return err
	}
	return os.Rename(memory+".kept", memory)
}

// fill adds entries to the root's loader cache until it has this many.
func fill(root string, want int) (int, error) {
	file := filepath.Join(root, "etc/ld.so.cache")
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	cache, err := ldcache.Parse(raw)
	if err != nil {
		return 0, err
	}
	var more []ldcache.Entry
	for i := len(cache.Entries); i < want; i++ {
		e := cache.Entries[0]
		e.Name = fmt.Sprintf("libpackage%04d.so.%d", i, i%7)
		e.Path = "/usr/lib/x86_64-linux-gnu/" + e.Name
		more = append(more, e)
	}
	cache = cache.Merge(more)
	return len(cache.Entries), os.WriteFile(file, cache.Bytes(), 0o644)
}

// resetting returns a function that resets the root to that of a new container.
func resetting(root string) (func() error, error) {
	file := filepath.Join(root, "etc/ld.so.cache")
	image, err := os.ReadFile(file)
	return func() error {
		err := os.Remove(filepath.Join(root, "etc/ld.so.conf.d/00-berth.conf"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.WriteFile(file, image, 0o644)
	}, err
}
