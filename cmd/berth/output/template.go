package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
	"unicode"
	"unicode/utf16"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/spell"
)

// PrintTemplate executes a template with data and prints the result and a line break. It escapes control
// characters, because some of the data comes from images; line breaks and tabs are the template's own. text is the
// template's source, for errors.
func PrintTemplate(w io.Writer, tmpl *template.Template, text string, data any) error {
	data = protect(data)
	var out strings.Builder
	if err := tmpl.Execute(&out, data); err != nil {
		return explainTemplateError(text, data, err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, line := range lines {
		cells := strings.Split(line, "\t")
		for j, cell := range cells {
			cells[j] = printable.Escape(cell)
		}
		lines[i] = strings.Join(cells, "\t")
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

// replaceEscapes replaces the two characters \t and \n by a tab and a line break in the text between
// actions, as docker does: a shell does not replace them in quotes.
func replaceEscapes(n parse.Node) {
	branch := func(b parse.BranchNode) {
		replaceEscapes(b.List)
		if b.ElseList != nil {
			replaceEscapes(b.ElseList)
		}
	}
	switch n := n.(type) {
	case *parse.ListNode:
		for _, one := range n.Nodes {
			replaceEscapes(one)
		}
	case *parse.TextNode:
		n.Text = []byte(strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(string(n.Text)))
	case *parse.IfNode:
		branch(n.BranchNode)
	case *parse.RangeNode:
		branch(n.BranchNode)
	case *parse.WithNode:
		branch(n.BranchNode)
	}
}

// DecodeFields returns a value as maps and slices with the names of its JSON, for a template.
func DecodeFields(v any) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var data any
	if err := d.Decode(&data); err != nil {
		return nil, err
	}
	return convertNumbers(data), nil
}

// convertNumbers replaces each json.Number by an int, or by a float64 if it isn't whole, because templates
// can't compare a json.Number with a number.
func convertNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := strconv.Atoi(v.String()); err == nil {
			return n
		}
		f, _ := v.Float64() // the decoder has checked it
		return f
	case map[string]any:
		for key, value := range v {
			v[key] = convertNumbers(value)
		}
	case []any:
		for i, value := range v {
			v[i] = convertNumbers(value)
		}
	}
	return v
}

// templateName is the name of the template in errors of text/template.
const templateName = "format"

// ParseTemplate parses a template of --format; "json" stands for {{json .}}.
func ParseTemplate(text string, funcs template.FuncMap) (*template.Template, error) {
	if text == "json" {
		text = "{{json .}}"
	}
	t, err := template.New(templateName).Funcs(funcs).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, explainTemplateError(text, nil, err)
	}
	return t, nil
}

// TemplateFuncs returns docker's functions of templates; those of text/template exist too.
func TemplateFuncs() template.FuncMap {
	return template.FuncMap{
		"json": formatJSON,
		"join": joinAll,
		"split": func(v any, sep string) any {
			if t, ok := v.(hostileText); ok {
				return protect(strings.Split(string(t), sep))
			}
			return strings.Split(fmt.Sprint(v), sep)
		},
		"lower": func(v any) any { return changeText(v, strings.ToLower) },
		"upper": func(v any) any { return changeText(v, strings.ToUpper) },
		"title": func(v any) any { return changeText(v, strings.Title) }, //nolint:staticcheck // docker's
		"pad": func(v any, before, after int) (any, error) {
			if before < 0 || after < 0 || before > maxPad || after > maxPad {
				return "", fmt.Errorf("pad takes numbers from 0 to %d", maxPad)
			}
			return changeText(v, func(text string) string {
				if text == "" {
					return ""
				}
				return strings.Repeat(" ", before) + text + strings.Repeat(" ", after)
			}), nil
		},
		"truncate": func(v any, most int) any {
			return changeText(v, func(text string) string {
				runes := []rune(text)
				return string(runes[:max(0, min(most, len(runes)))])
			})
		},
	}
}

