package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	theirarchive "github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/log"
	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/launcher/image/layertree"
	"github.com/berth-gpu/berth/test/image/oci"
)

// unpackFiles unpacks an image of one layer, and returns its directory.
func unpackFiles(t *testing.T, files ...oci.File) (string, error) {
	t.Helper()
	dirs, err := unpack(t, Store{Dir: t.TempDir()}, write(t, oci.Image{Layers: []oci.Layer{{Tar: oci.Tar(files...)}}}))
	if err != nil {
		return "", err
	}
	return dirs[0], nil
}

func TestUnpackOddEntries(t *testing.T) {
	testutil.NeedRoot(t)
	file := func(name, body string) oci.File { return oci.File{Name: name, Body: body} }
	dir := func(name string) oci.File { return oci.File{Name: name + "/"} }
	soft := func(name, to string) oci.File { return oci.File{Name: name, Type: tar.TypeSymlink, Link: to} }
	hard := func(name, to string) oci.File { return oci.File{Name: name, Type: tar.TypeLink, Link: to} }
	const f, d, l, w, p = " -rw-r--r-- 0:0", " drwxr-xr-x 0:0", " Lrwxrwxrwx 0:0", " Dc--------- 0:0", " prw-r--r-- 0:0"
	for _, tt := range []struct {
		name  string
		files []oci.File
		want  []string
		fails string
		// opaque are the directories that hide what is below.
		opaque []string
	}{
		{name: "of aufs", files: []oci.File{file(".wh..wh.plnk", ""), dir(".wh..wh.orph"), file(".wh..wh.aufs", ""), file("a", "")}, want: []string{"a" + f}},
		{name: "whiteout of nothing", files: []oci.File{file(".wh.", "")}, fails: "hides no name"},
		{name: "whiteout of a dot", files: []oci.File{file("a/.wh..", "")}, fails: "hides no name"},
		{name: "whiteout of dots", files: []oci.File{file("a/.wh...", "")}, fails: "hides no name"},
		{name: "whiteout of a whiteout's name", files: []oci.File{file(".wh.a.wh.b", "")}, want: []string{"a.wh.b" + w}},
		{name: "whiteout that is a link", files: []oci.File{soft(".wh.a", "/etc")}, want: []string{"a" + w}},
		{name: "whiteout that is a directory", files: []oci.File{dir(".wh.a")}, want: []string{"a" + w}},
		{name: "whiteout twice", files: []oci.File{file(".wh.a", ""), file(".wh.a", "")}, want: []string{"a" + w}},
		{name: "whiteout, then the file", files: []oci.File{file(".wh.a", ""), file("a", "")}, want: []string{"a" + f}},
		{name: "the file, then its whiteout", files: []oci.File{file("a", ""), file(".wh.a", "")}, want: []string{"a" + f}},
		{name: "whiteout, then the directory", files: []oci.File{file(".wh.a", ""), dir("a")}, want: []string{"a" + d}, opaque: []string{"a"}},
		{name: "the directory, then its whiteout", files: []oci.File{dir("a"), file(".wh.a", "")}, want: []string{"a" + d}, opaque: []string{"a"}},
		{name: "opaque, late", files: []oci.File{file("a/b", ""), file("a/.wh..wh..opq", "")}, want: []string{"a" + d, "a/b" + f}, opaque: []string{"a"}},
		{name: "below a whiteout", files: []oci.File{file(".wh.a", ""), file("a/b", "")}, fails: "not a directory"},
		{name: "file, directory, link, file", files: []oci.File{file("a", "1"), dir("a"), file("a/b", ""), soft("a", "c"), file("a", "2")}, want: []string{"a" + f}},
		{name: "directory again", files: []oci.File{dir("a"), file("a/b", ""), {Name: "a/", Mode: 0o700, UID: 5}}, want: []string{"a drwx------ 5:0", "a/b" + f}},
		{name: "below a file", files: []oci.File{file("a", ""), file("a/b", "")}, fails: "not a directory"},
		{name: "through a link inside", files: []oci.File{dir("real"), soft("way", "real"), file("way/b", "")}, want: []string{"real" + d, "real/b" + f, "way" + l}},
		{name: "through a link to nowhere", files: []oci.File{soft("way", "/new/place"), file("way/b", "")}, want: []string{"new" + d, "new/place" + d, "new/place/b" + f, "way" + l}},
		{name: "through a link to above", files: []oci.File{soft("way", "../../../new"), file("way/b", "")}, want: []string{"new" + d, "new/b" + f, "way" + l}},
		{name: "through links in a circle", files: []oci.File{soft("a", "b"), soft("b", "a"), file("a/c", "")}, fails: "too many levels"},
		{name: "through links that grow", files: []oci.File{soft("a", "a/b"), file("a/c", "")}, fails: "too many levels"},
		{name: "hard link to a link", files: []oci.File{soft("a", "/etc/passwd"), hard("b", "a")}, want: []string{"a" + l, "b" + l}},
		{name: "hard link with a mode to a link", files: []oci.File{soft("a", "/etc/passwd"), {Name: "b", Type: tar.TypeLink, Link: "a", Mode: 0o4777, UID: 7}}, want: []string{"a" + l, "b" + l}},
		{name: "hard link to a directory", files: []oci.File{dir("a"), hard("b", "a")}, fails: "not permitted"},
		{name: "hard link to nothing", files: []oci.File{hard("b", "a")}, fails: "no such file"},
		{name: "hard link to itself", files: []oci.File{file("a", ""), hard("a", "a")}, fails: "no such file"},
		{name: "hard link to the root", files: []oci.File{hard("b", "/")}, fails: "link to"},
		{name: "hard link to a whiteout", files: []oci.File{file(".wh.a", ""), hard("b", "a")}, want: []string{"a" + w, "b" + w}},
		{name: "pipe", files: []oci.File{{Name: "a", Type: tar.TypeFifo, Mode: 0o644}}, want: []string{"a" + p}},
		{name: "pipe with an attribute that only files have", files: []oci.File{{Name: "a", Type: tar.TypeFifo, Mode: 0o644, Xattrs: map[string]string{"user.x": "y"}}}, want: []string{"a" + p}},
		{name: "set-id bits", files: []oci.File{{Name: "a", Mode: 0o6755, UID: 3, GID: 4}}, want: []string{"a -rws" + "r-xr-x 3:4"}},
		{name: "the root", files: []oci.File{{Name: "./", Mode: 0o777, UID: 9}, {Name: "/", Type: tar.TypeSymlink, Link: "/etc"}, file("..", "x"), file("../..", "x")}, want: nil},
		{name: "dots", files: []oci.File{file("./a/./b/../c", "")}, want: []string{"a" + d, "a/c" + f}},
		{name: "a name as long as can be", files: []oci.File{file(strings.Repeat("n", 255), "")}, want: []string{strings.Repeat("n", 255) + f}},
		{name: "a name that is too long", files: []oci.File{file(strings.Repeat("n", 256), "")}, fails: "name too long"},
		{name: "a path that is too long", files: []oci.File{file(strings.Repeat("n/", 2100)+"x", "")}, fails: "name too long"},
		{name: "a link that is too long", files: []oci.File{soft("a", strings.Repeat("n", 5000))}, fails: "name too long"},
		{name: "nobody's owner", files: []oci.File{{Name: "a", UID: 1<<32 - 1}}, fails: "owner 4294967295:0 is invalid"},
		{name: "an owner that no kernel has", files: []oci.File{{Name: "a", GID: 1 << 40}}, fails: "is invalid"},
		{name: "devices", files: []oci.File{{Name: "a", Type: tar.TypeBlock, Major: 8}, {Name: "b", Type: tar.TypeChar}, {Name: "c", Type: tar.TypeChar, Major: 1, Minor: 3}}, want: nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := unpackFiles(t, tt.files...)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 900 {
					t.Errorf("error %v, want a line with %q", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, listTree(t, got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			for _, line := range listTree(t, got) {
				name, _, _ := strings.Cut(line, " ")
				if hides := xattr(filepath.Join(got, name), "trusted.overlay.opaque") == "y"; hides != slices.Contains(tt.opaque, name) {
					t.Errorf("%s hides what is below: %v", name, hides)
				}
			}
		})
	}
}

// No attribute of overlayfs's own comes in by a layer, on nothing and by no way.
func TestUnpackAttributes(t *testing.T) {
	testutil.NeedRoot(t)
	attrs := map[string]string{"security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "user.fine": "yes"}
	for _, name := range []string{"opaque", "redirect", "metacopy", "origin", "upper", "whiteout", "overlay.opaque"} {
		attrs["trusted.overlay."+name], attrs["user.overlay."+name] = "y", "y"
	}
	attrs["trusted.other"] = "y"
	dirs, err := unpack(t, Store{Dir: t.TempDir()}, write(t, oci.Image{Layers: []oci.Layer{
		{Tar: oci.Tar(oci.File{Name: "d/", Xattrs: attrs, Mode: 0o2711}, oci.File{Name: "d/f", Body: "x", Xattrs: attrs, UID: 7}, oci.File{Name: "d/l", Type: tar.TypeSymlink, Link: "f", Xattrs: map[string]string{"trusted.overlay.opaque": "y"}})},
		{Tar: oci.Tar(oci.File{Name: "d/new"})}, // its d is inherited
	}}))
	testutil.Must(t, err)
	for path, want := range map[string][]string{
		dirs[1] + "/d": {"security.capability", "user.fine"}, dirs[1] + "/d/f": {"security.capability", "user.fine"}, dirs[1] + "/d/l": nil,
		dirs[0] + "/d": {"security.capability", "user.fine"}, dirs[0] + "/d/new": nil,
	} {
		var buf [4096]byte
		n, err := unix.Llistxattr(path, buf[:])
		testutil.Must(t, err)
		got := strings.FieldsFunc(string(buf[:n]), func(c rune) bool { return c == 0 })
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	if got := listTree(t, dirs[0])[0]; got != "d dgrwx--x--x 0:0" {
		t.Errorf("inherited directory is %s", got)
	}
}

// writeGzipLayer makes a layout whose one layer is this archive, gzipped.
func writeGzipLayer(t *testing.T, archive io.Reader) string {
	t.Helper()
	return write(t, oci.Image{Layers: []oci.Layer{{Tar: archive, Compression: "gzip"}}})
}

// Bombs go off before they fill anything.
func TestUnpackBombs(t *testing.T) {
	testutil.NeedRoot(t)
	const limit = 64 << 20
	var empty bytes.Buffer
	testutil.Must(t, tar.NewWriter(&empty).Close())
	zeros := func(n int64) io.Reader { return io.LimitReader(nothing{}, n) }
	header := func(size int64) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		testutil.Must(t, w.WriteHeader(&tar.Header{Name: "zeros", Mode: 0o644, Size: size, Format: tar.FormatGNU}))
		return &b
	}
	for _, tt := range []struct {
		name    string
		archive io.Reader
		says    string
	}{
		{"a file of zeros", io.MultiReader(header(limit), zeros(limit)), "more than the 67108864 bytes"},
		{"a size that isn't there", header(1 << 62), "more than the 67108864 bytes"},
		{"what follows the end", io.MultiReader(&empty, zeros(3*limit)), "larger than what a layer may have"},
		{"holes", sparse(t, 1<<40), "more than the 67108864 bytes"},
		{"directories that no entry describes", oci.Tar(makeDeepFiles(20)...), "more than the 67108864 bytes"},
		{"many empty files", makeEmptyFiles(limit / 4096), "more than the 67108864 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Store{Dir: t.TempDir(), MaxLayer: limit}
			if _, err := unpack(t, s, writeGzipLayer(t, tt.archive)); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %q", err, tt.says)
			}
			if left := CountSize(s.Dir); left > 0 {
				t.Errorf("%d bytes were left behind", left)
			}
		})
	}
}

// makeDeepFiles returns files with a thousand directories of their own each.
func makeDeepFiles(n int) (files []oci.File) {
	for i := range n {
		files = append(files, oci.File{Name: strings.Repeat(fmt.Sprintf("%c/", 'a'+i), 1000) + "f"})
	}
	return files
}

type nothing struct{}

func (nothing) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// sparse is an archive of one file that is a hole.
func sparse(t *testing.T, size int64) io.Reader {
	t.Helper()
	dir := t.TempDir()
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "hole"), nil, 0o600))
	testutil.Must(t, os.Truncate(filepath.Join(dir, "hole"), size))
	out, err := exec.Command("tar", "-C", dir, "--sparse", "-cf", "-", "hole").Output()
	testutil.Must(t, err)
	if len(out) > 1<<20 {
		t.Fatalf("archive is of %d bytes", len(out))
	}
	return bytes.NewReader(out)
}

