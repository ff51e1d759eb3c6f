package image

import (
	_ "crypto/sha256" // for go-digest, as is the next
	_ "crypto/sha512"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"github.com/opencontainers/image-spec/specs-go"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/internal/inroot"
)

// Limits of what a layout may make us read and remember.
const (
	maxJSON      = 16 << 20 // bytes of an index, manifest or configuration
	maxNesting   = 4        // indexes inside indexes
	maxManifests = 4096     // entries over all indexes
)

// Media types of Docker's images, schema 2.
const (
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
)

func openLayout(ref, path, tag string) (*Image, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("find image %s: %w", ref, err)
	}
	img := &Image{Name: ref, layout: abs}
	if err := img.load(tag); err != nil {
		return nil, fmt.Errorf("open image %s: %w", ref, err)
	}
	return img, nil
}

func (img *Image) load(tag string) error {
	if err := img.checkVersion(); err != nil {
		return err
	}
	desc, err := img.choose(tag)
	if err != nil {
		return err
	}
	var m ispec.Manifest
	if err := img.readBlob(desc, &m); err != nil {
		return err
	}
	switch m.Config.MediaType {
	case ispec.MediaTypeImageConfig, dockerConfig:
	default:
		return fmt.Errorf("manifest %s is of no container image: its configuration is %q", desc.Digest, m.Config.MediaType)
	}
	var c ispec.Image
	if err := img.readBlob(m.Config, &c); err != nil {
		return err
	}
	if !fits(&c.Platform) {
		return fmt.Errorf("image is for %s, this machine is %s", platformName(&c.Platform), thisPlatform())
	}
	img.Config = c.Config
	img.layers, err = pair(m.Layers, c.RootFS.DiffIDs)
	return err
}

func (img *Image) checkVersion() error {
	data, err := img.read(ispec.ImageLayoutFile)
	if err != nil {
		return err
	}
	var l ispec.ImageLayout
	if err := json.Unmarshal(data, &l); err != nil {
		return fmt.Errorf("read %s: %w", ispec.ImageLayoutFile, err)
	}
	if !strings.HasPrefix(l.Version, "1.") {
		return fmt.Errorf("layout version %q is not known, only 1.x", l.Version)
	}
	return nil
}

// choose walks the index down to the one manifest that is meant.
func (img *Image) choose(tag string) (ispec.Descriptor, error) {
	data, err := img.read(ispec.ImageIndexFile)
	if err != nil {
		return ispec.Descriptor{}, err
	}
	var top ispec.Index
	if err := decode(data, &top, ispec.ImageIndexFile); err != nil {
		return ispec.Descriptor{}, err
	}
	entries := top.Manifests
	if tag != "" {
		entries = slices.DeleteFunc(slices.Clone(entries), func(d ispec.Descriptor) bool { return !tagged(d, tag) })
		if len(entries) == 0 {
			return ispec.Descriptor{}, fmt.Errorf("no image is tagged %q; there are: %s", tag, tags(top.Manifests))
		}
	}
	w := walk{img: img}
	if err := w.collect(entries, 0); err != nil {
		return ispec.Descriptor{}, err
	}
	switch {
	case len(w.found) == 1:
		return w.found[0], nil
	case len(w.found) > 1:
		return ispec.Descriptor{}, fmt.Errorf("several images and no tag to choose by; there are: %s", tags(entries))
	case len(w.others) > 0:
		return ispec.Descriptor{}, fmt.Errorf("no image for %s; there are: %s", thisPlatform(), strings.Join(w.others, ", "))
	}
	return ispec.Descriptor{}, fmt.Errorf("the index lists no image")
}

// walk collects the manifests that run on this machine, each digest once.
type walk struct {
	img    *Image
	seen   int
	found  []ispec.Descriptor
	others []string // platforms that don't fit
}

