package image

import (
	"maps"
	"strings"
)

// Label is a condition on the labels of an image.
type Label struct {
	Key string `json:"key"`
	// Value must be equal if Valued; otherwise any value matches.
	Value  string `json:"value,omitempty"`
	Valued bool   `json:"valued,omitempty"`
	// Not inverts the condition.
	Not bool `json:"not,omitempty"`
}

// ParseLabel parses "KEY" or "KEY=VALUE".
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

// maxLabels bounds the labels that a task takes from its image, in bytes of keys and values. The task's
// record contains them, and images are untrusted.
const maxLabels = 64 << 10

// TaskLabels returns the labels of a task: the image's, and the task's own, which win. An image's labels
// that exceed maxLabels are omitted.
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