// changeText changes a text, or another value in the form of text. A hostileText stays a hostileText.
func changeText(v any, change func(string) string) any {
	if t, ok := v.(hostileText); ok {
		return hostileText(change(string(t)))
	}
	return change(fmt.Sprint(v))
}

// maxPad bounds the arguments of pad, so that a template can't use up the memory.
const maxPad = 1000

// headingFuncs returns the functions of TemplateFuncs for headings, which they leave unchanged.
func headingFuncs() template.FuncMap {
	same := func(heading any, _ ...any) string { return fmt.Sprint(heading) }
	return template.FuncMap{"json": same, "join": same, "split": same, "lower": same, "upper": same, "title": same, "pad": same, "truncate": same}
}

// formatJSON returns v as JSON of printable characters. The escapes that PrintTemplate makes of others are no JSON.
func formatJSON(v any) (string, error) {
	var text, escaped strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	for _, r := range strings.TrimSuffix(text.String(), "\n") {
		switch high, low := utf16.EncodeRune(r); {
		case strconv.IsPrint(r):
			escaped.WriteRune(r)
		case high != unicode.ReplacementChar:
			fmt.Fprintf(&escaped, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&escaped, `\u%04x`, r)
		}
	}
	return escaped.String(), err
}

func joinAll(list any, sep string) (string, error) {
	switch list := list.(type) {
	case nil:
		return "", nil
	case []string:
		return strings.Join(list, sep), nil
	case []hostileText:
		words := make([]string, 0, len(list))
		for _, t := range list {
			words = append(words, t.String())
		}
		return strings.Join(words, sep), nil
	case []any:
		words := make([]string, 0, len(list))
		for _, v := range list {
			words = append(words, fmt.Sprint(v))
		}
		return strings.Join(words, sep), nil
	}
	return "", errors.New("join takes a list")
}

// explainTemplateError turns an error of text/template into a usage error of one line with the position
// in the template. For a field that doesn't exist it lists the fields that do.
func explainTemplateError(text string, data any, err error) error {
	// template: format:LINE[:OFFSET]: [executing "format" at <ACTION>: ]TEXT
	words := strings.SplitN(err.Error(), ":", 5)
	number := func(i int) int {
		if i >= len(words) {
			return 0
		}
		n, _ := strconv.Atoi(words[i])
		return n
	}
	line, column := number(2), 0
	what := strings.TrimSpace(strings.Join(words[min(3, len(words)-1):], ":"))
	var failed template.ExecError
	if errors.As(err, &failed) {
		column = number(3) + 1
		what = strings.TrimSpace(words[len(words)-1])
		if _, after, ok := strings.Cut(what, ">: "); ok {
			what = after
		}
	} else {
		line, column = findBadAction(text, err)
	}
	what = explainField(what, err.Error(), data)
	where := fmt.Sprintf("column %d", column)
	if strings.Contains(text, "\n") {
		where = fmt.Sprintf("line %d, %s", line, where)
	}
	return verb.UsageError{Err: fmt.Errorf("--format, %s: %s", where, printable.Line(what))}
}

// checkFields returns the error of a field that is none of the columns, anywhere in a template. Executing the template
// finds such a field only if there is a row and the action is reached.
func checkFields(tmpl *template.Template, text string, columns []Column) error {
	known := Fields{}
	for _, c := range columns {
		known[c.Name] = ""
	}
	field := findUnknownField(tmpl.Root, known)
	if field == nil {
		return nil
	}
	name := strings.TrimPrefix(field.String(), "$")
	name, _, _ = strings.Cut(strings.TrimPrefix(name, "."), ".")
	at, _ := tmpl.ErrorContext(field)
	// In the form of errors of text/template, which explainTemplateError parses.
	err := fmt.Errorf("template: %s: executing %q at <.%s>: map has no entry for key %q", at, templateName, name, name)
	return explainTemplateError(text, known, template.ExecError{Name: templateName, Err: err})
}