// makeEmptyFiles returns an archive of n empty files in directories of a thousand.
func makeEmptyFiles(n int) io.Reader {
	r, w := io.Pipe()
	go func() {
		a := tar.NewWriter(w)
		var err error
		for i := 0; i <= n && err == nil; i++ {
			err = a.WriteHeader(&tar.Header{Name: fmt.Sprintf("%d/%d", i/1000, i%1000), Mode: 0o644})
		}
		w.CloseWithError(errors.Join(err, a.Close()))
	}()
	return r
}

// A sparse file that fits is what it says, in both of GNU's formats.
func TestUnpackSparse(t *testing.T) {
	testutil.NeedRoot(t)
	for _, format := range []string{"gnu", "posix"} {
		dir := t.TempDir()
		f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_CREATE|os.O_WRONLY, 0o644)
		testutil.Must(t, err)
		_, err = f.WriteAt([]byte("end"), 4<<20)
		testutil.Must(t, errors.Join(err, f.Close()))
		out, err := exec.Command("tar", "-C", dir, "--sparse", "--format", format, "-cf", "-", "f").Output()
		testutil.Must(t, err)
		dirs, err := unpack(t, Store{Dir: t.TempDir()}, writeGzipLayer(t, bytes.NewReader(out)))
		testutil.Must(t, err)
		got, err := os.ReadFile(filepath.Join(dirs[0], "f"))
		if want := append(make([]byte, 4<<20), "end"...); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", format, len(got), err)
		}
	}
}

