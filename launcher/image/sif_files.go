package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/removetree"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// SIFType is the media type of a SIF file in an OCI artifact. Source: Apptainer, pkg/client/oras.
const SIFType = "application/vnd.sylabs.sif.layer.v1.sif"

// sifName is the name of a complete file in its directory.
const sifName = "image.sif"

// sifDir has a directory for each SIF file that was pulled, named after the digest:
//
//	DIR/sif/HEX/image.sif   complete and verified, if it exists
//	DIR/sif/HEX/part        a download that runs, or was interrupted
//
// The process that downloads a file or removes its directory has the exclusive lock of the directory. A process that uses a file has it open, so that it may be
// removed at any time. The modification time of the directory of a file is that of its last use.
func (s Store) sifDir() string { return filepath.Join(s.Dir, "sif") }

// FetchSIF asks a registry for an OCI artifact that is a SIF file, and returns the path of the file in the store, which is downloaded if it is missing.
// report may be nil.
func (s Store) FetchSIF(ctx context.Context, name registry.Name, from Repository, report func(Progress)) (string, error) {
	r := &remote{store: s, name: name, connect: func() (Repository, error) { return from, nil }}
	d, data, err := r.fetchTop(ctx)
	if err != nil {
		return "", err
	}
	var m manifest
	if err := decodeDocument(data, &m, "manifest"); err != nil {
		return "", err
	}
	files := slices.DeleteFunc(m.Layers, func(l descriptor) bool { return l.MediaType != SIFType })
	if len(files) != 1 {
		return "", fmt.Errorf("manifest %s has %d SIF files; an image of layers is docker://%s", d.Digest, len(files), name)
	}
	return s.fetchSIFFile(ctx, r, files[0], report)
}

// FetchSIFBlob is [Store.FetchSIF] for a server that knows the file itself. name is for messages.
func (s Store) FetchSIFBlob(ctx context.Context, name registry.Name, from Repository, d registry.Descriptor, report func(Progress)) (string, error) {
	r := &remote{store: s, name: name, connect: func() (Repository, error) { return from, nil }}
	return s.fetchSIFFile(ctx, r, descriptor{MediaType: d.MediaType, Digest: digest(d.Digest), Size: d.Size}, report)
}

func (s Store) fetchSIFFile(ctx context.Context, r *remote, d descriptor, report func(Progress)) (string, error) {
	if err := d.Digest.validate(); err != nil {
		return "", fmt.Errorf("digest %q: %w", d.Digest, err)
	}
	if d.Size <= 0 || d.Size > s.maxLayerSize() {
		return "", fmt.Errorf("a SIF file of %d bytes isn't pulled", d.Size)
	}
	home := filepath.Join(s.sifDir(), d.Digest.fileName())
	for {
		if fi, err := os.Stat(filepath.Join(home, sifName)); err == nil && fi.Size() == d.Size {
			now := time.Now()
			_ = os.Chtimes(home, now, now) // only for prune
			return filepath.Join(home, sifName), nil
		}
		held, err := tryLock(home, lock.Exclusive, true)
		if err != nil {
			return "", err
		}
		if held == nil {
			select {
			case <-ctx.Done():
				return "", context.Cause(ctx)
			case <-time.After(100 * time.Millisecond): // another process downloads it
			}
			continue
		}
		err = s.downloadSIF(ctx, r, d, home, report)
		held.Close() // a lock
		if err != nil {
			return "", err
		}
	}
}

// downloadSIF downloads a file into its directory, which is locked.
func (s Store) downloadSIF(ctx context.Context, r *remote, d descriptor, home string, report func(Progress)) error {
	part := filepath.Join(home, "part")
	src := r.newDownload(ctx, d, part)
	defer src.close()
	sum := d.Digest.verifier()
	p := progress{report: report, total: d.Size}
	count := &countingReader{ctx: ctx, r: src, add: func(n int) { p.addBytes(layer{blob: d}, n) }}
	if _, err := io.Copy(sum, count); err != nil {
		return err
	}
	if count.n != d.Size || !sum.isVerified() {
		return errors.Join(errCorrupt, os.Remove(part))
	}
	f, err := os.Open(part)
	if err != nil {
		return err
	}
	// For root another process without rights reads it; the directories are closed to all others.
	err = errors.Join(f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(home, sifName))
}

// SIFFile is a SIF file that was pulled.
type SIFFile struct {
	Digest string    `json:"digest"`
	Size   int64     `json:"size"` // bytes on disk, also of an unfinished download
	Used   time.Time `json:"used"`
}

// ListSIFs lists the SIF files that were pulled.
func (s Store) ListSIFs() (all []SIFFile, err error) {
	names, err := smallfile.Names(s.sifDir())
	for _, name := range names {
		home := filepath.Join(s.sifDir(), name)
		if fi, err := os.Stat(home); err == nil { // it may have been removed meanwhile
			all = append(all, SIFFile{"sha256:" + name, CountSize(home), fi.ModTime()})
		}
	}
	return all, err
}

// pruneSIFs removes SIF files that were pulled, and aren't being downloaded. They have no names: a selection of names or labels has none of them.
func (s Store) pruneSIFs(sel Selection, done *Removed) error {
	if !sel.All || len(sel.Names)+len(sel.Labels) > 0 {
		return nil
	}
	all, err := s.ListSIFs()
	for _, f := range all {
		if !sel.Before.IsZero() && !f.Used.Before(sel.Before) {
			continue
		}
		home := filepath.Join(s.sifDir(), digest(f.Digest).fileName())
		held, e := tryLock(home, lock.Exclusive, false)
		err = errors.Join(err, e)
		if held == nil {
			continue
		}
		if !sel.DryRun {
			e = removetree.RemoveAll(home)
		}
		held.Close() // a lock
		if e != nil && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, e)
			continue
		}
		done.Deleted = append(done.Deleted, f.Digest)
		done.Freed += f.Size
	}
	return err
}
