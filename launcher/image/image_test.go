package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/image/oci"
)

// sampleImage returns an image with a single file that tells it from others.
func sampleImage(tag, content string) oci.Image {
	return oci.Image{
		Tag:    tag,
		Config: ispec.ImageConfig{Env: []string{"WHICH=" + content}},
		Layers: []oci.Layer{{Tar: oci.Tar(oci.File{Name: "which", Body: content}), Compression: "gzip"}},
	}
}

func write(t *testing.T, images ...oci.Image) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	if err := oci.Write(dir, images...); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestOpen(t *testing.T) {
	one := write(t, sampleImage("", "one"))
	two := write(t, sampleImage("a", "A"), sampleImage("repo/b:1", "B"))
	foreign := sampleImage("x", "X")
	foreign.Arch = "s390x"
	alien := write(t, foreign)
	both := write(t, sampleImage("m", "native"), foreign)
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "usr"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, ref string
		which     string // WHICH of the image that is found
		fails     string // or part of the error
	}{
		{name: "path", ref: one, which: "one"},
		{name: "prefix", ref: "oci:" + one, which: "one"},
		{name: "tag", ref: two + ":a", which: "A"},
		{name: "tag with separators", ref: "oci:" + two + ":repo/b:1", which: "B"},
		{name: "platform chooses", ref: both, which: "native"},
		{name: "no such tag", ref: two + ":c", fails: `no image is tagged "c"; there are: a, repo/b:1`},
		{name: "which of several", ref: two, fails: "several images and no tag to choose by; there are: a, repo/b:1"},
		{name: "another processor", ref: alien, fails: "no image for linux/" + runtime.GOARCH + "; there are: linux/s390x"},
		{name: "nothing there", ref: "/no/such", fails: "/no/such is no image: there is no such file"},
		{name: "directory said, layout found", ref: "dir:" + one, fails: ErrNoImage.Error()},
		{name: "layout said, directory found", ref: "oci:" + root, fails: "is no image: there is no OCI layout at"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			img, err := Open(tt.ref)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %v, want one line with %q", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := []string{"WHICH=" + tt.which}; !slices.Equal(img.Config.Env, want) {
				t.Errorf("found the image with %v, want %v", img.Config.Env, want)
			}
		})
	}
	if img, err := Open(root); err != nil || img.Dir != root {
		t.Errorf("directory: %+v, %v", img, err)
	}
}

// An index may hold indexes, and lies.
func TestOpenIndexes(t *testing.T) {
	dir := write(t, sampleImage("", "inner"))
	var top ispec.Index
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err == nil {
		err = decodeDocument(data, &top, "index")
	}
	if err != nil {
		t.Fatal(err)
	}
	nest := func(entries []ispec.Descriptor) []ispec.Descriptor {
		d, err := oci.WriteBlob(dir, ispec.MediaTypeImageIndex, ispec.Index{Manifests: entries})
		if err != nil {
			t.Fatal(err)
		}
		return []ispec.Descriptor{d}
	}
	entries := top.Manifests
	for depth := range 6 {
		if err := oci.WriteIndex(dir, entries); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); (err == nil) != (depth <= maxNesting) {
			t.Errorf("nested %d deep: %v", depth, err)
		}
		entries = nest(entries)
	}
	for _, tt := range []struct {
		name   string
		change func(*ispec.Descriptor)
	}{
		{"size", func(d *ispec.Descriptor) { d.Size++ }},
		{"huge", func(d *ispec.Descriptor) { d.Size = 1 << 40 }},
		{"digest that is a path", func(d *ispec.Descriptor) { d.Digest = "sha256:../../../../etc/passwd" }},
		{"unknown algorithm", func(d *ispec.Descriptor) { d.Digest = "md5:0123" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := top.Manifests[0]
			tt.change(&d)
			if err := oci.WriteIndex(dir, []ispec.Descriptor{d}); err != nil {
				t.Fatal(err)
			}
			if img, err := Open(dir); err == nil {
				t.Errorf("opened as %+v", img)
			}
		})
	}
}

