package squashfs

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// makeTree makes files of all kinds and sizes in a directory, and returns what Walk says about them.
func makeTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	random := rand.NewChaCha8([32]byte{})
	want := map[string]string{}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string, data []byte, mode os.FileMode) {
		must(os.WriteFile(filepath.Join(dir, name), data, 0o600))
		must(os.Chmod(filepath.Join(dir, name), mode))
		want[name] = fmt.Sprintf("file %o %x", unixMode(mode), hashOf(data))
	}
	must(os.MkdirAll(filepath.Join(dir, "d/e/f"), 0o755))
	must(os.Mkdir(filepath.Join(dir, "many"), 0o700))
	for _, name := range []string{"d", "d/e", "d/e/f"} {
		want[name] = "directory 755"
	}
	want["many"] = "directory 700"
	for i, size := range []int{0, 1, 4095, 4096, 4097, 100_000, 300_001} {
		data := make([]byte, size)
		_, _ = random.Read(data[:size/2]) // the rest is compressible
		write(fmt.Sprintf("d/size%d", i), data, 0o644)
	}
	for i := range 600 { // several headers and metadata blocks
		write(fmt.Sprintf("many/a file with a longer name, so that the list has several blocks, and a number %d", i), []byte{byte(i), 1}, 0o640)
	}
	write("setuid", []byte("x"), 0o755|os.ModeSetuid)
	must(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	want["fifo"] = "fifo 600"
	must(os.Symlink("../../outside", filepath.Join(dir, "link")))
	want["link"] = "link ../../outside"
	must(os.Link(filepath.Join(dir, "setuid"), filepath.Join(dir, "d/second")))
	want["setuid"], want["d/second"] = "hard link d/second", want["setuid"]
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	must(err)
	must(sparse.Truncate(1 << 20))
	must(sparse.Close())
	want["sparse"] = fmt.Sprintf("file 644 %x", hashOf(make([]byte, 1<<20)))
	must(os.Chmod(sparse.Name(), 0o644))
	return want
}

func unixMode(m os.FileMode) (mode uint32) {
	mode = uint32(m.Perm())
	if m&os.ModeSetuid != 0 {
		mode |= unix.S_ISUID
	}
	return mode
}

func hashOf(data []byte) uint64 {
	h := uint64(len(data))
	for _, c := range data {
		h = h*31 + uint64(c)
	}
	return h
}

