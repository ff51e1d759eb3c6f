package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/image/registry"
)

// Repository is a repository of a registry. It is safe for concurrent use.
type Repository interface {
	// Resolve asks the registry for the manifest or index of the repository's name. The answer is not
	// verified.
	Resolve(ctx context.Context) (registry.Descriptor, error)
	// Fetch reads a document or blob, beginning at offset from. The content is not verified. An error in
	// the middle means that the connection broke: another Fetch may continue.
	Fetch(ctx context.Context, d registry.Descriptor, from int64) (io.ReadCloser, error)
}

// remote is the origin of an image of a registry. Documents are stored in the store.
type remote struct {
	store   Store
	name    registry.Name
	connect func() (Repository, error) // connects once; an error if nothing may be fetched
}

func (s Store) openRemote(ctx context.Context, name registry.Name, how Search) *remote {
	r := &remote{store: s, name: name}
	r.connect = sync.OnceValues(func() (Repository, error) {
		if how.Connect == nil || how.Pull == Never {
			return nil, fmt.Errorf("a part of %s %w, and pulling wasn't wanted", name, ErrNotHere)
		}
		return how.Connect(ctx, name)
	})
	return r
}

// close leaves the connections open. They are closed when they are idle, or by the end of the process.
func (r *remote) close() {}

// fetchTop fetches the manifest or index of the name, and returns its descriptor and content.
func (r *remote) fetchTop(ctx context.Context) (descriptor, []byte, error) {
	repository, err := r.connect()
	if err != nil {
		return descriptor{}, nil, err
	}
	said, err := repository.Resolve(ctx)
	if err != nil {
		return descriptor{}, nil, err
	}
	d := descriptor{MediaType: said.MediaType, Digest: digest(said.Digest), Size: said.Size}
	if r.name.Digest != "" {
		d.Digest = digest(r.name.Digest)
	}
	data, err := r.document(ctx, d)
	if err != nil {
		return descriptor{}, nil, err
	}
	d.MediaType = documentType(data, said.MediaType)
	switch d.MediaType {
	case typeManifest, typeIndex, dockerManifest, dockerList:
		return d, data, nil
	}
	return descriptor{}, nil, fmt.Errorf("its manifest is of type %q, which is not known", d.MediaType)
}

// documentType returns the media type in a document, or else the one in the registry's answer.
func documentType(data []byte, said string) string {
	var own struct {
		MediaType string `json:"mediaType"`
	}
	if err := decodeDocument(data, &own, "manifest"); err == nil && own.MediaType != "" {
		return own.MediaType
	}
	said, _, _ = strings.Cut(said, ";")
	return strings.TrimSpace(said)
}

// document returns a verified document from the store, or else fetches, verifies and stores it.
func (r *remote) document(ctx context.Context, d descriptor) ([]byte, error) {
	if data, err := r.store.readDocument(d); err == nil {
		return data, nil
	}
	if err := checkDocument(d); err != nil {
		return nil, err
	}
	src := r.newDownload(ctx, d, "")
	defer src.close()
	data, err := io.ReadAll(src)
	if err == nil {
		err = checkBlob(d, data)
	}
	if err != nil {
		return nil, err
	}
	return data, r.store.writeDocument(d, data)
}

func (r *remote) layer(ctx context.Context, l layer, part string) (source, error) {
	if err := l.blob.Digest.validate(); err != nil {
		return source{}, fmt.Errorf("digest %q: %w", l.blob.Digest, err)
	}
	if l.blob.Size < 0 {
		return source{}, fmt.Errorf("blob %s: its size is %d", l.blob.Digest, l.blob.Size)
	}
	src := r.newDownload(ctx, l.blob, part)
	src.proof, src.retry = "blob "+string(l.blob.Digest), true
	return src, nil
}

func (r *remote) newDownload(ctx context.Context, d descriptor, part string) source {
	dl := &download{ctx: ctx, from: r, d: d, part: part}
	return source{read: dl.Read, close: dl.close}
}