// TestUnpackMany unpacks 100,000 files, or a million with BERTH_TEST_ALL=1, and removes them.
func TestUnpackMany(t *testing.T) {
	testutil.NeedRoot(t)
	thousands := 100
	if testutil.RunsAll() {
		thousands = 1000
	}
	dir := t.TempDir()
	testutil.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=0,size=8g"))
	t.Cleanup(func() { testutil.Must(t, unix.Unmount(dir, 0)) })
	dirs, err := unpack(t, Store{Dir: dir}, write(t, oci.Image{Layers: []oci.Layer{{Tar: makeEmptyFiles(1000*thousands - 1)}}}))
	testutil.Must(t, err)
	names, err := os.ReadDir(dirs[0])
	testutil.Must(t, err)
	last, err := os.ReadDir(filepath.Join(dirs[0], strconv.Itoa(thousands-1)))
	if err != nil || len(names) != thousands || len(last) != 1000 {
		t.Errorf("%d directories, %d files in the last, %v", len(names), len(last), err)
	}
	if done, err := (Store{Dir: dir}).Prune(Selection{Tasks: "/no/such"}); err != nil || done.Layers != 1 {
		t.Errorf("%+v, %v", done, err)
	}
}

// Directories as deep as a path can be.
func TestUnpackDeep(t *testing.T) {
	testutil.NeedRoot(t)
	deep := strings.Repeat("d/", 2000) + "f"
	dir, err := unpackFiles(t, oci.File{Name: deep, Body: "x"})
	testutil.Must(t, err)
	root, err := os.OpenRoot(dir)
	testutil.Must(t, err)
	defer root.Close()
	if fi, err := root.Stat(deep); err != nil || fi.Size() != 1 {
		t.Errorf("%v, %v", fi, err)
	}
}

