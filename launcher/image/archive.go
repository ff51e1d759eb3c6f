package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/image/layertree"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// Limits of an archive with images.
const (
	maxMembers = 1 << 16  // files in it
	maxNames   = 16 << 20 // bytes of their names and links, which are kept in memory
	maxArchive = 1 << 40  // bytes of it, decompressed
	maxHops    = 8        // links to links
)

// archive is a tar archive with the files of an image, which are read in place. A compressed archive is
// first decompressed into an unnamed temporary file.
type archive struct {
	file    *os.File
	members map[string]member
}

// member is the position of a file's content in the archive, or the target of a link.
type member struct {
	at, size int64
	link     string
}

// openArchive opens an archive and lists its files. temp is the directory for a decompressed archive.
func openArchive(file, temp string) (*archive, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := checkRegular(f); err != nil {
		f.Close() // it was only read
		return nil, err
	}
	whole, err := decompressArchive(f, temp)
	if err != nil {
		f.Close() // it was only read
		return nil, err
	}
	a := &archive{file: whole, members: map[string]member{}}
	if err := a.listMembers(); err != nil {
		a.close()
		return nil, fmt.Errorf("read archive: %w", err)
	}
	return a, nil
}

func checkRegular(f *os.File) error {
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	return err
}

// decompressArchive returns f, or closes f and returns a file with its decompressed content.
func decompressArchive(f *os.File, temp string) (*os.File, error) {
	var head [magicSize]byte
	if n, _ := f.ReadAt(head[:], 0); detectCompression(head[:n]) == plain { // a short file isn't compressed
		return f, nil
	}
	content, done, err := Decompress(io.NewSectionReader(f, 0, maxArchive))
	if err != nil {
		return nil, err
	}
	defer done()
	if err := os.MkdirAll(temp, 0o700); err != nil {
		return nil, err
	}
	fd, err := unix.Open(temp, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make a file in %s: %w", temp, err)
	}
	out := os.NewFile(uintptr(fd), "decompressed archive")
	n, err := io.Copy(out, io.LimitReader(content, maxArchive))
	if err == nil && n == maxArchive {
		err = fmt.Errorf("it is larger than %d bytes", int64(maxArchive))
	}
	if err != nil {
		out.Close() // removes the unnamed file
		return nil, fmt.Errorf("decompress: %w", err)
	}
	f.Close() // only read
	return out, nil
}

func (a *archive) close() { a.file.Close() }

func (a *archive) listMembers() error {
	position := &offsetReader{f: a.file}
	r := tar.NewReader(position)
	names := 0
	for range maxMembers {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if names += len(h.Name) + len(h.Linkname); names > maxNames {
			return fmt.Errorf("the names of its files are longer than %d MB", maxNames>>20)
		}
		switch name := layertree.CleanName(h.Name); h.Typeflag {
		case tar.TypeReg:
			a.members[name] = member{at: position.at, size: h.Size}
		case tar.TypeSymlink: // docker's older archives name a layer twice
			a.members[name] = member{link: layertree.CleanName(path.Join(path.Dir(name), h.Linkname))}
		case tar.TypeLink:
			a.members[name] = member{link: layertree.CleanName(h.Linkname)}
		}
	}
	return fmt.Errorf("it has more than %d files", maxMembers)
}

// offsetReader is an io.ReadSeeker that exposes its offset, so that tar.Reader can skip content and
// listMembers knows where content begins.
type offsetReader struct {
	f  *os.File
	at int64
}

func (s *offsetReader) Read(p []byte) (int, error) {
	n, err := s.f.ReadAt(p, s.at)
	s.at += int64(n)
	return n, err
}

func (s *offsetReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += s.at
	case io.SeekEnd:
		fi, err := s.f.Stat()
		if err != nil {
			return 0, err
		}
		offset += fi.Size()
	}
	if offset < 0 {
		return 0, errors.New("seek to before the beginning")
	}
	s.at = offset
	return offset, nil
}

func (a *archive) hasMember(name string) bool {
	_, ok := a.members[name]
	return ok
}

func (a *archive) findMember(name string) (member, error) {
	for range maxHops {
		m, ok := a.members[layertree.CleanName(name)]
		if !ok {
			return member{}, fmt.Errorf("the archive has no file %q", name)
		}
		if m.link == "" {
			return m, nil
		}
		name = m.link
	}
	return member{}, fmt.Errorf("the archive's %q leads nowhere", name)
}

