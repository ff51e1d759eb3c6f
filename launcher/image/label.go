package image

import (
	"maps"
	"strings"
)

// Label is a condition on the labels of an image.
type Label struct {
	Key string `json:"key"`
	// Value is wanted if Valued; otherwise any will do.
	Value  string `json:"value,omitempty"`
	Valued bool   `json:"valued,omitempty"`
	// Not inverts the condition.
	Not bool `json:"not,omitempty"`
}

// ParseLabel reads "KEY" or "KEY=VALUE".
func ParseLabel(text string) Label {
	var l Label
	l.Key, l.Value, l.Valued = strings.Cut(text, "=")
	return l
}

// Matches reports whether labels meet the condition.
func (l Label) Matches(labels map[string]string) bool {
	value, there := labels[l.Key]
	return (there && (!l.Valued || value == l.Value)) != l.Not
}

// maxLabels bounds the labels that a task takes from its image, in bytes of keys and values.
// They are kept in the task's record, and images are untrusted.
const maxLabels = 64 << 10

// TaskLabels returns the labels of a task of the image: the image's, and the task's own, which
// win. Labels of an image that are larger than maxLabels together are left out.
func (c Config) TaskLabels(own map[string]string) map[string]string {
	size := 0
	for k, v := range c.Labels {
		size += len(k) + len(v)
	}
	if size == 0 || size > maxLabels {
		return own
	}
	all := maps.Clone(c.Labels)
	maps.Copy(all, own)
	return all
}
