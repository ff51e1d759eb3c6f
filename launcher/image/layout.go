package image

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/inroot"
)

// Limits of what a layout may make us read and remember.
const (
	maxJSON      = 16 << 20 // bytes of an index, manifest or configuration
	maxNesting   = 4        // indexes inside indexes
	maxManifests = 4096     // entries over all indexes
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
	var m manifest
	if err := img.readBlob(desc, &m); err != nil {
		return err
	}
	switch m.Config.MediaType {
	case typeConfig, dockerConfig:
	default:
		return fmt.Errorf("manifest %s is of no container image: its configuration is %q", desc.Digest, m.Config.MediaType)
	}
	var c configuration
	if err := img.readBlob(m.Config, &c); err != nil {
		return err
	}
	if !fits(&c.platform) {
		return fmt.Errorf("image is for %s, this machine is %s", platformName(&c.platform), thisPlatform())
	}
	img.Config = c.Config
	img.layers, err = pair(m.Layers, c.RootFS.DiffIDs)
	return err
}

func (img *Image) checkVersion() error {
	data, err := img.read(layoutFile)
	if err != nil {
		return err
	}
	var l struct {
		Version string `json:"imageLayoutVersion"`
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return fmt.Errorf("read %s: %w", layoutFile, err)
	}
	if !strings.HasPrefix(l.Version, "1.") {
		return fmt.Errorf("layout version %q is not known, only 1.x", l.Version)
	}
	return nil
}

// choose walks the index down to the one manifest that is meant.
func (img *Image) choose(tag string) (descriptor, error) {
	data, err := img.read(indexFile)
	if err != nil {
		return descriptor{}, err
	}
	var top index
	if err := decode(data, &top, indexFile); err != nil {
		return descriptor{}, err
	}
	entries := top.Manifests
	if tag != "" {
		entries = slices.DeleteFunc(slices.Clone(entries), func(d descriptor) bool { return !tagged(d, tag) })
		if len(entries) == 0 {
			return descriptor{}, fmt.Errorf("no image is tagged %q; there are: %s", tag, tags(top.Manifests))
		}
	}
	w := walk{img: img}
	if err := w.collect(entries, 0); err != nil {
		return descriptor{}, err
	}
	switch {
	case len(w.found) == 1:
		return w.found[0], nil
	case len(w.found) > 1:
		return descriptor{}, fmt.Errorf("several images and no tag to choose by; there are: %s", tags(entries))
	case len(w.others) > 0:
		return descriptor{}, fmt.Errorf("no image for %s; there are: %s", thisPlatform(), strings.Join(w.others, ", "))
	}
	return descriptor{}, fmt.Errorf("the index lists no image")
}

// walk collects the manifests that run on this machine, each digest once.
type walk struct {
	img    *Image
	seen   int
	found  []descriptor
	others []string // platforms that don't fit
}

func (w *walk) collect(entries []descriptor, depth int) error {
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

func (w *walk) add(d descriptor, depth int) error {
	switch d.MediaType {
	case typeIndex, dockerList:
		var inner index
		if err := w.img.readBlob(d, &inner); err != nil {
			return err
		}
		return w.collect(inner.Manifests, depth+1)
	case typeManifest, dockerManifest:
	default:
		return nil // something that isn't an image may lie beside the images
	}
	if d.Platform != nil && !fits(d.Platform) {
		w.others = append(w.others, platformName(d.Platform))
		return nil
	}
	if !slices.ContainsFunc(w.found, func(f descriptor) bool { return f.Digest == d.Digest }) {
		w.found = append(w.found, d)
	}
	return nil
}

// refName is where the specification puts a tag.
const refName = "org.opencontainers.image.ref.name"

// containerdName is where containerd and Docker put the full name on export.
const containerdName = "io.containerd.image.name"

func tagged(d descriptor, tag string) bool {
	return d.Annotations[refName] == tag || d.Annotations[containerdName] == tag
}

func tags(entries []descriptor) string {
	var names []string
	for _, d := range entries {
		name := d.Annotations[refName]
		if name == "" {
			name = d.Annotations[containerdName]
		}
		if name == "" {
			name = string(d.Digest) + " (untagged)"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// fits: an image that doesn't say what it is for is taken at its word.
func fits(p *platform) bool {
	return (p.OS == "" || p.OS == "linux") && (p.Architecture == "" || p.Architecture == runtime.GOARCH)
}

func thisPlatform() string { return "linux/" + runtime.GOARCH }

func platformName(p *platform) string { return p.OS + "/" + p.Architecture }

func pair(blobs []descriptor, diffs []digest) ([]layer, error) {
	if len(blobs) != len(diffs) {
		return nil, fmt.Errorf("manifest has %d layers, configuration has %d", len(blobs), len(diffs))
	}
	if len(blobs) == 0 {
		return nil, fmt.Errorf("image has no layers")
	}
	for _, d := range diffs {
		if err := d.validate(); err != nil {
			return nil, fmt.Errorf("configuration: layer %q: %w", d, err)
		}
	}
	chain := chains(diffs)
	layers := make([]layer, len(blobs))
	for i := range blobs {
		layers[i] = layer{blob: blobs[i], diff: diffs[i], chain: chain[i]}
	}
	return layers, nil
}

// readBlob reads a small blob, checks it, and decodes it.
func (img *Image) readBlob(d descriptor, v any) error {
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
	if int64(len(data)) != d.Size || !d.Digest.fits(data) {
		return fmt.Errorf("blob %s is corrupt: its content has another size or digest", d.Digest)
	}
	return decode(data, v, string(d.Digest))
}

// decode refuses one kind of document where another was announced: a manifest
// and an index with the same digest could otherwise be taken for each other.
func decode(data []byte, v any, name string) error {
	var head struct {
		SchemaVersion int             `json:"schemaVersion"`
		Manifests     json.RawMessage `json:"manifests"`
		Layers        json.RawMessage `json:"layers"`
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
func blobPath(d descriptor) (string, error) {
	if err := d.Digest.validate(); err != nil {
		return "", fmt.Errorf("digest %q: %w", d.Digest, err)
	}
	return filepath.Join(blobsDir, d.Digest.path()), nil
}

// read reads a file of the layout. Strangers wrote it: links lead nowhere
// outside, and what is no regular file isn't opened.
func (img *Image) read(name string) ([]byte, error) {
	root, err := inroot.OpenRoot(img.layout)
	if err != nil {
		return nil, err
	}
	defer root.Close() // an O_PATH descriptor
	data, err := inroot.ReadFile(root, name, maxJSON)
	return data, err
}

// openBlob opens a layer's file as carefully as read does.
func (img *Image) openBlob(d descriptor) (*os.File, error) {
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
