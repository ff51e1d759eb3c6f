package output

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFitTable(t *testing.T) {
	rows := func() [][]string {
		return [][]string{{"ID", "IMAGE", "STATUS", "NAME"}, {"0123", "registry.example/app:1", "up 5m, ends in 2h", "train-large-model"}, {"4567", "app", "up 5m", "x"}}
	}
	ways := []Narrowing{
		{Heading: "IMAGE", Least: 10, Cut: CutLeft},
		{Heading: "ID", Drop: true},
		{Heading: "STATUS", Least: 6, Wrap: true},
		{Heading: "NAME", Least: 6, Wrap: true},
	}
	for _, c := range []struct {
		name  string
		width int
		want  string
	}{
		{"no terminal", 0, "ID|IMAGE|STATUS|NAME\n0123|registry.example/app:1|up 5m, ends in 2h|train-large-model\n4567|app|up 5m|x\n"},
		{"it fits", 66, "ID|IMAGE|STATUS|NAME\n0123|registry.example/app:1|up 5m, ends in 2h|train-large-model\n4567|app|up 5m|x\n"},
		{"no more than needed", 65, "ID|IMAGE|STATUS|NAME\n0123|…gistry.example/app:1|up 5m, ends in 2h|train-large-model\n4567|app|up 5m|x\n"},
		{"a column less, and so less is cut", 53, "IMAGE|STATUS|NAME\n….example/app:1|up 5m, ends in 2h|train-large-model\napp|up 5m|x\n"},
		{"lines", 40, "IMAGE|STATUS|NAME\n…ple/app:1|up 5m,|train-large-model\n|ends in|\n|2h|\napp|up 5m|x\n"},
		{"as narrow as it can be", 5, "IMAGE|STATUS|NAME\n…ple/app:1|up 5m,|train-\n|ends|large-\n|in 2h|model\napp|up 5m|x\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			for _, row := range FitTable(rows(), c.width, ways...) {
				b.WriteString(strings.Join(row, "|") + "\n")
			}
			if diff := cmp.Diff(c.want, b.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
