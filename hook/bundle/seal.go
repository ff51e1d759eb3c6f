package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// SealAnnotation is in every config.json that berth has written. Its value is a
// digest over the original and over the document itself (with zeros in the
// value's place): it holds only as long as nobody has touched either.
//
// It proves nothing about who wrote the file, and grants nothing.
const SealAnnotation = "dev.berth.bundle"

const blank = "0000000000000000000000000000000000000000000000000000000000000000"

// seal edits d and marks the result as derived from d.
func (d *Document) seal(spec *specs.Spec) (*Document, error) {
	marked := *spec
	marked.Annotations = maps.Clone(spec.Annotations)
	if marked.Annotations == nil {
		marked.Annotations = make(map[string]string, 1)
	}
	marked.Annotations[SealAnnotation] = blank
	out, err := d.Edit(&marked)
	if err != nil {
		return nil, err
	}
	copy(out.sealText(), digest(d, out))
	return out, nil
}

// sealedFrom says that d is, byte for byte, what berth made of the original.
func (d *Document) sealedFrom(original *Document) bool {
	text := d.sealText()
	if text == nil {
		return false
	}
	claimed := string(text)
	blanked := &Document{raw: bytes.Clone(d.raw)}
	copy(blanked.sealText(), blank)
	return digest(original, blanked) == claimed
}

// sealText is the part of d.raw that holds the digest, nil if there is none.
func (d *Document) sealText() []byte {
	annotations, _ := find(d.raw, "annotations")
	m, _ := find(annotations.value, SealAnnotation)
	if len(m.value) != len(blank)+2 || m.value[0] != '"' {
		return nil
	}
	return m.value[1 : len(m.value)-1]
}

func digest(original, derived *Document) string {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(original.raw))))
	h.Write(original.raw)
	h.Write(derived.raw)
	return hex.EncodeToString(h.Sum(nil))
}
