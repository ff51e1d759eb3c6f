package containerd

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/image/resolver"
)

// pullResolver makes containerd's client read an image by package resolver, with the same hosts,
// credentials, limits and errors as berth without an engine.
type pullResolver struct {
	repository *resolver.Repository
	read       *atomic.Int64 // bytes of blobs
}

// Resolve asks the registry for the manifest or index of the image's name.
func (r pullResolver) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	d, err := r.repository.Resolve(ctx)
	return ref, ocispec.Descriptor{MediaType: d.MediaType, Digest: digest.Digest(d.Digest), Size: d.Size}, err
}

// Fetcher reads from the image's repository. Addresses in a descriptor are not followed.
func (r pullResolver) Fetcher(context.Context, string) (remotes.Fetcher, error) {
	return remotes.FetcherFunc(func(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
		body, err := r.repository.Fetch(ctx, registry.Descriptor{MediaType: d.MediaType, Digest: d.Digest.String(), Size: d.Size}, 0)
		if err != nil || images.IsManifestType(d.MediaType) || images.IsIndexType(d.MediaType) {
			return body, err
		}
		return countingBody{body, r.read}, nil
	}), nil
}

// Pusher returns an error, because berth pushes no images.
func (r pullResolver) Pusher(context.Context, string) (remotes.Pusher, error) {
	return nil, errors.New("berth pushes no images")
}

// countingBody counts the bytes that are read of a blob.
type countingBody struct {
	io.ReadCloser
	read *atomic.Int64
}

func (c countingBody) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// Seek is called when containerd already has a part of the blob.
func (c countingBody) Seek(offset int64, whence int) (int64, error) {
	s, ok := c.ReadCloser.(io.Seeker)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	return s.Seek(offset, whence)
}
