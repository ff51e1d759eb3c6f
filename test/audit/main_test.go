package main

import (
	"io"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const (
		pass   = `{"Action":"pass","Package":"p","Test":"A"}` + "\n"
		fail   = `{"Action":"fail","Package":"p","Test":"B"}` + "\n"
		skip   = `{"Action":"output","Package":"p","Test":"C","Output":"    x_test.go:1: needs a GPU\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"C"}` + "\n"
		said   = `{"Action":"output","Package":"p","Test":"B","Output":"    x_test.go:2: wrong\n"}` + "\n"
		broken = `{"Action":"fail","Package":"p"}` + "\n"
	)
	for _, tt := range []struct {
		name, in, allow string
		good            bool
		says            string
	}{
		{"all pass", pass + pass, "", true, "2 passed, 0 failed, 0 skipped"},
		{"one fails", pass + fail, "", false, "1 passed, 1 failed, 0 skipped"},
		{"a package doesn't build", pass + broken, "", false, "FAILED: p"},
		{"a skip that nobody expects", pass + skip, "", false, "UNEXPECTED SKIP: p C: x_test.go:1: needs a GPU"},
		{"a skip that is listed", pass + skip, "p C # no GPU here", true, "1 passed, 0 failed, 1 skipped"},
		{"a skip that a pattern foresees", pass + skip, "p C*", true, "1 passed, 0 failed, 1 skipped"},
		{"a pattern for others", pass + skip, "p D*", false, "UNEXPECTED SKIP"},
		{"what a failed test said", said + fail + pass, "", false, "p B:\n    x_test.go:2: wrong\n1 passed, 1 failed"},
		{"nothing", "", "", false, "no test ran"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("BERTH_TEST_ROOT", "1")
			seen, err := read(strings.NewReader(tt.in), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if got := seen.report(&out, allowed(tt.allow)); got != tt.good || !strings.Contains(out.String(), tt.says) {
				t.Errorf("good = %v, want %v; output:\n%swant in it: %s", got, tt.good, out.String(), tt.says)
			}
		})
	}
}

func TestUnended(t *testing.T) {
	const in = `{"Action":"output","Package":"p","Test":"A","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"p"}`
	var out strings.Builder
	if _, err := read(strings.NewReader(in), &out); err != nil || !strings.Contains(out.String(), "panic: test timed out") {
		t.Errorf("%q, %v", out.String(), err)
	}
}
