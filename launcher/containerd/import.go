package containerd

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/launcher/image"
)

// imported begins the names of images that came from files. The name that a file gives its
// image is never used: it could replace an image that was pulled.
const imported = "berth-import@"

func isImport(name string) bool { return strings.HasPrefix(name, imported) }

// importImage brings an image out of a layout or an archive into containerd.
func (e *Engine) importImage(ctx context.Context, ref string, from archiveSource, how image.Search) (readyImage, error) {
	match, err := parseMatcher(how.Platform)
	if err != nil {
		return readyImage{}, err
	}
	ctx, done, err := e.c.WithLease(ctx)
	if err != nil {
		return readyImage{}, plain(err)
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }() // it ends by itself in a day
	r, err := from.open()
	if err != nil {
		return readyImage{}, err
	}
	index, err := archive.ImportIndex(ctx, e.c.ContentStore(), r)
	if err = errors.Join(err, r.Close()); err != nil {
		return readyImage{}, fmt.Errorf("open image %s: %w", ref, plain(err))
	}
	one, err := e.pickManifest(ctx, index, from.tag)
	if err != nil {
		return readyImage{}, fmt.Errorf("open image %s: %w", ref, err)
	}
	store := e.c.ContentStore()
	handler := images.SetChildrenLabels(store, images.FilterPlatforms(images.ChildrenHandler(store), match))
	if err := images.WalkNotEmpty(ctx, handler, one); err != nil {
		return readyImage{}, fmt.Errorf("open image %s: %w", ref, plain(err))
	}
	meta := images.Image{Name: imported + one.Digest.String(), Target: one}
	if _, err := e.c.ImageService().Create(ctx, meta); err != nil && !errdefs.IsAlreadyExists(err) {
		return readyImage{}, fmt.Errorf("keep image %s: %w", ref, plain(err))
	}
	return e.unpackImage(ctx, client.NewImageWithPlatform(e.c, meta, match), how.Platform)
}

// pickManifest finds the image of a tag, or the one that there is.
func (e *Engine) pickManifest(ctx context.Context, index ocispec.Descriptor, tag string) (ocispec.Descriptor, error) {
	data, err := content.ReadBlob(ctx, e.c.ContentStore(), index)
	var list ocispec.Index
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return ocispec.Descriptor{}, plain(err)
	}
	var fit []ocispec.Descriptor
	var names []string
	for _, d := range list.Manifests {
		name, short := d.Annotations[images.AnnotationImageName], d.Annotations[ocispec.AnnotationRefName]
		if tag == "" || tag == short || tag == name || strings.HasSuffix(name, "/"+tag) || strings.HasSuffix(name, ":"+tag) {
			fit = append(fit, d)
		}
		if word := short + name; word != "" {
			names = append(names, word)
		}
	}
	switch {
	case len(fit) == 1, len(fit) > 1 && fit[0].Digest == fit[len(fit)-1].Digest:
		return fit[0], nil
	case len(fit) == 0:
		return ocispec.Descriptor{}, fmt.Errorf("it has no image %q; it has %s", tag, strings.Join(names, ", "))
	}
	return ocispec.Descriptor{}, fmt.Errorf("it has several images, %s: say which, behind a colon", strings.Join(names, ", "))
}

// archiveSource is where the bytes of an archive come from.
type archiveSource struct {
	path, tag string
	layout    bool // a directory
}

// parseFileReference tells references to files of this machine from names of images.
func parseFileReference(ref string) (s archiveSource, dir string, err error) {
	scheme, rest, _ := strings.Cut(ref, ":")
	switch scheme {
	case "dir":
		dir, err = filepath.Abs(rest)
		return s, dir, err
	case "oci", "oci-archive", "docker-archive":
		s.layout = scheme == "oci"
		s.path, s.tag = splitTag(rest)
		if _, err := os.Stat(s.path); errors.Is(err, fs.ErrNotExist) {
			return s, "", fmt.Errorf("%s %w: there is no file %s", ref, image.ErrNoImage, s.path)
		}
		return s, "", nil
	case "docker":
		if strings.HasPrefix(rest, "//") {
			return s, "", nil
		}
	}
	if err := image.CheckEngineStorage(ref); err != nil {
		return s, "", err
	}
	path, tag := splitTag(ref)
	if isLayout(path) {
		return archiveSource{path: path, tag: tag, layout: true}, "", nil
	}
	if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
		return archiveSource{path: path, tag: tag}, "", nil
	}
	if _, err := os.Stat(ref); err == nil || strings.HasPrefix(ref, "/") || strings.HasPrefix(ref, ".") {
		dir, err = filepath.Abs(ref)
		return s, dir, err
	}
	return s, "", nil
}

func isLayout(path string) bool {
	fi, err := os.Stat(filepath.Join(path, ocispec.ImageLayoutFile))
	return err == nil && fi.Mode().IsRegular()
}

// splitTag takes a tag off a path that doesn't exist as a whole.
func splitTag(ref string) (path, tag string) {
	for i := len(ref); i > 0; i = strings.LastIndex(ref[:i], ":") {
		if _, err := os.Stat(ref[:i]); err == nil {
			return ref[:i], strings.TrimPrefix(ref[i:], ":")
		}
	}
	return ref, ""
}

// open reads a tar archive, or makes one of a layout.
func (s archiveSource) open() (io.ReadCloser, error) {
	if s.layout {
		r, w := io.Pipe()
		go func() { _ = w.CloseWithError(packLayout(w, s.path)) }() // never fails, by its contract
		return r, nil
	}
	f, err := os.Open(s.path)
	if err != nil {
		return nil, err
	}
	r, err := decompressFile(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", s.path, err), f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{r, f}, nil
}

// decompressFile looks at how a file begins.
func decompressFile(f *os.File) (io.Reader, error) {
	var head [4]byte
	n, err := f.ReadAt(head[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch start := string(head[:n]); {
	case strings.HasPrefix(start, "\x1f\x8b"):
		return gzip.NewReader(f)
	case start == "\x28\xb5\x2f\xfd":
		return zstd.NewReader(f)
	}
	return f, nil
}

// packLayout writes a layout as an archive.
func packLayout(w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return packFile(tw, dir, path)
	})
	return errors.Join(err, tw.Close())
}

func packFile(tw *tar.Writer, dir, path string) error {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // only read from
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: fi.Size(), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(tw, f)
	return err
}
