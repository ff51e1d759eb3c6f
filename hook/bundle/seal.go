package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
)

// SealAnnotation is in every config.json that berth has written. Its value is a
// digest over the original and over the document itself (with zeros in the
// value's place): it holds only as long as nobody has touched either.
//
// It proves nothing about who wrote the file, and grants nothing.
const SealAnnotation = "dev.berth.bundle"

const blank = "0000000000000000000000000000000000000000000000000000000000000000"

// seal marks an edited document as derived from d.
func (d *Document) seal(edited *Document) *Document {
	out := &Document{raw: annotate(edited.raw, SealAnnotation, blank)}
	copy(out.sealText(), digest(d, out))
	return out
}

// annotate sets an annotation in the text of a document. Key and value need no
// escapes.
func annotate(raw []byte, key, value string) []byte {
	entry := `"` + key + `":"` + value + `"`
	all, ok := find(raw, "annotations")
	if !ok {
		return insert(raw, `"annotations":{`+entry+`}`)
	}
	set := []byte("{" + entry + "}")
	if all.value[0] == '{' {
		set = insert(without(all.value, key), entry)
	}
	return slices.Concat(raw[:all.at], set, raw[all.end:])
}

// insert puts a member first in an object.
func insert(obj []byte, entry string) []byte {
	i := skipSpace(obj, 0) + 1
	if obj[skipSpace(obj, i)] != '}' {
		entry += ","
	}
	return slices.Concat(obj[:i], []byte(entry), obj[i:])
}

// without returns an object without the members of that key.
func without(obj []byte, key string) []byte {
	out := []byte{'{'}
	for _, m := range members(obj) {
		if m.key != key {
			out = appendMember(out, obj[m.start:m.at], m.value)
		}
	}
	return append(out, '}')
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
