package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/image/resolver"
	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
)

// makeNoise doesn't compress, so that a blob is as large as its content.
func makeNoise(seed, size int) string {
	b := make([]byte, size)
	x := uint64(seed)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

// makeLargeImage returns an image of n layers of 256 KiB.
func makeLargeImage(tag string, n int) oci.Image {
	img := oci.Image{Tag: tag}
	for i := range n {
		img.Layers = append(img.Layers, oci.Layer{Compression: "gzip", Tar: oci.Tar(oci.File{Name: fmt.Sprintf("dir/file%d", i), Body: makeNoise(i+len(tag), 256<<10)})})
	}
	return img
}

func pullAndUnpack(t *testing.T, s Store, name string, how Search) ([]string, error) {
	t.Helper()
	return pullAndUnpackWith(t.Context(), s, name, how, nil)
}

// pullAndUnpackWith does as berth does: what has to be pulled is pulled by one that connects with
// registries, and found by one that doesn't.
func pullAndUnpackWith(ctx context.Context, s Store, name string, how Search, report func(Progress)) ([]string, error) {
	img, err := s.Open(ctx, "docker://"+name, how)
	if errors.Is(err, ErrPullNeeded) {
		if err := pull(ctx, s, name, how, report); err != nil {
			return nil, err
		}
		how.Pull = Missing
		img, err = s.Open(ctx, "docker://"+name, how)
	}
	if err != nil {
		return nil, err
	}
	defer img.Close()
	return s.Unpack(ctx, img, report)
}

func pull(ctx context.Context, s Store, name string, how Search, report func(Progress)) error {
	img, err := s.Open(ctx, "docker://"+name, withRegistries(how))
	if err != nil {
		return err
	}
	defer img.Close()
	_, err = s.Unpack(ctx, img, report)
	return err
}

// withRegistries connects with registries.
func withRegistries(how Search) Search {
	how.Connect = func(ctx context.Context, n registry.Name) (Repository, error) {
		return resolver.Open(ctx, registry.Access{}, n)
	}
	return how
}

// blobRequests are the requests for blobs among those that a registry saw: all, and those
// that began in the middle.
func blobRequests(seen []string) (all, ranged []string) {
	for _, s := range seen {
		if strings.Contains(s, "/blobs/") {
			all = append(all, s)
			if strings.Contains(s, " bytes=") {
				ranged = append(ranged, s)
			}
		}
	}
	return all, ranged
}

// expectLargeLayers fails unless the layers have exactly the files of large.
func expectLargeLayers(t *testing.T, dirs []string, n, seed int) {
	t.Helper()
	if len(dirs) != n {
		t.Fatalf("%d layers, want %d", len(dirs), n)
	}
	for i := range n {
		path := filepath.Join(dirs[n-1-i], fmt.Sprintf("dir/file%d", i))
		if data, err := os.ReadFile(path); err != nil || string(data) != makeNoise(i+seed, 256<<10) {
			t.Errorf("layer %d has %d bytes, %v", i, len(data), err)
		}
	}
}

func TestPull(t *testing.T) {
	testutil.NeedRoot(t)
	r := fake.Serve(t, write(t, makeLargeImage("1", 5), makeLargeImage("two", 2)))
	s := Store{Dir: t.TempDir()}
	name := r.Host + "/team/app:1"
	if _, err := pullAndUnpack(t, s, name, Search{Pull: Never}); !errors.Is(err, ErrNotHere) {
		t.Errorf("error %v, want %v", err, ErrNotHere)
	}
	dirs, err := pullAndUnpack(t, s, name, Search{})
	testutil.Must(t, err)
	expectLargeLayers(t, dirs, 5, 1)
	if all, _ := blobRequests(r.Seen()); len(all) != 6 {
		t.Errorf("blobs were asked for %d times, want once each, and the configuration: %v", len(all), all)
	}
	for _, tt := range []struct {
		pull     Pull
		requests int
	}{{Missing, 0}, {Never, 0}, {Always, 3}} { // TLS is tried first, which isn't seen
		again, err := pullAndUnpack(t, s, name, Search{Pull: tt.pull})
		if err != nil || !slices.Equal(again, dirs) {
			t.Errorf("%s: %v, %v", tt.pull, again, err)
		}
		seen := r.Seen()
		if all, _ := blobRequests(seen); len(all) != 0 || len(seen) > tt.requests {
			t.Errorf("%s: the registry was asked for %v", tt.pull, seen)
		}
	}
	for _, near := range []string{"/team/app:11", "/team/app:12"} {
		for _, pull := range []Pull{Missing, Never} {
			if _, err := pullAndUnpack(t, s, r.Host+near, Search{Pull: pull}); err == nil || !strings.Contains(err.Error(), "(did you mean "+name+"?)") {
				t.Errorf("%s, %s: %v, without the name that is near", near, pull, err)
			}
		}
	}
	if parts := findFiles(t, s.Dir, "part-"); len(parts) > 0 {
		t.Errorf("compressed blobs were left: %v", parts)
	}
	list, err := s.List()
	if err != nil || len(list) != 1 || list[0].Name != name || list[0].Size != 5*256<<10 || list[0].Broken {
		t.Errorf("listed as %+v, %v", list, err)
	}
}

// findFiles returns the names below a directory that hold a word.
func findFiles(t *testing.T, dir, word string) (found []string) {
	t.Helper()
	testutil.Must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.Contains(filepath.Base(path), word) {
			found = append(found, path)
		}
		return err
	}))
	return found
}

