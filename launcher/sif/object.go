package sif

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/sylabs/sif/v2/pkg/sif"
)

// Object is a data object of a SIF file, as "apptainer sif list" prints it.
type Object struct {
	ID    uint32
	Group uint32 // 0 for none
	// Link is the ID of the object that this one is about, or of a group if LinksGroup; 0 for none.
	Link       uint32
	LinksGroup bool

	Offset, Size int64  // bytes, inside the file
	Type         string // such as "FS (Squashfs/*System/amd64)"
	Name         string // chosen by the author of the file; it can contain control characters
}

// maxText bounds an object that is read into memory, in bytes.
const maxText = 4 << 20

// ReadData returns the bytes of an object of a file that [Read] has read. An object of more than 4 MiB is an error.
func (o Object) ReadData(r io.ReaderAt) ([]byte, error) {
	if o.Size > maxText {
		return nil, fmt.Errorf("its object %d has more than %d MiB", o.ID, maxText>>20)
	}
	data := make([]byte, o.Size)
	if err := readFull(r, data, o.Offset); err != nil {
		return nil, fmt.Errorf("its object %d: %w", o.ID, err)
	}
	return data, nil
}

// Metadata is what "apptainer inspect" shows. Everything in it is chosen by the author of the file, and can contain control
// characters.
type Metadata struct {
	Labels      map[string]string `json:"labels"`
	Environment map[string]string `json:"environment"` // the text of each script below /.singularity.d/env, by its path
	Definition  string            `json:"deffile"`
	Runscript   string            `json:"runscript"`
	Startscript string            `json:"startscript"`
	Test        string            `json:"test"`
	Help        string            `json:"helpfile"`
}

// ReadMetadata reads the metadata of a file that [Read] has read. [Read] ignores metadata: damaged metadata must not
// prevent a launch. Apptainer and SingularityCE write one JSON object, "inspect-metadata.json" (its format is in
// pkg/inspect of Apptainer). In other files, labels and definition can be objects of their own. What a file doesn't
// have is empty.
func (i Image) ReadMetadata(r io.ReaderAt) (Metadata, error) {
	var file struct {
		Data struct {
			Attributes Metadata `json:"attributes"`
		} `json:"data"`
	}
	if o, found := i.findObject(sif.DataGenericJSON, "inspect-metadata.json"); found {
		if err := o.readJSON(r, &file); err != nil {
			return Metadata{}, err
		}
	}
	m := file.Data.Attributes
	if o, found := i.findObject(sif.DataLabels, ""); found && m.Labels == nil {
		if err := o.readJSON(r, &m.Labels); err != nil {
			return Metadata{}, err
		}
	}
	if o, found := i.findObject(sif.DataDeffile, ""); found && m.Definition == "" {
		text, err := o.ReadData(r)
		if err != nil {
			return Metadata{}, err
		}
		m.Definition = string(text)
	}
	return m, nil
}

// findObject returns the first object of a kind whose Type has no details. An empty name stands for any.
func (i Image) findObject(kind sif.DataType, name string) (Object, bool) {
	for _, o := range i.Objects {
		if o.Type == kind.String() && (name == "" || o.Name == name) {
			return o, true
		}
	}
	return Object{}, false
}

func (o Object) readJSON(r io.ReaderAt, into any) error {
	data, err := o.ReadData(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("its object %d (%s): %w", o.ID, o.Type, err)
	}
	return nil
}

func describeObject(d sif.Descriptor) Object {
	link, linksGroup := d.LinkedID()
	return Object{
		ID: d.ID(), Group: d.GroupID(), Link: link, LinksGroup: linksGroup,
		Offset: d.Offset(), Size: d.Size(), Type: describeType(d), Name: d.Name(),
	}
}

// describeType returns the type as siftool prints it.
func describeType(d sif.Descriptor) string {
	kind := d.DataType()
	switch kind {
	case sif.DataPartition:
		if fs, part, arch, err := d.PartitionMetadata(); err == nil {
			name := fs.String()
			if fs == fsGocryptfs {
				name = "Gocryptfs squashfs"
			}
			return fmt.Sprintf("%s (%s/%s/%s)", kind, name, part, arch)
		}
	case sif.DataSignature:
		if hash, _, err := d.SignatureMetadata(); err == nil {
			return fmt.Sprintf("%s (%s)", kind, hash)
		}
	case sif.DataCryptoMessage:
		if format, message, err := d.CryptoMessageMetadata(); err == nil {
			return fmt.Sprintf("%s (%s/%s)", kind, format, message)
		}
	case sif.DataSBOM:
		if format, err := d.SBOMMetadata(); err == nil {
			return fmt.Sprintf("%s (%s)", kind, format)
		}
	}
	return kind.String()
}
