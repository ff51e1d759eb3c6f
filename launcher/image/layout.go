package image

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/launcher/image/layertree"
)

// Limits for untrusted documents.
const (
	maxJSON      = 16 << 20 // bytes of an index, manifest or configuration
	maxNesting   = 4        // indexes inside indexes
	maxManifests = 4096     // entries over all indexes
)

// origin is the source of an image's documents and layers.
type origin interface {
	// document returns a small blob. The caller verifies it.
	document(ctx context.Context, d descriptor) ([]byte, error)
	// layer opens a layer's blob. The caller verifies it. part is a file in which a download may store
	// what it has received, "" for none.
	layer(ctx context.Context, l layer, part string) (source, error)
	close()
}

// source is one layer's blob, which is read once.
type source struct {
	read  func([]byte) (int, error)
	close func()
	// proof identifies these bytes, so that a blob that was verified needn't be read again. "" if nothing
	// identifies them.
	proof string
	// retry means that a corrupt blob should be read again.
	retry bool
	// unpack adds the files of a blob that is no archive, and verifies what it reads. It takes the place of read.
	unpack func(ctx context.Context, t *layertree.Tree, add func(int)) error
}

func (s source) Read(p []byte) (int, error) { return s.read(p) }

// layoutOrigin is an OCI image layout, in a directory or an archive.
type layoutOrigin struct{ files files }

func (o layoutOrigin) close() { o.files.close() }

func (o layoutOrigin) document(_ context.Context, d descriptor) ([]byte, error) {
	path, err := blobPath(d)
	if err != nil {
		return nil, err
	}
	return o.files.read(path)
}

func (o layoutOrigin) layer(_ context.Context, l layer, _ string) (source, error) {
	path, err := blobPath(l.blob)
	if err != nil {
		return source{}, err
	}
	return o.files.open(path, string(l.blob.Digest))
}

// openLayout opens the image of a tag. With the tag "" the layout must have one image.
func openLayout(ref string, files files, tag string, want platform) (*Image, error) {
	o := layoutOrigin{files}
	img, err := o.findImage(tag, want)
	if err != nil {
		o.close()
		return nil, fmt.Errorf("open image %s: %w", ref, err)
	}
	img.Name = ref
	return img, nil
}

func (o layoutOrigin) findImage(tag string, want platform) (*Image, error) {
	if err := o.checkVersion(); err != nil {
		return nil, err
	}
	ctx := context.Background() // reading files can't be cancelled
	d, err := o.chooseManifest(ctx, tag, want)
	if err != nil {
		return nil, err
	}
	return loadImage(ctx, o, d, want)
}

