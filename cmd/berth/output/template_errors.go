package output

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/spell"
)

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
	if field, ok := strings.CutPrefix(what, "nil pointer evaluating interface {}"); ok {
		return fmt.Sprintf("what is before %s is empty", field)
	}
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