func (w *walk) collect(entries []ispec.Descriptor, depth int) error {
	if w.seen += len(entries); w.seen > maxManifests || depth > maxNesting {
		return fmt.Errorf("index is nested deeper than %d or lists more than %d manifests", maxNesting, maxManifests)
	}
	for _, d := range entries {
		if err := w.add(d, depth); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) add(d ispec.Descriptor, depth int) error {
	switch d.MediaType {
	case ispec.MediaTypeImageIndex, dockerList:
		var inner ispec.Index
		if err := w.img.readBlob(d, &inner); err != nil {
			return err
		}
		return w.collect(inner.Manifests, depth+1)
	case ispec.MediaTypeImageManifest, dockerManifest:
	default:
		return nil // something that isn't an image may lie beside the images
	}
	if d.Platform != nil && !fits(d.Platform) {
		w.others = append(w.others, platformName(d.Platform))
		return nil
	}
	if !slices.ContainsFunc(w.found, func(f ispec.Descriptor) bool { return f.Digest == d.Digest }) {
		w.found = append(w.found, d)
	}
	return nil
}

// containerdName is where containerd and Docker put the full name on export.
const containerdName = "io.containerd.image.name"

func tagged(d ispec.Descriptor, tag string) bool {
	return d.Annotations[ispec.AnnotationRefName] == tag || d.Annotations[containerdName] == tag
}

func tags(entries []ispec.Descriptor) string {
	var names []string
	for _, d := range entries {
		name := d.Annotations[ispec.AnnotationRefName]
		if name == "" {
			name = d.Annotations[containerdName]
		}
		if name == "" {
			name = d.Digest.String() + " (untagged)"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// fits: an image that doesn't say what it is for is taken at its word.
func fits(p *ispec.Platform) bool {
	return (p.OS == "" || p.OS == "linux") && (p.Architecture == "" || p.Architecture == runtime.GOARCH)
}

func thisPlatform() string { return "linux/" + runtime.GOARCH }

func platformName(p *ispec.Platform) string { return p.OS + "/" + p.Architecture }

func pair(blobs []ispec.Descriptor, diffs []digest.Digest) ([]layer, error) {
	if len(blobs) != len(diffs) {
		return nil, fmt.Errorf("manifest has %d layers, configuration has %d", len(blobs), len(diffs))
	}
	if len(blobs) == 0 {
		return nil, fmt.Errorf("image has no layers")
	}
	for _, d := range diffs {
		if err := d.Validate(); err != nil {
			return nil, fmt.Errorf("configuration: layer %q: %w", d, err)
		}
	}
	chain := identity.ChainIDs(slices.Clone(diffs))
	layers := make([]layer, len(blobs))
	for i := range blobs {
		layers[i] = layer{blob: blobs[i], diff: diffs[i], chain: chain[i]}
	}
	return layers, nil
}

// readBlob reads a small blob, checks it, and decodes it.
func (img *Image) readBlob(d ispec.Descriptor, v any) error {
	path, err := blobPath(d)
	if err != nil {
		return err
	}
	if d.Size > maxJSON {
		return fmt.Errorf("blob %s: %d bytes are more than a description needs", d.Digest, d.Size)
	}
	data, err := img.read(path)
	if err != nil {
		return err
	}
	if int64(len(data)) != d.Size || d.Digest.Algorithm().FromBytes(data) != d.Digest {
		return fmt.Errorf("blob %s is corrupt: its content has another size or digest", d.Digest)
	}
	return decode(data, v, d.Digest.String())
}

// decode refuses one kind of document where another was announced: a manifest
// and an index with the same digest could otherwise be taken for each other.
func decode(data []byte, v any, name string) error {
	var head struct {
		specs.Versioned
		Manifests json.RawMessage `json:"manifests"`
		Layers    json.RawMessage `json:"layers"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if head.Manifests != nil && head.Layers != nil {
		return fmt.Errorf("read %s: it is both an index and a manifest", name)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// blobPath is where a blob lies in its layout.
func blobPath(d ispec.Descriptor) (string, error) {
	if err := d.Digest.Validate(); err != nil {
		return "", fmt.Errorf("digest %q: %w", d.Digest, err)
	}
	return filepath.Join(ispec.ImageBlobsDir, d.Digest.Algorithm().String(), d.Digest.Encoded()), nil
}

// read reads a file of the layout. Strangers wrote it: links lead nowhere
// outside, and what is no regular file isn't opened.
func (img *Image) read(name string) ([]byte, error) {
	root, err := inroot.OpenRoot(img.layout)
	if err != nil {
		return nil, err
	}
	defer root.Close() // an O_PATH descriptor
	data, _, err := inroot.ReadFile(root, name, maxJSON)
	return data, err
}

// openBlob opens a layer's file as carefully as read does.
func (img *Image) openBlob(d ispec.Descriptor) (*os.File, error) {
	path, err := blobPath(d)
	if err != nil {
		return nil, err
	}
	root, err := inroot.OpenRoot(img.layout)
	if err != nil {
		return nil, err
	}
	defer root.Close() // an O_PATH descriptor
	return inroot.OpenFile(root, path)
}
