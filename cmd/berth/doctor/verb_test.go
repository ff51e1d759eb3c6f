package doctor

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cmd/berth/output"
)

// TestFindingsOnATerminal: long lines are broken below their text, and --quiet leaves out ok findings.
func TestFindingsOnATerminal(t *testing.T) {
	var b strings.Builder
	printFindings(output.StyledWriter{Writer: &b, Width: 60}, []Finding{
		{State: OK, About: "driver", Text: "550.163.01, 8 GPUs"},
		{State: Failure, About: "links", Text: "no link to a device: /dev/char/195:0; containers lose GPUs", Fix: "berth discover"},
	}, true)
	want := "failure  links          no link to a device:\n" +
		"                        /dev/char/195:0; containers lose\n" +
		"                        GPUs; fix: berth discover\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPrintFindings: the printed findings, with and without colours.
func TestPrintFindings(t *testing.T) {
	all := []Finding{{State: Warning, About: "docker", Text: "isn't\nset up", Fix: "berth setup docker"}}
	for colours, warning := range map[bool]string{false: "warning", true: "\x1b[33mwarning\x1b[0m"} {
		var b strings.Builder
		printFindings(output.StyledWriter{Writer: &b, Colours: colours}, all, false)
		want := warning + "  docker         isn't set up; fix: berth setup docker\n\n0 ok, 1 warning, 0 failures\n"
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
