package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestFaultsPage: each row of docs/faults.md names a test, and each named test exists.
func TestFaultsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/faults.md")
	testutil.Must(t, err)
	tests := regexp.MustCompile("`(?:([a-z./]+):)?(Test[A-Za-z0-9]+)`")
	_, rows, _ := strings.Cut(string(page), "## What fails")
	for row := range strings.Lines(rows) {
		if !strings.HasPrefix(row, "| ") || strings.HasPrefix(row, "| fault ") {
			continue
		}
		named := tests.FindAllStringSubmatch(row, -1)
		if len(named) == 0 {
			t.Errorf("no test is named: %s", row)
		}
	}
	for _, m := range tests.FindAllStringSubmatch(string(page), -1) {
		folder := m[1]
		if folder == "" {
			folder = "test/faults"
		}
		if !testutil.DefinesTest(t, "../..", folder, m[2]) {
			t.Errorf("docs/faults.md names %s, which isn't there", m[0])
		}
	}
}