// A layout can name only its own files. Devices aren't opened: no driver has this number, so that
// opening it would fail with ENXIO.
func TestOpenStaysInside(t *testing.T) {
	testutil.NeedRoot(t)
	for _, replaced := range []string{"oci-layout", "index.json", "manifest", "layer"} {
		for _, tt := range []struct {
			name string
			make func(t *testing.T, file, original string)
			says error
		}{
			{"link to a file outside", func(t *testing.T, file, original string) { testutil.Must(t, os.Symlink(original, file)) }, fs.ErrNotExist},
			{"relative link to a file outside", func(t *testing.T, file, original string) {
				testutil.Must(t, os.Symlink(strings.Repeat("../", 20)+original, file))
			}, fs.ErrNotExist},
			{"link to a device", func(t *testing.T, file, original string) {
				device := filepath.Join(filepath.Dir(original), "device")
				testutil.Must(t, unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(240, 77))))
				testutil.Must(t, os.Symlink(device, file))
			}, fs.ErrNotExist},
			{"device", func(t *testing.T, file, _ string) {
				testutil.Must(t, unix.Mknod(file, unix.S_IFCHR|0o600, int(unix.Mkdev(240, 77))))
			}, inroot.ErrNotRegular},
		} {
			t.Run(replaced+" "+tt.name, func(t *testing.T) {
				dir := write(t, sampleImage("", "inside"))
				file := filepath.Join(dir, fileOf(t, dir, replaced))
				original := filepath.Join(t.TempDir(), "original")
				testutil.Must(t, os.Rename(file, original))
				tt.make(t, file, original)
				img, err := openLayout(dir, directory(dir), "", thisPlatform(t))
				if err == nil {
					_, err = (Store{Dir: t.TempDir()}).Unpack(t.Context(), img, nil)
				}
				if !errors.Is(err, tt.says) {
					t.Errorf("error %v, want %v", err, tt.says)
				}
			})
		}
	}
}

// fileOf is the path, in a layout of one image, of a file by its role.
func fileOf(t *testing.T, dir, role string) string {
	t.Helper()
	if strings.Contains(role, ".") || role == ispec.ImageLayoutFile {
		return role
	}
	img, err := Open(dir)
	testutil.Must(t, err)
	d := img.manifest
	if role == "layer" {
		d = img.layers[0].blob
	}
	return filepath.Join("blobs", d.Digest.path())
}

func thisPlatform(t *testing.T) platform {
	t.Helper()
	p, err := parsePlatform("")
	testutil.Must(t, err)
	return p
}

func unpack(t *testing.T, s Store, dir string) ([]string, error) {
	t.Helper()
	img, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	return s.Unpack(t.Context(), img, nil)
}

