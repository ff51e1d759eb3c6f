package sif

import (
	"bytes"
	"crypto"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/printable"
	"github.com/google/go-cmp/cmp"
	"github.com/sylabs/sif/v2/pkg/sif"

	"github.com/berth-gpu/berth/launcher/squashfs"
	"golang.org/x/sys/unix"
)

func TestRead(t *testing.T) {
	f := open(t, usual(t))
	got, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0).UTC()
	want := Image{
		ID: fileID, Arch: "arm64", Created: at, Modified: at, Signed: true,
		Root:     Partition{Offset: 12288, Size: 8192, Filesystem: "squashfs", Compressor: "zstd"},
		Overlays: []Partition{{Offset: 20480, Size: 4096, Filesystem: "ext3"}},
		Objects: []Object{
			{ID: 1, Group: 1, Offset: 8776, Size: 16, Type: "Def.FILE"},
			{ID: 2, Group: 1, Offset: 8792, Size: int64(len(inspectMetadata)), Type: "JSON.Generic", Name: "inspect-metadata.json"},
			{ID: 3, Group: 1, Offset: 12288, Size: 8192, Type: "FS (Squashfs/*System/arm64)"},
			{ID: 4, Group: 1, Offset: 20480, Size: 4096, Type: "FS (Ext3/Overlay/arm64)"},
			{ID: 5, Link: 1, LinksGroup: true, Offset: 24576, Size: 6, Type: "Signature (SHA-256)"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := got.CheckArch("arm64"); err != nil {
		t.Error(err)
	}
	if err := got.CheckArch("amd64"); err == nil || err.Error() != "it is for arm64, this machine is amd64" {
		t.Error(err)
	}
}

// TestReadVariants has files that are valid in other ways than the usual one.
func TestReadVariants(t *testing.T) {
	unsigned := writeFile(t, newRoot(t, makeSquashfs(), sif.FsSquash))
	overlay := func(opts ...sif.DescriptorInputOpt) sif.DescriptorInput {
		return newObject(t, sif.DataPartition, makeSquashfs(), append(opts, sif.OptPartitionMetadata(sif.FsSquash, sif.PartOverlay, "arm64"))...)
	}
	for _, c := range []struct {
		name string
		data []byte
		ok   func(Image) bool
	}{
		{"no signature", unsigned, func(i Image) bool { return !i.Signed && i.Overlays == nil }},
		{"no architecture", edit(unsigned, extraOf(0)+8, "00\x00"), func(i Image) bool { return i.Arch == "" && i.CheckArch("amd64") == nil }},
		{"architecture of the partition, not of the header", edit(unsigned, 45, "02\x00"), func(i Image) bool { return i.Arch == "arm64" }},
		{"no launch script", edit(unsigned, 0, strings.Repeat("\x00", 32)), func(i Image) bool { return i.Root.Size == 8192 }},
		{"a time before 1970", edit(unsigned, 64, int64(-1)), func(i Image) bool { return i.Created.IsZero() && !i.Modified.IsZero() }},
		{"a time after 9999", edit(unsigned, 64, int64(1<<62)), func(i Image) bool { return i.Created.IsZero() }},
		{
			"an overlay of squashfs", writeFile(t, newRoot(t, makeSquashfs(), sif.FsSquash), overlay()),
			func(i Image) bool { return len(i.Overlays) == 1 && i.Overlays[0].Compressor == "zstd" },
		},
		{
			"an overlay of another group", writeFile(t, newRoot(t, makeSquashfs(), sif.FsSquash), overlay(sif.OptGroupID(2))),
			func(i Image) bool { return len(i.Overlays) == 0 && len(i.Objects) == 2 },
		},
		{
			"a root of no group", writeFile(t, newObject(t, sif.DataPartition, makeSquashfs(), sif.OptNoGroup(), sif.OptPartitionMetadata(sif.FsSquash, sif.PartPrimSys, "arm64")), overlay()),
			func(i Image) bool { return len(i.Overlays) == 1 },
		},
		{
			"a data partition", writeFile(t, newRoot(t, makeSquashfs(), sif.FsSquash), newObject(t, sif.DataPartition, nil, sif.OptPartitionMetadata(sif.FsRaw, sif.PartData, "arm64"))),
			func(i Image) bool { return len(i.Overlays) == 0 && i.Objects[1].Type == "FS (Raw/Data/arm64)" },
		},
		{
			"an empty object beyond the end", writeFile(t, newRoot(t, makeSquashfs(), sif.FsSquash), newObject(t, sif.DataGeneric, nil, sif.OptObjectAlignment(1<<20))),
			func(i Image) bool { return i.Objects[1].Offset == 1<<20 },
		},
		{
			"a deleted object", edit(edit(usual(t), usedOf(4), byte(0)), offsetOf(4), int64(-1)),
			func(i Image) bool { return len(i.Objects) == 4 && !i.Signed },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Read(open(t, c.data))
			if err != nil {
				t.Fatal(err)
			}
			if !c.ok(got) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// tableOf and the following functions return offsets of a descriptor and its fields in a file of write.
func tableOf(d int) int            { return 4096 + d*descriptorSize }
func usedOf(d int) int             { return tableOf(d) + 4 }
func offsetOf(d int) int           { return tableOf(d) + 17 }
func sizeOf(d int) int             { return tableOf(d) + 25 }
func extraOf(d int) int            { return tableOf(d) + 201 }
func dataOf(b []byte, d int) int64 { return int64At(b, offsetOf(d)) }

// edit returns a copy of data with a value at an offset: a string, or an integer.
func edit(data []byte, offset int, value any) []byte {
	var b bytes.Buffer
	if text, ok := value.(string); ok {
		b.WriteString(text)
	} else if err := binary.Write(&b, binary.LittleEndian, value); err != nil {
		panic(err)
	}
	data = slices.Clone(data)
	copy(data[offset:], b.Bytes())
	return data
}

func TestHostile(t *testing.T) {
	good := usual(t)
	inRoot := func(offset int) int { return int(dataOf(good, 2)) + offset }
	const top = int64(1<<63 - 1)
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "it is no SIF file"},
		{"a text", []byte(strings.Repeat("x", 4096)), "it is no SIF file"},
		{"no magic", edit(good, magicOffset, "SIF_MAGIK"), "it is no SIF file"},
		{"magic at the start", edit(edit(good, magicOffset, "SIF_MAGIK"), 0, magic), "it is no SIF file"},
		{"cut in the magic", good[:41], "it is no SIF file"},
		{"cut in the header", good[:127], "its header: the file ends too early"},
		{"cut after the header", good[:128], "its descriptors lie outside of the file"},
		{"cut in the descriptors", good[:5000], "its descriptors lie outside of the file"},
		{"cut in the root", good[:dataOf(good, 2)+100], "its object 3 lies outside of the file"},
		{"cut before the last byte", good[:len(good)-1], "its object 5 lies outside of the file"},
		{"another version", edit(good, versionOffset, "02"), `its version of SIF is "02\x00": berth reads version 01`},
		{"a version for terminals", edit(good, versionOffset, "\x1b[m"), `its version of SIF is "\x1b[m": berth reads version 01`},

		{"a negative number of descriptors", edit(good, totalOffset, int64(-1)), "its header asks for -1 descriptors: berth reads at most 4096"},
		{"the lowest number of descriptors", edit(good, totalOffset, -top-1), "its header asks for -9223372036854775808 descriptors: berth reads at most 4096"},
		{"many descriptors", edit(edit(good, totalOffset, top), tableSizeOffset, top), "its header asks for 9223372036854775807 descriptors: berth reads at most 4096"},
		{
			"one descriptor too many", append(edit(edit(good, totalOffset, int64(4097)), tableSizeOffset, top), make([]byte, 4097*descriptorSize)...),
			"its header asks for 4097 descriptors: berth reads at most 4096",
		},
		{"more descriptors than the file", edit(edit(good, totalOffset, int64(4096)), tableSizeOffset, top), "its descriptors lie outside of the file"},
		{"more descriptors than their size", edit(good, tableSizeOffset, int64(8*descriptorSize-1)), "its header has 8 descriptors in 4679 bytes"},
		{"a negative size of the descriptors", edit(good, tableSizeOffset, int64(-1)), "its header has 8 descriptors in -1 bytes"},
		{"descriptors beyond the file", edit(good, tableOffsetOffset, top), "its descriptors lie outside of the file"},
		{"descriptors before the file", edit(good, tableOffsetOffset, int64(-4096)), "its descriptors lie outside of the file"},
		{"descriptors in the header", edit(good[:8776], tableOffsetOffset, int64(100)), "its parts overlap: the header and the descriptors"},
		{"no descriptors", edit(good, totalOffset, int64(0)), "it has no root file system"},

		{"an object beyond the file", edit(good, offsetOf(2), int64(len(good))), "its object 3 lies outside of the file"},
		{"an object at the end of numbers", edit(good, offsetOf(2), top), "its object 3 lies outside of the file"},
		{"an object whose end overflows", edit(good, sizeOf(2), top), "its object 3 lies outside of the file"},
		{"an object before the file", edit(good, offsetOf(2), int64(-8192)), "its object 3 lies outside of the file"},
		{"an empty object before the file", edit(edit(good, sizeOf(0), int64(0)), offsetOf(0), int64(-1)), "its object 1 lies outside of the file"},
		{"a negative size", edit(good, sizeOf(2), int64(-1)), "its object 3 lies outside of the file"},
		{"an object in the header", edit(good, offsetOf(0), int64(0)), "its parts overlap: the header and object 1"},
		{"an object in the descriptors", edit(good, offsetOf(0), int64(4090)), "its parts overlap: object 1 and the descriptors"},
		{"an overlay in the root", edit(good, offsetOf(3), dataOf(good, 2)+4096), "its parts overlap: object 3 and object 4"},

		{"no root", edit(good, usedOf(2), byte(0)), "it has no root file system"},
		{"no primary partition", edit(good, extraOf(2)+4, int32(sif.PartSystem)), "it has no root file system"},
		{"two roots", edit(good, extraOf(3)+4, int32(sif.PartPrimSys)), "it has 2 root file systems"},
		{
			"layers", writeFile(t, newObject(t, sif.DataOCIRootIndex, []byte("{}"))),
			"it is an OCI-SIF file, with layers: berth can run only SIF files with one root file system",
		},
		{"an encrypted root", writeFile(t, newRoot(t, makeSquashfs(), sif.FsEncryptedSquashfs)), "its root file system is encrypted: berth can't run it"},
		{"a root in gocryptfs", writeFile(t, newRoot(t, makeSquashfs(), fsGocryptfs)), "its root file system is encrypted: berth can't run it"},
		{"a root in ext3", writeFile(t, newRoot(t, makeSquashfs(), sif.FsExt3)), "its root file system is ext3: berth can run only squashfs"},
		{"a raw root", writeFile(t, newRoot(t, makeSquashfs(), sif.FsRaw)), "its root file system is raw: berth can run only squashfs"},
		{"an archive as root", writeFile(t, newRoot(t, makeSquashfs(), sif.FsImmuObj)), "its root file system is archive: berth can run only squashfs"},
		{"a root of no known kind", writeFile(t, newRoot(t, makeSquashfs(), 99)), "its root file system is unknown: berth can run only squashfs"},

		{"an empty root", edit(good, sizeOf(2), int64(0)), "its root file system is too small for a squashfs"},
		{"a root without superblock", edit(good, sizeOf(2), int64(95)), "its root file system is too small for a squashfs"},
		{"a root that is no squashfs", edit(good, inRoot(0), "sqsh"), "its root file system is no squashfs, but the file says that it is one"},
		{
			"an overlay that is no squashfs", edit(good, extraOf(3), int32(sif.FsSquash)),
			"its overlay (object 4) is no squashfs, but the file says that it is one",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Read(open(t, c.data))
			if err == nil || err.Error() != c.want {
				t.Fatalf("%+v, %v; want %s", got, err, c.want)
			}
			if isNot := c.want == "it is no SIF file"; errors.Is(err, ErrNotSIF) != isNot {
				t.Errorf("ErrNotSIF is %v", isNot)
			}
		})
	}
}

func TestSuperblock(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*squashfs.Superblock)
		want string // compressor or error
	}{
		{"gzip", func(s *squashfs.Superblock) { s.Compression = 1 }, "gzip"},
		{"lzma", func(s *squashfs.Superblock) { s.Compression = 2 }, "lzma"},
		{"lzo", func(s *squashfs.Superblock) { s.Compression = 3 }, "lzo"},
		{"xz", func(s *squashfs.Superblock) { s.Compression = 4 }, "xz"},
		{"lz4", func(s *squashfs.Superblock) { s.Compression = 5 }, "lz4"},
		{"zstd", func(s *squashfs.Superblock) { s.Compression = 6 }, "zstd"},
		{"no compressor", func(s *squashfs.Superblock) { s.Compression = 0 }, "is a squashfs with an unknown compressor (0)"},
		{"unknown compressor", func(s *squashfs.Superblock) { s.Compression = 7 }, "is a squashfs with an unknown compressor (7)"},
		{"highest compressor", func(s *squashfs.Superblock) { s.Compression = 65535 }, "is a squashfs with an unknown compressor (65535)"},
		{"big-endian", func(s *squashfs.Superblock) { s.Magic = [4]byte{'s', 'q', 's', 'h'} }, "is no squashfs, but the file says that it is one"},
		{"version 3", func(s *squashfs.Superblock) { s.Major, s.Minor = 3, 1 }, "is squashfs 3.1: Linux reads version 4.0"},
		{"version 4.1", func(s *squashfs.Superblock) { s.Minor = 1 }, "is squashfs 4.1: Linux reads version 4.0"},
		{"smallest blocks", func(s *squashfs.Superblock) { s.BlockSize, s.BlockLog = 4096, 12 }, "zstd"},
		{"largest blocks", func(s *squashfs.Superblock) { s.BlockSize, s.BlockLog = 1<<20, 20 }, "zstd"},
		{"too small blocks", func(s *squashfs.Superblock) { s.BlockSize, s.BlockLog = 2048, 11 }, "is a squashfs with an invalid block size (2048, log 11)"},
		{"too large blocks", func(s *squashfs.Superblock) { s.BlockSize, s.BlockLog = 2<<20, 21 }, "is a squashfs with an invalid block size (2097152, log 21)"},
		{"no power of two", func(s *squashfs.Superblock) { s.BlockSize = 5000 }, "is a squashfs with an invalid block size (5000, log 17)"},
		{"another logarithm", func(s *squashfs.Superblock) { s.BlockLog = 12 }, "is a squashfs with an invalid block size (131072, log 12)"},
		{"no block size", func(s *squashfs.Superblock) { s.BlockSize, s.BlockLog = 0, 64 }, "is a squashfs with an invalid block size (0, log 64)"},
		{"larger than the partition", func(s *squashfs.Superblock) { s.BytesUsed = 8193 }, "is a squashfs of 8193 bytes in a partition of 8192 bytes"},
		{"largest", func(s *squashfs.Superblock) { s.BytesUsed = 1<<64 - 1 }, "is a squashfs of 18446744073709551615 bytes in a partition of 8192 bytes"},
		{"smaller than the superblock", func(s *squashfs.Superblock) { s.BytesUsed = 95 }, "is a squashfs of 95 bytes in a partition of 8192 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Read(open(t, writeFile(t, newRoot(t, makeSquashfs(c.edit), sif.FsSquash))))
			if err == nil && got.Root.Compressor == c.want || err != nil && err.Error() == "its root file system "+c.want {
				return
			}
			t.Errorf("%q, %v; want %s", got.Root.Compressor, err, c.want)
		})
	}
}

func TestNoRegularFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, fifo, "/dev/zero"} {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := Read(f); err == nil || err.Error() != "it is no regular file" {
			t.Errorf("%s: %v", path, err)
		}
		if IsSIF(f) {
			t.Errorf("%s counts as a SIF file", path)
		}
	}
}

func TestIsSIF(t *testing.T) {
	good := usual(t)
	for _, c := range []struct {
		name string
		data []byte
		want bool
	}{
		{"a SIF file", good, true},
		{"no launch script", edit(good, 0, strings.Repeat("\x00", 32)), true},
		{"magic alone", good[:42], true},
		{"cut in the magic", good[:41], false},
		{"another magic", edit(good, 32, "SIF_MAGIC1"), false},
		{"a script", []byte("#!/usr/bin/env run-singularity\n\nSIF_MAGIX\x00"), false},
		{"empty", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := IsSIF(open(t, c.data)); got != c.want {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestReadMetadata(t *testing.T) {
	full := Metadata{
		Labels: map[string]string{"maintainer": "a"}, Definition: "bootstrap: docker", Runscript: "exec sh",
		Environment: map[string]string{"/.singularity.d/env/90-environment.sh": "export A=1"},
	}
	named := func(data string) sif.DescriptorInput {
		return newObject(t, sif.DataGenericJSON, []byte(data), sif.OptObjectName("inspect-metadata.json"))
	}
	for _, c := range []struct {
		name   string
		inputs []sif.DescriptorInput
		want   Metadata
		err    string
	}{
		{name: "none"},
		{name: "Apptainer's", inputs: []sif.DescriptorInput{newObject(t, sif.DataDeffile, []byte("bootstrap: other")), named(inspectMetadata)}, want: full},
		{
			name:   "labels and definition alone",
			inputs: []sif.DescriptorInput{newObject(t, sif.DataLabels, []byte(`{"a":"b"}`)), newObject(t, sif.DataDeffile, []byte("bootstrap: scratch"))},
			want:   Metadata{Labels: map[string]string{"a": "b"}, Definition: "bootstrap: scratch"},
		},
		{name: "JSON of another name", inputs: []sif.DescriptorInput{newObject(t, sif.DataGenericJSON, []byte(inspectMetadata), sif.OptObjectName("oci-config.json"))}},
		{name: "no JSON", inputs: []sif.DescriptorInput{named("{")}, err: "its object 2 (JSON.Generic): unexpected end of JSON input"},
		{
			name: "labels that are no strings", inputs: []sif.DescriptorInput{newObject(t, sif.DataLabels, []byte(`{"a":1}`))},
			err: "its object 2 (JSON.Labels): json: cannot unmarshal number into Go value of type string",
		},
		{name: "deep JSON", inputs: []sif.DescriptorInput{named(strings.Repeat("[", 1<<20))}, err: "its object 2 (JSON.Generic): invalid character '[' exceeded max depth"},
		{
			name: "too large", inputs: []sif.DescriptorInput{newObject(t, sif.DataDeffile, make([]byte, maxText+1))},
			err: "its object 2 has more than 4 MiB",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(t, writeFile(t, append([]sif.DescriptorInput{newRoot(t, makeSquashfs(), sif.FsSquash)}, c.inputs...)...))
			image, err := Read(f)
			if err != nil {
				t.Fatal(err)
			}
			got, err := image.ReadMetadata(f)
			if err != nil && err.Error() == c.err && c.err != "" {
				return
			}
			if err != nil || c.err != "" || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, %v; want %+v, %s", got, err, c.want, c.err)
			}
		})
	}
}

// TestShrunk has a file that its owner cuts after it was read.
func TestShrunk(t *testing.T) {
	f := open(t, usual(t))
	image, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(f.Name(), 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := image.ReadMetadata(f); err == nil || err.Error() != "its object 2: the file ends too early" {
		t.Error(err)
	}
}

// unreadable is a file on a disk that fails.
type unreadable struct{}

func (unreadable) ReadAt([]byte, int64) (int, error) { return 0, unix.EIO }

func TestUnreadable(t *testing.T) {
	_, err := read(unreadable{}, 1<<20)
	if err == nil || err.Error() != "its header: input/output error" {
		t.Error(err)
	}
}

// changing is a file whose owner writes another header after the first read of it.
type changing struct {
	*bytes.Reader
	data  []byte
	after func([]byte)
}

func (c *changing) ReadAt(b []byte, offset int64) (int, error) {
	n, err := c.Reader.ReadAt(b, offset)
	if len(b) == headerSize && offset == 0 {
		c.after(c.data)
	}
	return n, err
}

// TestChangedHeader: the library decodes the header that was checked. It would panic on the other one.
func TestChangedHeader(t *testing.T) {
	data := usual(t)
	file := &changing{bytes.NewReader(data), data, func(b []byte) { binary.LittleEndian.PutUint64(b[totalOffset:], 1<<62) }}
	image, err := read(file, int64(len(data)))
	if err != nil || len(image.Objects) != 5 {
		t.Errorf("%+v, %v", image, err)
	}
}

// FuzzRead checks that nothing panics, that errors are one line, and that a result lies in the file. Its input changes one of
// several valid files: go test needs minutes to minimize inputs of several KiB.
func FuzzRead(f *testing.F) {
	// Without gaps, mutations hit bytes that matter.
	dense := func(kind sif.DataType, data []byte, opts ...sif.DescriptorInputOpt) sif.DescriptorInput {
		return newObject(f, kind, data, append(opts, sif.OptObjectAlignment(1))...)
	}
	superblockAlone := makeSquashfs(func(s *squashfs.Superblock) { s.BytesUsed = 96 })[:96]
	partition := func(fs sif.FSType, part sif.PartType) sif.DescriptorInput {
		return dense(sif.DataPartition, superblockAlone, sif.OptPartitionMetadata(fs, part, "arm64"))
	}
	signature := dense(sif.DataSignature, []byte("signed"), sif.OptSignatureMetadata(crypto.SHA256, make([]byte, 20)), sif.OptNoGroup(), sif.OptLinkedGroupID(1))
	metadata := dense(sif.DataGenericJSON, []byte(inspectMetadata), sif.OptObjectName("inspect-metadata.json"))
	labels, definition := dense(sif.DataLabels, []byte(`{"a":"b"}`)), dense(sif.DataDeffile, []byte("x"))
	key := dense(sif.DataCryptoMessage, []byte("x"), sif.OptCryptoMessageMetadata(sif.FormatPEM, sif.MessageRSAOAEP))
	bill := dense(sif.DataSBOM, []byte("{}"), sif.OptSBOMMetadata(sif.SBOMFormatSPDXJSON))
	var files [][]byte
	for i, inputs := range [][]sif.DescriptorInput{
		{metadata, partition(sif.FsSquash, sif.PartPrimSys), partition(sif.FsSquash, sif.PartOverlay), signature},
		{partition(sif.FsSquash, sif.PartPrimSys), partition(sif.FsExt3, sif.PartOverlay), labels, definition},
		{partition(sif.FsEncryptedSquashfs, sif.PartPrimSys), key},
		{dense(sif.DataOCIRootIndex, []byte("{}")), bill},
	} {
		files = append(files, moveDescriptors(writeFile(f, inputs...)))
		f.Add(uint(i), uint16(0xffff), []byte(nil))
		f.Add(uint(i), uint16(0xffff), []byte("\x60\x00\x07\xff\xff\xff\xff\xff\xff\xff\x7f\x59\x00\x00\x10"))
	}
	f.Fuzz(func(t *testing.T, file uint, length uint16, edits []byte) {
		data := applyEdits(files[file%uint(len(files))], edits)
		data = data[:min(int(length), len(data))]
		r, size := bytes.NewReader(data), int64(len(data))
		image, err := read(r, size)
		if err != nil {
			checkLine(t, err)
			return
		}
		for _, p := range append(image.Overlays, image.Root) {
			if p.Size > 0 && p.Offset < headerSize || !isInside(p.Offset, p.Size, max(size, p.Offset)) {
				t.Errorf("%+v in a file of %d bytes", p, size)
			}
		}
		if image.Root.Filesystem != "squashfs" || image.Root.Compressor == "" || !IsSIF(r) {
			t.Errorf("%+v", image)
		}
		if _, err := image.Created.MarshalJSON(); err != nil {
			t.Error(err)
		}
		if _, err := image.ReadMetadata(r); err != nil {
			checkLine(t, err)
		}
	})
}

// applyEdits returns a copy of data with edits: two bytes of offset, one of the length of a value, and the value with up to eight bytes.
func applyEdits(data, edits []byte) []byte {
	data = slices.Clone(data)
	for len(edits) > 3 {
		offset, length := int(binary.LittleEndian.Uint16(edits))%len(data), int(edits[2])%8+1
		value := edits[3:min(3+length, len(edits))]
		copy(data[offset:], value)
		edits = edits[3+len(value):]
	}
	return data
}

// checkLine reports an error that terminals can't show in one line.
func checkLine(t *testing.T, err error) {
	t.Helper()
	if printable.Escape(err.Error()) != err.Error() {
		t.Errorf("error %q", err)
	}
}

// moveDescriptors removes the gap between the header and the descriptors in a file of write.
func moveDescriptors(data []byte) []byte {
	const gap = 4096 - headerSize
	data = slices.Delete(slices.Clone(data), headerSize, headerSize+gap)
	binary.LittleEndian.PutUint64(data[tableOffsetOffset:], headerSize)
	for d := range 8 {
		if at := offsetOf(d) - gap; int64At(data, at) > 0 {
			binary.LittleEndian.PutUint64(data[at:], uint64(int64At(data, at)-gap))
		}
	}
	return data
}
