package request

import (
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"

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

// cutCDI takes the words that name CDI devices out of the others. Only these words are
// case-sensitive.
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
	vendor, _, _ := strings.Cut(kind, "/")
	switch {
	case vendor == "berth":
		return parseErrorf("%s is a name for engines; here it is %s", spell.Quote(s, maxWord), spell.Quote(name, maxWord))
	case len(s) > maxCDIName:
		return parseErrorf("a CDI device's name is at most %d bytes long", maxCDIName)
	case !parser.IsQualifiedName(s):
		return parseErrorf("%s isn't the name of a CDI device, as vendor.example/class=name is", spell.Quote(s, maxWord))
	}
	return nil
}
