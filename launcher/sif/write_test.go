package sif

import (
	"bytes"
	"crypto"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sylabs/sif/v2/pkg/sif"

	"github.com/berth-gpu/berth/launcher/squashfs"
)

const (
	inspectMetadata = `{"data":{"attributes":{"labels":{"maintainer":"a"},"deffile":"bootstrap: docker","runscript":"exec sh",` +
		`"environment":{"/.singularity.d/env/90-environment.sh":"export A=1"}}},"type":"container"}`
	fileID = "00000000-1111-2222-3333-444444444444"
)

// makeSquashfs returns the superblock of a squashfs with zstd, and two pages of zeros.
func makeSquashfs(edits ...func(*squashfs.Superblock)) []byte {
	s := squashfs.Superblock{
		Magic: [4]byte{'h', 's', 'q', 's'}, Inodes: 1, BlockSize: 128 << 10, BlockLog: 17, Compression: 6, Major: 4, BytesUsed: 8192,
	}
	for _, edit := range edits {
		edit(&s)
	}
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, s); err != nil {
		panic(err)
	}
	return append(b.Bytes(), make([]byte, 8192-b.Len())...)
}

func newObject(t testing.TB, kind sif.DataType, data []byte, opts ...sif.DescriptorInputOpt) sif.DescriptorInput {
	t.Helper()
	in, err := sif.NewDescriptorInput(kind, bytes.NewReader(data), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func newRoot(t testing.TB, data []byte, fs sif.FSType) sif.DescriptorInput {
	t.Helper()
	return newObject(t, sif.DataPartition, data, sif.OptPartitionMetadata(fs, sif.PartPrimSys, "arm64"))
}

// writeFile returns the bytes of a SIF file.
func writeFile(t testing.TB, inputs ...sif.DescriptorInput) []byte {
	t.Helper()
	var b sif.Buffer
	_, err := sif.CreateContainer(&b, sif.OptCreateWithDescriptors(inputs...), sif.OptCreateWithDescriptorCapacity(8), sif.OptCreateWithID(fileID),
		sif.OptCreateWithLaunchScript("#!/usr/bin/env run-singularity\n"), sif.OptCreateWithTime(time.Unix(1_700_000_000, 0)))
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// usual returns an image as apptainer build writes it, with an overlay and a signature: definition, metadata, root, overlay, signature.
func usual(t testing.TB) []byte {
	t.Helper()
	return writeFile(t,
		newObject(t, sif.DataDeffile, []byte("bootstrap: other")),
		newObject(t, sif.DataGenericJSON, []byte(inspectMetadata), sif.OptObjectName("inspect-metadata.json")),
		newRoot(t, makeSquashfs(), sif.FsSquash),
		newObject(t, sif.DataPartition, make([]byte, 4096), sif.OptPartitionMetadata(sif.FsExt3, sif.PartOverlay, "arm64")),
		newObject(t, sif.DataSignature, []byte("signed"), sif.OptSignatureMetadata(crypto.SHA256, make([]byte, 20)), sif.OptNoGroup(), sif.OptLinkedGroupID(1)),
	)
}

// open writes data to a file and opens it.
func open(t testing.TB, data []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.sif")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
