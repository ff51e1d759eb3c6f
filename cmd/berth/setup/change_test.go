package setup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/hook/setup"
)

// TestPrintChange: the printed changes, with and without colours.
func TestPrintChange(t *testing.T) {
	edited := setup.Change{
		Path:   "/etc/x.json",
		Before: setup.File{Exists: true, Data: []byte("{\"a\":1}")},
		After:  setup.File{Exists: true, Data: []byte("{\"a\":1,\"b\":2}")},
	}
	changes := []setup.Change{
		edited,
		{Path: "/etc/new", After: setup.File{Exists: true, Data: []byte("x\n")}},
		{Path: "/etc/empty", Before: setup.File{Exists: true}},
		{Path: "/data/link", Before: setup.File{Exists: true, Link: "/old"}, After: setup.File{Exists: true, Link: "/new"}},
	}
	plain := "--- /etc/x.json\n+++ /etc/x.json\n@@ -1 +1 @@\n-{\"a\":1}\n\\ No newline at end of file\n+{\"a\":1,\"b\":2}\n\\ No newline at end of file\n" +
		"--- /dev/null\n+++ /etc/new\n@@ -0,0 +1 @@\n+x\n" +
		"--- /etc/empty\n+++ /dev/null\n" +
		"-link /data/link -> /old\n+link /data/link -> /new\n"
	coloured := "\x1b[1m--- /etc/x.json\x1b[0m\n\x1b[1m+++ /etc/x.json\x1b[0m\n\x1b[36m@@ -1 +1 @@\x1b[0m\n\x1b[31m-{\"a\":1}\x1b[0m\n"
	for _, colours := range []bool{false, true} {
		var b strings.Builder
		p := output.StyledWriter{Writer: &b, Colours: colours}
		for _, c := range changes {
			printChange(p, c)
		}
		switch got := b.String(); {
		case !colours:
			if diff := cmp.Diff(plain, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		case !strings.HasPrefix(got, coloured):
			t.Errorf("got %q", got)
		}
	}
}