// findUnknownField returns the first field of a row that isn't known, nil if there is none. Within {{range}} and
// {{with}} a field belongs to another value than the row, unless it begins with $.
func findUnknownField(root parse.Node, known Fields) (unknown parse.Node) {
	var walk func(n parse.Node, ofRow bool)
	walkAll := func(nodes []parse.Node, ofRow bool) {
		for _, n := range nodes {
			walk(n, ofRow)
		}
	}
	check := func(n parse.Node, name string) {
		if _, ok := known[name]; !ok && name != "Label" && unknown == nil {
			unknown = n
		}
	}
	branch := func(b parse.BranchNode, ofRow, bodyOfRow bool) {
		walk(b.Pipe, ofRow)
		walkAll(b.List.Nodes, bodyOfRow)
		if b.ElseList != nil {
			walkAll(b.ElseList.Nodes, ofRow)
		}
	}
	walk = func(n parse.Node, ofRow bool) {
		switch n := n.(type) {
		case *parse.ListNode:
			walkAll(n.Nodes, ofRow)
		case *parse.ActionNode:
			walk(n.Pipe, ofRow)
		case *parse.PipeNode:
			for _, c := range n.Cmds {
				walkAll(c.Args, ofRow)
			}
		case *parse.ChainNode:
			walk(n.Node, ofRow)
		case *parse.FieldNode:
			if ofRow {
				check(n, n.Ident[0])
			}
		case *parse.VariableNode:
			if len(n.Ident) > 1 && n.Ident[0] == "$" {
				check(n, n.Ident[1])
			}
		case *parse.IfNode:
			branch(n.BranchNode, ofRow, ofRow)
		case *parse.RangeNode:
			branch(n.BranchNode, ofRow, false)
		case *parse.WithNode:
			branch(n.BranchNode, ofRow, false)
		}
	}
	walk(root, true)
	return unknown
}

// findBadAction returns the position of the action that text/template refuses with err: err has only the line. It
// parses longer and longer beginnings of the text until one fails with the same error.
func findBadAction(text string, err error) (line, column int) {
	at := 0
	for at < len(text) {
		next := strings.Index(text[at:], "{{")
		if next < 0 {
			break
		}
		at += next
		end := len(text)
		if n := strings.Index(text[at:], "}}"); n >= 0 {
			end = at + n + len("}}")
		}
		_, e := template.New(templateName).Funcs(TemplateFuncs()).Parse(text[:end])
		if e != nil && e.Error() == err.Error() || end == len(text) {
			break
		}
		at = end
	}
	before := text[:at]
	return strings.Count(before, "\n") + 1, at - strings.LastIndexByte(before, '\n')
}

// explainField lists the existing fields if what, the end of the error whole of text/template, says that
// a field doesn't exist. It returns what for all other errors.
func explainField(what, whole string, data any) string {
	name, ok := strings.CutPrefix(what, "map has no entry for key ")
	if !ok {
		return what
	}
	name = strings.Trim(name, `"`)
	_, chain, _ := strings.Cut(whole, " at <")
	chain, _, _ = strings.Cut(chain, ">: ")
	above := ""
	for part := range strings.SplitSeq(strings.TrimPrefix(chain, "."), ".") {
		names := fieldNames(data)
		if part == name && names != nil && !slices.Contains(names, name) {
			return fmt.Sprintf("there is no field %s%s; there are %s", above+"."+name, spell.Suggestion(name, names...), strings.Join(names, ", "))
		}
		m, _ := data.(map[string]any)
		data, above = m[part], above+"."+part
	}
	return "there is no field " + name
}

// fieldNames returns the fields of data if it is a map, else nil.
func fieldNames(data any) []string {
	switch m := data.(type) {
	case map[string]any:
		return slices.Sorted(maps.Keys(m))
	case Fields:
		return slices.Sorted(maps.Keys(m))
	case headings:
		return slices.Sorted(maps.Keys(m))
	}
	return nil
}
