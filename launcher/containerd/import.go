package containerd

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/launcher/image"
)

// importPrefix begins the names of images that were imported from files. The name in the file is never
// used, because it could replace an image that was pulled.
const importPrefix = "berth-import@"

func isImport(name string) bool { return strings.HasPrefix(name, importPrefix) }

// importImage imports an image from a layout or an archive into containerd.
func (e *Engine) importImage(ctx context.Context, ref string, from image.Reference, how image.Search) (readyImage, error) {
	match, err := parseMatcher(how.Platform)
	if err != nil {
		return readyImage{}, err
	}
	ctx, done, err := e.c.WithLease(ctx)
	if err != nil {
		return readyImage{}, simplifyError(err)
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }() // the lease expires after a day
	files, closeFiles, err := openArchive(from)
	if err != nil {
		return readyImage{}, err
	}
	index, err := archive.ImportIndex(ctx, e.c.ContentStore(), files)
	closeFiles()
	if err != nil {
		return readyImage{}, fmt.Errorf("open image %s: %w", ref, simplifyError(err))
	}
	one, err := e.pickManifest(ctx, index, from.Tag)
	if err != nil {
		return readyImage{}, fmt.Errorf("open image %s: %w", ref, err)
	}
	store := e.c.ContentStore()
	handler := images.SetChildrenLabels(store, images.FilterPlatforms(images.ChildrenHandler(store), match))
	if err := images.WalkNotEmpty(ctx, handler, one); err != nil {
		return readyImage{}, fmt.Errorf("open image %s: %w", ref, simplifyError(err))
	}
	meta := images.Image{Name: importPrefix + one.Digest.String(), Target: one}
	if _, err := e.c.ImageService().Create(ctx, meta); err != nil && !errdefs.IsAlreadyExists(err) {
		return readyImage{}, fmt.Errorf("keep image %s: %w", ref, simplifyError(err))
	}
	return e.unpackImage(ctx, client.NewImageWithPlatform(e.c, meta, match), how.Platform)
}

// pickManifest returns the image with a tag, or the only image.
func (e *Engine) pickManifest(ctx context.Context, index ocispec.Descriptor, tag string) (ocispec.Descriptor, error) {
	data, err := content.ReadBlob(ctx, e.c.ContentStore(), index)
	var list ocispec.Index
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return ocispec.Descriptor{}, simplifyError(err)
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

// openArchive opens a tar archive, or packs a layout into one.
func openArchive(r image.Reference) (content io.Reader, done func(), err error) {
	if r.Kind == image.Layout {
		out, in := io.Pipe()
		go func() { _ = in.CloseWithError(packLayout(in, r.Path)) }() // CloseWithError never fails
		return out, func() { _ = out.Close() }, nil
	}
	f, err := os.Open(r.Path)
	if err != nil {
		return nil, nil, err
	}
	content, end, err := image.Decompress(f)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("read %s: %w", r.Path, err), f.Close())
	}
	return content, func() { end(); f.Close() }, nil // only read
}

// packLayout writes a layout as an archive.
func packLayout(w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	return errors.Join(tw.AddFS(os.DirFS(dir)), tw.Close())
}
