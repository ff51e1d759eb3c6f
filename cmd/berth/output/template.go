package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
	"unicode"
	"unicode/utf16"

	"github.com/berth-gpu/berth/internal/printable"
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