// pack makes a squashfs of a directory.
func pack(t testing.TB, dir string, options ...string) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "squashfs")
	out, err := exec.Command("mksquashfs", append([]string{dir, file, "-all-root", "-noappend", "-quiet", "-no-progress", "-processors", "1", "-no-xattrs"}, options...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("mksquashfs: %v: %s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func section(data []byte) *io.SectionReader {
	return io.NewSectionReader(bytes.NewReader(data), 0, int64(len(data)))
}

// describe returns a line about each file of a squashfs. limit bounds the content that is read, in bytes.
func describe(ctx context.Context, data []byte, limit int64) (map[string]string, error) {
	got := map[string]string{}
	err := Walk(ctx, section(data), func(h *tar.Header, content io.Reader) error {
		what := fmt.Sprintf("%c %s", h.Typeflag, h.Linkname)
		switch h.Typeflag {
		case tar.TypeReg:
			data, err := io.ReadAll(io.LimitReader(content, limit))
			if limit -= int64(len(data)); err != nil {
				return err
			}
			if limit <= 0 {
				return errLimit
			}
			if int64(len(data)) != h.Size {
				return fmt.Errorf("%s has %d bytes, not %d", h.Name, len(data), h.Size)
			}
			what = fmt.Sprintf("file %o %x", h.Mode, hashOf(data))
		case tar.TypeDir:
			what = fmt.Sprintf("directory %o", h.Mode)
		case tar.TypeSymlink:
			what = "link " + h.Linkname
		case tar.TypeLink:
			what = "hard link " + h.Linkname
		case tar.TypeFifo:
			what = fmt.Sprintf("fifo %o", h.Mode)
		}
		if limit--; limit <= 0 {
			return errLimit
		}
		got[h.Name] = what
		return nil
	})
	return got, err
}

var errLimit = errors.New("the limit of the test")

// TestWalk: Walk lists all files of file systems that mksquashfs writes, with their contents.
func TestWalk(t *testing.T) {
	dir := t.TempDir()
	want := makeTree(t, dir)
	for name, options := range map[string][]string{
		"gzip": nil, "zstd": {"-comp", "zstd"}, "lz4": {"-comp", "lz4"}, "lz4 with more effort": {"-comp", "lz4", "-Xhc"},
		"xz": {"-comp", "xz"}, "xz with a small dictionary": {"-comp", "xz", "-Xdict-size", "8K"}, "xz with blocks": {"-comp", "xz", "-b", "1M"}, "xz, small blocks": {"-comp", "xz", "-b", "4096"},
		"small blocks": {"-b", "4096"}, "large blocks": {"-b", "1M", "-comp", "zstd"},
		"not compressed": {"-noI", "-noD", "-noF", "-noX"}, "no fragments": {"-no-fragments"}, "all fragments": {"-always-use-fragments"},
		"no duplicates": {"-no-duplicates", "-no-exports"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := describe(t.Context(), pack(t, dir, options...), 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestOtherCompressors: a compressor without a reader is an error that says so.
func TestOtherCompressors(t *testing.T) {
	dir := t.TempDir()
	makeTree(t, dir)
	for name, options := range map[string][]string{"lzo": nil, "lzma": nil, "xz and a filter": {"-comp", "xz", "-Xbcj", "x86"}} {
		if options == nil {
			options = []string{"-comp", name}
		}
		data := pack(t, dir, options...)
		for what, err := range map[string]error{
			"walk": Walk(t.Context(), section(data), func(*tar.Header, io.Reader) error { return nil }), "check": CheckCompressor(section(data)),
		} {
			if !errors.Is(err, ErrCompressor) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s of %s: %v", what, name, err)
			}
		}
	}
	for _, options := range [][]string{nil, {"-comp", "xz"}, {"-comp", "xz", "-Xdict-size", "8K"}, {"-comp", "lz4"}, {"-comp", "zstd", "-Xcompression-level", "3"}} {
		if err := CheckCompressor(section(pack(t, dir, options...))); err != nil {
			t.Errorf("%q: %v", options, err)
		}
	}
}

// TestDamaged: a file system with any byte changed is read within bounds or is an error, and a directory that is in itself is an error.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/b"), 0o755), os.WriteFile(filepath.Join(dir, "a/file"), []byte("content"), 0o600),
		os.Symlink("target", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	data := pack(t, dir, "-noI", "-noD", "-noF", "-b", "4096")
	s, err := ReadSuperblock(section(data))
	if err != nil {
		t.Fatal(err)
	}
	data = data[:s.BytesUsed]
	for i := range data {
		for _, b := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			bad := bytes.Clone(data)
			bad[i] = b
			_, _ = describe(t.Context(), bad, 1<<20)
		}
	}
	for size := range data {
		_, _ = describe(t.Context(), data[:size], 1<<20)
	}
	// The entry of b leads to the inode of a instead.
	loops := 0
	list := int(s.DirectoryTable)
	for at := list; at+1 < len(data) && at < list+200; at++ {
		bad := bytes.Clone(data)
		for ref := range 200 {
			binary.LittleEndian.PutUint16(bad[at:], uint16(ref))
			if _, err := describe(t.Context(), bad, 1<<20); err != nil && strings.Contains(err.Error(), "is in itself") {
				loops++
			}
		}
	}
	if loops == 0 {
		t.Error("no directory was found that is in itself")
	}
}

// TestWalkEnds: Walk ends with its context.
func TestWalkEnds(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "hole"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(64<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	data := pack(t, dir, "-b", "1M")
	ctx, cancel := context.WithCancel(t.Context())
	err = Walk(ctx, section(data), func(h *tar.Header, content io.Reader) error {
		if _, err := io.CopyN(io.Discard, content, 3<<20); err != nil || h.Size != 64<<20 {
			t.Errorf("%d bytes, %v", h.Size, err)
		}
		cancel()
		_, err := io.Copy(io.Discard, content)
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// FuzzWalk: no file system makes Walk panic, use much memory, or read more than it is asked for.
func FuzzWalk(f *testing.F) {
	dir := f.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/b"), 0o755), os.WriteFile(filepath.Join(dir, "a/file"), bytes.Repeat([]byte("content "), 2000), 0o600),
		os.WriteFile(filepath.Join(dir, "a/small"), []byte("small"), 0o600), os.Symlink("target", filepath.Join(dir, "link")),
		os.Link(filepath.Join(dir, "a/small"), filepath.Join(dir, "second"))); err != nil {
		f.Fatal(err)
	}
	for _, options := range [][]string{{"-noI", "-noD", "-noF"}, {"-b", "4096"}, {"-comp", "zstd"}, {"-comp", "xz"}, {"-comp", "xz", "-noI"}, {"-comp", "lz4"}, {"-comp", "lz4", "-noI"}, {"-noI", "-noD", "-noF", "-no-fragments", "-b", "4096"}} {
		data := pack(f, dir, options...)
		s, err := ReadSuperblock(section(data))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:s.BytesUsed])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := describe(t.Context(), data, 1<<16)
		for name := range maps.Keys(got) {
			if strings.HasPrefix(name, "/") || strings.Contains("/"+name+"/", "/../") {
				t.Errorf("name %q, %v", name, err)
			}
		}
	})
}
