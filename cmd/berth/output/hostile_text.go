package output

import (
	"fmt"
	"slices"

	"github.com/berth-gpu/berth/internal/printable"
)

// hostileText is a text of a template's data with characters that printable.Escape replaces. It is printed escaped,
// line breaks and tabs included, so that only the template makes lines and cells. As JSON, in comparisons and for len
// it is the original text. Texts without such characters stay strings.
type hostileText string

// String is the text as it is printed.
func (t hostileText) String() string { return printable.Escape(string(t)) }

// Format prints the text escaped exactly once: %q, %x and %X escape the original.
func (t hostileText) Format(f fmt.State, verb rune) {
	text := string(t)
	if verb != 'q' && verb != 'x' && verb != 'X' {
		text = t.String()
	}
	fmt.Fprintf(f, fmt.FormatString(f, verb), text)
}

func isHostile(text string) bool { return printable.Escape(text) != text }

// protect returns the data of a template with each hostile text as a hostileText. Keys of maps, which must stay
// strings, are escaped instead.
func protect(data any) any {
	switch data := data.(type) {
	case string:
		if isHostile(data) {
			return hostileText(data)
		}
	case []string:
		if slices.ContainsFunc(data, isHostile) {
			return protectTexts(data)
		}
	case map[string]string:
		if hasHostile(data) {
			return protectValues(data)
		}
	case Labels:
		if hasHostile(data) {
			return hostileLabels(protectValues(data))
		}
	case []any:
		all := make([]any, 0, len(data))
		for _, v := range data {
			all = append(all, protect(v))
		}
		return all
	case []map[string]any:
		all := make([]map[string]any, 0, len(data))
		for _, m := range data {
			all = append(all, protectFields(m))
		}
		return all
	case map[string]any:
		return protectFields(data)
	case Fields:
		return Fields(protectFields(data))
	}
	return data
}

func protectFields(m map[string]any) map[string]any {
	all := make(map[string]any, len(m))
	for key, value := range m {
		all[printable.Escape(key)] = protect(value)
	}
	return all
}

func hasHostile(m map[string]string) bool {
	for key, value := range m {
		if isHostile(key) || isHostile(value) {
			return true
		}
	}
	return false
}

func protectTexts(texts []string) []hostileText {
	all := make([]hostileText, 0, len(texts))
	for _, text := range texts {
		all = append(all, hostileText(text))
	}
	return all
}

func protectValues(m map[string]string) map[string]hostileText {
	all := make(map[string]hostileText, len(m))
	for key, value := range m {
		all[printable.Escape(key)] = hostileText(value)
	}
	return all
}

// hostileLabels are Labels of which some are hostile.
type hostileLabels map[string]hostileText

func (l hostileLabels) String() string { return l.labels().String() }

// MarshalText is the text of labels in JSON.
func (l hostileLabels) MarshalText() ([]byte, error) { return l.labels().MarshalText() }

func (l hostileLabels) labels() Labels {
	all := make(Labels, len(l))
	for key, value := range l {
		all[key] = string(value)
	}
	return all
}