// What changes its kind from layer to layer is what the last one says.
func TestUnpackKindsChange(t *testing.T) {
	testutil.NeedRoot(t)
	layer := func(files ...oci.File) oci.Layer { return oci.Layer{Tar: oci.Tar(files...)} }
	dirs, err := unpack(t, Store{Dir: t.TempDir()}, write(t, oci.Image{Layers: []oci.Layer{
		layer(oci.File{Name: "a/old", Body: "1"}, oci.File{Name: "b", Body: "1"}, oci.File{Name: "c/", Mode: 0o700, UID: 3}, oci.File{Name: "c/old"}),
		layer(oci.File{Name: "a", Body: "2"}, oci.File{Name: "b/in", Body: "2"}, oci.File{Name: "c", Type: tar.TypeSymlink, Link: "b"}),
		layer(oci.File{Name: "a/new", Body: "3"}, oci.File{Name: "b", Type: tar.TypeSymlink, Link: "a"}, oci.File{Name: "c/new", Body: "3"}),
	}}))
	testutil.Must(t, err)
	at := t.TempDir()
	testutil.Must(t, unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(dirs, ":")))
	t.Cleanup(func() { testutil.Must(t, unix.Unmount(at, 0)) })
	want := []string{"a drwxr-xr-x 0:0", "a/new -rw-r--r-- 0:0", "b Lrwxrwxrwx 0:0", "c drwxr-xr-x 0:0", "c/new -rw-r--r-- 0:0"}
	if diff := cmp.Diff(want, listTree(t, at)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Blobs that aren't archives, and archives that end early.
func TestUnpackBroken(t *testing.T) {
	testutil.NeedRoot(t)
	whole, err := io.ReadAll(oci.Tar(oci.File{Name: "a", Body: strings.Repeat("x", 5000)}))
	testutil.Must(t, err)
	for name, data := range map[string][]byte{
		"noise": []byte(makeNoise(1, 4096)), "cut off": whole[:3000], "half a header": whole[:100], "a gzip header": {0x1f, 0x8b}, "a zstd header": {0x28, 0xb5, 0x2f, 0xfd},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, oci.Image{Layers: []oci.Layer{{Tar: bytes.NewReader(data)}}})
			if dirs, err := unpack(t, Store{Dir: t.TempDir()}, dir); err == nil {
				t.Errorf("unpacked into %v", dirs)
			}
		})
	}
	if _, err := unpack(t, Store{Dir: t.TempDir()}, write(t, oci.Image{Layers: []oci.Layer{{Tar: strings.NewReader("")}}})); err != nil {
		t.Errorf("an empty layer: %v", err)
	}
}

