package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
)

// SealAnnotation is in every config.json that berth has written. Its value is a digest
// of the original and of the document itself, with zeros in the place of the digest: it
// matches as long as neither has been changed.
//
// The seal proves no author of the file, and grants nothing.
const SealAnnotation = "dev.berth.bundle"

const blank = "0000000000000000000000000000000000000000000000000000000000000000"

// sealEdited returns the edited document with a seal that marks it as derived from d.
func (d *Document) sealEdited(edited *Document) *Document {
	out := &Document{raw: setAnnotation(edited.raw, SealAnnotation, blank)}
	copy(out.sealText(), sealDigest(d, out))
	return out
}

// setAnnotation sets an annotation in the text of a document. Key and value must not contain
// characters that JSON escapes.
func setAnnotation(raw []byte, key, value string) []byte {
	entry := `"` + key + `":"` + value + `"`
	all, ok := findMember(raw, "annotations")
	if !ok {
		return insertMember(raw, `"annotations":{`+entry+`}`)
	}
	set := []byte("{" + entry + "}")
	if all.value[0] == '{' {
		set = insertMember(withoutMember(all.value, key), entry)
	}
	return slices.Concat(raw[:all.at], set, raw[all.end:])
}

// insertMember puts a member first in an object.
func insertMember(obj []byte, entry string) []byte {
	i := skipSpace(obj, 0) + 1
	if obj[skipSpace(obj, i)] != '}' {
		entry += ","
	}
	return slices.Concat(obj[:i], []byte(entry), obj[i:])
}

// withoutMember returns an object without the members of that key.
func withoutMember(obj []byte, key string) []byte {
	out := []byte{'{'}
	for m := range eachMember(obj) {
		if m.key != key {
			out = appendMember(out, obj[m.start:m.at], m.value)
		}
	}
	return append(out, '}')
}

// isSealedFrom reports whether d is, byte for byte, what berth has made of the original.
func (d *Document) isSealedFrom(original *Document) bool {
	text := d.sealText()
	if text == nil {
		return false
	}
	claimed := string(text)
	blanked := &Document{raw: bytes.Clone(d.raw)}
	copy(blanked.sealText(), blank)
	return sealDigest(original, blanked) == claimed
}

// sealText returns the part of d.raw that holds the digest, nil if there is none.
func (d *Document) sealText() []byte {
	annotations, _ := findMember(d.raw, "annotations")
	m, _ := findMember(annotations.value, SealAnnotation)
	if len(m.value) != len(blank)+2 || m.value[0] != '"' {
		return nil
	}
	return m.value[1 : len(m.value)-1]
}

func sealDigest(original, derived *Document) string {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(original.raw))))
	h.Write(original.raw)
	h.Write(derived.raw)
	return hex.EncodeToString(h.Sum(nil))
}