func TestUnpack(t *testing.T) {
	testutil.NeedRoot(t)
	for _, compression := range []string{"", "gzip", "zstd"} {
		t.Run("compression "+compression, func(t *testing.T) {
			dir := write(t, oci.Image{Layers: []oci.Layer{
				{Compression: compression, Tar: oci.Tar(
					oci.File{Name: "d/", Mode: 0o750, UID: 7, GID: 8},
					oci.File{Name: "d/file", Body: "lower", UID: 1, GID: 2, Mode: 0o4755, Xattrs: map[string]string{"user.note": "kept", "trusted.overlay.opaque": "y"}},
					oci.File{Name: "d/hard", Type: tar.TypeLink, Link: "d/file", UID: 1, GID: 2, Mode: 0o4755},
					oci.File{Name: "d/soft", Type: tar.TypeSymlink, Link: "/etc/passwd"},
				)},
				{Compression: compression, Tar: oci.Tar(
					oci.File{Name: "d/.wh.file"}, oci.File{Name: "e/"}, oci.File{Name: "e/.wh..wh..opq"}, oci.File{Name: "d/new", Body: "upper"},
				)},
			}})
			dirs, err := unpack(t, Store{Dir: t.TempDir()}, dir)
			if err != nil || len(dirs) != 2 {
				t.Fatal(dirs, err)
			}
			upper, lower := dirs[0], dirs[1]
			want := []string{
				"d drwxr-x--- 7:8", "d/file -rwsr-xr-x 1:2", "d/hard -rwsr-xr-x 1:2", "d/soft Lrwxrwxrwx 0:0",
			}
			if diff := cmp.Diff(want, listTree(t, lower)); diff != "" {
				t.Errorf("lower layer (-want +got):\n%s", diff)
			}
			// The directory that the upper layer doesn't describe looks as it did.
			want = []string{"d drwxr-x--- 7:8", "d/file Dc--------- 0:0", "d/new -rw-r--r-- 0:0", "e drwxr-xr-x 0:0"}
			if diff := cmp.Diff(want, listTree(t, upper)); diff != "" {
				t.Errorf("upper layer (-want +got):\n%s", diff)
			}
			if a, b := inode(t, lower+"/d/file"), inode(t, lower+"/d/hard"); a != b {
				t.Errorf("hard link has inode %d, want %d", b, a)
			}
			for _, x := range []struct{ path, name, want string }{
				{lower + "/d/file", "user.note", "kept"}, {lower + "/d/file", "trusted.overlay.opaque", ""}, {upper + "/e", "trusted.overlay.opaque", "y"},
			} {
				if got := xattr(x.path, x.name); got != x.want {
					t.Errorf("%s of %s is %q, want %q", x.name, x.path, got, x.want)
				}
			}
		})
	}
}

// A layer that hides all below it is where the root ends.
func TestUnpackOpaqueRoot(t *testing.T) {
	testutil.NeedRoot(t)
	dir := write(t, oci.Image{Layers: []oci.Layer{
		{Tar: oci.Tar(oci.File{Name: "hidden"})}, {Tar: oci.Tar(oci.File{Name: ".wh..wh..opq"}, oci.File{Name: "shown"})}, {Tar: oci.Tar(oci.File{Name: "top"})},
	}})
	if dirs, err := unpack(t, Store{Dir: t.TempDir()}, dir); err != nil || len(dirs) != 2 {
		t.Errorf("layers %v, %v, want two", dirs, err)
	}
}

// Nothing of a hostile layer reaches outside its directory.
func TestUnpackHostile(t *testing.T) {
	testutil.NeedRoot(t)
	for _, tt := range []struct {
		name  string
		files []oci.File
	}{
		{"dots", []oci.File{{Name: "../../../outside", Body: "x"}}},
		{"absolute", []oci.File{{Name: "/tmp/../../outside", Body: "x"}}},
		{"through an absolute link", []oci.File{{Name: "way", Type: tar.TypeSymlink, Link: "OUTSIDE"}, {Name: "way/file", Body: "x"}}},
		{"through a relative link", []oci.File{{Name: "way", Type: tar.TypeSymlink, Link: "../../../../../../../OUTSIDE"}, {Name: "way/file", Body: "x"}}},
		{"hard link to outside", []oci.File{{Name: "file", Type: tar.TypeLink, Link: "../../../../../../../OUTSIDE/secret"}, {Name: "file", Body: "x"}}},
		{"overwrite through a link", []oci.File{{Name: "file", Type: tar.TypeSymlink, Link: "OUTSIDE/secret"}, {Name: "file", Body: "x"}}},
		{"directory over a link", []oci.File{{Name: "way", Type: tar.TypeSymlink, Link: "OUTSIDE"}, {Name: "way/", Mode: 0o777}, {Name: "way/file", Body: "x"}}},
		{"whiteout through a link", []oci.File{{Name: "way", Type: tar.TypeSymlink, Link: "OUTSIDE"}, {Name: "way/.wh.secret"}}},
		{"opaque through a link", []oci.File{{Name: "way", Type: tar.TypeSymlink, Link: "OUTSIDE"}, {Name: "way/.wh..wh..opq"}}},
		{"whiteout of dots", []oci.File{{Name: ".wh..."}, {Name: ".wh.."}}},
		{"modes through a link", []oci.File{{Name: "way", Type: tar.TypeSymlink, Link: "OUTSIDE/secret", Mode: 0o777, UID: 99}}},
		{"device", []oci.File{{Name: "sda", Type: tar.TypeBlock, Major: 8}, {Name: "null", Type: tar.TypeChar, Major: 1, Minor: 3}, {Name: "whiteout", Type: tar.TypeChar}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			outside := t.TempDir()
			if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("kept"), 0o600); err != nil {
				t.Fatal(err)
			}
			files := slices.Clone(tt.files)
			for i := range files {
				files[i].Link = strings.ReplaceAll(files[i].Link, "OUTSIDE", strings.TrimPrefix(outside, "/"))
				if !strings.HasPrefix(tt.files[i].Link, "..") && strings.HasPrefix(tt.files[i].Link, "OUTSIDE") {
					files[i].Link = "/" + files[i].Link
				}
			}
			before := listTree(t, outside)
			store := Store{Dir: filepath.Join(t.TempDir(), "a/b/c/store")}
			// Whether such a layer is refused or unpacked inside doesn't matter here.
			dirs, err := unpack(t, store, write(t, oci.Image{Layers: []oci.Layer{{Tar: oci.Tar(files...)}}}))
			if diff := cmp.Diff(before, listTree(t, outside)); diff != "" {
				t.Errorf("outside changed (-before +after):\n%s", diff)
			}
			if got, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(got) != "kept" {
				t.Errorf("secret is %q, %v", got, err)
			}
			if xattr(outside, "trusted.overlay.opaque") != "" {
				t.Error("outside was marked opaque")
			}
			if err == nil {
				for _, line := range listTree(t, dirs[0]) {
					if tt.name == "device" && strings.Contains(line, " D") {
						t.Errorf("device node was made: %s", line)
					}
				}
			}
		})
	}
}