func TestPullPlatform(t *testing.T) {
	testutil.NeedRoot(t)
	dir := write(t, sampleImage("m", "native"))
	other := sampleImage("s", "foreign")
	other.Arch = "s390x"
	foreign := write(t, other)
	testutil.Must(t, os.CopyFS(filepath.Join(dir, "blobs"), os.DirFS(filepath.Join(foreign, "blobs"))))
	index, err := oci.WriteBlob(dir, ispec.MediaTypeImageIndex, ispec.Index{MediaType: ispec.MediaTypeImageIndex, Manifests: append(readIndex(t, dir), readIndex(t, foreign)...)})
	testutil.Must(t, err)
	index.Annotations = map[string]string{ispec.AnnotationRefName: "1"}
	testutil.Must(t, oci.WriteIndex(dir, []ispec.Descriptor{index}))
	r := fake.Serve(t, dir)
	s := Store{Dir: t.TempDir()}
	for platform, which := range map[string]string{"": "native", "linux/s390x": "foreign", "s390x": "foreign"} {
		for range 2 { // pulled, and then of the store
			img, err := s.Open(t.Context(), r.Host+"/app:1", withRegistries(Search{Platform: platform}))
			testutil.Must(t, err)
			_, err = s.Unpack(t.Context(), img, nil)
			testutil.Must(t, err)
			if !slices.Equal(img.Config.Env, []string{"WHICH=" + which}) {
				t.Errorf("%q is %v", platform, img.Config.Env)
			}
			img.Close()
		}
	}
	if _, err := s.Prune(Selection{Tasks: t.TempDir()}); err != nil {
		t.Error(err)
	}
	if list, err := s.List(); err != nil || len(list) != 2 || list[0].Broken || list[1].Broken {
		t.Errorf("after a prune: %+v, %v", list, err)
	}
	if _, err := s.Open(t.Context(), r.Host+"/app:1", withRegistries(Search{Platform: "linux/riscv64"})); err == nil || !strings.Contains(err.Error(), "no image for linux/riscv64; there are: ") {
		t.Errorf("error %v", err)
	}
	if _, err := s.Open(t.Context(), r.Host+"/app:1", Search{Platform: "a/b/c/d"}); err == nil {
		t.Error("that is no platform")
	}
}

