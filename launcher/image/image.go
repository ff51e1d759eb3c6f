// Package image finds what a task's root file system is made of: a directory,
// or the layers of an OCI image layout, unpacked once and shared.
//
// Layouts are untrusted data. Index, manifest and configuration are read with a
// limit and checked against their digests each time; a layer is checked against
// the digest of its blob and of its content while it is unpacked, and appears
// under its name only when both fit. Format: OCI image specification 1.1, and
// the media types of Docker's schema 2 for the same things.
//
// Images come from the local disk alone, and nothing here removes a layer that
// was unpacked.
package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ErrNoImage: what was named is no image.
var ErrNoImage = errors.New("is no image")

// Image is what a reference stands for.
type Image struct {
	// Config is what the image wants of its container; empty for a directory.
	Config Config
	// Dir is the root file system of a directory image, "" for a layout.
	Dir string
	// Name is how people call it.
	Name string

	layout string
	layers []layer
}

// layer is one blob of a layout. chain names its content on top of the layers
// below it, which is what the unpacked files depend on.
type layer struct {
	blob  descriptor
	diff  digest
	chain digest
}

// Open finds an image: "dir:PATH", "oci:PATH[:TAG]", or a path that tells by
// itself which of the two it is. No layer is read.
func Open(ref string) (*Image, error) {
	if dir, ok := strings.CutPrefix(ref, "dir:"); ok {
		return openDirectory(ref, dir)
	}
	if path, ok := strings.CutPrefix(ref, "oci:"); ok {
		path, tag := splitTag(path)
		if !isLayout(path) {
			return nil, fmt.Errorf("%s %w: there is no OCI layout at %s", ref, ErrNoImage, path)
		}
		return openLayout(ref, path, tag)
	}
	path, tag := splitTag(ref)
	if isLayout(path) {
		return openLayout(ref, path, tag)
	}
	return openDirectory(ref, ref)
}

// splitTag takes a tag off a path that, as a whole, doesn't exist.
func splitTag(ref string) (path, tag string) {
	if _, err := os.Stat(ref); err == nil {
		return ref, ""
	}
	i := strings.LastIndex(ref, ":")
	if i <= 0 {
		return ref, ""
	}
	// A tag may hold slashes and colons itself ("registry/name:1"): the path is
	// the longest part before a colon that exists.
	for ; i > 0; i = strings.LastIndex(ref[:i], ":") {
		if _, err := os.Stat(ref[:i]); err == nil {
			return ref[:i], ref[i+1:]
		}
	}
	return ref, ""
}

func isLayout(path string) bool {
	fi, err := os.Stat(filepath.Join(path, layoutFile))
	return err == nil && fi.Mode().IsRegular()
}

func openDirectory(ref, dir string) (*Image, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find image %s: %w", ref, err)
	}
	fi, err := os.Stat(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s %w: there is no such file", ref, ErrNoImage)
	}
	if err != nil {
		return nil, fmt.Errorf("find image %s: %w", ref, errors.Unwrap(err))
	}
	if !fi.IsDir() || !looksLikeRoot(abs) {
		return nil, fmt.Errorf("%s %w: neither an OCI layout nor a root file system", ref, ErrNoImage)
	}
	return &Image{Dir: abs, Name: ref}, nil
}

// looksLikeRoot: there is a place where programs are, or a program at the top.
func looksLikeRoot(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		switch e.Name() {
		case "bin", "sbin", "usr":
			return true
		}
		if fi, err := e.Info(); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}
