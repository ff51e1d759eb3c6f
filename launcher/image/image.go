// Package image finds what a task's root file system is made of: a directory, or
// the layers of an image, unpacked once and shared. Images come from registries, OCI
// image layouts, and the archives that docker, podman and skopeo write.
//
// Images are untrusted data. Index, manifest and configuration are read with a limit
// and checked against their digests each time; a layer is checked against the digest
// of its blob and of its content while it is unpacked, and appears under its name
// only when both fit. Format: OCI image specification 1.1, and the media types of
// Docker's schema 2 for the same things.
//
// A layer is on disk once, unpacked. Its compressed blob is kept only while it is
// downloaded, so that a pull that broke can go on: unpacked files are what containers
// need, nothing here pushes an image, and a layer that is lost is in its registry
// still. Manifest and configuration stay, which are small.
//
// What isn't here: building, pushing and signatures.
package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// ErrNoImage reports a reference that is no image.
var ErrNoImage = errors.New("is no image")

// ErrNotHere reports an image that would have to be pulled where pulling is not wanted.
var ErrNotHere = errors.New("is not here")

// Image is what a reference stands for. Until it is closed it keeps its layers from
// being pruned, once they were unpacked.
type Image struct {
	// Config is what the image wants of its container; empty for a directory.
	Config Config
	// Dir is the root file system of a directory image, "" for all others.
	Dir string
	// Name is how people call it; for one of a registry its full name.
	Name string
	// Digest is the manifest's, "" where there is none: directories, docker's archives.
	Digest string

	origin   origin
	layers   []layer
	manifest descriptor
	config   descriptor
	created  string
	// pulled is what Unpack notes when all layers are there; nil for nothing.
	pulled *record
	// held are locks of layers.
	held []*os.File
	// unpacked are the directories of the layers where all were found, undermost first.
	unpacked []string
}

// layer is one blob of an image. chain names its content on top of the layers below
// it, which is what the unpacked files depend on.
type layer struct {
	blob   descriptor
	member string // of an archive without digests
	diff   digest
	chain  digest
}

// Close releases the locks of the layers. A task that goes on to use them must be noted
// before (Keep).
func (img *Image) Close() {
	for _, f := range img.held {
		f.Close() // only locked
	}
	img.held = nil
	if img.origin != nil {
		img.origin.close()
	}
}

// Pull says when an image of a registry is asked for there.
type Pull string

// The zero value is Missing.
const (
	Missing Pull = "missing" // if the store hasn't got it
	Always  Pull = "always"  // each time; layers that are here aren't read again
	Never   Pull = "never"
)

// ParsePull reads a word as people type it; "" is Missing.
func ParsePull(word string) (Pull, error) {
	switch p := Pull(word); p {
	case "":
		return Missing, nil
	case Missing, Always, Never:
		return p, nil
	}
	return "", fmt.Errorf("pull %q%s: there are always, missing and never", word, spell.Suggestion(word, string(Always), string(Missing), string(Never)))
}

// ErrPullNeeded reports an image that the store lacks in whole or in part, where this process
// fetches nothing (Search.Connect).
var ErrPullNeeded = errors.New("has to be pulled")

// Search says how an image is looked for. The zero value takes what is on this machine.
type Search struct {
	// Platform is "OS/ARCH[/VARIANT]"; "" means this machine's.
	Platform string
	Pull     Pull
	// Connect opens a repository of a registry. Where it is nil, nothing is fetched: an image
	// that has to be is an error that Is ErrPullNeeded, or with Never one that Is ErrNotHere.
	Connect func(context.Context, registry.Name) (Repository, error) `json:"-"`
}

// Open finds an image. No layer is read, but what describes it is.
//
//	dir:PATH                     a root file system
//	oci:PATH[:TAG]               an OCI image layout
//	oci-archive:FILE[:TAG]       one in a tar archive
//	docker-archive:FILE[:NAME]   what docker save writes
//	docker://NAME                an image of a registry
//	PATH[:TAG]                   the one of these that it is, if it exists
//	NAME                         an image of a registry
//
// Archives may be compressed.
func (s Store) Open(ctx context.Context, ref string, how Search) (*Image, error) {
	want, err := parsePlatform(how.Platform)
	if err != nil {
		return nil, err
	}
	scheme, rest, _ := strings.Cut(ref, ":")
	switch scheme {
	case "dir":
		return openDirectory(ref, rest)
	case "oci":
		path, tag := splitTag(rest)
		if !isLayout(path) {
			return nil, fmt.Errorf("%s %w: there is no OCI layout at %s", ref, ErrNoImage, path)
		}
		return openLayout(ref, directory(path), tag, want)
	case "oci-archive", "docker-archive":
		return s.openArchive(ref, scheme, rest, want)
	case "docker":
		if name, ok := strings.CutPrefix(rest, "//"); ok {
			return s.openNamed(ctx, name, want, how)
		}
	}
	if err := CheckEngineStorage(ref); err != nil {
		return nil, err
	}
	return s.openBare(ctx, ref, want, how)
}