func readIndex(t *testing.T, dir string) []ispec.Descriptor {
	t.Helper()
	var index ispec.Index
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	testutil.Must(t, err)
	testutil.Must(t, decodeDocument(data, &index, "index"))
	for i := range index.Manifests {
		index.Manifests[i].Annotations = nil
	}
	return index.Manifests
}

// Connections that break are made again, and go on where they ended.
func TestPullBrokenConnections(t *testing.T) {
	testutil.NeedRoot(t)
	r := fake.Serve(t, write(t, makeLargeImage("1", 2)))
	r.Change(func(r *fake.Registry) { r.CutAfter = 100 << 10 })
	dirs, err := pullAndUnpack(t, Store{Dir: t.TempDir()}, r.Host+"/app:1", Search{})
	testutil.Must(t, err)
	expectLargeLayers(t, dirs, 2, 1)
	if all, ranged := blobRequests(r.Seen()); len(ranged) != 4 || len(all) != 7 {
		t.Errorf("%d requests, %d of them for the rest: %v", len(all), len(ranged), all)
	}
}

// So they do with a registry that can't begin in the middle.
func TestPullNoRanges(t *testing.T) {
	testutil.NeedRoot(t)
	r := fake.Serve(t, write(t, makeLargeImage("1", 1)))
	r.Change(func(r *fake.Registry) { r.NoRanges, r.CutAfter, r.Cuts = true, 200<<10, 1 })
	dirs, err := pullAndUnpack(t, Store{Dir: t.TempDir()}, r.Host+"/app:1", Search{})
	testutil.Must(t, err)
	expectLargeLayers(t, dirs, 1, 1)
}

// interruptPull pulls until a part of a layer is stored, and cancels the pull.
func interruptPull(t *testing.T, r *fake.Registry, s Store, name string) {
	t.Helper()
	hold := make(chan struct{})
	r.Change(func(r *fake.Registry) { r.Hold = hold })
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	go func() {
		for len(findFiles(t, s.Dir, "part-")) == 0 && ctx.Err() == nil {
			unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
		}
		for _, part := range findFiles(t, s.Dir, "part-") {
			for fi, err := os.Stat(part); err == nil && fi.Size() == 0; fi, err = os.Stat(part) {
				unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
			}
		}
		cancel(why)
	}()
	r.Change(func(r *fake.Registry) { r.Hold = hold })
	_, err := pullAndUnpackWith(ctx, s, name, Search{}, nil)
	close(hold)
	r.Change(func(r *fake.Registry) { r.Hold = nil })
	if !errors.Is(err, why) {
		t.Fatalf("error %v, want %v", err, why)
	}
	r.Seen()
}

// A pull goes on with what an earlier one has got, also when another image was
// unpacked meanwhile.
func TestPullGoesOn(t *testing.T) {
	testutil.NeedRoot(t)
	r := fake.Serve(t, write(t, makeLargeImage("1", 1), makeLargeImage("two", 1)))
	s := Store{Dir: t.TempDir()}
	name := r.Host + "/app:1"
	keepConfiguration(t, s, name)
	r.Seen()
	interruptPull(t, r, s, name)
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("half an image is listed: %+v, %v", list, err)
	}
	_, err := pullAndUnpack(t, s, r.Host+"/app:two", Search{})
	testutil.Must(t, err)
	r.Seen()
	dirs, err := pullAndUnpack(t, s, name, Search{})
	testutil.Must(t, err)
	expectLargeLayers(t, dirs, 1, 1)
	if all, ranged := blobRequests(r.Seen()); len(all) != 1 || len(ranged) != 1 {
		t.Errorf("asked for %v, want the rest of one blob", all)
	}
}

// keepConfiguration reads what describes an image, so that only its layers are left.
func keepConfiguration(t *testing.T, s Store, name string) {
	t.Helper()
	img, err := s.Open(t.Context(), "docker://"+name, withRegistries(Search{}))
	testutil.Must(t, err)
	img.Close()
}