// download reads a blob from a registry. After a broken connection it continues at the same offset. A
// download of an earlier process is continued as long as its part file exists.
type download struct {
	ctx        context.Context
	from       *remote
	repository Repository
	d          descriptor
	part       string
	file       *os.File // the part file, nil without one
	kept       int64    // bytes in the part file at the beginning
	at         int64
	body       io.ReadCloser
	failures   int // since the last byte was received
}

// downloadError is the error of a download that can be continued later.
type downloadError struct{ error }

func (e downloadError) Unwrap() error { return e.error }

// Limits of the attempts to continue after a broken connection.
const (
	maxFailures = 6
	firstPause  = 200 * time.Millisecond
	longPause   = 5 * time.Second
)

// Read returns at least one byte or an error.
func (d *download) Read(p []byte) (int, error) {
	if d.repository == nil || d.part != "" && d.file == nil {
		if err := d.openPart(); err != nil {
			return 0, err
		}
	}
	for {
		n, err := d.readSome(p)
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (d *download) openPart() (err error) {
	if d.repository == nil {
		if d.repository, err = d.from.connect(); err != nil {
			return err
		}
	}
	if d.part == "" {
		return nil
	}
	d.file, err = os.OpenFile(d.part, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	fi, err := d.file.Stat()
	if err != nil {
		return err
	}
	if d.kept = fi.Size(); d.kept > d.d.Size {
		d.kept = 0
		return d.file.Truncate(0)
	}
	return nil
}

// readSome reads bytes from the part file, or else from the registry. 0 without an error means that the
// connection was lost and readSome has to be called again.
func (d *download) readSome(p []byte) (int, error) {
	p = p[:min(int64(len(p)), d.d.Size-d.at)]
	if len(p) == 0 {
		return 0, io.EOF
	}
	if d.at < d.kept {
		n, err := d.file.ReadAt(p[:min(int64(len(p)), d.kept-d.at)], d.at)
		d.at += int64(n)
		return n, err
	}
	if d.body == nil {
		if err := d.connectAgain(); err != nil {
			return 0, err
		}
	}
	n, err := d.body.Read(p)
	if n > 0 {
		d.failures = 0
		if d.file != nil {
			if _, err := d.file.WriteAt(p[:n], d.at); err != nil {
				return 0, err
			}
		}
		d.at += int64(n)
	}
	if err != nil {
		d.closeBody()
		if n == 0 {
			return 0, d.pauseAfter(err)
		}
	}
	return n, nil
}

// connectAgain requests the rest of the blob.
func (d *download) connectAgain() error {
	body, err := d.repository.Fetch(d.ctx, registry.Descriptor{MediaType: d.d.MediaType, Digest: string(d.d.Digest), Size: d.d.Size}, d.at)
	if err != nil {
		return downloadError{err}
	}
	d.body = body
	return nil
}

// pauseAfter waits before the next attempt, twice as long each time. It returns an error after too many
// attempts.
func (d *download) pauseAfter(err error) error {
	if d.ctx.Err() != nil {
		return context.Cause(d.ctx)
	}
	if d.failures++; d.failures > maxFailures {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return downloadError{fmt.Errorf("the connection to %s broke %d times at byte %d of %d: %w", d.from.name.Host, d.failures, d.at, d.d.Size, err)}
	}
	select {
	case <-d.ctx.Done():
		return context.Cause(d.ctx)
	case <-time.After(min(firstPause<<(d.failures-1), longPause)):
	}
	return nil
}

func (d *download) closeBody() {
	if d.body != nil {
		d.body.Close() // its content was read, or will be requested again
	}
	d.body = nil
}

func (d *download) close() {
	d.closeBody()
	if d.file != nil {
		d.file.Close() // the digest detects an incomplete part
	}
}

// fileName returns the digest without the algorithm, which is used as a file name.
func (d digest) fileName() string { return path.Base(d.path()) }
