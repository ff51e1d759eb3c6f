package launcher

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/launcher/image"
)

// writeOneLayerImage makes an OCI layout and returns it, with the digest of its only layer.
func writeOneLayerImage(t *testing.T) (dir, digest string) {
	t.Helper()
	dir = t.TempDir()
	write := func(name string, data []byte) {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(kind string, data []byte) (descriptor, digest string) {
		digest = fmt.Sprintf("%x", sha256.Sum256(data))
		write("blobs/sha256/"+digest, data)
		return fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%d}`, kind, digest, len(data)), digest
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "file", Mode: 0o644}), w.Close()); err != nil {
		t.Fatal(err)
	}
	layer, digest := blob("layer.v1.tar", archive.Bytes())
	config, _ := blob("config.v1+json", fmt.Appendf(nil, `{"os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}`, digest))
	manifest, _ := blob("manifest.v1+json", fmt.Appendf(nil, `{"schemaVersion":2,"config":%s,"layers":[%s]}`, config, layer))
	write("index.json", fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[%s]}`, manifest))
	write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return dir, digest
}

// A task whose request can never be granted isn't kept waiting for its image.
func TestUnpackIsGivenUp(t *testing.T) {
	layout, layer := writeOneLayerImage(t)
	data := t.TempDir()
	busy := filepath.Join(data, "images/sha256", layer)
	if err := os.MkdirAll(busy, 0o700); err != nil {
		t.Fatal(err)
	}
	unpacking, err := os.Open(busy) // another task, which never gets done
	if err != nil {
		t.Fatal(err)
	}
	defer unpacking.Close() // only locked
	if err := lock.TryAcquire(int(unpacking.Fd()), lock.Exclusive); err != nil {
		t.Fatal(err)
	}
	img, err := image.Open("oci:" + layout)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waits, never := make(chan struct{}), errors.New("99 GPUs are more than there are")
	o := Options{Data: data, Progress: func(p image.Progress) {
		if p.Waiting && waits != nil {
			close(waits)
			waits = nil
		}
	}}
	waiting := waits
	_, err = o.unpackLayers(ctx, img, func() (map[string]string, error) {
		<-waiting
		return nil, never
	})
	if !errors.Is(err, never) {
		t.Errorf("got %v", err)
	}
	if ctx.Err() != nil {
		t.Error("it was waited for to the end")
	}
}