// What was kept of a download may be anything after a power failure: it is found out,
// and fetched again.
func TestPullCorruptPart(t *testing.T) {
	testutil.NeedRoot(t)
	for _, tt := range []struct {
		name   string
		change func([]byte) []byte
	}{
		{"zeros", func(b []byte) []byte { return make([]byte, len(b)) }},
		{"a wrong byte at the end", func(b []byte) []byte { b[len(b)-1] ^= 1; return b }},
		{"larger than the blob", func([]byte) []byte { return make([]byte, 1<<20) }},
		{"a whole one that is wrong", func([]byte) []byte { return nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := fake.Serve(t, write(t, makeLargeImage("1", 1)))
			s := Store{Dir: t.TempDir()}
			name := r.Host + "/app:1"
			keepConfiguration(t, s, name)
			interruptPull(t, r, s, name)
			part := findFiles(t, s.Dir, "part-")[0]
			data, err := os.ReadFile(part)
			testutil.Must(t, err)
			if data = tt.change(data); data == nil {
				img, err := s.Open(t.Context(), "docker://"+name, withRegistries(Search{}))
				testutil.Must(t, err)
				data = make([]byte, img.layers[0].blob.Size)
			}
			testutil.Must(t, os.WriteFile(part, data, 0o600))
			dirs, err := pullAndUnpack(t, s, name, Search{})
			testutil.Must(t, err)
			expectLargeLayers(t, dirs, 1, 1)
		})
	}
}

