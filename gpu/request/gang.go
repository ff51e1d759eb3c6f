package request

import (
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/spell"
)

// NewGang joins requests to one whose parts get devices of their own, all of them or none; a single
// part is returned as it is. NICs belong to the gang: two parts that are near the same NIC share it.
// The error is an [ErrBad]: no part, one that asks for nothing or is a gang's itself, or something
// that two parts name.
func NewGang(parts []Request) (Request, error) {
	if len(parts) == 1 && !parts[0].IsZero() {
		return parts[0], nil
	}
	r, err := joinParts(parts)
	if err != nil {
		err.text = partsText(parts)
		return Request{}, err
	}
	return r, nil
}

// Parts returns the requests that a gang's is made of; nil for any other.
func (r Request) Parts() []Request {
	if r.kind != kindGang {
		return nil
	}
	var parts []Request
	for text := range strings.SplitSeq(r.word, ";") {
		p, _ := parsePart(text) // canonical text, so it can be read
		parts = append(parts, p)
	}
	return parts
}

func parseGang(s string) (Request, *parseError) {
	texts := strings.Split(s, ";")
	if len(texts) > maxIDs {
		return Request{}, parseErrorf("a gang of more than %d parts", maxIDs)
	}
	parts := make([]Request, len(texts))
	for i, text := range texts {
		var err *parseError
		if parts[i], err = parsePart(strings.TrimSpace(text)); err != nil {
			err.reason, err.none = "part "+spell.Quote(strings.TrimSpace(text), maxWord)+" of the gang "+err.reason, false
			return Request{}, err
		}
	}
	return joinParts(parts)
}

func joinParts(parts []Request) (Request, *parseError) {
	if len(parts) == 0 || len(parts) > maxIDs {
		return Request{}, parseErrorf("a gang has one to %d parts", maxIDs)
	}
	var named []string
	for _, p := range parts {
		switch p.kind {
		case kindZero:
			return Request{}, parseErrorf("a part of the gang asks for nothing")
		case kindGang:
			return Request{}, parseErrorf("a part of a gang is a gang itself")
		}
		for _, name := range append(p.CDI(), p.IDs()...) {
			if slices.Contains(named, name) {
				return Request{}, parseErrorf("two parts of the gang name %s", name)
			}
			named = append(named, name)
		}
	}
	r := Request{kind: kindGang, word: partsText(parts)}
	if len(r.word) > maxRequest {
		return Request{}, parseErrorf("longer than %d bytes", maxRequest)
	}
	return r, nil
}

func partsText(parts []Request) string {
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.String()
	}
	return strings.Join(texts, ";")
}

// countAll is how many GPUs and slices the parts ask for, 0 if the node decides.
func countAll(parts []Request) (n int) {
	for _, p := range parts {
		if p.kind == kindAll {
			return 0
		}
		n += p.Count()
	}
	return n
}

// changeParts changes the parts of a gang's request.
func (r Request) changeParts(change func(Request) (Request, error)) (Request, error) {
	parts := r.Parts()
	for i := range parts {
		var err error
		if parts[i], err = change(parts[i]); err != nil {
			return Request{}, err
		}
	}
	return NewGang(parts)
}
