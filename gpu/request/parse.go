package request

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/spell"
)

// parseError is a request that couldn't be read.
type parseError struct {
	text, reason string
	none         bool
}

func (e *parseError) Error() string {
	return "request " + spell.Quote(e.text, maxWord) + ": " + e.reason
}

func (e *parseError) Is(target error) bool {
	return target == ErrBad || e.none && target == ErrNone
}

// Parse reads the request language; it never touches the node. Its error
// is an [ErrBad] of one line, or [ErrNone] if nothing is asked for. Time and
// memory are bounded by the length of s, of which no more than 8 KiB are read.
func Parse(s string) (Request, error) {
	r, err := parseRequest(s)
	if err != nil {
		err.text = strings.TrimSpace(s)
		return Request{}, err
	}
	return r, nil
}

func parseErrorf(format string, args ...any) *parseError {
	return &parseError{reason: fmt.Sprintf(format, args...)}
}

func parseRequest(s string) (Request, *parseError) {
	if len(s) > maxRequest {
		return Request{}, parseErrorf("longer than %d bytes", maxRequest)
	}
	s = trimQuotes(s)
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return Request{}, parseErrorf("has a character that requests can't have")
		}
	}
	if strings.Contains(s, ";") {
		return parseGang(s)
	}
	return parsePart(s)
}

// parsePart reads one request of printable characters.
func parsePart(s string) (Request, *parseError) {
	s, cdi, err := cutCDI(s)
	if err != nil {
		return Request{}, err
	}
	if s == "" && cdi != "" {
		return Request{kind: kindOther, cdi: cdi}, nil
	}
	s = strings.ToLower(s)
	s, device := strings.CutPrefix(s, "device=")
	words := strings.Split(s, ",")
	if len(words) > maxIDs {
		return Request{}, parseErrorf("names more than %d devices", maxIDs)
	}
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
	}
	if words[0] == "" && len(words) == 1 {
		return Request{}, &parseError{reason: "asks for no GPU", none: true}
	}
	words, nics, err := cutNICs(words)
	switch {
	case err != nil:
		return Request{}, err
	case len(words) == 0:
		return onlyOther(cdi, nics)
	}
	words, features, err := cutFeatures(words)
	if err != nil {
		return Request{}, err
	}
	r, err := parseDevices(words, device)
	if err != nil {
		err.none = err.none && features+cdi+nics == "" // a feature without a device is a mistake
		return Request{}, err
	}
	r.features, r.cdi, r.nics = features, cdi, nics
	return r, nil
}

func parseDevices(words []string, device bool) (Request, *parseError) {
	if r, isList, err := parseIDs(words, device); isList {
		return r, err
	}
	return parseCount(words)
}

// cutFeatures reads the words with a "+" and returns the others, at least one.
func cutFeatures(words []string) (rest []string, features string, err *parseError) {
	var all []gpu.Feature
	for _, w := range words {
		name, isFeature := strings.CutPrefix(w, "+")
		if !isFeature {
			rest = append(rest, w)
			continue
		}
		f, err := parseFeature(name)
		if err != nil {
			return nil, "", err
		}
		all = append(all, f)
	}
	if len(rest) == 0 {
		return nil, "", parseErrorf("asks for no GPU to go with it")
	}
	features, err = joinFeatures(all)
	return rest, features, err
}

// trimQuotes removes blanks and at most two pairs of quotes: on Docker's command line one pair is
// for the shell and one for Docker's list parser.
func trimQuotes(s string) string {
	s = strings.TrimSpace(s)
	for range 2 {
		if n := len(s); n >= 2 && s[0] == s[n-1] && (s[0] == '"' || s[0] == '\'') {
			s = strings.TrimSpace(s[1 : n-1])
		}
	}
	return s
}

// parseIDs reads a list of ids. isList is false if the words are something else:
// the first isn't an id, or it's a lone number (a count) or one with conditions.
func parseIDs(words []string, device bool) (r Request, isList bool, err *parseError) {
	if _, ok := canonicalID(words[0]); !ok {
		return Request{}, false, nil
	}
	if isNumber(words[0]) && !device && (len(words) == 1 || isCondition(words[1])) {
		return Request{}, false, nil
	}
	ids := make([]string, len(words))
	for i, w := range words {
		id, ok := canonicalID(w)
		switch {
		case isCondition(w):
			return Request{}, true, parseErrorf("a condition goes with a count, not with ids")
		case !ok:
			return Request{}, true, parseErrorf("%s isn't an index, a UUID or a PCI address", spell.Quote(w, maxWord))
		case slices.Contains(ids[:i], id):
			return Request{}, true, parseErrorf("%s is named twice", id)
		}
		ids[i] = id
	}
	return Request{kind: kindIDs, word: strings.Join(ids, ",")}, true, nil
}

