// Package sif reads files in the Singularity Image Format (SIF), the images of Apptainer and SingularityCE. It reads what a
// launch or a description of an image needs: the header, the descriptors of the data objects, the metadata that
// "apptainer inspect" shows, and the superblocks of squashfs partitions. Package signature verifies signatures.
//
// SIF files are written by strangers. Every count, offset and size is checked before it is used, so memory and time are
// bounded, whatever the file contains. The format is defined by the package github.com/sylabs/sif/v2/pkg/sif, which decodes the
// descriptors here. That package allocates what the header asks for, so it gets only a header that
// was checked, and a copy of the descriptors: a file that changes meanwhile can't differ from what was checked.
//
// The package doesn't decrypt or mount anything, or read files in a partition. A valid superblock doesn't mean
// that the rest of a file system is valid. The owner of a file can change it after it was read.
package sif

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/sylabs/sif/v2/pkg/sif"

	"github.com/berth-gpu/berth/launcher/squashfs"
)

// ErrNotSIF means that a file doesn't have the magic of a SIF file.
var ErrNotSIF = errors.New("it is no SIF file")

// Image describes a SIF file.
type Image struct {
	ID                string    // UUID of the file
	Arch              string    // GOARCH of the root file system; empty if the file doesn't name one of the known architectures
	Created, Modified time.Time // UTC; zero if the file has no time between 1970 and 9999
	Signed            bool      // there is a signature; it has not been verified

	Root     Partition   // squashfs, with a valid superblock
	Overlays []Partition // to be mounted above Root, in the order of their ids
	Objects  []Object    // all data objects, also those of the partitions
}

// Partition is a file system in a SIF file. Its bytes lie inside the file, and belong to no other object.
type Partition struct {
	Offset, Size int64 // bytes

	// Filesystem is "squashfs", "ext3", "raw", "archive", "encrypted squashfs", "gocryptfs" or "unknown".
	Filesystem string
	// Compressor of a squashfs is "gzip", "lzma", "lzo", "xz", "lz4" or "zstd", the names that mksquashfs has for it.
	Compressor string
}

// Read reads the header and the descriptors of a SIF file. It reads with ReadAt only, and only from regular files. It
// returns an error for files that berth can't run: those without exactly one root file system, or with one that
// isn't a plain squashfs. The error Is [ErrNotSIF] if the file has another format. Errors are phrases
// about the file ("it is …", "its …") for the caller to put the file's name before.
func Read(f *os.File) (Image, error) {
	info, err := f.Stat()
	if err != nil {
		return Image{}, err
	}
	if !info.Mode().IsRegular() {
		return Image{}, errors.New("it is no regular file")
	}
	return read(f, info.Size())
}

// IsSIF reports whether a file starts as a SIF file does, whatever its name. A file that can't be read isn't one.
func IsSIF(r io.ReaderAt) bool {
	got := make([]byte, len(magic))
	n, _ := r.ReadAt(got, magicOffset)
	return n == len(magic) && string(got) == magic
}

// CheckArch returns an error if the root file system is for another architecture than goarch. A file that names no
// architecture passes, as it does in Apptainer.
func (i Image) CheckArch(goarch string) error {
	if i.Arch != "" && i.Arch != goarch {
		return fmt.Errorf("it is for %s, this machine is %s", i.Arch, goarch)
	}
	return nil
}

// read is Read of a file with size bytes.
func read(r io.ReaderAt, size int64) (Image, error) {
	file, objects, err := Load(r, size)
	if err != nil {
		return Image{}, err
	}
	image := Image{ID: file.ID(), Created: sensibleTime(file.CreatedAt()), Modified: sensibleTime(file.ModifiedAt()), Objects: objects}
	var descriptors []sif.Descriptor
	file.WithDescriptors(func(d sif.Descriptor) bool {
		descriptors = append(descriptors, d)
		image.Signed = image.Signed || d.DataType() == sif.DataSignature
		return false
	})
	// The order in which programs write them. Signatures cover it, and not the order of the descriptors in the file.
	slices.SortStableFunc(descriptors, func(a, b sif.Descriptor) int { return cmp.Compare(a.ID(), b.ID()) })
	if err := image.findPartitions(r, descriptors); err != nil {
		return Image{}, err
	}
	return image, nil
}

