// Package verbtest is shared by the tests of the packages of verbs.
package verbtest

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/urfave/cli/v2"
)

var update = flag.Bool("update", false, "write golden files and generated documentation") //nolint:gochecknoglobals // a flag of test binaries

// CompareGolden compares a text with a file, or writes the file if the test has the flag -update.
func CompareGolden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs from what the code says; go test -update writes it. The code says:\n%s", path, got)
	}
}

// ParseFlags returns the context of a verb with these flags, as its action gets it.
func ParseFlags(t *testing.T, flags []cli.Flag, args ...string) (c *cli.Context, err error) {
	t.Helper()
	app := &cli.App{
		Name: "berth", Writer: io.Discard, ErrWriter: io.Discard, Flags: flags, ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error { return err },
		Action:       func(got *cli.Context) error { c = got; return nil },
	}
	err = app.RunContext(t.Context(), append([]string{"berth"}, args...))
	return c, err
}
