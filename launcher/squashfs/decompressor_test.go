package squashfs

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os/exec"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"pgregory.net/rapid"
)

// listCompressors are those of blocks of a squashfs, by name. That of xz is the program.
func listCompressors(t testing.TB) map[string]func(data []byte) []byte {
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	return map[string]func(data []byte) []byte{
		"gzip": func(data []byte) []byte {
			var b bytes.Buffer
			w := zlib.NewWriter(&b)
			_, err := w.Write(data)
			must(errors.Join(err, w.Close()))
			return b.Bytes()
		},
		"zstd": func(data []byte) []byte {
			w, err := zstd.NewWriter(nil)
			must(err)
			return w.EncodeAll(data, nil)
		},
		"lz4": func(data []byte) []byte {
			b := make([]byte, lz4.CompressBlockBound(len(data)))
			var c lz4.Compressor
			n, err := c.CompressBlock(data, b)
			must(err)
			return b[:n]
		},
		"xz": func(data []byte) []byte { return packXZ(t, data, "--check=crc32") },
	}
}

func packXZ(t testing.TB, data []byte, options ...string) []byte {
	t.Helper()
	cmd := exec.Command("xz", append([]string{"--stdout", "--format=xz"}, options...)...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("xz: %v", err)
	}
	return out
}

// TestDecompressors: each decompressor returns the block that was compressed, in a buffer that is as large or larger; a smaller buffer is an error, and a
// block that was cut off or changed is an error or has no more bytes than the buffer.
func TestDecompressors(t *testing.T) {
	for name, compress := range listCompressors(t) {
		unpack, err := newDecompressor(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			repeated := rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "repeated")
			data := append(bytes.Repeat(repeated, rapid.IntRange(1, 50).Draw(t, "times")), rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "rest")...)
			data = append(data, make([]byte, 64)...) // it gets smaller
			packed := compress(data)
			buf := make([]byte, len(data)+rapid.SampledFrom([]int{0, 1, 5000}).Draw(t, "more"))
			if n, err := unpack(packed, buf); err != nil || !bytes.Equal(buf[:n], data) {
				t.Fatalf("%d bytes, not %d: %v", n, len(data), err)
			}
			small := buf[:rapid.IntRange(0, len(data)-1).Draw(t, "smaller")]
			if n, err := unpack(packed, small); err == nil {
				t.Fatalf("%d bytes in a buffer of %d, of %d", n, len(small), len(data))
			}
			changed := bytes.Clone(packed)[:rapid.IntRange(0, len(packed)).Draw(t, "cut")]
			if len(changed) > 0 {
				changed[rapid.IntRange(0, len(changed)-1).Draw(t, "at")] ^= rapid.Byte().Draw(t, "change")
			}
			if n, err := unpack(changed, buf); n > len(buf) || err == nil && n < 0 {
				t.Fatalf("%d bytes of a damaged block, %v", n, err)
			}
		}))
	}
}

// TestXZStreams: a dictionary of any size in a header needs no memory, filters and other checks are errors, and a wrong checksum is one.
func TestXZStreams(t *testing.T) {
	data := bytes.Repeat([]byte("content "), 1000)
	buf := make([]byte, len(data))
	good := packXZ(t, data, "--check=crc32")
	withDictionary := func(code byte) []byte {
		b := bytes.Clone(good)
		size := (int(b[12]) + 1) * 4
		header := b[12 : 12+size]
		at := bytes.Index(header[:size-4], []byte{xzLZMA2, 1})
		header[at+2] = code
		binary.LittleEndian.PutUint32(header[size-4:], crc32.ChecksumIEEE(header[:size-4]))
		return b
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const fourGiB = 40
	if n, err := unpackXZ(withDictionary(fourGiB), buf); err != nil || !bytes.Equal(buf[:n], data) {
		t.Errorf("a dictionary of 4 GiB: %d bytes, %v", n, err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
		t.Errorf("%d bytes of memory for a block of %d", used, len(data))
	}
	if n, err := unpackXZ(packXZ(t, data, "--check=none"), buf); err != nil || n != len(data) {
		t.Errorf("without a check: %d bytes, %v", n, err)
	}
	if _, err := unpackXZ(packXZ(t, data, "--check=crc64"), buf); !errors.Is(err, errXZ) {
		t.Errorf("CRC64: %v", err)
	}
	if _, err := unpackXZ(packXZ(t, data, "--check=crc32", "--x86", "--lzma2"), buf); !errors.Is(err, ErrCompressor) {
		t.Errorf("a filter: %v", err)
	}
	for at := range good {
		bad := bytes.Clone(good)
		bad[at]++
		n, err := unpackXZ(bad, buf)
		if err == nil && !bytes.Equal(buf[:n], data) {
			t.Errorf("changed at %d: other content", at)
		}
	}
}

// FuzzDecompress: no block makes a decompressor panic or write more than its buffer has.
func FuzzDecompress(f *testing.F) {
	data := bytes.Repeat([]byte("content of a block "), 30)
	all := listCompressors(f)
	names := []string{"gzip", "zstd", "lz4", "xz"}
	for i, name := range names {
		f.Add(all[name](data), uint8(i), uint16(len(data)))
	}
	f.Fuzz(func(t *testing.T, packed []byte, which uint8, size uint16) {
		unpack, err := newDecompressor(names[int(which)%len(names)])
		if err != nil {
			t.Fatal(err)
		}
		const guard = 64
		buf := bytes.Repeat([]byte{0x55}, int(size)+guard)
		n, err := unpack(packed, buf[:size:size])
		if n > int(size) && err == nil {
			t.Errorf("%d bytes in a buffer of %d", n, size)
		}
		if !bytes.Equal(buf[size:], bytes.Repeat([]byte{0x55}, guard)) {
			t.Error("bytes behind the buffer have changed")
		}
	})
}
