package output

import (
	"io"
	"maps"
	"slices"
	"strings"
	"text/template"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/internal/printable"
)

// FormatFlag returns --format for verbs that print rows. one and two are fields for the example in its help.
func FormatFlag(one, two string) cli.Flag {
	return &cli.StringFlag{Name: "format", Usage: "print each row by a Go `TEMPLATE`, as docker does: '{{." + one + "}}', 'table {{." + one + "}}\\t{{." + two + "}}' or json"}
}

// HasFormat reports whether --format is given with another value than "table", the default output.
func HasFormat(c *cli.Context) bool { return c.String("format") != "" && c.String("format") != "table" }

// Column is a field of a row of --format, with the heading that it has in a table.
type Column struct{ Name, Heading string }

// NewColumns returns columns whose headings are their names in capitals.
func NewColumns(names ...string) (all []Column) {
	for _, name := range names {
		all = append(all, Column{name, strings.ToUpper(name)})
	}
	return all
}

// Fields is the data of a template for one row, by the names of columns.
type Fields map[string]any

// Label is docker's {{.Label "key"}}.
func (f Fields) Label(key string) string {
	switch l := f["Labels"].(type) {
	case Labels:
		return l[key]
	case hostileLabels:
		return l[key].String()
	}
	return ""
}

// newFields returns the cells of a row by the names of their columns.
func newFields(columns []Column, cells []string) Fields {
	f := Fields{}
	for i, c := range columns {
		f[c.Name] = cells[i]
	}
	return f
}

// Headings returns the headings of columns.
func Headings(columns []Column) (all []string) {
	for _, c := range columns {
		all = append(all, c.Heading)
	}
	return all
}

// PrintTableRows prints the rows of a table by a template of --format.
func PrintTableRows(w io.Writer, format string, columns []Column, cells [][]string) error {
	rows := make([]Fields, 0, len(cells))
	for _, row := range cells {
		rows = append(rows, newFields(columns, row))
	}
	return PrintRows(w, format, columns, rows)
}

// Labels are printed as one text by templates and in JSON: "a=1,b=2".
type Labels map[string]string

// String returns one line without control characters: images write labels too.
func (l Labels) String() string { return printable.Escape(l.join()) }

func (l Labels) join() string {
	words := make([]string, 0, len(l))
	for _, key := range slices.Sorted(maps.Keys(l)) {
		words = append(words, key+"="+l[key])
	}
	return strings.Join(words, ",")
}

// MarshalText is the text of labels in JSON.
func (l Labels) MarshalText() ([]byte, error) { return []byte(l.join()), nil }

// headings is the data of the template for a table's first line: the heading of each field.
type headings map[string]string

// Label returns the heading of {{.Label "key"}}: the last word of the key, as docker does.
func (h headings) Label(key string) string {
	return strings.NewReplacer("-", " ", "_", " ").Replace(key[strings.LastIndexByte(key, '.')+1:])
}

// PrintRows prints each row with a template of --format. "json" is short for {{json .}}. With the prefix
// "table" the rows are aligned at tabs, and their headings come first. An unknown field is an error even if there are
// no rows.
func PrintRows(w io.Writer, format string, columns []Column, rows []Fields) error {
	format = strings.Trim(format, " ")
	tmpl, err := ParseTemplate(format, TemplateFuncs())
	if err != nil {
		return err
	}
	if err := checkFields(tmpl, format, columns); err != nil {
		return err
	}
	replaceEscapes(tmpl.Root)
	if strings.HasPrefix(format, tablePrefix) {
		return printTemplateTable(w, tmpl, format, columns, rows)
	}
	for _, row := range rows {
		if err := PrintTemplate(w, tmpl, format, row); err != nil {
			return err
		}
	}
	return nil
}

// tablePrefix is the prefix of a template for tables. It is a part of the parsed template, so that
// columns in errors are right, and so each line of the output begins with it.
const tablePrefix = "table "

func printTemplateTable(w io.Writer, tmpl *template.Template, format string, columns []Column, rows []Fields) error {
	names := headings{}
	for _, c := range columns {
		names[c.Name] = c.Heading
	}
	head, err := tmpl.Clone()
	if err != nil {
		return err
	}
	var lines strings.Builder
	if err := PrintTemplate(&lines, head.Funcs(headingFuncs()), format, names); err != nil {
		return err
	}
	for _, row := range rows {
		if err := PrintTemplate(&lines, tmpl, format, row); err != nil {
			return err
		}
	}
	var cells [][]string
	for line := range strings.Lines(lines.String()) {
		cells = append(cells, strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, tablePrefix), "\n"), "\t"))
	}
	return PrintTable(w, cells)
}

// PrintByTemplate prints a value by a template of --format whose fields are those of the value's
// JSON. "json" stands for {{json .}}.
func PrintByTemplate(w io.Writer, format string, v any) error {
	data, err := DecodeFields(v)
	if err != nil {
		return err
	}
	tmpl, err := ParseTemplate(format, TemplateFuncs())
	if err != nil {
		return err
	}
	return PrintTemplate(w, tmpl, format, data)
}