// A layer that isn't what the image says leaves nothing, and names the culprit.
func TestUnpackCorrupt(t *testing.T) {
	testutil.NeedRoot(t)
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, dir string, l descriptor)
		says   string
	}{
		{"a byte is another", func(t *testing.T, dir string, l descriptor) {
			patch(t, dir, l, func(b []byte) []byte { b[len(b)-6] ^= 1; return b })
		}, ""},
		{"a byte that changes no content", func(t *testing.T, dir string, l descriptor) {
			patch(t, dir, l, func(b []byte) []byte { b[4] ^= 1; return b }) // a time in gzip's header
		}, "blob is corrupt"},
		{"cut off", func(t *testing.T, dir string, l descriptor) {
			patch(t, dir, l, func(b []byte) []byte { return b[:len(b)/2] })
		}, ""},
		{"more at the end", func(t *testing.T, dir string, l descriptor) {
			patch(t, dir, l, func(b []byte) []byte { return append(b, 0) })
		}, ""},
		{"missing", func(t *testing.T, dir string, l descriptor) {
			if err := os.Remove(blobFile(dir, l)); err != nil {
				t.Fatal(err)
			}
		}, "no such file"},
		{"a pipe", func(t *testing.T, dir string, l descriptor) {
			if err := errors.Join(os.Remove(blobFile(dir, l)), unix.Mkfifo(blobFile(dir, l), 0o600)); err != nil {
				t.Fatal(err)
			}
		}, "not a regular file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := write(t, sampleImage("", strings.Repeat("content", 1000)))
			img, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			blob := img.layers[0].blob
			tt.change(t, dir, blob)
			store := Store{Dir: t.TempDir()}
			_, err = store.Unpack(t.Context(), img, nil)
			if err == nil || !strings.Contains(err.Error(), string(blob.Digest)) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want one that names %s", err, blob.Digest)
			}
			if left := listTree(t, store.Dir); len(left) > 1 { // the directory of the algorithm
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// The content is checked too: a blob that is right, of an image that lies.
func TestUnpackWrongContent(t *testing.T) {
	testutil.NeedRoot(t)
	img, err := Open(write(t, sampleImage("", "x")))
	if err != nil {
		t.Fatal(err)
	}
	img.layers[0].diff = chainIDs([]digest{img.layers[0].diff, "y"})[1] // of something else
	if _, err := (Store{Dir: t.TempDir()}).Unpack(t.Context(), img, nil); err == nil || !strings.Contains(err.Error(), "as the image says") {
		t.Errorf("error %v", err)
	}
}

func TestUnpackTooLarge(t *testing.T) {
	testutil.NeedRoot(t)
	dir := write(t, sampleImage("", strings.Repeat("x", 1<<20)))
	if _, err := unpack(t, Store{Dir: t.TempDir(), MaxLayer: 1 << 19}, dir); err == nil || !strings.Contains(err.Error(), "more than the 524288 bytes") {
		t.Errorf("error %v", err)
	}
}

// An image that names the digests of a stored layer, but doesn't have the layer, doesn't get its
// files.
func TestUnpackNeedsTheLayer(t *testing.T) {
	testutil.NeedRoot(t)
	secret := func() oci.Image { return sampleImage("", strings.Repeat("secret", 1000)) }
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, dir string, img *Image)
		fails  bool
	}{
		{"a copy", func(*testing.T, string, *Image) {}, false},
		{"no blob", func(t *testing.T, dir string, img *Image) {
			testutil.Must(t, os.Remove(blobFile(dir, img.layers[0].blob)))
		}, true},
		{"a blob of the right size", func(t *testing.T, dir string, img *Image) {
			patch(t, dir, img.layers[0].blob, func(b []byte) []byte { return make([]byte, len(b)) })
		}, true},
		{"a blob that is right, of another layer", func(t *testing.T, dir string, img *Image) {
			mine, err := Open(write(t, sampleImage("", "mine")))
			testutil.Must(t, err)
			img.origin, img.layers[0].blob = mine.origin, mine.layers[0].blob
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := Store{Dir: t.TempDir()}
			theirs, err := unpack(t, store, write(t, secret()))
			testutil.Must(t, err)
			dir := write(t, secret())
			img, err := Open(dir)
			testutil.Must(t, err)
			tt.change(t, dir, img)
			dirs, err := store.Unpack(t.Context(), img, nil)
			if tt.fails && err == nil {
				t.Errorf("was given %v", dirs)
			}
			if !tt.fails && (err != nil || !slices.Equal(dirs, theirs)) {
				t.Errorf("%v, %v, want %v", dirs, err, theirs)
			}
		})
	}
}

