package request

import (
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/spell"
)

// maxCDIName is the length in bytes of a CDI device's name that berth takes.
const maxCDIName = 256

// CDI returns the CDI devices of other vendors that the request names, in their
// order, a gang's by its parts; nil if none.
func (r Request) CDI() []string {
	if r.kind == kindGang {
		var all []string
		for _, p := range r.Parts() {
			all = append(all, p.CDI()...)
		}
		return all
	}
	if r.cdi == "" {
		return nil
	}
	return strings.Split(r.cdi[1:], ",")
}

// cutCDI takes the words that name CDI devices out of the others. They alone are
// read as they are written, for upper and lower case aren't the same there.
func cutCDI(s string) (rest, cdi string, err *parseError) {
	if !strings.Contains(s, "/") {
		return s, "", nil
	}
	var others, names []string
	for word := range strings.SplitSeq(s, ",") {
		name := strings.TrimSpace(word)
		if len(others)+len(names) == 0 {
			name = strings.TrimPrefix(name, "device=")
		}
		if !strings.Contains(name, "/") {
			others = append(others, word)
			continue
		}
		if err := checkCDIName(name); err != nil {
			return "", "", err
		}
		if slices.Contains(names, name) {
			return "", "", parseErrorf("%s is named twice", name)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(others, ","), "," + strings.Join(names, ","), nil
}

func checkCDIName(s string) *parseError {
	kind, name, _ := strings.Cut(s, "=")
	vendor, class, _ := strings.Cut(kind, "/")
	switch {
	case vendor == "berth":
		return parseErrorf("%s is a name for engines; here it is %s", spell.Quote(s, maxWord), spell.Quote(name, maxWord))
	case len(s) > maxCDIName:
		return parseErrorf("a CDI device's name is at most %d bytes long", maxCDIName)
	case !cdiWord(vendor, "._-") || !isASCIILetter(vendor[0]) || !cdiWord(class, "._-") || !isASCIILetter(class[0]) || !cdiWord(name, "._-:"):
		return parseErrorf("%s isn't the name of a CDI device, as vendor.example/class=name is", spell.Quote(s, maxWord))
	}
	return nil
}

// cdiWord says that a part of a CDI name is made of letters, digits and, but for
// its ends, some marks.
func cdiWord(w, marks string) bool {
	if w == "" || strings.ContainsRune(marks, rune(w[0])) || strings.ContainsRune(marks, rune(w[len(w)-1])) {
		return false
	}
	for i := range len(w) {
		if c := w[i]; !isASCIILetter(c) && (c < '0' || c > '9') && !strings.ContainsRune(marks, rune(c)) {
			return false
		}
	}
	return true
}

func isASCIILetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