// TestUnpackAsContainerd holds the unpacking against containerd's, over archives
// with files, directories and links of all sorts.
func TestUnpackAsContainerd(t *testing.T) {
	testutil.NeedRoot(t)
	base, both := t.TempDir(), 0
	names := []string{"a", "b", "a/b", "a/c", "a/b/c", "b/d/e", "./c", "/a/x", "../d", "a/../b/f", "c/g"}
	targets := []string{"a", "b", "../b", "/a/b", "c", "/new/dir", "../../x"}
	entry := rapid.Custom(func(t *rapid.T) oci.File {
		f := oci.File{Name: rapid.SampledFrom(names).Draw(t, "name"), UID: rapid.IntRange(0, 3).Draw(t, "uid"), Mode: rapid.Int64Range(0, 0o777).Draw(t, "mode")}
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			f.Type, f.Link = tar.TypeSymlink, rapid.SampledFrom(targets).Draw(t, "target")
		case 1:
			f.Name += "/"
		default:
			f.Body = rapid.StringN(0, 5, 9).Draw(t, "body")
		}
		return f
	})
	l := logrus.New()
	l.SetOutput(io.Discard)
	ctx := log.WithLogger(context.Background(), logrus.NewEntry(l))
	rapid.Check(t, func(rt *rapid.T) {
		files := rapid.SliceOfN(entry, 1, 8).Draw(rt, "files")
		if becomesLink(files) {
			return // containerd gives the directory's time to what the link leads to
		}
		data, err := io.ReadAll(oci.Tar(files...))
		testutil.Must(t, err)
		dir, err := os.MkdirTemp(base, "")
		testutil.Must(t, err)
		ours, theirs := filepath.Join(dir, "ours"), filepath.Join(dir, "theirs")
		testutil.Must(t, errors.Join(os.Mkdir(ours, 0o755), os.Mkdir(theirs, 0o755)))
		tree, err := layertree.New(ours, 1<<20)
		testutil.Must(t, err)
		defer tree.Close()
		err = tree.Apply(bytes.NewReader(data))
		if err == nil {
			err = tree.Finish(nil)
		}
		if _, e := theirarchive.Apply(ctx, theirs, bytes.NewReader(data)); e != nil || err != nil {
			return // what is refused is in another test
		}
		both++
		if diff := cmp.Diff(describeTree(t, theirs), describeTree(t, ours)); diff != "" {
			rt.Fatalf("-containerd +ours:\n%s", diff)
		}
	})
	if both < 20 {
		t.Errorf("only %d archives were unpacked by both", both)
	}
}

