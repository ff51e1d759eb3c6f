package launcher

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxEnvLine is far more than the kernel takes of one entry.
const maxEnvLine = 1 << 20

// ParseEnvFile reads what Docker's --env-file has: an entry in each line, NAME=VALUE
// as it stands, without quotes or expansion, or a NAME alone, which lookup is asked
// for and which is left out if it doesn't know it. Empty lines, and those that begin
// with #, are skipped. A nil lookup leaves a NAME alone as "NAME=".
func ParseEnvFile(r io.Reader, lookup func(string) (string, bool)) ([]string, error) {
	var entries []string
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEnvLine)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if n == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		entry, ok, err := envLine(line, lookup)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if ok {
			entries = append(entries, entry)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return entries, nil
}

func envLine(line string, lookup func(string) (string, bool)) (entry string, ok bool, err error) {
	line = strings.TrimLeft(line, " \t")
	if line == "" || strings.HasPrefix(line, "#") {
		return "", false, nil
	}
	name, value, has := strings.Cut(line, "=")
	switch {
	case !utf8.ValidString(line) || strings.ContainsRune(line, 0):
		return "", false, errors.New("not text")
	case !has:
		name = strings.TrimRightFunc(name, unicode.IsSpace)
	}
	switch {
	case name == "":
		return "", false, fmt.Errorf("%q has no name before the =", line)
	case strings.ContainsFunc(name, unicode.IsSpace):
		return "", false, fmt.Errorf("the name %q has white space in it", name)
	case has:
		return name + "=" + value, true, nil
	case lookup == nil:
		return name + "=", true, nil
	}
	value, ok = lookup(name)
	return name + "=" + value, ok, nil
}
