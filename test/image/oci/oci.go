// Package oci writes OCI image layouts for the demo and the tests. The same
// input gives the same bytes. It is no image builder: layers come as finished
// tar archives.
package oci

import (
	"compress/gzip"
	_ "crypto/sha256" // for go-digest
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is one image of a layout.
type Image struct {
	Tag    string
	Config ispec.ImageConfig
	Layers []Layer
	// Arch is "" for this machine's.
	Arch string
}

// Layer is a tar archive that is stored compressed.
type Layer struct {
	Tar io.Reader
	// Compression is "gzip", "zstd" or "" for none.
	Compression string
}

// Write makes a layout in dir, which must not exist or be empty.
func Write(dir string, images ...Image) error {
	if err := os.MkdirAll(filepath.Join(dir, ispec.ImageBlobsDir, "sha256"), 0o755); err != nil {
		return err
	}
	var entries []ispec.Descriptor
	for _, img := range images {
		d, err := writeImage(dir, img)
		if err != nil {
			return err
		}
		entries = append(entries, d)
	}
	return WriteIndex(dir, entries)
}

// WriteIndex writes a layout's index and marker; the blobs exist already.
func WriteIndex(dir string, entries []ispec.Descriptor) error {
	index := ispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ispec.MediaTypeImageIndex, Manifests: entries}
	if err := writeJSON(filepath.Join(dir, ispec.ImageIndexFile), index); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, ispec.ImageLayoutFile), ispec.ImageLayout{Version: ispec.ImageLayoutVersion})
}

func writeImage(dir string, img Image) (ispec.Descriptor, error) {
	config := ispec.Image{
		Platform: ispec.Platform{OS: "linux", Architecture: img.Arch},
		Config:   img.Config,
		RootFS:   ispec.RootFS{Type: "layers"},
	}
	if config.Architecture == "" {
		config.Architecture = runtime.GOARCH
	}
	m := ispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ispec.MediaTypeImageManifest}
	for _, l := range img.Layers {
		d, diff, err := writeLayer(dir, l)
		if err != nil {
			return ispec.Descriptor{}, err
		}
		m.Layers = append(m.Layers, d)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, diff)
	}
	var err error
	if m.Config, err = WriteBlob(dir, ispec.MediaTypeImageConfig, config); err != nil {
		return ispec.Descriptor{}, err
	}
	d, err := WriteBlob(dir, m.MediaType, m)
	d.Platform = &ispec.Platform{OS: "linux", Architecture: config.Architecture}
	if img.Tag != "" {
		d.Annotations = map[string]string{ispec.AnnotationRefName: img.Tag}
	}
	return d, err
}

// WriteBlob stores a value as JSON and describes it.
func WriteBlob(dir, mediaType string, v any) (ispec.Descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return ispec.Descriptor{}, err
	}
	d := ispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	return d, os.WriteFile(blobPath(dir, d.Digest), data, 0o644)
}

func writeLayer(dir string, l Layer) (d ispec.Descriptor, diff digest.Digest, err error) {
	f, err := os.CreateTemp(filepath.Join(dir, ispec.ImageBlobsDir), "layer")
	if err != nil {
		return d, "", err
	}
	blob, content := digest.Canonical.Digester(), digest.Canonical.Digester()
	w, mediaType, err := compressor(io.MultiWriter(f, blob.Hash()), l.Compression)
	if err != nil {
		return d, "", err
	}
	if _, err := io.Copy(io.MultiWriter(w, content.Hash()), l.Tar); err != nil {
		return d, "", err
	}
	if err := w.Close(); err != nil {
		return d, "", err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return d, "", err
	}
	if err := f.Chmod(0o644); err != nil {
		return d, "", err
	}
	if err := f.Close(); err != nil {
		return d, "", err
	}
	d = ispec.Descriptor{MediaType: mediaType, Digest: blob.Digest(), Size: size}
	return d, content.Digest(), os.Rename(f.Name(), blobPath(dir, d.Digest))
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func compressor(w io.Writer, kind string) (io.WriteCloser, string, error) {
	switch kind {
	case "gzip":
		return gzip.NewWriter(w), ispec.MediaTypeImageLayerGzip, nil
	case "zstd":
		z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
		return z, ispec.MediaTypeImageLayerZstd, err
	case "":
		return nopCloser{w}, ispec.MediaTypeImageLayer, nil
	}
	return nil, "", fmt.Errorf("compression %q is not known", kind)
}

func blobPath(dir string, d digest.Digest) string {
	return filepath.Join(dir, ispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
