package containerd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/image/resolver"
)

// readyImage is an unpacked image with its configuration.
type readyImage struct {
	client.Image
	config image.Config
}

// parseMatcher parses a platform such as linux/arm64; "" means this machine's.
func parseMatcher(platform string) (platforms.MatchComparer, error) {
	if platform == "" {
		return platforms.Default(), nil
	}
	p, err := platforms.Parse(platform)
	if err != nil {
		return nil, fmt.Errorf("platform %q is not OS/ARCHITECTURE, such as linux/arm64", platform)
	}
	return platforms.Only(p), nil
}

// Pull pulls an image from a registry and unpacks it.
func (e *Engine) Pull(ctx context.Context, ref string, how image.Search, progress func(image.Progress)) (engine.Pulled, error) {
	ctx = withNamespace(ctx)
	img, err := e.pullImage(ctx, strings.TrimPrefix(ref, "docker://"), how, progress)
	if err != nil {
		return engine.Pulled{}, err
	}
	f, err := e.unpackImage(ctx, img, how.Platform)
	if err != nil {
		return engine.Pulled{}, err
	}
	layers, err := f.RootFS(ctx)
	return engine.Pulled{Name: img.Name(), Layers: len(layers)}, simplifyError(err)
}

func (e *Engine) pullImage(ctx context.Context, ref string, how image.Search, progress func(image.Progress)) (client.Image, error) {
	name, err := registry.Parse(ref)
	if err != nil {
		return nil, err
	}
	match, err := parseMatcher(how.Platform)
	if err != nil {
		return nil, err
	}
	ctx, done, err := e.c.WithLease(ctx) // protects the content from garbage collection until the image has a name
	if err != nil {
		return nil, simplifyError(err)
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }() // the lease expires after a day
	repository, err := resolver.Open(ctx, e.Access, name)
	if err != nil {
		return nil, err
	}
	stop := e.watchProgress(ctx, progress)
	r := pullResolver{repository, &atomic.Int64{}}
	img, err := e.c.Pull(ctx, name.String(), client.WithResolver(r),
		client.WithPlatformMatcher(match), client.WithPullUnpack)
	stop()
	if n := r.read.Load(); progress != nil && n > 0 { // a short pull ends before its first report
		progress(image.Progress{Done: n, Total: n})
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("pull %s: %w", name.Short(), unwrapClientError(err))
	}
	return client.NewImageWithPlatform(e.c, img.Metadata(), match), nil
}

// unwrapClientError removes the client's description of its own steps from an error.
func unwrapClientError(err error) error {
	for at := err; at != nil; at = errors.Unwrap(at) {
		if !strings.HasPrefix(at.Error(), "failed to ") {
			return simplifyError(at)
		}
	}
	return simplifyError(err)
}

// progressInterval is how often containerd is asked for the progress of a pull.
const progressInterval = 250 * time.Millisecond

// watchProgress reports the progress of a pull until stop is called.
func (e *Engine) watchProgress(ctx context.Context, progress func(image.Progress)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(progressInterval):
			}
			all, err := e.c.ContentStore().ListStatuses(ctx)
			if err != nil {
				continue
			}
			progress(sumProgress(all))
		}
	}()
	return func() { cancel(); <-ended }
}

// sumProgress returns the sum of all downloads, with the largest one as Layer.
func sumProgress(all []content.Status) (p image.Progress) {
	var largest int64
	for _, s := range all {
		p.Done, p.Total = p.Done+s.Offset, p.Total+s.Total
		if _, blob, ok := strings.Cut(s.Ref, "-sha256:"); ok && s.Total > largest {
			largest, p.Layer, p.LayerDone = s.Total, "sha256:"+blob, s.Offset
		}
	}
	return p
}

// findImage finds the image of a reference, and pulls it as how.Pull says.
func (e *Engine) findImage(ctx context.Context, ref string, how image.Search, progress func(image.Progress)) (readyImage, error) {
	name, err := registry.Parse(ref)
	if err != nil {
		return readyImage{}, err
	}
	match, err := parseMatcher(how.Platform)
	if err != nil {
		return readyImage{}, err
	}
	if how.Pull != image.Always {
		meta, err := e.c.ImageService().Get(ctx, name.String())
		if err == nil {
			f, err := e.unpackImage(ctx, client.NewImageWithPlatform(e.c, meta, match), how.Platform)
			if err == nil || !errdefs.IsNotFound(err) {
				return f, err
			}
		} else if !errdefs.IsNotFound(err) {
			return readyImage{}, simplifyError(err)
		}
	}
	if how.Pull != image.Always {
		if f, err := e.findByID(ctx, ref, how.Platform); !errors.Is(err, image.ErrNotHere) {
			return f, err
		}
	}
	if how.Pull == image.Never {
		all, _ := e.c.ImageService().List(ctx) // without a list there is no suggestion
		return readyImage{}, fmt.Errorf("image %s %w%s, and pulling wasn't wanted", name.Short(), image.ErrNotHere, suggestImage(all, name.Short()))
	}
	img, err := e.pullImage(ctx, name.String(), how, progress)
	if err != nil {
		return readyImage{}, err
	}
	return e.unpackImage(ctx, img, how.Platform)
}

