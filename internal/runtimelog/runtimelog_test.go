package runtimelog

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLastError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	const log = `{"level":"warning","msg":"warned"}` + "\nno json\n" + `{"level":"error","msg":"first"}` + "\n" +
		`{"msg":"second\n line","level":"error"}` + "\n" + `{"level":"debug","msg":"x"}`
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := LastError(path); got != "second line" {
		t.Errorf("%q", got)
	}
	if got := LastError(path + ".none"); got != "" {
		t.Errorf("of a missing file: %q", got)
	}
}

func TestFormatError(t *testing.T) {
	now := time.Date(2026, 5, 9, 8, 7, 6, 5, time.UTC)
	for format, want := range map[string]string{
		"json": `{"level":"error","msg":"a \"b\"","time":"2026-05-09T08:07:06Z"}` + "\n",
		"text": `time="2026-05-09T08:07:06Z" level=error msg="a \"b\""` + "\n",
		"":     `time="2026-05-09T08:07:06Z" level=error msg="a \"b\""` + "\n",
	} {
		if got := FormatError(format, `a "b"`, now); got != want {
			t.Errorf("%q: got %s, want %s", format, got, want)
		}
	}
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(FormatError("json", "why", now)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := LastError(path); got != "why" {
		t.Errorf("read back: %q", got)
	}
}