// A blob that comes corrupt is fetched again, once.
func TestPullCorrupt(t *testing.T) {
	testutil.NeedRoot(t)
	for times, good := range map[int]bool{1: true, 2: false} {
		r := fake.Serve(t, write(t, makeLargeImage("1", 1)))
		s := Store{Dir: t.TempDir()}
		keepConfiguration(t, s, r.Host+"/app:1")
		r.Change(func(r *fake.Registry) { r.Corrupt = times })
		dirs, err := pullAndUnpack(t, s, r.Host+"/app:1", Search{})
		if good {
			testutil.Must(t, err)
			expectLargeLayers(t, dirs, 1, 1)
			continue
		}
		if !errors.Is(err, errCorrupt) || !strings.Contains(err.Error(), "sha256:") {
			t.Errorf("error %v, want %v", err, errCorrupt)
		}
		if left := append(findFiles(t, s.Dir, "part-"), findFiles(t, s.Dir, "tmp")...); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// What is lost or broken in the store is fetched again when the image is used.
func TestPullRepairsTheStore(t *testing.T) {
	testutil.NeedRoot(t)
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, s Store, dirs []string)
	}{
		{"a layer is gone", func(t *testing.T, _ Store, dirs []string) { testutil.Must(t, os.RemoveAll(filepath.Dir(dirs[0]))) }},
		{"a layer's files are gone", func(t *testing.T, _ Store, dirs []string) { testutil.Must(t, os.RemoveAll(dirs[0])) }},
		{"documents are gone", func(t *testing.T, s Store, _ []string) { testutil.Must(t, os.RemoveAll(filepath.Join(s.Dir, "blobs"))) }},
		{"documents are corrupt", func(t *testing.T, s Store, _ []string) {
			for _, file := range findFiles(t, filepath.Join(s.Dir, "blobs/sha256"), "") {
				if fi, err := os.Stat(file); err == nil && fi.Mode().IsRegular() {
					testutil.Must(t, os.WriteFile(file, []byte("{}"), 0o600))
				}
			}
		}},
		{"the name can't be read", func(t *testing.T, s Store, _ []string) {
			for _, file := range findFiles(t, s.namesDir(), ".json") {
				testutil.Must(t, os.WriteFile(file, []byte("{"), 0o600))
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := fake.Serve(t, write(t, makeLargeImage("1", 2)))
			s := Store{Dir: t.TempDir()}
			dirs, err := pullAndUnpack(t, s, r.Host+"/app:1", Search{})
			testutil.Must(t, err)
			tt.spoil(t, s, dirs)
			if _, err := pullAndUnpack(t, s, r.Host+"/app:1", Search{Pull: Never}); err == nil {
				t.Error("what isn't there was used without being fetched")
			}
			if dirs, err = pullAndUnpack(t, s, r.Host+"/app:1", Search{}); err != nil {
				t.Fatal(err)
			}
			expectLargeLayers(t, dirs, 2, 1)
		})
	}
}

// An image that only names another's layer doesn't get it.
func TestPullNeedsTheLayer(t *testing.T) {
	testutil.NeedRoot(t)
	theirs, mine := write(t, sampleImage("1", "secret")), write(t, sampleImage("1", "mine"))
	s := Store{Dir: t.TempDir()}
	_, err := pullAndUnpack(t, s, fake.Serve(t, theirs).Host+"/app:1", Search{})
	testutil.Must(t, err)
	a, err := Open(theirs)
	testutil.Must(t, err)
	b, err := Open(mine)
	testutil.Must(t, err)
	// Their diff id, and a blob of mine.
	config, err := oci.WriteBlob(mine, ispec.MediaTypeImageConfig, map[string]any{"os": "linux", "rootfs": map[string]any{"type": "layers", "diff_ids": []string{string(a.layers[0].diff)}}})
	testutil.Must(t, err)
	blob := b.layers[0].blob
	manifest, err := oci.WriteBlob(mine, ispec.MediaTypeImageManifest, map[string]any{
		"schemaVersion": 2, "mediaType": ispec.MediaTypeImageManifest, "config": config,
		"layers": []any{map[string]any{"mediaType": blob.MediaType, "digest": blob.Digest, "size": blob.Size}},
	})
	testutil.Must(t, err)
	manifest.Annotations = map[string]string{ispec.AnnotationRefName: "1"}
	testutil.Must(t, oci.WriteIndex(mine, []ispec.Descriptor{manifest}))
	if dirs, err := pullAndUnpack(t, s, fake.Serve(t, mine).Host+"/app:1", Search{}); err == nil || !strings.Contains(err.Error(), "as the image says") {
		t.Errorf("was given %v, %v", dirs, err)
	}
}

// A registry that gives something else than what was asked for by its digest.
func TestPullLies(t *testing.T) {
	dir := write(t, sampleImage("1", "one"))
	img, err := Open(dir)
	testutil.Must(t, err)
	r := fake.Serve(t, dir)
	for _, d := range []descriptor{img.manifest, img.config} {
		path := blobFile(dir, d)
		data, err := os.ReadFile(path)
		testutil.Must(t, err)
		testutil.Must(t, os.WriteFile(path, append([]byte(" "), data...), 0o600))
		_, err = pullAndUnpack(t, Store{Dir: t.TempDir()}, r.Host+"/app@"+string(img.manifest.Digest), Search{})
		if err == nil || !strings.Contains(err.Error(), "is corrupt") {
			t.Errorf("error %v", err)
		}
		testutil.Must(t, os.WriteFile(path, data, 0o600))
	}
}

// Many pulls of the same and of other images, in one store: each blob is fetched once,
// and each gets its own.
func TestPullTogether(t *testing.T) {
	testutil.NeedRoot(t)
	r := fake.Serve(t, write(t, makeLargeImage("1", 3), makeLargeImage("22", 3), makeLargeImage("333", 3)))
	s := Store{Dir: t.TempDir()}
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			seed := i%3 + 1
			tag := strings.Repeat(fmt.Sprint(seed), seed)
			if i%8 == 7 {
				if _, err := s.Prune(Selection{Tasks: t.TempDir()}); err != nil {
					t.Error(err)
				}
			}
			img, err := s.Open(t.Context(), r.Host+"/app:"+tag, withRegistries(Search{}))
			if err != nil {
				t.Error(err)
				return
			}
			defer img.Close()
			dirs, err := s.Unpack(t.Context(), img, nil)
			if err != nil {
				t.Error(err)
				return
			}
			expectLargeLayers(t, dirs, 3, seed)
		})
	}
	all.Wait()
	requests := map[string]int{}
	asked, _ := blobRequests(r.Seen())
	for _, s := range asked {
		requests[s]++
	}
	var twice []string
	for _, c := range []string{"1", "22", "333"} {
		img, err := s.Open(t.Context(), r.Host+"/app:"+c, Search{Pull: Never})
		testutil.Must(t, err)
		for _, l := range img.layers {
			if n := requests["/v2/app/blobs/"+string(l.blob.Digest)]; n != 1 {
				twice = append(twice, fmt.Sprintf("%s: %d", l.blob.Digest, n))
			}
		}
	}
	if len(twice) > 0 {
		t.Errorf("blobs that weren't fetched once: %v", twice)
	}
}