// findByID finds an image by the beginning of its id.
func (e *Engine) findByID(ctx context.Context, word, platform string) (readyImage, error) {
	match, err := parseMatcher(platform)
	if err != nil {
		return readyImage{}, err
	}
	all, err := e.c.ImageService().List(ctx)
	if err != nil {
		return readyImage{}, simplifyError(err)
	}
	found, err := image.FindByID(e.candidates(ctx, all, nil), word)
	if err != nil {
		return readyImage{}, err
	}
	return e.unpackImage(ctx, client.NewImageWithPlatform(e.c, found[0].Of, match), platform)
}

// candidates returns containerd's images in the form of package image.
func (e *Engine) candidates(ctx context.Context, all []images.Image, used map[string]bool) (list []*image.Candidate[images.Image]) {
	for _, meta := range all {
		c := &image.Candidate[images.Image]{
			Of: meta, Name: meta.Name, Digest: meta.Target.Digest.String(), Pulled: meta.UpdatedAt, Used: used[meta.Target.Digest.String()],
			Platforms: sync.OnceValue(func() []image.Summary {
				list, err := e.summarizePlatforms(ctx, meta)
				if err != nil {
					return nil
				}
				return list
			}),
		}
		if !isImport(meta.Name) {
			c.Short = summaryOfName(meta).Short
		}
		list = append(list, c)
	}
	return list
}

// unpackImage unpacks an image if necessary, and reads its configuration. platform is the platform that
// was asked for, as the user has written it.
func (e *Engine) unpackImage(ctx context.Context, img client.Image, platform string) (readyImage, error) {
	unpacked, err := img.IsUnpacked(ctx, snapshotter)
	if err == nil && !unpacked {
		err = img.Unpack(ctx, snapshotter)
	}
	if err != nil {
		return readyImage{}, fmt.Errorf("unpack image %s: %w", img.Name(), simplifyError(err))
	}
	c, err := readConfig(ctx, img)
	if err == nil {
		err = c.checkPlatform(img.Platform(), platform)
	}
	return readyImage{img, c.Config}, err
}

// checkPlatform returns an error that Is image.ErrPlatform if the image is for another platform.
// containerd finds an image without an index for any platform.
func (c configuration) checkPlatform(wanted platforms.MatchComparer, typed string) error {
	own := platforms.Normalize(ocispec.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant})
	if c.OS == "" || wanted.Match(own) {
		return nil
	}
	return fmt.Errorf("image is for %s, and %s is wanted%.0w", platforms.Format(own), cmp.Or(typed, platforms.Format(platforms.DefaultSpec())), image.ErrPlatform)
}

// snapshotter is containerd's default on Linux.
const snapshotter = "overlayfs"

// configuration has the fields of an image's configuration that are used here.
type configuration struct {
	Created      time.Time
	OS           string
	Architecture string
	Variant      string
	Config       image.Config
}

func readConfig(ctx context.Context, img client.Image) (c configuration, err error) {
	d, err := img.Config(ctx)
	if err != nil {
		return c, err
	}
	data, err := content.ReadBlob(ctx, img.ContentStore(), d)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return c, fmt.Errorf("read configuration of image %s: %w", img.Name(), err)
	}
	return c, nil
}

// Images lists the images with a name, one entry for each platform.
func (e *Engine) Images(ctx context.Context) ([]image.Summary, error) {
	ctx = withNamespace(ctx)
	all, err := e.c.ImageService().List(ctx)
	if err != nil {
		return nil, simplifyError(err)
	}
	list := []image.Summary{}
	for _, meta := range all {
		if isImport(meta.Name) {
			continue
		}
		some, err := e.summarizePlatforms(ctx, meta)
		if err != nil {
			return nil, err
		}
		list = append(list, some...)
	}
	return list, nil
}

// summarizePlatforms returns an entry for each platform of which containerd has content.
func (e *Engine) summarizePlatforms(ctx context.Context, meta images.Image) (list []image.Summary, err error) {
	all, err := images.Platforms(ctx, e.c.ContentStore(), meta.Target)
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, simplifyError(err)
	}
	seen := map[string]bool{}
	for _, p := range all {
		p = platforms.Normalize(p)
		if seen[platforms.Format(p)] {
			continue
		}
		seen[platforms.Format(p)] = true
		img := client.NewImageWithPlatform(e.c, meta, platforms.OnlyStrict(p))
		c, err := readConfig(ctx, img)
		if err != nil {
			continue // this platform wasn't pulled
		}
		list = append(list, e.summarize(ctx, img, p, c))
	}
	if len(list) == 0 {
		s := summaryOfName(meta)
		s.Broken = true
		list = append(list, s)
	}
	return list, nil
}