// A layer is read once for each file that holds it.
func TestUnpackReadsOnce(t *testing.T) {
	testutil.NeedRoot(t)
	store, dir := Store{Dir: t.TempDir()}, write(t, sampleImage("", "x"))
	read := func() (n int64) {
		img, err := Open(dir)
		testutil.Must(t, err)
		_, err = store.Unpack(t.Context(), img, func(p Progress) {
			if n = p.Done; p.Done > p.Total {
				t.Errorf("%d of %d bytes", p.Done, p.Total)
			}
		})
		testutil.Must(t, err)
		return n
	}
	img, err := Open(dir)
	testutil.Must(t, err)
	blob := img.layers[0].blob
	for i, want := range []int64{blob.Size, 0, 0} {
		if got := read(); got != want {
			t.Errorf("start %d reads %d bytes, want %d", i, got, want)
		}
	}
	renew := func() { // the same content in another file
		data, err := os.ReadFile(blobFile(dir, blob))
		testutil.Must(t, err)
		testutil.Must(t, os.WriteFile(dir+"/new", data, 0o600))
		testutil.Must(t, os.Rename(dir+"/new", blobFile(dir, blob)))
	}
	renew()
	for i, want := range []int64{blob.Size, 0} {
		if got := read(); got != want {
			t.Errorf("after a change, start %d reads %d bytes, want %d", i, got, want)
		}
	}
	known := filepath.Join(store.layerDir(img.layers[0].chain), "known")
	for i := range proofLimit {
		testutil.Must(t, os.WriteFile(filepath.Join(known, fmt.Sprint(i)), nil, 0o600))
	}
	renew()
	read()
	if names, err := os.ReadDir(known); err != nil || len(names) > proofLimit {
		t.Errorf("%d proofs, %v", len(names), err)
	}
}

