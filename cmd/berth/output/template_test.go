package output

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/testutil"
)

func TestFormatErrors(t *testing.T) {
	columns := NewColumns("ID", "Names", "State")
	rows := []Fields{newFields(columns, []string{"a", "b", "c"})}
	for _, tt := range []struct{ format, want string }{
		{"{{.Id}}", "--format, column 3: there is no field .Id (did you mean ID?); there are ID, Names, State"},
		{`table {{.ID}}\t{{.Nmes}}`, "--format, column 18: there is no field .Nmes (did you mean Names?); there are ID, Names, State"},
		{"{{.ID}} {{.ID", "--format, column 9: unclosed action"},
		{"{{.ID}} {{if .ID}}x", "--format, column 9: unexpected EOF"},
		{"a\n{{.ID}} {{nothing .ID}}", "--format, line 2, column 9: function \"nothing\" not defined"},
		{"{{.ID}} }} {{| .ID}}", "--format, column 12: unexpected \"|\" in command"},
		{"{{json}}", "--format, column 3: wrong number of args for json: want 1 got 0"},
		{"{{pad .ID 9999 0}}", "--format, column 3: error calling pad: pad takes numbers from 0 to 1000"},
		{"{{.ID.x}}", "--format, column 6: can't evaluate field x in type interface {}"},
	} {
		t.Run(tt.format, func(t *testing.T) {
			var b strings.Builder
			err := PrintRows(&b, tt.format, columns, rows)
			var usage verb.UsageError
			if err == nil || !errors.As(err, &usage) || b.Len() > 0 {
				t.Fatalf("%v, and %q is printed", err, b.String())
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestFormatUnknownField: an unknown field is an error even without rows, and in actions that aren't
// reached.
func TestFormatUnknownField(t *testing.T) {
	columns := NewColumns("ID", "Names")
	for _, tt := range []struct{ format, want string }{
		{"{{.Id}}", "--format, column 3: there is no field .Id (did you mean ID?); there are ID, Names"},
		{`table {{.ID}}\t{{.Nmes}}`, "--format, column 18: there is no field .Nmes (did you mean Names?); there are ID, Names"},
		{"{{if .ID}}{{else}}{{upper .Id}}{{end}}", "--format, column 27: there is no field .Id (did you mean ID?); there are ID, Names"},
		{"{{.ID}}\n{{range split .Names \"-\"}}{{$.Nope}}{{end}}", "--format, line 2, column 30: there is no field .Nope; there are ID, Names"},
		{"{{with .Nope.x}}{{end}}", "--format, column 13: there is no field .Nope; there are ID, Names"},
		{"{{with .ID}}{{.Other}}{{end}}", ""},
		{"{{range $i, $part := split .Names \"-\"}}{{$part}}{{end}} {{.Label \"x\"}} {{index (split $.Names \"-\") 1}}", ""},
		{"json", ""},
	} {
		t.Run(tt.format, func(t *testing.T) {
			var b strings.Builder
			got := ""
			if err := PrintRows(&b, tt.format, columns, nil); err != nil {
				got = err.Error()
				if !errors.As(err, new(verb.UsageError)) {
					t.Errorf("%v isn't an error of usage", err)
				}
			}
			if got != tt.want || b.Len() > 0 {
				t.Errorf("got %q and %q is printed, want %q", got, b.String(), tt.want)
			}
		})
	}
}

// TestFormatEscapes: control characters in untrusted text are escaped. Line breaks and tabs of the
// template stay.
func TestFormatEscapes(t *testing.T) {
	var b strings.Builder
	columns := NewColumns("ID")
	if err := PrintRows(&b, "{{.ID}}\\n{{json .ID}}\t.", columns, []Fields{newFields(columns, []string{"\x1b]0;x\a"})}); err != nil {
		t.Fatal(err)
	}
	if want := `\x1b]0;x\a` + "\n" + `"\u001b]0;x\u0007"` + "\t.\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// TestFormatKeepsLinesAndCells: untrusted text adds no lines and no cells, whatever functions of the
// template it passes through. As JSON it is unchanged.
func TestFormatKeepsLinesAndCells(t *testing.T) {
	const hostile = "a\nb\tc\x7f\U000e0001"
	const shown = `a\nb\tc\x7f\U000e0001`
	data := map[string]any{
		"Name": hostile, "Args": []string{"x", hostile}, "Any": []any{hostile, map[string]any{"X": hostile}},
		"Labels": map[string]string{"k": hostile, "a\nb": "v"}, "Mounts": []map[string]any{{"Source": hostile}},
		hostile: 1, "Row": Fields{"Labels": Labels{"k": hostile}},
	}
	for _, tt := range []struct{ format, want string }{
		{"{{.Name}}", shown},
		{"{{.Args}} {{.Labels}} {{.Any}} {{.Mounts}}", "[x " + shown + `] map[a\nb:v k:` + shown + "] [" + shown + " map[X:" + shown + "]] [map[Source:" + shown + "]]"},
		{"{{range .Args}}{{println .}}{{end}}", "x\n" + shown + "\n"},
		{"{{range $key, $value := .Labels}}{{$key}}={{$value}}\n{{end}}", `a\nb=v` + "\nk=" + shown + "\n"},
		{`{{join .Args "\n"}}{{"\t"}}{{join .Any ","}}`, "x\n" + shown + "\t" + shown + ",map[X:" + shown + "]"},
		{`{{printf "%s|%v|%q|%3.1s|%x" .Name .Name .Name .Name "\n"}}`, shown + "|" + shown + `|"a\nb\tc\x7f\U000e0001"|  a|0a`},
		{`{{range split .Name "b"}}{{.}};{{end}}{{index (split .Name "\n") 0}}`, `a\n;\tc\x7f\U000e0001;a`},
		{"{{upper .Name}} {{lower .Name}} {{title .Name}}", `A\nB\tC\x7f\U000e0001 ` + shown + ` A\nB\tC\x7f\U000e0001`},
		{"{{truncate .Name 2}}|{{pad .Name 1 1}}|{{slice .Name 0 2}}", `a\n| ` + shown + ` |a\n`},
		{"{{html .Name}} {{urlquery .Name}}", shown + ` a%5Cnb%5Ctc%5Cx7f%5CU000e0001`},
		{"{{json .Name}} {{json .Args}} {{.Name | json}}", `"a\nb\tc\u007f\udb40\udc01" ["x","a\nb\tc\u007f\udb40\udc01"] "a\nb\tc\u007f\udb40\udc01"`},
		{`{{if eq .Name "a\nb\tc\x7f\U000e0001"}}same {{len .Name}}{{end}}[{{index .Labels "nothing"}}]`, "same 10[]"},
		{`{{.Row.Label "k"}} {{.Row.Label "x"}} {{.Row.Labels}} {{json .Row.Labels}}`, shown + "  k=" + shown + ` "k=a\nb\tc\u007f\udb40\udc01"`},
		{"{{range $key, $value := .Row.Labels}}{{$value}}{{end}}", shown},
	} {
		t.Run(tt.format, func(t *testing.T) {
			tmpl, err := ParseTemplate(tt.format, TemplateFuncs())
			testutil.Must(t, err)
			var b strings.Builder
			testutil.Must(t, PrintTemplate(&b, tmpl, tt.format, data))
			if diff := cmp.Diff(tt.want+"\n", b.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
