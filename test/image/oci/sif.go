package oci

import (
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// WriteSIFs makes a layout in dir with one artifact, as apptainer push writes it, whose layers are these SIF files.
func WriteSIFs(dir, tag string, files ...[]byte) error {
	if err := os.MkdirAll(filepath.Join(dir, ispec.ImageBlobsDir, "sha256"), 0o755); err != nil {
		return err
	}
	m := ispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ispec.MediaTypeImageManifest}
	for _, data := range files {
		d := ispec.Descriptor{MediaType: "application/vnd.sylabs.sif.layer.v1.sif", Digest: digest.FromBytes(data), Size: int64(len(data))}
		if err := os.WriteFile(blobPath(dir, d.Digest), data, 0o644); err != nil {
			return err
		}
		m.Layers = append(m.Layers, d)
	}
	var err error
	if m.Config, err = WriteBlob(dir, "application/vnd.sylabs.sif.config.v1+json", struct{}{}); err != nil {
		return err
	}
	d, err := WriteBlob(dir, m.MediaType, m)
	d.Annotations = map[string]string{ispec.AnnotationRefName: tag}
	if err != nil {
		return err
	}
	return WriteIndex(dir, []ispec.Descriptor{d})
}