// suggestImage returns the nearest name of an image as the end of a sentence, or "".
func suggestImage(all []images.Image, word string) string {
	var names []string
	for _, meta := range all {
		if !isImport(meta.Name) {
			names = append(names, summaryOfName(meta).Short)
		}
	}
	return image.SuggestName(word, names)
}

func summaryOfName(meta images.Image) image.Summary {
	s := image.Summary{Name: meta.Name, Short: meta.Name, Digest: meta.Target.Digest.String(), Pulled: meta.UpdatedAt}
	if n, err := registry.Parse(meta.Name); err == nil {
		s.Short = n.Short()
	}
	return s
}

func (e *Engine) summarize(ctx context.Context, img client.Image, p ocispec.Platform, c configuration) image.Summary {
	s := summaryOfName(img.Metadata())
	s.Platform, s.Created, s.Labels = platforms.Format(p), c.Created, c.Config.Labels
	if d, err := img.Config(ctx); err == nil {
		s.ID = d.Digest.String()
	}
	diffs, err := img.RootFS(ctx)
	s.Broken = err != nil
	for _, chain := range identity.ChainIDs(diffs) {
		u, err := e.c.SnapshotService(snapshotter).Usage(ctx, chain.String())
		s.Size, s.Broken = s.Size+u.Size, s.Broken || err != nil
	}
	return s
}

// Prune removes the selected images, and content that no image needs.
func (e *Engine) Prune(ctx context.Context, sel image.Selection) (done image.Removed, err error) {
	ctx = withNamespace(ctx)
	all, err := e.c.ImageService().List(ctx)
	if err != nil {
		return done, simplifyError(err)
	}
	used, err := e.usedImages(ctx, all)
	if err != nil {
		return done, err
	}
	candidates := e.candidates(ctx, all, used)
	chosen, refused := image.Choose(sel, candidates)
	if len(chosen) == 0 && refused != nil {
		return done, refused
	}
	done.Deleted = image.DeletedIDs(candidates, chosen)
	for _, c := range chosen {
		if c.Short != "" {
			done.Names = append(done.Names, c.Short)
		}
	}
	if sel.DryRun {
		return done, refused
	}
	before, layers, err := e.measureStored(ctx)
	if err != nil {
		return image.Removed{}, err
	}
	for _, c := range chosen {
		if err := e.c.ImageService().Delete(ctx, c.Name); err != nil && !errdefs.IsNotFound(err) {
			return image.Removed{}, fmt.Errorf("remove image %s: %w", c.Name, simplifyError(err))
		}
	}
	if err := e.collectGarbage(ctx); err != nil {
		return done, err
	}
	after, left, err := e.measureStored(ctx)
	for _, l := range layers {
		if !slices.Contains(left, l) {
			done.Deleted = append(done.Deleted, l)
		}
	}
	done.Freed, done.Layers = before-after, len(layers)-len(left)
	return done, errors.Join(refused, err)
}

// collectGarbage runs containerd's garbage collection and waits for it.
func (e *Engine) collectGarbage(ctx context.Context) error {
	l, err := e.c.LeasesService().Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Minute))
	if err == nil {
		err = e.c.LeasesService().Delete(ctx, l, leases.SynchronousDelete)
	}
	return simplifyError(err)
}

// usedImages returns the digests of the images that tasks use. Names aren't sufficient, because a name
// may stand for another image by now.
func (e *Engine) usedImages(ctx context.Context, all []images.Image) (map[string]bool, error) {
	containers, err := e.c.ContainerService().List(ctx)
	if err != nil {
		return nil, simplifyError(err)
	}
	used := map[string]bool{}
	for _, c := range containers {
		if r, err := e.store.Record(c.ID); err == nil && r.Digest != "" {
			used[r.Digest] = true
			continue
		}
		for _, meta := range all {
			used[meta.Target.Digest.String()] = used[meta.Target.Digest.String()] || meta.Name == c.Image
		}
	}
	return used, nil
}

// measureStored returns what containerd stores for this namespace: the size of blobs and unpacked files
// in bytes, and the names of the layers.
func (e *Engine) measureStored(ctx context.Context) (bytes int64, layers []string, err error) {
	err = e.c.ContentStore().Walk(ctx, func(i content.Info) error {
		bytes += i.Size
		return nil
	})
	if err != nil {
		return 0, nil, simplifyError(err)
	}
	err = e.walkSnapshots(ctx, func(name string, size int64) { bytes, layers = bytes+size, append(layers, name) })
	return bytes, layers, err
}
