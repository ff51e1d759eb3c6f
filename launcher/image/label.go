package image

import "strings"

// Label is what people ask of an image's labels.
type Label struct {
	Key string `json:"key"`
	// Value is wanted if Valued; otherwise any will do.
	Value  string `json:"value,omitempty"`
	Valued bool   `json:"valued,omitempty"`
	// Not turns it around.
	Not bool `json:"not,omitempty"`
}

// ParseLabel reads "KEY" or "KEY=VALUE".
func ParseLabel(text string) Label {
	var l Label
	l.Key, l.Value, l.Valued = strings.Cut(text, "=")
	return l
}

// Matches says whether labels are as they are asked for.
func (l Label) Matches(labels map[string]string) bool {
	value, there := labels[l.Key]
	return (there && (!l.Valued || value == l.Value)) != l.Not
}

func matchAll(asked []Label, labels map[string]string) bool {
	for _, l := range asked {
		if !l.Matches(labels) {
			return false
		}
	}
	return true
}

// maxLabels is how many bytes of an image's labels a task bears: it is told about in
// small files, and images are written by strangers.
const maxLabels = 64 << 10

// TaskLabels are the labels of a task of the image: its own, which win, and the image's, unless
// those would fill a book.
func (c Config) TaskLabels(own map[string]string) map[string]string {
	size := 0
	for k, v := range c.Labels {
		size += len(k) + len(v)
	}
	if size == 0 || size > maxLabels {
		return own
	}
	all := make(map[string]string, len(c.Labels)+len(own))
	for _, some := range []map[string]string{c.Labels, own} {
		for k, v := range some {
			all[k] = v
		}
	}
	return all
}
