package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/image/resolver"
	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
)

// serveSIF returns a registry with artifacts of these files, tagged 1.
func serveSIF(t *testing.T, files ...string) *fake.Registry {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	var all [][]byte
	for _, f := range files {
		all = append(all, []byte(f))
	}
	testutil.Must(t, oci.WriteSIFs(dir, "1", all...))
	return fake.Serve(t, dir)
}

// fetchSIF pulls the artifact NAME of a registry.
func fetchSIF(ctx context.Context, s Store, text string) (string, error) {
	name, err := registry.Parse(text)
	if err != nil {
		return "", err
	}
	from, err := resolver.Open(ctx, registry.Access{}, name)
	if err != nil {
		return "", err
	}
	return s.FetchSIF(ctx, name, from, nil)
}

// countBlobs returns how often the file of a registry was asked for.
func countBlobs(r *fake.Registry, file string) int {
	path := "/blobs/" + fake.Digest([]byte(file))
	return len(slices.DeleteFunc(r.Seen(), func(line string) bool { return !strings.Contains(line, path) }))
}

// TestFetchSIF: several processes that request a file pull it once, and the file is complete or not there.
func TestFetchSIF(t *testing.T) {
	file := makeNoise(1, 300<<10)
	r := serveSIF(t, file)
	s := Store{Dir: t.TempDir()}
	check := func(path string, err error) {
		t.Helper()
		testutil.Must(t, err)
		data, err := os.ReadFile(path)
		testutil.Must(t, err)
		if string(data) != file {
			t.Errorf("%s has other content", path)
		}
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() { check(fetchSIF(t.Context(), s, r.Host+"/app:1")) })
	}
	all.Wait()
	check(fetchSIF(t.Context(), s, r.Host+"/app:1"))
	if n := countBlobs(r, file); n != 1 {
		t.Errorf("downloaded %d times", n)
	}
	files, err := s.ListSIFs()
	testutil.Must(t, err)
	if len(files) != 1 || files[0].Digest != fake.Digest([]byte(file)) || files[0].Size != 300<<10 || s.Size() != 300<<10 || time.Since(files[0].Used) > time.Minute {
		t.Errorf("the list: %+v, %d bytes", files, s.Size())
	}
	for _, tt := range []struct {
		name    string
		sel     Selection
		deleted int
	}{
		{"without names", Selection{}, 0},
		{"of another name", Selection{All: true, Labels: []Label{{}}}, 0},
		{"older ones", Selection{All: true, Before: time.Now().Add(-time.Hour)}, 0},
		{"a dry run", Selection{All: true, DryRun: true}, 1},
		{"all", Selection{All: true}, 1},
		{"all again", Selection{All: true}, 0},
	} {
		done, err := s.Prune(tt.sel)
		if err != nil || len(done.Deleted) != tt.deleted || done.Freed != int64(tt.deleted)*300<<10 {
			t.Errorf("prune %s: %+v, %v", tt.name, done, err)
		}
	}
	check(fetchSIF(t.Context(), s, r.Host+"/app:1"))
}

// TestFetchSIFAgain: a download that broke off is continued, and one with other content is no file.
func TestFetchSIFAgain(t *testing.T) {
	file := makeNoise(2, 300<<10)
	r := serveSIF(t, file)
	s := Store{Dir: t.TempDir()}
	ctx, cancel := context.WithCancel(t.Context())
	r.Change(func(r *fake.Registry) { r.Hold = make(chan struct{}) })
	ended := make(chan error)
	go func() {
		_, err := fetchSIF(ctx, s, r.Host+"/app:1")
		ended <- err
	}()
	for end := time.Now().Add(time.Minute); s.Size() < 150<<10; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("half of the file doesn't arrive")
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	r.Change(func(r *fake.Registry) { close(r.Hold); r.Hold = nil })
	r.Seen()
	if _, err := fetchSIF(t.Context(), s, r.Host+"/app:1"); err != nil {
		t.Error(err)
	}
	if seen := r.Seen(); !strings.HasSuffix(seen[len(seen)-1], "bytes=153600-") {
		t.Errorf("continued by %q", seen)
	}
	other := Store{Dir: t.TempDir()}
	r.Change(func(r *fake.Registry) { r.Corrupt = 1 })
	if _, err := fetchSIF(t.Context(), other, r.Host+"/app:1"); !errors.Is(err, errCorrupt) || other.Size() != 0 {
		t.Errorf("a corrupt blob: %v, %d bytes are left", err, other.Size())
	}
	if _, err := fetchSIF(t.Context(), other, r.Host+"/app:1"); err != nil {
		t.Error(err)
	}
}

// TestFetchSIFHostile: what a registry may ask for is bounded.
func TestFetchSIFHostile(t *testing.T) {
	image := fake.Serve(t, write(t, makeLargeImage("1", 1)))
	file := makeNoise(3, 10<<10)
	for _, tt := range []struct {
		name string
		r    *fake.Registry
		text string
		want string
	}{
		{"an image of layers", image, "/app:1", " has 0 SIF files; an image of layers is docker://" + image.Host + "/app:1"},
		{"two files", serveSIF(t, file, file+"x"), "/app:1", " has 2 SIF files"},
		{"too large", serveSIF(t, makeNoise(4, 30<<10)), "/app:1", "a SIF file of 30720 bytes isn't pulled"},
		{"empty", serveSIF(t, ""), "/app:1", "a SIF file of 0 bytes isn't pulled"},
		{"no such tag", serveSIF(t, file), "/app:2", "not found in registry"},
		{"another digest", serveSIF(t, file), "/app@sha256:" + strings.Repeat("0", 64), "not found in registry"},
	} {
		s := Store{Dir: t.TempDir(), MaxLayer: 20 << 10}
		_, err := fetchSIF(t.Context(), s, tt.r.Host+tt.text)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	s := Store{Dir: t.TempDir()}
	for _, d := range []registry.Descriptor{{Digest: "sha256:../../x", Size: 5}, {Digest: "md5:00", Size: 5}, {Digest: fake.Digest(nil), Size: -1}} {
		if path, err := s.FetchSIFBlob(t.Context(), registry.Name{}, nil, d, nil); err == nil {
			t.Errorf("%+v is %s", d, path)
		}
	}
}
