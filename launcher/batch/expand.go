package batch

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Row has the arguments of one task. Names, which may be nil, are the names of the columns.
type Row struct {
	Names  []string
	Values []string
}

// Source is a list of rows. Sources are combined as in GNU parallel: each row of one with each row of the next.
type Source struct {
	Rows []Row
	// Linked sources are combined with the source before them row by row (:::+). A shorter one begins again.
	Linked bool
}

// maxTasks bounds a batch: the product of several sources grows fast.
const maxTasks = 1_000_000

var errTooMany = fmt.Errorf("these arguments make more than %d tasks", maxTasks)

// Combine returns the rows of all sources, each with the values of all of them.
func Combine(sources []Source) (rows []Row, err error) {
	if len(sources) == 0 {
		return nil, errors.New("no arguments were given")
	}
	var groups [][]Row
	for i, s := range sources {
		switch {
		case len(s.Rows) == 0:
			return nil, fmt.Errorf("source %d of arguments is empty", i+1)
		case !s.Linked:
			groups = append(groups, s.Rows)
		case i == 0:
			return nil, errors.New(":::+ has no source before it")
		default:
			groups[len(groups)-1] = linkRows(groups[len(groups)-1], s.Rows)
		}
	}
	rows = groups[0]
	if len(rows) > maxTasks {
		return nil, errTooMany
	}
	for _, g := range groups[1:] {
		if len(rows) > maxTasks/len(g) {
			return nil, errTooMany
		}
		combined := make([]Row, 0, len(rows)*len(g))
		for _, a := range rows {
			for _, b := range g {
				combined = append(combined, joinRows(a, b))
			}
		}
		rows = combined
	}
	return rows, nil
}

func linkRows(a, b []Row) []Row {
	linked := make([]Row, max(len(a), len(b)))
	for i := range linked {
		linked[i] = joinRows(a[i%len(a)], b[i%len(b)])
	}
	return linked
}

// joinRows returns a row with the columns of both. Columns of sources without names have none.
func joinRows(a, b Row) Row {
	r := Row{Values: slices.Concat(a.Values, b.Values)}
	if a.Names != nil || b.Names != nil {
		r.Names = append(a.padNames(), b.padNames()...)
	}
	return r
}

func (r Row) padNames() []string {
	names := make([]string, len(r.Values))
	copy(names, r.Names)
	return names
}

// placeholder is {}, {2}, {name}, or one of these with a modifier: {.} without its extension, {/} the last part of a path, {//} the directory, {/.} both.
// {#} is the task's number. Source: parallel(1). Behind a dollar sign, ${name} is a variable of the command's shell.
const placeholder = `\$?\{([A-Za-z_][A-Za-z0-9_]*|[0-9]+|#)?(//|/\.|/|\.)?\}`

// Filler replaces placeholders. It is made by [NewFiller]: compiling the expression takes longer than many a command of berth.
type Filler struct{ placeholder *regexp.Regexp }

// NewFiller returns a Filler.
func NewFiller() Filler { return Filler{regexp.MustCompile(placeholder)} }

// Fill returns the words with the placeholders replaced by a row's values. If no word has one, the values are appended. {} is replaced by all values,
// and if it is a word by itself, each value is a word. Braces that are no placeholder stay. An unknown column is an error.
func (f Filler) Fill(words []string, row Row, number int) (filled []string, err error) {
	used := false
	for _, word := range words {
		if word == "{}" && len(row.Values) > 0 {
			used = true
			filled = append(filled, row.Values...)
			continue
		}
		text, found, err := f.fillText(word, row, number)
		if err != nil {
			return nil, err
		}
		used = used || found
		filled = append(filled, text)
	}
	if !used {
		filled = append(filled, row.Values...)
	}
	return filled, nil
}

// fillText replaces the placeholders in a text. found means that there were some.
func (f Filler) fillText(text string, row Row, number int) (filled string, found bool, err error) {
	filled = f.placeholder.ReplaceAllStringFunc(text, func(match string) string {
		parts := f.placeholder.FindStringSubmatch(match)
		if !row.hasColumn(match, parts[1]) {
			return match
		}
		found = true
		value, e := row.findValue(match, parts[1], parts[2], number)
		err = errors.Join(err, e)
		return value
	})
	return filled, found, err
}

// hasColumn returns false for braces that belong to the command: those of a shell's variable, names if the columns have no names, and all but {#} if there are
// no values, so that find -exec has its {}.
func (r Row) hasColumn(match, column string) bool {
	if match[0] == '$' || len(r.Values) == 0 && column != "#" {
		return false
	}
	letter := column != "" && column != "#" && (column[0] < '0' || column[0] > '9')
	return !letter || slices.ContainsFunc(r.Names, func(name string) bool { return name != "" })
}

// findValue returns what a placeholder of a column with a modifier stands for.
func (r Row) findValue(match, column, modifier string, number int) (string, error) {
	value := strings.Join(r.Values, " ")
	switch n, err := strconv.Atoi(column); {
	case column == "":
	case column == "#":
		value = strconv.Itoa(number)
	case err == nil && n >= 1 && n <= len(r.Values):
		value = r.Values[n-1]
	case err == nil:
		return "", fmt.Errorf("%s: a task has %d arguments", match, len(r.Values))
	default:
		i := slices.Index(r.Names, column)
		if i < 0 {
			return "", fmt.Errorf("%s: no argument has this name; a command that needs these braces gets them from a file or a variable", match)
		}
		value = r.Values[i]
	}
	switch modifier {
	case ".":
		return withoutExtension(value), nil
	case "/":
		return path.Base(value), nil
	case "//":
		return path.Dir(value), nil
	case "/.":
		return withoutExtension(path.Base(value)), nil
	}
	return value, nil
}

func withoutExtension(name string) string {
	if ext := path.Ext(name); ext != path.Base(name) { // .bashrc has none
		return strings.TrimSuffix(name, ext)
	}
	return name
}
