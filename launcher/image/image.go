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

// ErrPlatform reports an image for other machines than the one that is asked for.
var ErrPlatform = errors.New("no image for the platform")

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
// before (NoteLayers).
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
	r, err := ParseReference(ref)
	if err != nil {
		return nil, err
	}
	switch r.Kind {
	case Directory:
		return openDirectory(ref, r.Path)
	case Layout:
		return openLayout(ref, directory(r.Path), r.Tag, want)
	case Registry:
		return s.openNamed(ctx, r.Path, want, how)
	}
	return s.openArchive(ref, r, want)
}

// Kind is what a reference stands for.
type Kind string

// Kinds of images. An Archive is an OCIArchive or a DockerArchive.
const (
	Directory     Kind = "dir"
	Layout        Kind = "oci"
	OCIArchive    Kind = "oci-archive"
	DockerArchive Kind = "docker-archive"
	Archive       Kind = ""
	Registry      Kind = "docker"
)

// Reference is a reference to an image in its parts.
type Reference struct {
	Kind Kind
	// Path is that of the file or directory, or the name of an image of a registry.
	Path string
	Tag  string
}

// ParseReference finds out what a reference stands for (see Store.Open), by a look at the files
// that it names. An archive exists, and a layout is one; a directory may be missing.
func ParseReference(ref string) (Reference, error) {
	scheme, rest, _ := strings.Cut(ref, ":")
	path, tag := splitTag(rest)
	switch kind := Kind(scheme); kind {
	case Directory:
		return Reference{Kind: kind, Path: rest}, nil
	case Layout:
		if !isLayout(path) {
			return Reference{}, fmt.Errorf("%s %w: there is no OCI layout at %s", ref, ErrNoImage, path)
		}
		return Reference{kind, path, tag}, nil
	case OCIArchive, DockerArchive:
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return Reference{}, fmt.Errorf("%s %w: there is no file %s", ref, ErrNoImage, path)
		}
		return Reference{kind, path, tag}, nil
	case Registry:
		if name, ok := strings.CutPrefix(rest, "//"); ok {
			return Reference{Kind: kind, Path: name}, nil
		}
	}
	if err := CheckReadable(ref); err != nil {
		return Reference{}, err
	}
	return parseBare(ref)
}

// parseBare parses a reference without a scheme. What exists as a path is one.
func parseBare(ref string) (Reference, error) {
	if ref == "" {
		return Reference{}, fmt.Errorf("an empty word %w", ErrNoImage)
	}
	path, tag := splitTag(ref)
	if isLayout(path) {
		return Reference{Layout, path, tag}, nil
	}
	if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
		return Reference{Archive, path, tag}, nil
	}
	if _, err := os.Stat(ref); !errors.Is(err, fs.ErrNotExist) || strings.ContainsAny(ref[:1], "/.~") {
		return Reference{Kind: Directory, Path: ref}, nil
	}
	if _, err := registry.Parse(ref); err != nil {
		return Reference{}, fmt.Errorf("%s %w: there is no such file, and %w", ref, ErrNoImage, err)
	}
	return Reference{Kind: Registry, Path: ref}, nil
}

// openArchive opens one of either kind, or of the one that the reference says.
func (s Store) openArchive(ref string, r Reference, want platform) (*Image, error) {
	a, err := openArchive(r.Path, s.Dir)
	switch {
	case err != nil && r.Kind == Archive:
		return nil, fmt.Errorf("%s %w: neither a directory nor an archive of one: %w", ref, ErrNoImage, err)
	case err != nil:
		return nil, fmt.Errorf("open image %s: %w", ref, err)
	}
	docker, layout := a.hasMember(dockerManifestFile), a.hasMember(layoutFile)
	_, rest, _ := strings.Cut(ref, ":")
	switch {
	case r.Kind == Archive && !docker && !layout:
		a.close()
		return nil, fmt.Errorf("%s %w: an archive without %s and %s", ref, ErrNoImage, dockerManifestFile, layoutFile)
	case r.Kind == DockerArchive && !docker && layout:
		a.close()
		return nil, fmt.Errorf("open image %s: it is an OCI layout: oci-archive:%s", ref, rest)
	case r.Kind == OCIArchive && docker && !layout:
		a.close()
		return nil, fmt.Errorf("open image %s: it is an archive of docker save: docker-archive:%s", ref, rest)
	case r.Kind == DockerArchive || r.Kind == Archive && docker:
		return openDocker(ref, a, r.Tag, want)
	}
	return openLayout(ref, a, r.Tag, want)
}

// CheckReadable is the error for images that are not read here: those in an engine's storage, SIF
// files and those of registries for SIF files. It is nil for all others.
func CheckReadable(ref string) error {
	scheme, rest, _ := strings.Cut(ref, ":")
	switch scheme {
	case "docker-daemon", "containers-storage":
		engine := map[string]string{"docker-daemon": "docker", "containers-storage": "podman"}[scheme]
		return fmt.Errorf("image %s: %s's images are not read here; %s save -o FILE %s writes one that berth run takes", ref, engine, engine, rest)
	case "library", "shub", "oras":
		if strings.HasPrefix(rest, "//") {
			return fmt.Errorf("image %s: berth reads no SIF files; docker://NAME or NAME is an image of a registry", ref)
		}
	}
	if isSIF(ref) {
		return fmt.Errorf("image %s: berth reads no SIF files; berth run NAME or docker://NAME takes the image of a registry that it was built from", ref)
	}
	return nil
}

// isSIF reports whether a reference without a scheme is the name of a file of Apptainer's.
func isSIF(ref string) bool {
	if !strings.HasSuffix(ref, ".sif") || strings.Contains(ref, "://") {
		return false
	}
	fi, err := os.Stat(ref)
	return err != nil || !fi.IsDir()
}

// CheckPullable fails for what no registry has.
func CheckPullable(ref string) error {
	switch scheme, _, _ := strings.Cut(ref, ":"); scheme {
	case "dir", "oci", "oci-archive", "docker-archive":
		return fmt.Errorf("image %s is on this machine: there is nothing to pull, and berth run takes it as it is", ref)
	}
	if isSIF(ref) {
		return fmt.Errorf("image %s: berth pull writes no SIF file, but keeps images where berth run finds them by their names: berth pull NAME", ref)
	}
	return CheckReadable(ref)
}

// splitTag splits PATH:TAG. A tag may hold slashes and colons itself ("registry/name:1"): the path
// is the longest part before a colon that exists.
func splitTag(ref string) (path, tag string) {
	for i := len(ref); i > 0; i = strings.LastIndex(ref[:i], ":") {
		if _, err := os.Stat(ref[:i]); err == nil {
			return ref[:i], strings.TrimPrefix(ref[i:], ":")
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
