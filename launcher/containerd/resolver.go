package containerd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/launcher/image/registry"
)

// resolver has containerd's client read from registries as berth does: the same
// credentials and certificates, and the same words when something is in the way.
type resolver struct {
	access registry.Access
	read   *atomic.Int64 // bytes of blobs
}

const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

func documents() []string {
	return []string{ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, dockerList, dockerManifest}
}

func (r resolver) open(ref string) (*registry.Repository, error) {
	name, err := registry.Parse(ref)
	if err != nil {
		return nil, err
	}
	return r.access.Open(name)
}

// Resolve asks what a name stands for.
func (r resolver) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	repo, err := r.open(ref)
	if err != nil {
		return "", ocispec.Descriptor{}, err
	}
	defer repo.Close()
	data, kind, err := repo.Manifest(ctx, "", documents())
	if err != nil {
		return "", ocispec.Descriptor{}, err
	}
	d := ocispec.Descriptor{MediaType: kind, Size: int64(len(data)), Digest: digest.FromBytes(data)}
	if wanted := digest.Digest(repo.Name().Digest); wanted != "" {
		if d.Digest = wanted.Algorithm().FromBytes(data); d.Digest != wanted {
			return "", d, errors.New("the registry's answer isn't what its digest says")
		}
	}
	return ref, d, nil
}

// Fetcher reads from the name's repository.
func (r resolver) Fetcher(_ context.Context, ref string) (remotes.Fetcher, error) {
	repo, err := r.open(ref)
	if err != nil {
		return nil, err
	}
	return remotes.FetcherFunc(func(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
		if strings.Contains(d.MediaType, "manifest") || strings.Contains(d.MediaType, "image.index") {
			data, _, err := repo.Manifest(ctx, d.Digest.String(), documents())
			return io.NopCloser(bytes.NewReader(data)), err
		}
		blob, err := repo.Blob(ctx, d.Digest.String(), 0)
		if err != nil {
			return nil, err
		}
		return counted{blob, r.read}, nil
	}), nil
}

// counted is a blob while it is read.
type counted struct {
	io.ReadCloser
	read *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// Pusher isn't: nothing here pushes.
func (r resolver) Pusher(context.Context, string) (remotes.Pusher, error) {
	return nil, errors.New("berth pushes no images")
}