// becomesLink says that an archive has a symbolic link in the place of a directory that
// it has described before.
func becomesLink(files []oci.File) bool {
	directories := map[string]bool{}
	for _, f := range files {
		name := path.Join("/", f.Name)
		if f.Type == tar.TypeSymlink && directories[name] {
			return true
		}
		directories[name] = directories[name] || strings.HasSuffix(f.Name, "/")
	}
	return false
}

// describeTree is list with contents, targets and times.
func describeTree(t *testing.T, dir string) (lines []string) {
	for _, line := range listTree(t, dir) {
		name, _, _ := strings.Cut(line, " ")
		file := filepath.Join(dir, name)
		fi, err := os.Lstat(file)
		testutil.Must(t, err)
		at := fi.ModTime()
		if time.Since(at) < time.Hour {
			at = time.Time{} // a directory that the archive doesn't describe
		}
		line += " " + at.UTC().Format(time.RFC3339)
		switch {
		case fi.Mode().IsRegular():
			data, err := os.ReadFile(file)
			testutil.Must(t, err)
			line += " " + string(data)
		case fi.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(file)
			testutil.Must(t, err)
			line += " " + to
		}
		lines = append(lines, line)
	}
	return lines
}

// FuzzUnpack: whatever a layer is, nothing is written outside of its directory.
func FuzzUnpack(f *testing.F) {
	for _, files := range [][]oci.File{
		{{Name: "a/b", Body: "x"}, {Name: "l", Type: tar.TypeSymlink, Link: "../.."}, {Name: "l/f", Body: "y"}},
		{{Name: "h", Type: tar.TypeLink, Link: "../outside/secret"}, {Name: ".wh.x"}, {Name: "d/.wh..wh..opq"}},
	} {
		data, err := io.ReadAll(oci.Tar(files...))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(data); err != nil || z.Close() != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if os.Getuid() != 0 {
			return // owners can't be set
		}
		dir := t.TempDir()
		inside, outside := filepath.Join(dir, "in/side"), filepath.Join(dir, "outside")
		testutil.Must(t, errors.Join(os.MkdirAll(inside, 0o755), os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "secret"), []byte("kept"), 0o600)))
		tree, err := layertree.New(inside, 1<<20)
		testutil.Must(t, err)
		defer tree.Close()
		if content, done, err := Decompress(bytes.NewReader(data)); err == nil {
			if tree.Apply(&boundedReader{content, 1 << 20}) == nil {
				_ = tree.Finish([]string{outside}) // that it can't is fine
			}
			done()
		}
		got := append(listTree(t, outside), listTree(t, filepath.Join(dir, "in"))[0])
		if want := []string{"secret -rw------- 0:0", "side drwxr-xr-x 0:0"}; !slices.Equal(got, want) {
			t.Errorf("outside is %q", got)
		}
		if text, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(text) != "kept" {
			t.Errorf("%q, %v", text, err)
		}
	})
}