// Load reads header and descriptors of a file with size bytes, and checks them, for the library of the format. All objects lie inside the file. The
// library reads their data from r when it is asked for them.
func Load(r io.ReaderAt, size int64) (file *sif.FileImage, objects []Object, err error) {
	h, err := readHeader(r, size)
	if err != nil {
		return nil, nil, err
	}
	if file, err = loadDescriptors(r, h); err != nil {
		return nil, nil, err
	}
	file.WithDescriptors(func(d sif.Descriptor) bool {
		objects = append(objects, describeObject(d))
		return false
	})
	return file, objects, checkPlaces(h, objects, size)
}

// findPartitions sets Root, Overlays and Arch.
func (i *Image) findPartitions(r io.ReaderAt, descriptors []sif.Descriptor) error {
	root, err := findRoot(descriptors)
	if err != nil {
		return err
	}
	if i.Root, err = readPartition(r, root, "its root file system"); err != nil {
		return err
	}
	switch i.Root.Filesystem {
	case "squashfs":
	case "encrypted squashfs", "gocryptfs":
		return errors.New("its root file system is encrypted: berth can't run it")
	default:
		return fmt.Errorf("its root file system is %s: berth can run only squashfs", i.Root.Filesystem)
	}
	if _, _, arch, err := root.PartitionMetadata(); err == nil && arch != "unknown" {
		i.Arch = arch
	}
	for _, d := range descriptors {
		if !isPartition(d, sif.PartOverlay) || root.GroupID() != 0 && d.GroupID() != root.GroupID() {
			continue // An overlay of another group belongs to another root, as in Apptainer.
		}
		overlay, err := readPartition(r, d, fmt.Sprintf("its overlay (object %d)", d.ID()))
		if err != nil {
			return err
		}
		i.Overlays = append(i.Overlays, overlay)
	}
	return nil
}

// findRoot returns the only primary partition.
func findRoot(descriptors []sif.Descriptor) (root sif.Descriptor, err error) {
	found, oci := 0, false
	for _, d := range descriptors {
		oci = oci || d.DataType() == sif.DataOCIRootIndex
		if isPartition(d, sif.PartPrimSys) {
			root = d
			found++
		}
	}
	switch {
	case found == 1:
		return root, nil
	case found > 1:
		return root, fmt.Errorf("it has %d root file systems", found)
	case oci:
		return root, errors.New("it is an OCI-SIF file, with layers: berth can run only SIF files with one root file system")
	}
	return root, errors.New("it has no root file system")
}

func isPartition(d sif.Descriptor, want sif.PartType) bool {
	_, kind, _, err := d.PartitionMetadata()
	return err == nil && kind == want
}

// readPartition describes a partition, and checks the superblock of a squashfs. Errors start with what.
func readPartition(r io.ReaderAt, d sif.Descriptor, what string) (Partition, error) {
	fs, _, _, err := d.PartitionMetadata()
	if err != nil {
		return Partition{}, fmt.Errorf("%s: %w", what, err)
	}
	p := Partition{Offset: d.Offset(), Size: d.Size(), Filesystem: nameFilesystem(fs)}
	if fs != sif.FsSquash {
		return p, nil
	}
	s, err := squashfs.ReadSuperblock(io.NewSectionReader(r, p.Offset, p.Size))
	if err != nil {
		return p, fmt.Errorf("%s %w", what, err)
	}
	p.Compressor = s.Compressor()
	return p, nil
}

// fsGocryptfs is FsGocryptfsSquashfs of Apptainer's version of the library (github.com/apptainer/sif/v2/pkg/sif).
const fsGocryptfs = sif.FsEncryptedSquashfs + 1

func nameFilesystem(fs sif.FSType) string {
	switch fs {
	case sif.FsSquash:
		return "squashfs"
	case sif.FsExt3:
		return "ext3"
	case sif.FsImmuObj:
		return "archive"
	case sif.FsRaw:
		return "raw"
	case sif.FsEncryptedSquashfs:
		return "encrypted squashfs"
	case fsGocryptfs:
		return "gocryptfs"
	}
	return "unknown"
}

// sensibleTime returns the zero time for times that JSON and tables can't show.
func sensibleTime(t time.Time) time.Time {
	t = t.UTC()
	if t.Year() < 1970 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}
