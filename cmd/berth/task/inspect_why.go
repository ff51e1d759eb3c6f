package task

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/berth-gpu/berth/cmd/berth/output"
)

func printWhy(w output.StyledWriter, found []inspected) error {
	if len(found) == 0 {
		return nil
	}
	rows := [][]string{{"CONTAINER", "KIND", "WHAT", "WHY"}}
	for _, i := range found {
		if i.Injected == nil {
			why := cmp.Or(i.NotExplained, "it has no lease")
			rows = append(rows, []string{i.name(), "-", "nothing", why})
		}
		for _, x := range i.Injected {
			rows = append(rows, []string{i.name(), x.Kind, output.MakePrintable(x.Name), output.MakePrintable(x.Why)})
		}
		for _, x := range i.Removed {
			kind := "no " + x.Kind
			if x.Kind == "note" {
				kind = x.Kind
			}
			rows = append(rows, []string{i.name(), kind, output.MakePrintable(x.Name), output.MakePrintable(x.Why)})
		}
	}
	if w.Width == 0 {
		return output.PrintTable(w, rows)
	}
	return printWhyNarrow(w, rows[1:])
}

// printWhyNarrow prints the rows of printWhy for a narrow terminal: each reason below its row, and
// the name of a container above its rows.
func printWhyNarrow(w output.StyledWriter, rows [][]string) (err error) {
	printIndented := func(indent int, first, text string) {
		for _, line := range output.WrapWords(text, w.Width-indent) {
			_, more := fmt.Fprintf(w, "%-*s%s\n", indent, first, line)
			err, first = errors.Join(err, more), ""
		}
	}
	name := ""
	for _, row := range rows {
		if row[0] != name {
			name = row[0]
			printIndented(0, "", w.Style(output.Bold, name))
		}
		printIndented(17, "  "+row[1]+" ", row[2])
		printIndented(19, "", row[3])
	}
	return err
}
