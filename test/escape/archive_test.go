package escape

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// archive makes an image of the attacker's root: the environment, labels and
// annotations are what the author says in it. It is an OCI layout, and for docker what
// that reads of one.
func (s *scene) archive() string {
	s.t.Helper()
	layer := s.layer()
	diff := digest.FromBytes(layer)
	var image oci.Image
	image.Architecture, image.OS = "amd64", "linux"
	image.Config = oci.ImageConfig{Env: s.spec.Process.Env, Cmd: s.spec.Process.Args, Labels: s.spec.Annotations}
	image.RootFS = oci.RootFS{Type: "layers", DiffIDs: []digest.Digest{diff}}
	config := s.encode(image)
	manifest := oci.Manifest{
		MediaType: oci.MediaTypeImageManifest, Annotations: s.spec.Annotations,
		Config: describe(oci.MediaTypeImageConfig, config), Layers: []oci.Descriptor{describe(oci.MediaTypeImageLayer, layer)},
	}
	manifest.SchemaVersion = 2
	text := s.encode(manifest)
	top := describe(oci.MediaTypeImageManifest, text)
	top.Annotations = map[string]string{"io.containerd.image.name": s.name(), oci.AnnotationRefName: s.name()}
	index := oci.Index{Manifests: []oci.Descriptor{top}}
	index.SchemaVersion = 2
	files := map[string][]byte{
		oci.ImageLayoutFile: []byte(`{"imageLayoutVersion":"1.0.0"}`), oci.ImageIndexFile: s.encode(index),
		blob(layer): layer, blob(config): config, blob(text): text,
	}
	if s.w.engine.docker {
		files["manifest.json"] = s.encode([]map[string]any{{"Config": blob(config), "RepoTags": []string{s.name()}, "Layers": []string{blob(layer)}}})
	}
	return s.pack(files)
}

func describe(kind string, data []byte) oci.Descriptor {
	return oci.Descriptor{MediaType: kind, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

// blob is where data stands in a layout.
func blob(data []byte) string {
	sum := sha256.Sum256(data)
	return "blobs/sha256/" + hex.EncodeToString(sum[:])
}

func (s *scene) encode(v any) []byte {
	s.t.Helper()
	data, err := json.Marshal(v)
	s.runCommand(err)
	return data
}

// pack writes files into an archive beside the bundle.
func (s *scene) pack(files map[string][]byte) string {
	s.t.Helper()
	path := filepath.Join(filepath.Dir(s.bundle), "image.tar")
	out, err := os.Create(path)
	s.runCommand(err)
	defer out.Close()
	w := tar.NewWriter(out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		s.runCommand(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}))
		_, err := w.Write(files[name])
		s.runCommand(err)
	}
	s.runCommand(w.Close())
	return path
}

// layer is the whole root, its pipes and devices too.
func (s *scene) layer() []byte {
	s.t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	s.runCommand(filepath.WalkDir(s.root, func(path string, e fs.DirEntry, err error) error {
		name := strings.TrimPrefix(strings.TrimPrefix(path, s.root), "/")
		if err != nil || name == "" {
			return err
		}
		return add(w, path, name, e)
	}))
	s.runCommand(w.Close())
	return out.Bytes()
}

func add(w *tar.Writer, path, name string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	target := ""
	if e.Type()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	if h.Name = name; e.IsDir() {
		h.Name += "/"
	}
	if err := w.WriteHeader(h); err != nil || !e.Type().IsRegular() {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