// openBare opens a reference without a scheme. What exists as a path is one.
func (s Store) openBare(ctx context.Context, ref string, want platform, how Search) (*Image, error) {
	if ref == "" {
		return nil, fmt.Errorf("an empty word %w", ErrNoImage)
	}
	path, tag := splitTag(ref)
	if isLayout(path) {
		return openLayout(ref, directory(path), tag, want)
	}
	if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
		return s.openArchive(ref, "", ref, want)
	}
	_, err := os.Stat(ref)
	if err == nil || !errors.Is(err, fs.ErrNotExist) || looksLikePath(ref) {
		return openDirectory(ref, ref)
	}
	if _, err := registry.Parse(ref); err != nil {
		return nil, fmt.Errorf("%s %w: there is no such file, and %w", ref, ErrNoImage, err)
	}
	return s.openNamed(ctx, ref, want, how)
}

// looksLikePath reports whether a reference begins as no image name does.
func looksLikePath(ref string) bool {
	return strings.HasPrefix(ref, "/") || strings.HasPrefix(ref, ".") || strings.HasPrefix(ref, "~")
}

// openArchive opens one of either kind, or with a scheme of the one that it says.
func (s Store) openArchive(ref, scheme, rest string, want platform) (*Image, error) {
	path, tag := splitTag(rest)
	a, err := openArchive(path, s.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s %w: there is no file %s", ref, ErrNoImage, path)
	case err != nil && scheme == "":
		return nil, fmt.Errorf("%s %w: neither a directory nor an archive of one: %w", ref, ErrNoImage, err)
	case err != nil:
		return nil, fmt.Errorf("open image %s: %w", ref, err)
	}
	docker, layout := a.hasMember(dockerManifestFile), a.hasMember(layoutFile)
	switch {
	case scheme == "" && !docker && !layout:
		a.close()
		return nil, fmt.Errorf("%s %w: an archive without %s and %s", ref, ErrNoImage, dockerManifestFile, layoutFile)
	case scheme == "docker-archive" && !docker && layout:
		a.close()
		return nil, fmt.Errorf("open image %s: it is an OCI layout: oci-archive:%s", ref, rest)
	case scheme == "oci-archive" && docker && !layout:
		a.close()
		return nil, fmt.Errorf("open image %s: it is an archive of docker save: docker-archive:%s", ref, rest)
	case scheme == "docker-archive" || scheme == "" && docker:
		return openDocker(ref, a, tag, want)
	}
	return openLayout(ref, a, tag, want)
}

// CheckEngineStorage is the error for images of engines whose storage isn't read here, nil for all
// others.
func CheckEngineStorage(ref string) error {
	scheme, rest, _ := strings.Cut(ref, ":")
	engine := map[string]string{"docker-daemon": "docker", "containers-storage": "podman"}[scheme]
	if engine == "" {
		return nil
	}
	return fmt.Errorf("image %s: %s's images are not read here; %s save -o FILE %s writes one that berth run takes", ref, engine, engine, rest)
}

// CheckPullable fails for what no registry has.
func CheckPullable(ref string) error {
	switch scheme, _, _ := strings.Cut(ref, ":"); scheme {
	case "dir", "oci", "oci-archive", "docker-archive":
		return fmt.Errorf("image %s is on this machine: there is nothing to pull, and berth run takes it as it is", ref)
	}
	return CheckEngineStorage(ref)
}

// splitTag splits PATH:TAG, unless a file of that whole name exists.
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
	if isLayout(abs) {
		return nil, fmt.Errorf("%s %w of that kind: it is an OCI layout: oci:%s", ref, ErrNoImage, dir)
	}
	if !fi.IsDir() || !looksLikeRoot(abs) {
		return nil, fmt.Errorf("%s %w: neither an OCI layout nor a root file system", ref, ErrNoImage)
	}
	return &Image{Dir: abs, Name: ref}, nil
}

// looksLikeRoot reports whether a directory has a place for programs, or a program at its top.
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

// Open finds an image that is on this machine, outside of any store. Its archives are
// decompressed in the working directory, if they have to be.
func Open(ref string) (*Image, error) {
	return Store{Dir: "."}.Open(context.Background(), ref, Search{Pull: Never})
}

// Layers says how many an image has; none for a directory.
func (img *Image) Layers() int { return len(img.layers) }
