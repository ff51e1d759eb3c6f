package task

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cmd/berth/output"
)

// TestWhyOnATerminal: each reason is printed below its row, within the terminal's width.
func TestWhyOnATerminal(t *testing.T) {
	var b strings.Builder
	err := printWhyNarrow(output.StyledWriter{Writer: &b, Width: 50}, [][]string{
		{"train", "device", "/dev/nvidia0", "device GPU-4f1a, and more words than fit into one line"},
		{"train", "no capability", "CAP_MKNOD", "it makes nodes"},
	})
	want := "train\n" +
		"  device         /dev/nvidia0\n" +
		"                   device GPU-4f1a, and more words\n" +
		"                   than fit into one line\n" +
		"  no capability  CAP_MKNOD\n" +
		"                   it makes nodes\n"
	if diff := cmp.Diff(want, b.String()); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