// On a full disk there is one line, nothing half, and no room taken by what is left.
func TestPullFullDisk(t *testing.T) {
	testutil.NeedRoot(t)
	dir := t.TempDir()
	testutil.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { testutil.Must(t, unix.Unmount(dir, 0)) })
	r := fake.Serve(t, write(t, makeLargeImage("1", 8), sampleImage("small", "x")))
	s := Store{Dir: dir}
	_, err := pullAndUnpack(t, s, r.Host+"/app:1", Search{})
	if !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v, want one line with %v", err, unix.ENOSPC)
	}
	if left := append(findFiles(t, dir, "part-"), findFiles(t, dir, "tmp")...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if list, err := s.List(); err != nil || len(list) > 0 {
		t.Errorf("listed: %v, %v", list, err)
	}
	if _, err := s.Prune(Selection{Tasks: t.TempDir()}); err != nil {
		t.Error(err)
	}
	_, err = pullAndUnpack(t, s, r.Host+"/app:small", Search{})
	testutil.Must(t, err)
}

func TestOpenNames(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	for _, tt := range []struct{ ref, says string }{
		{"debian:13", "image debian:13 is not here, and pulling wasn't wanted"},
		{"docker://reg.x/a/b", "image reg.x/a/b:latest is not here"},
		{"docker://A B", `"A B" is no image name`},
		{"./debian", "./debian is no image: there is no such file"},
		{"Debian", `Debian is no image: there is no such file, and "Debian" is no image name: a repository is written in lower case`},
		{"", "is no image"},
		{"oci-archive:/no/such:x", "oci-archive:/no/such:x is no image: there is no file /no/such:x"},
	} {
		_, err := s.Open(t.Context(), tt.ref, Search{Pull: Never})
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: error %v, want %q", tt.ref, err, tt.says)
		}
	}
}

func TestParsePlatform(t *testing.T) {
	for text, want := range map[string]platform{
		"linux/arm64": {"linux", "arm64", ""}, "linux/arm64/v8": {"linux", "arm64", ""}, "aarch64": {"linux", "arm64", ""},
		"linux/arm/v7": {"linux", "arm", "v7"}, "Linux/x86_64": {"linux", "amd64", ""},
	} {
		if got, err := parsePlatform(text); err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"a/b/c/d", "linux/", "/amd64", "li nux/a", "linux/arm64/"} {
		if p, err := parsePlatform(text); err == nil {
			t.Errorf("%q is %v", text, p)
		}
	}
}

// A name's record that lies in the store is read with care.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"name":"a/b:c","platform":"linux/amd64","digest":"sha256:x","manifest":{"digest":"sha256:0f","size":1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := Store{Dir: t.TempDir()}
		testutil.Must(t, os.Mkdir(s.namesDir(), 0o700))
		testutil.Must(t, os.WriteFile(filepath.Join(s.namesDir(), "x.json"), data, 0o600))
		_, _ = s.List()
		_, _ = s.Prune(Selection{All: true, Tasks: s.Dir})
	})
}