// parseCount reads everything but ids: what, how many, and the conditions.
func parseCount(words []string) (Request, *parseError) {
	r := Request{kind: kindCount, count: 1}
	if !isCondition(words[0]) {
		var err *parseError
		if r, err = parseWhat(words[0]); err != nil {
			return Request{}, err
		}
		words = words[1:]
	}
	var mem []memory
	for _, w := range words {
		if !isCondition(w) {
			return Request{}, parseErrorf("%s isn't a condition; known: mem, as in mem>=40G", spell.Quote(w, maxWord))
		}
		m, err := parseMemory(w)
		if err != nil {
			return Request{}, err
		}
		mem = append(mem, m)
	}
	slices.SortFunc(mem, memory.compareTo)
	mem = slices.Compact(mem)
	if len(mem) > len(r.mem) {
		return Request{}, parseErrorf("more than %d conditions", len(r.mem))
	}
	copy(r.mem[:], mem)
	return r, nil
}

// parseWhat reads the word before the conditions: 2, all, h100:2, 1g.10gb.
func parseWhat(w string) (Request, *parseError) {
	if n, isCount := strings.CutPrefix(w, "count="); isCount && (isNumber(n) || n == "all") {
		w = n
	}
	switch {
	case w == "none", w == "void":
		return Request{}, &parseError{reason: "asks for no GPU", none: true}
	case w == "all":
		return Request{kind: kindAll}, nil
	case isNumber(w):
		n, err := parseNumber(w)
		return Request{kind: kindCount, count: n}, err
	}
	if rest, ok := strings.CutPrefix(w, "gpu:"); ok {
		return Request{}, parseErrorf(`Slurm's "gpu:" is left out: %s`, spell.Quote(rest, maxWord))
	}
	word, number, counted := strings.Cut(w, ":")
	word, number = strings.TrimSpace(word), strings.TrimSpace(number)
	switch {
	case counted && word == "":
		return Request{}, parseErrorf(`the model before ":" is missing, as in h100:2; 2 alone is of any model`)
	case counted && isNumber(word) && strings.ContainsFunc(number, isLetter) && !strings.Contains(number, ":"):
		return Request{}, parseErrorf("the model comes before the count, as in h100:2")
	}
	r, err := parseName(word)
	if err != nil || !counted {
		return r, err
	}
	switch {
	case number == "":
		return Request{}, parseErrorf(`the count after ":" is missing, as in h100:2`)
	case !isNumber(number):
		return Request{}, parseErrorf("%s isn't a count, as in h100:2", spell.Quote(number, maxWord))
	}
	r.count, err = parseNumber(number)
	return r, err
}

// parseName reads the name of a profile or of a model.
func parseName(w string) (Request, *parseError) {
	if isNumber(w) {
		return Request{}, parseErrorf("a model needs a letter, as in rtx4090; a slice needs a smaller GPU index")
	}
	odd := strings.ContainsFunc(strings.NewReplacer(" ", "", "_", "").Replace(w), notNameByte)
	w = strings.Join(gpu.NameWords(w), "-")
	if odd || !strings.ContainsFunc(w, isLetter) || w[0] == '+' {
		return Request{}, parseErrorf("known are a count (2), all, a model (h100:2), a MIG profile (1g.10gb:2), " +
			"ids (device=0,3, GPU-…, MIG-…, 0000:1b:00.0), conditions (2,mem>=40G) and NICs (2,nics=auto)")
	}
	if len(w) > maxWord {
		return Request{}, parseErrorf("a name is at most %d bytes long", maxWord)
	}
	if p := strings.TrimPrefix(w, "mig-"); isProfile(p) {
		return Request{kind: kindProfile, word: p, count: 1}, nil
	}
	// A word that is an id, a profile or a count can't be a model.
	_, isID := canonicalID(w)
	if isID || slices.Contains([]string{"all", "none", "void", "mem", "memory", "count", "device"}, w) {
		return Request{}, parseErrorf("%s is no model", spell.Quote(w, maxWord))
	}
	return Request{kind: kindModel, word: w, count: 1}, nil
}

func isLetter(c rune) bool { return c >= 'a' && c <= 'z' }

func notNameByte(c rune) bool {
	return !isLetter(c) && (c < '0' || c > '9') && c != '.' && c != '+' && c != '-'
}

func isNumber(w string) bool {
	return w != "" && strings.Trim(w, "0123456789") == ""
}

// parseNumber reads a count.
func parseNumber(w string) (int, *parseError) {
	n, ok := smallNumber(w)
	switch {
	case !ok:
		return 0, parseErrorf("no node has so many devices; a model needs a letter, as in rtx4090")
	case n == 0:
		return 0, &parseError{reason: `asks for no GPU; the GPU with index 0 is "device=0"`, none: true}
	}
	return n, nil
}

// smallNumber reads digits; ok is false above maxNumber.
func smallNumber(digits string) (n int, ok bool) {
	n, err := strconv.Atoi(digits)
	return n, err == nil && n <= maxNumber
}
