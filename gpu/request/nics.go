package request

import (
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/spell"
)

// AutoNICs is the word for the NICs near the GPUs.
const AutoNICs = "auto"

// NICs returns which NICs are asked for: "auto", a count, or names joined by "+";
// "" if none are. Of a gang it is what each part asks for, without repetition and
// joined by ";".
func (r Request) NICs() string {
	if r.kind != kindGang {
		return r.nics
	}
	var all []string
	for _, p := range r.Parts() {
		if p.nics != "" && !slices.Contains(all, p.nics) {
			all = append(all, p.nics)
		}
	}
	return strings.Join(all, ";")
}

// WithNICs returns the request with NICs, a gang's with them for each part that asks for GPUs. The
// words are those of a flag: "auto", "none", a count, or names with "+" or commas between them. The
// zero Request becomes one of NICs alone; "auto" needs GPUs. NICs that contradict the request's own
// are an [ErrBad].
func (r Request) WithNICs(words string) (Request, error) {
	if r.kind == kindGang {
		return r.changeParts(func(p Request) (Request, error) {
			if !p.GPUs() {
				return p, nil
			}
			return p.WithNICs(words)
		})
	}
	nics, err := parseNICs(strings.ReplaceAll(strings.ToLower(words), ",", "+"))
	if err == nil {
		err = r.allowNICs(words, nics)
	}
	if err != nil {
		err.text = strings.TrimPrefix(r.String()+",nics="+strings.TrimSpace(words), ",")
		return Request{}, err
	}
	if r.nics = nics; r.kind == kindZero && nics != "" {
		r.kind = kindOther
	}
	return r, nil
}

func (r Request) allowNICs(words, nics string) *parseError {
	switch {
	case len(words) > maxRequest/2:
		return parseErrorf("longer than %d bytes", maxRequest/2)
	case r.nics != "" && r.nics != nics:
		return parseErrorf("NICs are asked for as %s and as %s", r.nics, spell.Quote(words, maxWord))
	case nics == AutoNICs && !r.GPUs():
		return parseErrorf("nics=auto needs GPUs that the NICs are near")
	}
	return nil
}

// onlyOther returns a request for CDI devices and NICs without GPUs.
func onlyOther(cdi, nics string) (Request, *parseError) {
	switch {
	case nics == AutoNICs:
		return Request{}, parseErrorf("nics=auto needs GPUs that the NICs are near")
	case cdi+nics == "":
		return Request{}, &parseError{reason: "asks for no GPU", none: true}
	}
	return Request{kind: kindOther, cdi: cdi, nics: nics}, nil
}

// cutNICs reads the words for NICs and returns the others.
func cutNICs(words []string) (rest []string, nics string, err *parseError) {
	found := false
	for _, w := range words {
		key, value, has := strings.Cut(w, "=")
		if key = strings.TrimSpace(key); !has || key != "nics" && key != "nic" {
			rest = append(rest, w)
			continue
		}
		n, err := parseNICs(value)
		switch {
		case err != nil:
			return nil, "", err
		case found && n != nics:
			return nil, "", parseErrorf("NICs are asked for in two ways")
		}
		nics, found = n, true
	}
	return rest, nics, nil
}

// parseNICs reads lower-case words in canonical form: "" for none.
func parseNICs(value string) (string, *parseError) {
	value = strings.TrimSpace(value)
	switch {
	case value == "none":
		return "", nil
	case value == AutoNICs:
		return AutoNICs, nil
	case isNumber(value):
		n, ok := smallNumber(value)
		switch {
		case !ok:
			return "", parseErrorf("no node has so many NICs")
		case n == 0:
			return "", nil
		}
		return strconv.Itoa(n), nil
	}
	var names []string
	for name := range strings.SplitSeq(value, "+") {
		name = strings.TrimSpace(name)
		switch {
		case name == AutoNICs, name == "none", isNumber(name):
			return "", parseErrorf("%s can't be combined with names of NICs", spell.Quote(name, maxWord))
		case !isNICName(name):
			return "", parseErrorf("%s isn't a NIC; known are auto, none, a count (2), and names (mlx5_0+mlx5_3)", spell.Quote(name, maxWord))
		case slices.Contains(names, name):
			return "", parseErrorf("%s is named twice", name)
		case len(names) == maxIDs:
			return "", parseErrorf("names more than %d NICs", maxIDs)
		}
		names = append(names, name)
	}
	return strings.Join(names, "+"), nil
}

// isNICName reports whether w can be the name of an RDMA device in lower case. One
// that reads as a count or as another word can't be asked for by name.
func isNICName(w string) bool {
	if len(w) > maxWord || isNumber(w) || w == AutoNICs || w == "none" {
		return false
	}
	return w != "" && strings.Trim(w, "abcdefghijklmnopqrstuvwxyz0123456789_.-") == ""
}

// joinNICs combines the NICs of two requests; ok is false if they differ.
func joinNICs(a, b string) (nics string, ok bool) {
	if a == "" || a == b {
		return b, true
	}
	return a, b == ""
}
