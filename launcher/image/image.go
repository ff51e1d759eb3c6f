// Package image finds images and unpacks their layers, once and shared, or finds a directory that is used as
// a root file system. Images come from registries, OCI image layouts, and the archives of docker, podman and
// skopeo.
//
// Images are untrusted data. Index, manifest and configuration are read with a limit and checked against
// their digests each time. A layer is checked against the digests of its blob and of its content while it is
// unpacked, and is renamed to its final name only if both match. The format is the OCI image specification
// 1.1, and the corresponding media types of Docker's schema 2.
//
// A layer is stored once, unpacked. Its compressed blob is stored only during the download, so that a broken
// pull can continue: containers need only the unpacked files, and berth pushes no images. Manifests and
// configurations are stored.
//
// The package doesn't build, push or verify signatures.
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

// ErrNoImage means that a reference stands for no image.
var ErrNoImage = errors.New("is no image")

// ErrNotHere means that an image would have to be pulled, and that Search.Pull is Never.
var ErrNotHere = errors.New("is not here")

// ErrPlatform means that there is no image for the requested platform.
var ErrPlatform = errors.New("no image for the platform")

// Image is an open image. Its unpacked layers aren't pruned until it is closed.
type Image struct {
	// Config is empty for a directory.
	Config Config
	// Dir is the path of a directory image, "" for all others.
	Dir string
	// Name is the full name of an image of a registry, and the reference for all others.
	Name string
	// Digest is that of the manifest, "" without one: directories, docker's archives.
	Digest string

	origin   origin
	layers   []layer
	manifest descriptor
	config   descriptor
	created  string
	// pulled is the record that Unpack writes when all layers are unpacked; nil for none.
	pulled *record
	// held are the locks of layers and names that the image holds.
	held []*os.File
	// unpacked are the directories of all layers, the lowest first, if all were found unpacked.
	unpacked []string
}

// layer is one layer of an image. diff is the digest of its content, and chain its chain id, on which the
// unpacked files depend.
type layer struct {
	blob   descriptor
	member string // file in an archive of docker save
	diff   digest
	chain  digest
}

// Close releases the locks of the layers. For a task that uses them, NoteLayers must have been called.
func (img *Image) Close() {
	for _, f := range img.held {
		f.Close() // a lock
	}
	img.held = nil
	if img.origin != nil {
		img.origin.close()
	}
}

// Pull says when an image is pulled from its registry. The zero value means Missing.
type Pull string

// Values of Pull.
const (
	Missing Pull = "missing" // if the store doesn't have it
	Always  Pull = "always"  // each time; layers that are in the store aren't downloaded
	Never   Pull = "never"
)

// ParsePull parses a value of --pull; "" means Missing.
func ParsePull(word string) (Pull, error) {
	switch p := Pull(word); p {
	case "":
		return Missing, nil
	case Missing, Always, Never:
		return p, nil
	}
	if word == "newer" || word == "ifnewer" {
		return "", fmt.Errorf("pull %q is podman's: always asks the registry, and gets what is newer", word)
	}
	return "", fmt.Errorf("pull %q%s: there are always, missing and never", word, spell.Suggestion(word, string(Always), string(Missing), string(Never)))
}

// ErrPullNeeded means that the store lacks the image or a part of it, and that this process fetches nothing
// (Search.Connect is nil).
var ErrPullNeeded = errors.New("has to be pulled")

// Search says how an image is found. The zero value uses only what is on this machine.
type Search struct {
	// Platform is "OS/ARCH[/VARIANT]"; "" means this machine's.
	Platform string
	Pull     Pull
	// Connect opens a repository of a registry. If it is nil, nothing is fetched: an image that has to be
	// pulled is an error that Is ErrPullNeeded, or ErrNotHere with Never.
	Connect func(context.Context, registry.Name) (Repository, error) `json:"-"`
}

// Open opens an image. It reads manifest and configuration, but no layer.
//
//	dir:PATH                     a root file system
//	oci:PATH[:TAG]               an OCI image layout
//	oci-archive:FILE[:TAG]       one in a tar archive
//	docker-archive:FILE[:NAME]   an archive of docker save
//	docker://NAME                an image of a registry
//	PATH[:TAG]                   a path of any of these kinds, if it exists
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

// maxFetches is how often an image is pulled for one use: another process may remove it before this one has locked its layers.
const maxFetches = 3

// OpenFetched is Open for a process that pulls by a function: fetch pulls an image into the store. Without the function it is Open.
func (s Store) OpenFetched(ctx context.Context, ref string, how Search, fetch func(ctx context.Context, ref string, how Search) error) (img *Image, err error) {
	for fetches := 0; ; fetches++ {
		img, err = s.Open(ctx, ref, how)
		if fetch == nil || !errors.Is(err, ErrPullNeeded) || fetches == maxFetches {
			return img, err
		}
		if err := fetch(ctx, ref, how); err != nil {
			return nil, err
		}
		how.Pull = Missing
	}
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

// Reference is a parsed reference to an image.
type Reference struct {
	Kind Kind
	// Path is the path of a file or directory, or the name of an image of a registry.
	Path string
	Tag  string
}

// ParseReference parses a reference (see Store.Open). It checks the files that the reference names: an
// archive or layout must exist, a directory may be missing.
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

// parseBare parses a reference without a scheme. If it exists as a path, it is a path.
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

// openArchive opens an archive of the kind in the reference, or of any kind for Archive.
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

// CheckReadable returns an error for references that berth doesn't support: images in an engine's storage,
// SIF files, and registries of SIF files.
func CheckReadable(ref string) error {
	scheme, rest, _ := strings.Cut(ref, ":")
	switch scheme {
	case "docker-daemon", "containers-storage":
		engine := map[string]string{"docker-daemon": "docker", "containers-storage": "podman"}[scheme]
		return fmt.Errorf("image %s: %s's images are not read here; %s save -o FILE %s writes one that berth run takes", ref, engine, engine, rest)
	case "library", "shub", "oras":
		if strings.HasPrefix(rest, "//") {
			return fmt.Errorf("image %s: berth apptainer takes SIF files; docker://NAME or NAME is an image of layers", ref)
		}
	}
	if isSIF(ref) {
		return fmt.Errorf("image %s: berth run starts no SIF files, but berth apptainer run %s does", ref, ref)
	}
	return nil
}

// isSIF reports whether a reference without a scheme is the name of a SIF file (Apptainer).
func isSIF(ref string) bool {
	if !strings.HasSuffix(ref, ".sif") || strings.Contains(ref, "://") {
		return false
	}
	fi, err := os.Stat(ref)
	return err != nil || !fi.IsDir()
}

// CheckPullable returns an error for references that can't be pulled.
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

// looksLikeRoot reports whether a directory contains bin, sbin, usr, or an executable file.
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

// Open opens an image on this machine without a store. Compressed archives are decompressed in the working
// directory.
func Open(ref string) (*Image, error) {
	return Store{Dir: "."}.Open(context.Background(), ref, Search{Pull: Never})
}

// Layers returns the number of layers, 0 for a directory.
func (img *Image) Layers() int { return len(img.layers) }