func (o layoutOrigin) checkVersion() error {
	data, err := o.files.read(layoutFile)
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

// chooseManifest returns the manifest of a tag for a platform.
func (o layoutOrigin) chooseManifest(ctx context.Context, tag string, want platform) (descriptor, error) {
	data, err := o.files.read(indexFile)
	if err != nil {
		return descriptor{}, err
	}
	var top index
	if err := decodeDocument(data, &top, indexFile); err != nil {
		return descriptor{}, err
	}
	entries := top.Manifests
	if tag != "" {
		entries = slices.DeleteFunc(slices.Clone(entries), func(d descriptor) bool { return !hasTag(d, tag) })
		if len(entries) == 0 {
			return descriptor{}, fmt.Errorf("no image is tagged %q; there are: %s", tag, listTags(top.Manifests))
		}
	}
	return pickManifest(ctx, o, entries, want)
}

// loadImage reads manifest and configuration of an image.
func loadImage(ctx context.Context, o origin, d descriptor, want platform) (*Image, error) {
	var m manifest
	if err := readBlob(ctx, o, d, &m); err != nil {
		return nil, err
	}
	switch m.Config.MediaType {
	case typeConfig, dockerConfig:
	default:
		return nil, fmt.Errorf("manifest %s is of no container image: its configuration is %q", d.Digest, m.Config.MediaType)
	}
	var c configuration
	if err := readBlob(ctx, o, m.Config, &c); err != nil {
		return nil, err
	}
	if err := c.checkPlatform(want); err != nil {
		return nil, err
	}
	layers, err := pairLayers(m.Layers, c.RootFS.DiffIDs)
	if err != nil {
		return nil, err
	}
	return &Image{Config: c.Config, Digest: string(d.Digest), origin: o, layers: layers, manifest: d, config: m.Config, created: c.Created}, nil
}

func (c configuration) checkPlatform(want platform) error {
	if !c.suits(want) {
		return fmt.Errorf("image is for %s, and %s is wanted%.0w", c.platform, want, ErrPlatform)
	}
	return nil
}

// pickManifest returns the only image for a platform among the entries of an index and of nested indexes.
func pickManifest(ctx context.Context, o origin, entries []descriptor, want platform) (descriptor, error) {
	w := manifestSearch{ctx: ctx, origin: o, want: want}
	if err := w.collectManifests(entries, 0); err != nil {
		return descriptor{}, err
	}
	switch {
	case len(w.found) == 1:
		return w.found[0], nil
	case len(w.found) > 1:
		return descriptor{}, fmt.Errorf("several images and no tag to choose by; there are: %s", listTags(entries))
	case len(w.others) > 0:
		return descriptor{}, fmt.Errorf("no image for %s; there are: %s%.0w", want, strings.Join(w.others, ", "), ErrPlatform)
	}
	return descriptor{}, fmt.Errorf("the index lists no image")
}

// manifestSearch collects the manifests for a platform, each digest once.
type manifestSearch struct {
	ctx    context.Context
	origin origin
	want   platform
	seen   int
	found  []descriptor
	others []string // other platforms
}

func (w *manifestSearch) collectManifests(entries []descriptor, depth int) error {
	if w.seen += len(entries); w.seen > maxManifests || depth > maxNesting {
		return fmt.Errorf("index is nested deeper than %d or lists more than %d manifests", maxNesting, maxManifests)
	}
	before := len(w.found)
	for _, d := range entries {
		if err := w.addManifest(d, depth); err != nil {
			return err
		}
		if depth > 0 && len(w.found) > before {
			return nil // of the variants of one image, only the first match
		}
	}
	return nil
}

func (w *manifestSearch) addManifest(d descriptor, depth int) error {
	switch d.MediaType {
	case typeIndex, dockerList:
		var inner index
		if err := readBlob(w.ctx, w.origin, d, &inner); err != nil {
			return err
		}
		return w.collectManifests(inner.Manifests, depth+1)
	case typeManifest, dockerManifest:
	default:
		return nil // an index may also list other artifacts
	}
	if d.Platform != nil && !d.Platform.suits(w.want) {
		w.others = append(w.others, d.Platform.String())
		return nil
	}
	if !slices.ContainsFunc(w.found, func(f descriptor) bool { return f.Digest == d.Digest }) {
		w.found = append(w.found, d)
	}
	return nil
}

// refName is the specification's annotation for a tag.
const refName = "org.opencontainers.image.ref.name"

// containerdName is the annotation in which containerd and docker export the full name.
const containerdName = "io.containerd.image.name"

func hasTag(d descriptor, tag string) bool {
	return d.Annotations[refName] == tag || d.Annotations[containerdName] == tag
}

func listTags(entries []descriptor) string {
	var names []string
	for _, d := range entries {
		names = append(names, cmp.Or(d.Annotations[refName], d.Annotations[containerdName], string(d.Digest)+" (untagged)"))
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

func pairLayers(blobs []descriptor, diffs []digest) ([]layer, error) {
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
	chain := chainIDs(diffs)
	layers := make([]layer, len(blobs))
	for i := range blobs {
		layers[i] = layer{blob: blobs[i], diff: diffs[i], chain: chain[i]}
	}
	return layers, nil
}

// readBlob reads, verifies and decodes a small blob.
func readBlob(ctx context.Context, o origin, d descriptor, v any) error {
	if err := checkDocument(d); err != nil {
		return err
	}
	data, err := o.document(ctx, d)
	if err != nil {
		return err
	}
	if err := checkBlob(d, data); err != nil {
		return err
	}
	return decodeDocument(data, v, string(d.Digest))
}

func checkDocument(d descriptor) error {
	if err := d.Digest.validate(); err != nil {
		return fmt.Errorf("digest %q: %w", d.Digest, err)
	}
	if d.Size < 0 || d.Size > maxJSON {
		return fmt.Errorf("blob %s: %d bytes are more than a description needs", d.Digest, d.Size)
	}
	return nil
}

func checkBlob(d descriptor, data []byte) error {
	if int64(len(data)) != d.Size || !d.Digest.matches(data) {
		return fmt.Errorf("blob %s is corrupt: its content has another size or digest", d.Digest)
	}
	return nil
}

// decodeDocument decodes a JSON document. A document that is both an index and a manifest is an error: it could
// otherwise be interpreted in two ways.
func decodeDocument(data []byte, v any, name string) error {
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

// blobPath returns the path of a blob in a layout.
func blobPath(d descriptor) (string, error) {
	if err := d.Digest.validate(); err != nil {
		return "", fmt.Errorf("digest %q: %w", d.Digest, err)
	}
	return filepath.Join(blobsDir, d.Digest.path()), nil
}
