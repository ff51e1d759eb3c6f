package setup

import (
	"cmp"
	"fmt"
	"regexp"
)

// version is the first two numbers of what an engine calls itself.
type version struct {
	known        bool
	major, minor int
}

var numbers = regexp.MustCompile(`(\d+)\.(\d+)`)

// whole is a version with what is behind its second number, but for a distribution's part.
var whole = regexp.MustCompile(`\d+\.\d+(\.\d+)*(-[a-z0-9.]+)?`)

func parseVersion(text string) (v version) {
	if m := numbers.FindString(text); m != "" {
		n, err := fmt.Sscanf(m, "%d.%d", &v.major, &v.minor)
		v.known = n == 2 && err == nil
	}
	return v
}

// before says that a version is known to be older than another.
func (v version) before(other string) bool {
	o := parseVersion(other)
	return v.known && cmp.Or(cmp.Compare(v.major, o.major), cmp.Compare(v.minor, o.minor)) < 0
}

// between says that a version is known to be one of those from first on that are older
// than end.
func (v version) between(first, end string) bool {
	return v.known && !v.before(first) && v.before(end)
}

// VersionIn finds the version in what an engine prints of itself, "" if there is none.
func VersionIn(text string) string { return whole.FindString(text) }