func (a *archive) read(name string) ([]byte, error) {
	m, err := a.findMember(name)
	if err != nil {
		return nil, err
	}
	if m.size > maxJSON {
		return nil, fmt.Errorf("%s: %d bytes are more than a description needs", name, m.size)
	}
	data := make([]byte, m.size)
	if _, err := a.file.ReadAt(data, m.at); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

func (a *archive) open(name, digest string) (source, error) {
	m, err := a.findMember(name)
	if err != nil {
		return source{}, err
	}
	return openSection(a.file, m.at, m.size, digest), nil
}

// dockerOrigin is an archive of docker save. It has digests only of the contents of layers and, as a file
// name, of the configuration.
type dockerOrigin struct{ *archive }

func (o dockerOrigin) document(context.Context, descriptor) ([]byte, error) {
	return nil, errors.New("an archive of docker save has no documents by digest")
}

func (o dockerOrigin) layer(_ context.Context, l layer, _ string) (source, error) {
	return o.open(l.member, string(l.diff))
}

// dockerManifestFile is the list of images.
const dockerManifestFile = "manifest.json"

// dockerEntry is one image of a manifest.json, as docker save writes it.
type dockerEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// openDocker opens an image in an archive of docker save. With the tag "" the archive must have one image.
func openDocker(ref string, a *archive, tag string, want platform) (*Image, error) {
	img, err := findDocker(a, tag, want)
	if err != nil {
		a.close()
		return nil, fmt.Errorf("open image %s: %w", ref, err)
	}
	img.Name = ref
	return img, nil
}

func findDocker(a *archive, tag string, want platform) (*Image, error) {
	data, err := a.read(dockerManifestFile)
	if err != nil {
		return nil, err
	}
	var entries []dockerEntry
	if err := json.Unmarshal(data, &entries); err != nil {
		return nil, fmt.Errorf("read manifest.json: %w", err)
	}
	e, err := chooseDocker(entries, tag)
	if err != nil {
		return nil, err
	}
	var c configuration
	if data, err = a.read(e.Config); err == nil {
		err = decodeDocument(data, &c, e.Config)
	}
	if err != nil {
		return nil, err
	}
	if err := c.checkPlatform(want); err != nil {
		return nil, err
	}
	blobs := make([]descriptor, len(e.Layers))
	for i, name := range e.Layers {
		m, err := a.findMember(name)
		if err != nil {
			return nil, err
		}
		blobs[i] = descriptor{MediaType: typeLayer, Size: m.size}
	}
	layers, err := pairLayers(blobs, c.RootFS.DiffIDs)
	if err != nil {
		return nil, err
	}
	for i, name := range e.Layers {
		layers[i].member = name
	}
	return &Image{Config: c.Config, origin: dockerOrigin{a}, layers: layers, created: c.Created}, nil
}

func chooseDocker(entries []dockerEntry, tag string) (dockerEntry, error) {
	if tag == "" {
		switch len(entries) {
		case 0:
			return dockerEntry{}, errors.New("the archive lists no image")
		case 1:
			return entries[0], nil
		}
		return dockerEntry{}, fmt.Errorf("several images and no tag to choose by; there are: %s", listDockerTags(entries))
	}
	full := parseFullName(tag)
	for _, e := range entries {
		for _, t := range e.RepoTags {
			_, version, _ := strings.Cut(path.Base(t), ":")
			if t == tag || version == tag || full != "" && parseFullName(t) == full {
				return e, nil
			}
		}
	}
	return dockerEntry{}, fmt.Errorf("no image is tagged %q; there are: %s", tag, listDockerTags(entries))
}

// parseFullName returns the full form of a name, "" for an invalid one.
func parseFullName(text string) string {
	n, err := registry.Parse(text)
	if err != nil {
		return ""
	}
	return n.String()
}

func listDockerTags(entries []dockerEntry) string {
	names := map[string]bool{}
	for _, e := range entries {
		for _, t := range e.RepoTags {
			names[t] = true
		}
		if len(e.RepoTags) == 0 {
			names[e.Config+" (untagged)"] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}
