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

// Repository is one repository of a registry. Any number of goroutines may use it.
type Repository interface {
	// Resolve asks the registry for the document that the repository's name stands for. Nothing
	// of the answer is verified.
	Resolve(ctx context.Context) (registry.Descriptor, error)
	// Fetch reads a document or blob from a byte on. The content is not verified. An error in its
	// middle means that the connection broke: another Fetch may go on.
	Fetch(ctx context.Context, d registry.Descriptor, from int64) (io.ReadCloser, error)
}

// remote is the origin of an image of a registry. Its documents are kept in the store.
type remote struct {
	store   Store
	name    registry.Name
	connect func() (Repository, error) // once; fails where nothing is to be fetched
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

// close leaves the connections open. They end with the process, or when they are idle.
func (r *remote) close() {}

// fetchTop reads what the name stands for, and describes it by what came.
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

// documentType returns the media type in a document, or else the one that the registry says.
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

// document takes what the store has, if it is right, and otherwise fetches it. What
// was fetched and is right is kept.
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

// download is a blob being read from a registry. A connection that breaks is made
// again, and goes on where the last one ended; so does a download that another
// process has begun, as long as its part is there.
type download struct {
	ctx        context.Context
	from       *remote
	repository Repository
	d          descriptor
	part       string
	file       *os.File // of the part, nil without one
	kept       int64    // bytes that were in it at the beginning
	at         int64
	body       io.ReadCloser
	failures   int // since the last byte came
}

// downloadError is a download that may go on another time.
type downloadError struct{ error }

func (e downloadError) Unwrap() error { return e.error }

// Limits of attempts to read on after a connection broke.
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

// readSome reads some bytes: of the part, or of the registry. None and no error means
// that the connection has to be made again.
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

// connectAgain asks for the rest.
func (d *download) connectAgain() error {
	body, err := d.repository.Fetch(d.ctx, registry.Descriptor{MediaType: d.d.MediaType, Digest: string(d.d.Digest), Size: d.d.Size}, d.at)
	if err != nil {
		return downloadError{err}
	}
	d.body = body
	return nil
}

// pauseAfter waits before the next attempt, longer each time.
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
		d.body.Close() // what it had is here
	}
	d.body = nil
}

func (d *download) close() {
	d.closeBody()
	if d.file != nil {
		d.file.Close() // a part that isn't whole is found out by its digest
	}
}

// fileName is a digest as a file's name.
func (d digest) fileName() string { return path.Base(d.path()) }