// What a killed unpacking left is removed by the next one, of any image.
func TestUnpackSweeps(t *testing.T) {
	testutil.NeedRoot(t)
	store := Store{Dir: t.TempDir()}
	dead := filepath.Join(store.Dir, "sha256", strings.Repeat("d", 64))
	if err := os.MkdirAll(filepath.Join(dead, "tmp", "half"), 0o700); err != nil {
		t.Fatal(err)
	}
	living := filepath.Join(store.Dir, "sha256", strings.Repeat("a", 64))
	held, err := tryLock(living, lock.Exclusive, true)
	if err != nil || held == nil {
		t.Fatal(held, err)
	}
	defer held.Close()
	if _, err := unpack(t, store, write(t, sampleImage("", "x"))); err != nil {
		t.Fatal(err)
	}
	if pathExists(dead) || !pathExists(living) {
		t.Errorf("dead %v, living %v", pathExists(dead), pathExists(living))
	}
}

func TestUnpackOnce(t *testing.T) {
	testutil.NeedRoot(t)
	dir := write(t, sampleImage("", strings.Repeat("x", 1<<20)))
	store := Store{Dir: t.TempDir()}
	var mu sync.Mutex
	var read int64
	inodes := map[uint64]bool{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			img, err := Open(dir)
			if err != nil {
				t.Error(err)
				return
			}
			var last int64
			dirs, err := store.Unpack(t.Context(), img, func(p Progress) { last = p.Done })
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			read += last
			inodes[inode(t, dirs[0])] = true
		})
	}
	wg.Wait()
	img, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(inodes) != 1 || read != img.layers[0].blob.Size {
		t.Errorf("%d directories, %d bytes read, want one and %d", len(inodes), read, img.layers[0].blob.Size)
	}
}

// Waiting for another task's unpacking can be interrupted.
func TestUnpackInterrupted(t *testing.T) {
	testutil.NeedRoot(t)
	img, err := Open(write(t, sampleImage("", "x")))
	if err != nil {
		t.Fatal(err)
	}
	store := Store{Dir: t.TempDir()}
	held, err := tryLock(store.layerDir(img.layers[0].chain), lock.Exclusive, true)
	if err != nil || held == nil {
		t.Fatal(held, err)
	}
	defer held.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	_, err = store.Unpack(ctx, img, func(p Progress) {
		if p.Waiting {
			cancel(why)
		}
	})
	if !errors.Is(err, why) {
		t.Errorf("error %v, want %v", err, why)
	}
}

// listTree returns name, mode and owner of everything in dir.
func listTree(t *testing.T, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fi, err := d.Info()
		lines = append(lines, fmt.Sprintf("%s %s %d:%d", strings.TrimPrefix(path, dir+"/"), modeOf(fi), st.Uid, st.Gid))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func modeOf(fi os.FileInfo) string {
	m := fi.Mode()
	s := m.String()
	if m&os.ModeSetuid != 0 { // in ls's manner
		return "-rws" + m.Perm().String()[4:]
	}
	return s
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Error(err)
	}
	return st.Ino
}

func xattr(path, name string) string {
	var b [64]byte
	n, err := unix.Lgetxattr(path, name, b[:])
	if err != nil {
		return ""
	}
	return string(b[:n])
}

func blobFile(dir string, d descriptor) string {
	return filepath.Join(dir, "blobs", d.Digest.path())
}

func patch(t *testing.T, dir string, d descriptor, f func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(blobFile(dir, d))
	if err == nil {
		err = os.WriteFile(blobFile(dir, d), f(data), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestParsePullOfPodman: never isn't near newer.
func TestParsePullOfPodman(t *testing.T) {
	if _, err := ParsePull("newer"); err == nil || err.Error() != `pull "newer" is podman's: always asks the registry, and gets what is newer` {
		t.Error(err)
	}
}
